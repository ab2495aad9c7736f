// max_pool: window for gfx942
//
// kernel max_pool(x: f32[b=2,c=3,h=19,w=17]) -> (y: f32[b,c,i=9,j=8]) {
//   y[b,c,i,j] = max(r=3,s=3) x[b,c,2 * i + r,2 * j + s - 1 | -inf]
// }
//
// Written by kvc, emitter hip.window 1; BLOCK=256, WIDTH=1.
// Launch: max_pool(x, y), grid 2 x 1 x 1, block 256 x 1 x 1.

#include <hip/hip_runtime.h>

constexpr int BLOCK = 256;  // threads a workgroup
constexpr int POINTS = 432;
constexpr int R_SIZE = 3;
constexpr int S_SIZE = 3;

// The larger value; NaN wins.
template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
max_pool(const float* __restrict__ x, float* __restrict__ y) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= POINTS) return;
  float y_value = -INFINITY;
  #pragma unroll
  for (int r = 0; r < R_SIZE; ++r) {
    #pragma unroll
    for (int s = 0; s < S_SIZE; ++s) {
      const float x_value = i % 8 * 2 + s - 1 >= 0 ? x[i / 72 * 323 + i / 8 % 9 * 34 + r * 17 + i % 8 * 2 + s - 1] : -INFINITY;
      y_value = maximum(y_value, x_value);
    }
  }
  y[i] = y_value;
}

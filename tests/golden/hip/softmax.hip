// softmax: row reduction for gfx942
//
// kernel softmax(x: f32[m=37,k=301]) -> (y: f32[m,k]) {
//   mx: f32[m] = max(k) x[m,k]
//   e: f32[m,k] = exp(x[m,k] - mx[m])
//   s: f32[m] = sum(k) e[m,k]
//   y[m,k] = e[m,k] / s[m]
// }
//
// Written by kvc, emitter hip.rows 1; BLOCK=128, ROW_THREADS=128, WIDTH=1.
// Launch: softmax(x, y), grid 37 x 1 x 1, block 128 x 1 x 1.

#include <hip/hip_runtime.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif

constexpr int BLOCK = 128;  // threads a workgroup
constexpr int ROW_THREADS = 128;  // threads that share a row
constexpr int WIDTH = 1;  // consecutive elements a thread moves at once
constexpr int ROWS = 37;
constexpr int CHUNKS = 301;  // of WIDTH elements a row
constexpr int ITEMS = (CHUNKS + ROW_THREADS - 1) / ROW_THREADS;  // chunks a thread
constexpr int ROW_LANES = ROW_THREADS < KVC_WAVE_SIZE ? ROW_THREADS : KVC_WAVE_SIZE;  // within one wave
constexpr int ROW_WAVES = ROW_THREADS / ROW_LANES;

// The larger value; NaN wins.
template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

// Combine one value of each thread of a row; all of them get the result.
template <class T, class Combine>
__device__ __forceinline__ T row_reduce(T value, Combine combine) {
  #pragma unroll
  for (int mask = ROW_LANES / 2; mask > 0; mask /= 2) value = combine(value, __shfl_xor(value, mask));
  if constexpr (ROW_WAVES > 1) {
    __shared__ T partial[BLOCK / KVC_WAVE_SIZE];
    const int wave = threadIdx.x / KVC_WAVE_SIZE;
    const int first = threadIdx.x / ROW_THREADS * ROW_WAVES;
    if (threadIdx.x % KVC_WAVE_SIZE == 0) partial[wave] = value;
    __syncthreads();
    value = partial[first];
    #pragma unroll
    for (int w = 1; w < ROW_WAVES; ++w) value = combine(value, partial[first + w]);
    __syncthreads();
  }
  return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
softmax(const float* __restrict__ x, float* __restrict__ y) {
  const int lane = threadIdx.x % ROW_THREADS;
  const int row = blockIdx.x;
  float x_row[ITEMS * WIDTH];
  float e_row[ITEMS * WIDTH];
  float mx = -INFINITY;
  #pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = item * ROW_THREADS + lane;
    if (column < CHUNKS) {
      const float x_value = x[row * 301 + column];
      x_row[item] = x_value;
      mx = maximum(mx, x_value);
    }
  }
  mx = row_reduce(mx, [](float a, float b) { return maximum(a, b); });
  float s = 0.0f;
  #pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = item * ROW_THREADS + lane;
    if (column < CHUNKS) {
      const float e = expf(x_row[item] - mx);
      e_row[item] = e;
      s += e;
    }
  }
  s = row_reduce(s, [](float a, float b) { return a + b; });
  #pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int column = item * ROW_THREADS + lane;
    if (column < CHUNKS) {
      y[row * 301 + column] = e_row[item] / s;
    }
  }
}

// scattered: generic for gfx942
//
// kernel scattered(x: f32[n=50,d=8], i: i64[n]) -> (y: bf16[v=20,d], z: f32[v,d], w: f32[v,d], p: f32[v,d]) {
//   y[v,d] = scatter sum(n,e=8 -> i[n],e ; 0.0) x[n,e]
//   z[v,d] = scatter max(n,e -> i[n],e ; -3.0) x[n,e]
//   w[v,d] = scatter set(n,e -> i[n],e ; 1.0) x[n,e]
//   p[v,d] = scatter prod(n,e -> i[n],e ; 1.0) x[n,e]
// }
//
// Written by kvc, emitter hip.generic 1.
// Launch: scattered_y_base(y_total), grid 1 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_y_add(x, i, y_total), grid 2 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_y_round(y, y_total), grid 1 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_z_base(z), grid 1 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_z(x, i, z), grid 2 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_w_clear(w_winner), grid 1 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_w_claim(i, w_winner), grid 2 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_w(x, w, w_winner), grid 1 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_p_base(p), grid 1 x 1 x 1, block 256 x 1 x 1.
// Launch: scattered_p(x, i, p), grid 2 x 1 x 1, block 256 x 1 x 1.
// Scratch: y_total, 160 elements of f32.
// Scratch: w_winner, 160 elements of i64.

#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>

constexpr int BLOCK = 256;  // threads a workgroup
constexpr int V_SIZE = 20;
constexpr int D_SIZE = 8;
constexpr int N_SIZE = 50;
constexpr int E_SIZE = 8;

// Replace *address by combine(*address, value), atomically, by compare and swap of its bits.
template <class T, class Word, class Combine>
__device__ __forceinline__ void atomic_combine(T* address, T value, Combine combine) {
  union Bits {
    T value;
    Word word;
  };
  Word* words = reinterpret_cast<Word*>(address);
  Bits seen, next;
  seen.word = *words;
  while (true) {
    next.value = combine(seen.value, value);
    const Word found = atomicCAS(words, seen.word, next.word);
    if (found == seen.word) return;
    seen.word = found;
  }
}

// The larger value; NaN wins.
template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_y_base(float* __restrict__ y_total) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= V_SIZE * D_SIZE) return;
  y_total[i] = 0.0f;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_y_add(const float* __restrict__ x, const long long* __restrict__ i_, float* __restrict__ y_total) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= N_SIZE * E_SIZE) return;
  const float x_value = x[i];
  const long long i_value = i_[i / 8];
  atomicAdd(&y_total[(int)i_value * 8 + i % 8], x_value);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_y_round(__hip_bfloat16* __restrict__ y, const float* __restrict__ y_total) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= V_SIZE * D_SIZE) return;
  y[i] = __float2bfloat16(y_total[i]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_z_base(float* __restrict__ z) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= V_SIZE * D_SIZE) return;
  z[i] = -3.0f;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_z(const float* __restrict__ x, const long long* __restrict__ i_, float* __restrict__ z) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= N_SIZE * E_SIZE) return;
  const float x_value = x[i];
  const long long i_value = i_[i / 8];
  atomic_combine<float, unsigned int>(&z[(int)i_value * 8 + i % 8], x_value, [](float a, float b) { return maximum(a, b); });
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_w_clear(long long* __restrict__ w_winner) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= V_SIZE * D_SIZE) return;
  w_winner[i] = -1;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_w_claim(const long long* __restrict__ i_, long long* __restrict__ w_winner) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= N_SIZE * E_SIZE) return;
  const long long i_value = i_[i / 8];
  atomicMax(&w_winner[(int)i_value * 8 + i % 8], (long long)i);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_w(const float* __restrict__ x, float* __restrict__ w, const long long* __restrict__ w_winner) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= V_SIZE * D_SIZE) return;
  const int source = w_winner[i];
  float result;
  if (source >= 0) {
    const float x_value = x[source];
    result = x_value;
  } else {
    result = 1.0f;
  }
  w[i] = result;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_p_base(float* __restrict__ p) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= V_SIZE * D_SIZE) return;
  p[i] = 1.0f;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scattered_p(const float* __restrict__ x, const long long* __restrict__ i_, float* __restrict__ p) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= N_SIZE * E_SIZE) return;
  const float x_value = x[i];
  const long long i_value = i_[i / 8];
  atomic_combine<float, unsigned int>(&p[(int)i_value * 8 + i % 8], x_value, [](float a, float b) { return a * b; });
}

// loss: split row reduction for gfx942
//
// kernel loss(x: f32[m=120,k=177], z: f32[m,k]) -> (y: f32[], a: bool[], mx: bf16[]) {
//   s: f32[] = sum(m,k) (x[m,k] - z[m,k]) * (x[m,k] - z[m,k])
//   y[] = s[] / 21240.0
//   a[] = all(m,k) x[m,k] < 4.5
//   mx[] = max(m,k) x[m,k]
// }
//
// Written by kvc, emitter hip.split_rows 1; SEGMENTS=5, WIDTH=8.
// Launch: loss_s_a_mx(x, z, s_partial, a_partial, mx_partial), grid 5 x 1 x 1, block 256 x 1 x 1.
// Launch: loss(y, a, mx, s_partial, a_partial, mx_partial), grid 1 x 1 x 1, block 256 x 1 x 1.
// Scratch: s_partial, 5 elements of f32.
// Scratch: a_partial, 5 elements of bool.
// Scratch: mx_partial, 5 elements of f32.

#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif

constexpr int BLOCK = 256;  // threads a workgroup
constexpr int SEGMENTS = 5;  // workgroups a row
constexpr int WIDTH = 8;  // consecutive elements a thread moves at once
constexpr int CHUNKS = 2655;  // of WIDTH elements a row
constexpr int SEGMENT = (CHUNKS + SEGMENTS - 1) / SEGMENTS;  // chunks a workgroup
constexpr int ROW_THREADS = BLOCK;
constexpr int ROW_LANES = KVC_WAVE_SIZE;
constexpr int ROW_WAVES = ROW_THREADS / ROW_LANES;

// COUNT elements that move in accesses of up to 16 bytes.
template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT < 16 ? sizeof(T) * COUNT : 16) Pack {
  T lane[COUNT];
  // Lane by lane: an array of packs then stays in registers, which copies of whole structs do not always.
  __device__ __forceinline__ void set(Pack other) {
    #pragma unroll
    for (int v = 0; v < COUNT; ++v) lane[v] = other.lane[v];
  }
};

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
loss_s_a_mx(const float* __restrict__ x,
            const float* __restrict__ z,
            float* __restrict__ s_partial,
            bool* __restrict__ a_partial,
            float* __restrict__ mx_partial) {
  const int lane = threadIdx.x;
  const int row = blockIdx.x / SEGMENTS;
  const int first = blockIdx.x % SEGMENTS * SEGMENT;
  const int last = CHUNKS < first + SEGMENT ? CHUNKS : first + SEGMENT;
  float s = 0.0f;
  bool a_value1 = true;
  float mx_value = -INFINITY;
  for (int chunk = first + lane; chunk < last; chunk += BLOCK) {
    const Pack<float, 8> x_pack = *reinterpret_cast<const Pack<float, 8>*>(x + chunk * 8);
    const Pack<float, 8> z_pack = *reinterpret_cast<const Pack<float, 8>*>(z + chunk * 8);
    #pragma unroll
    for (int v = 0; v < 8; ++v) {
      const float x_value = x_pack.lane[v];
      const float z_value = z_pack.lane[v];
      s += (x_value - z_value) * (x_value - z_value);
      a_value1 = a_value1 && x_value < 4.5f;
      mx_value = maximum(mx_value, x_value);
    }
  }
  s = row_reduce(s, [](float a, float b) { return a + b; });
  if (lane == 0) s_partial[blockIdx.x] = s;
  a_value1 = row_reduce(a_value1, [](bool a, bool b) { return a && b; });
  if (lane == 0) a_partial[blockIdx.x] = a_value1;
  mx_value = row_reduce(mx_value, [](float a, float b) { return maximum(a, b); });
  if (lane == 0) mx_partial[blockIdx.x] = mx_value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
loss(float* __restrict__ y,
     bool* __restrict__ a,
     __hip_bfloat16* __restrict__ mx,
     const float* __restrict__ s_partial,
     const bool* __restrict__ a_partial,
     const float* __restrict__ mx_partial) {
  const int lane = threadIdx.x;
  const int row = blockIdx.x;
  float s = 0.0f;
  if (lane < SEGMENTS) s = s_partial[row * SEGMENTS + lane];
  s = row_reduce(s, [](float a, float b) { return a + b; });
  bool a_value1 = true;
  if (lane < SEGMENTS) a_value1 = a_partial[row * SEGMENTS + lane];
  a_value1 = row_reduce(a_value1, [](bool a, bool b) { return a && b; });
  float mx_value = -INFINITY;
  if (lane < SEGMENTS) mx_value = mx_partial[row * SEGMENTS + lane];
  mx_value = row_reduce(mx_value, [](float a, float b) { return maximum(a, b); });
  const float mx_value1 = __bfloat162float(__float2bfloat16(mx_value));
  if (lane == 0) {
    y[0] = s / 2.124e+04f;
    a[0] = a_value1;
    mx[0] = __float2bfloat16(mx_value1);
  }
}

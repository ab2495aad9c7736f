// decode: skinny contraction for gfx942
//
// kernel decode(q: f16[m=3,d=400], k: f16[n=50,d], b: f16[n]) -> (y: f16[m,n]) {
//   t: f32[m,n] = sum(d) q[m,d] * k[n,d]
//   y[m,n] = t[m,n] + b[n]
// }
//
// Written by kvc, emitter hip.skinny 1; THREADS=256, WIDTH=8.
// Launch: decode(q, k, b, y), grid 13 x 1 x 1, block 256 x 1 x 1.

#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif

constexpr int THREADS = 256;  // threads a workgroup
constexpr int WAVES = THREADS / KVC_WAVE_SIZE;  // each with one row of the long side
constexpr int WIDTH = 8;  // consecutive depths a lane
constexpr int LONG = 50;  // rows of the long side
constexpr int SHORT = 3;  // rows of the short side
constexpr int CHUNKS = 50;  // of WIDTH depths

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

extern "C" __global__ void __launch_bounds__(THREADS)
decode(const __half* __restrict__ q,
       const __half* __restrict__ k,
       const __half* __restrict__ b,
       __half* __restrict__ y) {
  const int lane = threadIdx.x % KVC_WAVE_SIZE;
  const int task = (int)blockIdx.x * WAVES + threadIdx.x / KVC_WAVE_SIZE;
  const int row = task % LONG;
  if (task >= LONG) return;
  float acc[SHORT] = {};
  for (int chunk = lane; chunk < CHUNKS; chunk += KVC_WAVE_SIZE) {
    const Pack<__half, 8> k_pack = *reinterpret_cast<const Pack<__half, 8>*>(k + row * 400 + chunk * 8);
    #pragma unroll
    for (int other = 0; other < SHORT; ++other) {
      const Pack<__half, 8> q_pack = *reinterpret_cast<const Pack<__half, 8>*>(q + other * 400 + chunk * 8);
      #pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        const float k_value = __half2float(k_pack.lane[v]);
        const float q_value = __half2float(q_pack.lane[v]);
        acc[other] += k_value * q_value;
      }
    }
  }
  #pragma unroll
  for (int other = 0; other < SHORT; ++other) {
    #pragma unroll
    for (int mask = KVC_WAVE_SIZE / 2; mask > 0; mask /= 2)
      acc[other] += __shfl_xor(acc[other], mask);
  }
  #pragma unroll
  for (int other = 0; other < SHORT; ++other) {
    if (lane != other) continue;
    const float b_value = __half2float(b[row]);
    y[other * 50 + row] = __float2half(acc[other] + b_value);
  }
}

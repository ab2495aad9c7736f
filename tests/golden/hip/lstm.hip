// lstm: recurrence for gfx942
//
// kernel lstm(gx: f32[t=7,b=3,g=4,n=20], w: f32[g,n,k=20], h0: f32[b,n], c0: f32[b,n]) -> (h: f32[t,b,n], c: f32[t,b,n]) {
//   loop t {
//     z: f32[t,b,g,n] = sum(k) h[t - 1,b,k | h0[b,k]] * w[g,n,k]
//     i: f32[t,b,n] = sigmoid(gx[t,b,0,n] + z[t,b,0,n])
//     c[t,b,n] = sigmoid(gx[t,b,1,n] + z[t,b,1,n]) * c[t - 1,b,n | c0[b,n]] + i[t,b,n] * tanh(gx[t,b,2,n] + z[t,b,2,n])
//     h[t,b,n] = sigmoid(gx[t,b,3,n] + z[t,b,3,n]) * tanh(c[t,b,n])
//   }
// }
//
// Written by kvc, emitter hip.recurrence 1; BLOCK=128, SHARE=1.
// Launch: lstm(gx, w, h0, c0, h, c), grid 3 x 1 x 1, block 128 x 1 x 1.

#include <hip/hip_runtime.h>

constexpr int BLOCK = 128;  // threads a workgroup
constexpr int T_SIZE = 7;
constexpr int K_SIZE = 20;

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

extern "C" __global__ void __launch_bounds__(BLOCK)
lstm(const float* __restrict__ gx,
     const float* __restrict__ w,
     const float* __restrict__ h0,
     const float* __restrict__ c0,
     float* __restrict__ h,
     float* __restrict__ c) {
  const int batch = blockIdx.x;
  __shared__ float z_steps[160];
  __shared__ float c_steps[40];
  __shared__ float h_steps[40];
  for (int item = threadIdx.x; item < 20; item += BLOCK) {
    const float c0_value = c0[batch * 20 + item];
    c_steps[20 + item] = c0_value;
  }
  for (int item = threadIdx.x; item < 20; item += BLOCK) {
    const float h0_value = h0[batch * 20 + item];
    h_steps[20 + item] = h0_value;
  }
  __syncthreads();
  for (int t = 0; t < T_SIZE; ++t) {
    const int now = t % 2;
    for (int item = threadIdx.x; item < 80; item += BLOCK) {
      float z = 0.0f;
      #pragma unroll
      for (int k = 0; k < K_SIZE; ++k) {
        const float h_before = h_steps[(1 - now) * 20 + k];
        const float w_value = w[item * 20 + k];
        z += h_before * w_value;
      }
      z_steps[now * 80 + item] = z;
    }
    __syncthreads();
    for (int item = threadIdx.x; item < 20; item += BLOCK) {
      const float gx_value = gx[t * 240 + batch * 80 + item];
      const float z = z_steps[now * 80 + item];
      const float i = sigmoid(gx_value + z);
      const float gx_value1 = gx[t * 240 + batch * 80 + item + 20];
      const float z1 = z_steps[now * 80 + item + 20];
      const float c_before = c_steps[(1 - now) * 20 + item];
      const float gx_value2 = gx[t * 240 + batch * 80 + item + 40];
      const float z2 = z_steps[now * 80 + item + 40];
      const float c_value = sigmoid(gx_value1 + z1) * c_before + i * tanhf(gx_value2 + z2);
      const float gx_value3 = gx[t * 240 + batch * 80 + item + 60];
      const float z3 = z_steps[now * 80 + item + 60];
      const float h_value = sigmoid(gx_value3 + z3) * tanhf(c_value);
      c[t * 60 + batch * 20 + item] = c_value;
      c_steps[now * 20 + item] = c_value;
      h[t * 60 + batch * 20 + item] = h_value;
      h_steps[now * 20 + item] = h_value;
    }
    __syncthreads();
  }
}

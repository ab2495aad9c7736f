// two_outputs: pointwise for gfx942
//
// kernel two_outputs(x: bf16[m=37,k=304], b: bf16[k], s: bf16[m]) -> (y: bf16[m,k], z: f32[m,k]) {
//   y[m,k] = silu(x[m,k] + b[k])
//   z[m,k] = y[m,k] * s[m]
// }
//
// Written by kvc, emitter hip.pointwise 1; BLOCK=256, WIDTH=1.
// Launch: two_outputs(x, b, s, y, z), grid 44 x 1 x 1, block 256 x 1 x 1.

#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>

constexpr int BLOCK = 256;  // threads a workgroup
constexpr int POINTS = 11248;

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}

extern "C" __global__ void __launch_bounds__(BLOCK)
two_outputs(const __hip_bfloat16* __restrict__ x,
            const __hip_bfloat16* __restrict__ b,
            const __hip_bfloat16* __restrict__ s,
            __hip_bfloat16* __restrict__ y,
            float* __restrict__ z) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= POINTS) return;
  const float x_value = __bfloat162float(x[i]);
  const float b_value = __bfloat162float(b[i % 304]);
  const float y_value = __bfloat162float(__float2bfloat16(silu(x_value + b_value)));
  const float s_value = __bfloat162float(s[i / 304]);
  y[i] = __float2bfloat16(y_value);
  z[i] = y_value * s_value;
}

# gelu_add for gfx942, strict numerics, by triton.pointwise 1
#
#   kernel gelu_add(x: bf16[m=37,k=301], b: f32[k]) -> (y: bf16[m,k]) {
#     t: bf16[m,k] = x[m,k] + b[k]
#     y[m,k] = gelu(t[m,k])
#   }
#
# Launch: gelu_add(x, b, y) on 175 programs of 64 threads, num_warps=1

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + libdevice.erf(x * 0.7071067811865476))


@triton.jit
def gelu_add(x_ptr, b_ptr, y_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_in = p < 11137
    x = tl.load(x_ptr + p, mask=p_in, other=0.0).to(tl.float32)
    k = p % 301
    b = tl.load(b_ptr + k, mask=p_in, other=0.0)
    t = (x + b).to(tl.bfloat16).to(tl.float32)
    tl.store(y_ptr + p, gelu(t).to(tl.bfloat16), mask=p_in)

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

BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def gelu_16(x):
    a = tl.minimum(tl.abs(x), 15.0)
    p = tl.fma(a, 3.899709000165785e-08, -2.304740974068409e-06)
    p = tl.fma(a, p, 5.870432869414799e-05)
    p = tl.fma(a, p, -0.0008549722260795534)
    p = tl.fma(a, p, 0.008024835027754307)
    p = tl.fma(a, p, -0.05257214605808258)
    p = tl.fma(a, p, -0.46027836203575134)
    p = tl.fma(a, p, -1.1503711938858032)
    tail = tl.exp2(tl.fma(a, p, -1.0000678300857544))
    return x * tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def gelu_add(x_ptr, b_ptr, y_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_in = p < 11137
    x = tl.load(x_ptr + p, mask=p_in, other=0.0).to(tl.float32)
    k = p % 301
    b = tl.load(b_ptr + k, mask=p_in, other=0.0)
    t = (x + b).to(tl.bfloat16).to(tl.float32)
    tl.store(y_ptr + p, gelu_16(t).to(tl.bfloat16), mask=p_in)

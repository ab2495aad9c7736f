# linear_gelu for gfx942, strict numerics, by triton.contraction 1
#
#   kernel linear_gelu(x: bf16[m=65,k=72], w: bf16[n=130,k], b: bf16[n]) -> (y: bf16[m,n]) {
#     t: f32[m,n] = sum(k) x[m,k] * w[n,k]
#     u: bf16[m,n] = t[m,n] + b[n]
#     y[m,n] = gelu(u[m,n])
#   }
#
# Launch: linear_gelu(x, w, b, y) on 15 programs of 128 threads, num_warps=2, num_stages=2, waves_per_eu=0,
#   matrix_instr_nonkdim=16

import triton
import triton.language as tl

BLOCK_M: tl.constexpr = tl.constexpr(32)
BLOCK_N: tl.constexpr = tl.constexpr(32)
BLOCK_K: tl.constexpr = tl.constexpr(64)
GROUP_M: tl.constexpr = tl.constexpr(8)


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
def linear_gelu(x_ptr, w_ptr, b_ptr, y_ptr):
    program = tl.program_id(0)
    tiles_m: tl.constexpr = (65 + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (130 + BLOCK_N - 1) // BLOCK_N
    group = program // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tiles_m - group, GROUP_M)
    tile_m = group + program % (GROUP_M * tiles_n) % height
    tile_n = program % (GROUP_M * tiles_n) // height
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    row_in = row < 65
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    column_in = column < 130
    acc = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for start in range(0, 72, BLOCK_K):
        k_a = start + tl.arange(0, BLOCK_K)[None, :]
        k_a_in = k_a < 72
        x = tl.load(x_ptr + row * 72 + k_a, mask=row_in & k_a_in, other=0.0)
        k_b = start + tl.arange(0, BLOCK_K)[:, None]
        k_b_in = k_b < 72
        w = tl.load(w_ptr + column * 72 + k_b, mask=column_in & k_b_in, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    b = tl.load(b_ptr + column, mask=column_in, other=0.0).to(tl.float32)
    u = (acc + b).to(tl.bfloat16).to(tl.float32)
    tl.store(y_ptr + row * 130 + column, gelu_16(u).to(tl.bfloat16), mask=row_in & column_in)

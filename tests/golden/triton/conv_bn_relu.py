# conv_bn_relu for gfx942, strict numerics, by triton.contraction 1
#
#   kernel conv_bn_relu(x: f32[b=2,c=5,h=19,w=17], f: f32[o=9,c,r=3,s=3], scale: f32[o], shift: f32[o]) -> (y: f32[b,o,i=10,j=9]) {
#     t: f32[b,o,i,j] = sum(c,r,s) x[b,c,2 * i + r - 1,2 * j + s - 1 | 0.0] * f[o,c,r,s]
#     y[b,o,i,j] = relu(t[b,o,i,j] * scale[o] + shift[o])
#   }
#
# Launch: conv_bn_relu(x, f, scale, shift, y) on 3 programs of 128 threads, num_warps=2, num_stages=2, waves_per_eu=0,
#   matrix_instr_nonkdim=16

import triton
import triton.language as tl

BLOCK_M: tl.constexpr = tl.constexpr(16)
BLOCK_N: tl.constexpr = tl.constexpr(64)
BLOCK_K: tl.constexpr = tl.constexpr(32)
GROUP_M: tl.constexpr = tl.constexpr(8)


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def conv_bn_relu(x_ptr, f_ptr, scale_ptr, shift_ptr, y_ptr):
    program = tl.program_id(0)
    tiles_m: tl.constexpr = (9 + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (180 + BLOCK_N - 1) // BLOCK_N
    group = program // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tiles_m - group, GROUP_M)
    tile_m = group + program % (GROUP_M * tiles_n) % height
    tile_n = program % (GROUP_M * tiles_n) // height
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    row_in = row < 9
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    column_in = column < 180
    acc = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    q = column // 9
    i = q % 10
    j = column % 9
    b = column // 90
    x_at = b * 1615 + i * 34 + j * 2 - 18
    for start in range(0, 45, BLOCK_K):
        k_a = start + tl.arange(0, BLOCK_K)[None, :]
        k_a_in = k_a < 45
        f = tl.load(f_ptr + row * 45 + k_a, mask=row_in & k_a_in, other=0.0)
        k_b = start + tl.arange(0, BLOCK_K)[:, None]
        k_b_in = k_b < 45
        q_1 = k_b // 3
        r = q_1 % 3
        h = i * 2 + r - 1
        s = k_b % 3
        w = j * 2 + s - 1
        c = k_b // 9
        x_at_1 = c * 323 + r * 17 + s
        inside = column_in & k_b_in & (h >= 0) & (h < 19) & (w >= 0) & (w < 17)
        x = tl.load(x_ptr + (x_at + x_at_1), mask=inside, other=0.0)
        acc = tl.dot(f, x, acc, input_precision="ieee")
    scale = tl.load(scale_ptr + row, mask=row_in, other=0.0)
    shift = tl.load(shift_ptr + row, mask=row_in, other=0.0)
    r_1 = column % 90
    y_at = b * 810 + r_1
    tl.store(y_ptr + (y_at + row * 90), relu(acc * scale + shift), mask=row_in & column_in)

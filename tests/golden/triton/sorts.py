# sorts for gfx942, strict numerics, by triton.generic 1
#
#   kernel sorts(x: f32[m=5,k=27]) -> (y: f32[m,k], z: i64[m,k]) {
#     y[m,k] = sort(k descending) round(x[m,k])
#     z[m,k] = argsort(k) round(x[m,k])
#   }
#
# Launch: sorts_0_y(x, y) on 3 programs of 64 threads, num_warps=1
# Launch: sorts_1_z(x, z) on 3 programs of 64 threads, num_warps=1

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def precedes_descending(a, i, b, j):
    # Stable descending order, NaN first.
    a_nan, b_nan = a != a, b != b
    return (a > b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))


@triton.jit
def precedes(a, i, b, j):
    # Stable ascending order, NaN last.
    a_nan, b_nan = a != a, b != b
    return (a < b) | (~a_nan & b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))


@triton.jit
def sorts_0_y(x_ptr, y_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_in = p < 135
    x = tl.load(x_ptr + p, mask=p_in, other=0.0)
    y = libdevice.nearbyint(x)
    k = p % 27
    rank = tl.full((BLOCK,), 0, tl.int32)
    m = p // 27
    for other in range(27):
        x_1 = tl.load(x_ptr + m * 27 + other, mask=p_in, other=0.0)
        rank += precedes_descending(libdevice.nearbyint(x_1), other, y, k)
    tl.store(y_ptr + m * 27 + rank, y, mask=p_in)


@triton.jit
def sorts_1_z(x_ptr, z_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_in = p < 135
    x = tl.load(x_ptr + p, mask=p_in, other=0.0)
    z = libdevice.nearbyint(x)
    k = p % 27
    rank = tl.full((BLOCK,), 0, tl.int32)
    m = p // 27
    for other in range(27):
        x_1 = tl.load(x_ptr + m * 27 + other, mask=p_in, other=0.0)
        rank += precedes(libdevice.nearbyint(x_1), other, z, k)
    tl.store(z_ptr + m * 27 + rank, k.to(tl.int64), mask=p_in)

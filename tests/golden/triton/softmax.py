# softmax for gfx942, strict numerics, by triton.rows 1
#
#   kernel softmax(x: f32[m=37,k=301]) -> (y: f32[m,k]) {
#     mx: f32[m] = max(k) x[m,k]
#     e: f32[m,k] = exp(x[m,k] - mx[m])
#     s: f32[m] = sum(k) e[m,k]
#     y[m,k] = e[m,k] / s[m]
#   }
#
# Launch: softmax(x, y) on 37 programs of 64 threads, num_warps=1

import triton
import triton.language as tl
from triton.language.extra import libdevice

ROWS: tl.constexpr = tl.constexpr(1)
COLUMNS: tl.constexpr = tl.constexpr(512)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax(x_ptr, y_ptr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    tl.static_assert(37 // ROWS * ROWS == 37)
    tl.static_assert(COLUMNS >= 301)
    column = tl.arange(0, COLUMNS)[None, :]
    column_in = column < 301
    x = tl.load(x_ptr + row * 301 + column, mask=column_in, other=float("-inf"))
    mx = tl.reduce(x, 1, maximum, keep_dims=True)
    e = libdevice.exp(x - mx)
    s = tl.sum(tl.where(column_in, e, 0.0), axis=1, keep_dims=True)
    tl.store(y_ptr + row * 301 + column, e / s, mask=column_in)

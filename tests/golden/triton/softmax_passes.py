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
COLUMNS: tl.constexpr = tl.constexpr(64)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax(x_ptr, y_ptr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    tl.static_assert(37 // ROWS * ROWS == 37)
    mx_lanes = tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
    s_lanes = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, 301, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        column_in = column < 301
        x = tl.load(x_ptr + row * 301 + column, mask=column_in, other=float("-inf"))
        largest = tl.maximum(mx_lanes, x, propagate_nan=tl.PropagateNan.ALL)
        shift = tl.where(largest == float("-inf"), 0.0, largest)
        s_lanes = s_lanes * libdevice.exp(mx_lanes - shift) + libdevice.exp(x - shift)
        mx_lanes = largest
    mx = tl.reduce(mx_lanes, 1, maximum, keep_dims=True)
    s = tl.sum(s_lanes * libdevice.exp(mx_lanes - mx), axis=1, keep_dims=True)
    for start_1 in range(0, 301, COLUMNS):
        column = start_1 + tl.arange(0, COLUMNS)[None, :]
        column_in_1 = column < 301
        x_1 = tl.load(x_ptr + row * 301 + column, mask=column_in_1, other=float("-inf"))
        e = libdevice.exp(x_1 - mx)
        tl.store(y_ptr + row * 301 + column, e / s, mask=column_in_1)

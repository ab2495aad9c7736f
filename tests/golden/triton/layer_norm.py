# layer_norm for gfx942, strict numerics, by triton.rows 1
#
#   kernel layer_norm(x: bf16[a=3,m=7,k=77], g: bf16[k], b: bf16[k]) -> (y: bf16[a,m,k], mean: f32[a,m]) {
#     s: f32[a,m] = sum(k) x[a,m,k]
#     mean[a,m] = s[a,m] / 77.0
#     v: f32[a,m] = sum(k) (x[a,m,k] - mean[a,m]) * (x[a,m,k] - mean[a,m])
#     r: f32[a,m] = rsqrt(v[a,m] / 77.0 + 1e-05)
#     y[a,m,k] = (x[a,m,k] - mean[a,m]) * r[a,m] * g[k] + b[k]
#   }
#
# Launch: layer_norm(x, g, b, y, mean) on 21 programs of 64 threads, num_warps=1

import triton
import triton.language as tl
from triton.language.extra import libdevice

ROWS: tl.constexpr = tl.constexpr(1)
COLUMNS: tl.constexpr = tl.constexpr(128)


@triton.jit
def layer_norm(x_ptr, g_ptr, b_ptr, y_ptr, mean_ptr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    tl.static_assert(21 // ROWS * ROWS == 21)
    tl.static_assert(COLUMNS >= 77)
    column = tl.arange(0, COLUMNS)[None, :]
    column_in = column < 77
    x = tl.load(x_ptr + row * 77 + column, mask=column_in, other=0.0).to(tl.float32)
    s = tl.sum(x, axis=1, keep_dims=True)
    mean = s / 77.0
    tl.store(mean_ptr + row, mean)
    v = tl.where(column_in, (x - mean) * (x - mean), 0.0)
    v_1 = tl.sum(v, axis=1, keep_dims=True)
    r = libdevice.rsqrt(v_1 / 77.0 + 1e-05)
    g = tl.load(g_ptr + column, mask=column_in, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + column, mask=column_in, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * 77 + column, ((x - mean) * r * g + b).to(tl.bfloat16), mask=column_in)

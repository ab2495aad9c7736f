# max_pool for gfx942, strict numerics, by triton.window 1
#
#   kernel max_pool(x: f32[b=2,c=3,h=19,w=17]) -> (y: f32[b,c,i=9,j=8]) {
#     y[b,c,i,j] = max(r=3,s=3) x[b,c,2 * i + r,2 * j + s | -inf]
#   }
#
# Launch: max_pool(x, y) on 7 programs of 64 threads, num_warps=1

import triton
import triton.language as tl

BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def max_pool(x_ptr, y_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_in = p < 432
    y = tl.full((BLOCK,), float("-inf"), tl.float32)
    q = p // 8
    i = q % 9
    j = p % 8
    q_1 = p // 72
    x_at = q_1 * 323 + i * 34 + j * 2
    for r in tl.static_range(3):
        for s in tl.static_range(3):
            h = i * 2 + r
            w = j * 2 + s
            x = tl.load(x_ptr + (x_at + r * 17 + s), mask=p_in, other=float("-inf"))
            y = tl.maximum(y, x, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + p, y, mask=p_in)

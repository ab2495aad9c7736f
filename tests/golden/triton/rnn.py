# rnn for gfx942, strict numerics, by triton.generic 1
#
#   kernel rnn(x: f32[b=3,t=7,i=5], w: f32[n=11,i], u: f32[n,m=11], h0: f32[b,n]) -> (h: f32[b,t,n]) {
#     a: f32[b,t,n] = sum(i) x[b,t,i] * w[n,i]
#     loop t {
#       r: f32[b,t,n] = sum(m) h[b,t - 1,m | h0[b,m]] * u[n,m]
#       h[b,t,n] = tanh(a[b,t,n] + r[b,t,n])
#     }
#   }
#
# Launch: rnn_0_a(x, w, a) on 4 programs of 64 threads, num_warps=1
# Launch: rnn_1_h(u, h0, a, h) on 3 programs of 64 threads, num_warps=1
# Scratch: a f32[231]

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def rnn_0_a(x_ptr, w_ptr, a_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p_in = p < 231
    a = tl.full((BLOCK,), 0.0, tl.float32)
    q = p // 11
    n = p % 11
    for i in tl.static_range(5):
        x = tl.load(x_ptr + q * 5 + i, mask=p_in, other=0.0)
        w = tl.load(w_ptr + n * 5 + i, mask=p_in, other=0.0)
        a = tl.fma(x, w, a)
    tl.store(a_ptr + p, a, mask=p_in)


@triton.jit
def rnn_1_h(u_ptr, h0_ptr, a_ptr, h_ptr):
    line = tl.program_id(0)
    for t in range(7):
        for start in range(0, 11, BLOCK):
            lane = start + tl.arange(0, BLOCK)
            lane_in = lane < 11
            r = tl.full((BLOCK,), 0.0, tl.float32)
            for m in tl.static_range(11):
                t_1 = t - 1
                h0 = tl.load(h0_ptr + line * 11 + m)
                v = tl.load(h_ptr + line * 77 + t * 11 + m - 11, mask=t_1 >= 0, other=0.0)
                h = tl.where(t_1 >= 0, v, h0)
                u = tl.load(u_ptr + lane * 11 + m, mask=lane_in, other=0.0)
                r = tl.fma(h, u, r)
            a = tl.load(a_ptr + line * 77 + t * 11 + lane, mask=lane_in, other=0.0)
            h_1 = libdevice.tanh(a + r)
            tl.store(h_ptr + line * 77 + t * 11 + lane, h_1, mask=lane_in)
        tl.debug_barrier()

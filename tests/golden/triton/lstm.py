# lstm for gfx942, strict numerics, by triton.generic 1
#
#   kernel lstm(gx: f32[t=7,b=3,g=4,n=20], w: f32[g,n,k=20], h0: f32[b,n], c0: f32[b,n]) -> (h: f32[t,b,n], c: f32[t,b,n]) {
#     loop t {
#       z: f32[t,b,g,n] = sum(k) h[t - 1,b,k | h0[b,k]] * w[g,n,k]
#       i: f32[t,b,n] = sigmoid(gx[t,b,0,n] + z[t,b,0,n])
#       c[t,b,n] = sigmoid(gx[t,b,1,n] + z[t,b,1,n]) * c[t - 1,b,n | c0[b,n]] + i[t,b,n] * tanh(gx[t,b,2,n] + z[t,b,2,n])
#       h[t,b,n] = sigmoid(gx[t,b,3,n] + z[t,b,3,n]) * tanh(c[t,b,n])
#     }
#   }
#
# Launch: lstm(gx, w, h0, c0, z, h, c) on 3 programs of 64 threads, num_warps=1
# Scratch: z f32[1680]

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(-x))


@triton.jit
def lstm(gx_ptr, w_ptr, h0_ptr, c0_ptr, z_ptr, h_ptr, c_ptr):
    line = tl.program_id(0)
    for t in range(7):
        for start in range(0, 80, BLOCK):
            lane = start + tl.arange(0, BLOCK)
            lane_in = lane < 80
            z = tl.full((BLOCK,), 0.0, tl.float32)
            for k in tl.static_range(20):
                t_1 = t - 1
                h0 = tl.load(h0_ptr + line * 20 + k)
                v = tl.load(h_ptr + t * 60 + line * 20 + k - 60, mask=t_1 >= 0, other=0.0)
                h = tl.where(t_1 >= 0, v, h0)
                w = tl.load(w_ptr + lane * 20 + k, mask=lane_in, other=0.0)
                z = tl.fma(h, w, z)
            tl.store(z_ptr + t * 240 + line * 80 + lane, z, mask=lane_in)
        tl.debug_barrier()
        for start_1 in range(0, 20, BLOCK):
            lane_ = start_1 + tl.arange(0, BLOCK)
            lane__in = lane_ < 20
            gx = tl.load(gx_ptr + t * 240 + line * 80 + lane_, mask=lane__in, other=0.0)
            z_1 = tl.load(z_ptr + t * 240 + line * 80 + lane_, mask=lane__in, other=0.0)
            i = sigmoid(gx + z_1)
            gx_1 = tl.load(gx_ptr + t * 240 + line * 80 + lane_ + 20, mask=lane__in, other=0.0)
            z_2 = tl.load(z_ptr + t * 240 + line * 80 + lane_ + 20, mask=lane__in, other=0.0)
            t_2 = t - 1
            c0 = tl.load(c0_ptr + line * 20 + lane_, mask=lane__in, other=0.0)
            v_1 = tl.load(c_ptr + t * 60 + line * 20 + lane_ - 60, mask=lane__in & (t_2 >= 0), other=0.0)
            c = tl.where(t_2 >= 0, v_1, c0)
            gx_2 = tl.load(gx_ptr + t * 240 + line * 80 + lane_ + 40, mask=lane__in, other=0.0)
            z_3 = tl.load(z_ptr + t * 240 + line * 80 + lane_ + 40, mask=lane__in, other=0.0)
            c_1 = sigmoid(gx_1 + z_2) * c + i * libdevice.tanh(gx_2 + z_3)
            tl.store(c_ptr + t * 60 + line * 20 + lane_, c_1, mask=lane__in)
            gx_3 = tl.load(gx_ptr + t * 240 + line * 80 + lane_ + 60, mask=lane__in, other=0.0)
            z_4 = tl.load(z_ptr + t * 240 + line * 80 + lane_ + 60, mask=lane__in, other=0.0)
            h_1 = sigmoid(gx_3 + z_4) * libdevice.tanh(c_1)
            tl.store(h_ptr + t * 60 + line * 20 + lane_, h_1, mask=lane__in)
        tl.debug_barrier()

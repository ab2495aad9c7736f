# scans for gfx942, strict numerics, by triton.generic 1
#
#   kernel scans(x: f32[m=5,k=77]) -> (y: f32[m,k], z: f32[m,k], w: i64[m,k], v: f32[k,m], u: bf16[m,k]) {
#     y[m,k] = scan sum(k) x[m,k]
#     z[m,k] = scan max(k reverse) x[m,k]
#     w[m,k] = scan sum(k exclusive) where(x[m,k] > 0.0, 1, 0)
#     v[k,m] = scan prod(k reverse exclusive) sigmoid(x[m,k])
#     u[m,k] = scan sum(k reverse) x[m,k]
#   }
#
# Launch: scans_0_y(x, y) on 5 programs of 64 threads, num_warps=1
# Launch: scans_1_z(x, z) on 5 programs of 64 threads, num_warps=1
# Launch: scans_2_w(x, w) on 5 programs of 64 threads, num_warps=1
# Launch: scans_3_v(x, v) on 5 programs of 64 threads, num_warps=1
# Launch: scans_4_u(x, u) on 5 programs of 64 threads, num_warps=1

import triton
import triton.language as tl
from triton.language.extra import libdevice

COLUMNS: tl.constexpr = tl.constexpr(64)
BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(-x))


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def scans_0_y(x_ptr, y_ptr):
    line = tl.program_id(0)
    carry = tl.full((), 0.0, tl.float32)
    for first in range(0, 77, COLUMNS):
        k_ = first + tl.arange(0, COLUMNS)
        k__in = k_ < 77
        x = tl.load(x_ptr + line * 77 + k_, mask=k__in, other=0.0)
        block = tl.where(k__in, x, tl.full((), 0.0, tl.float32))
        y = carry + tl.associative_scan(block, 0, add)
        carry = carry + tl.reduce(block, 0, add)
        tl.store(y_ptr + line * 77 + k_, y, mask=k__in)


@triton.jit
def scans_1_z(x_ptr, z_ptr):
    line = tl.program_id(0)
    carry = tl.full((), float("-inf"), tl.float32)
    for first in range(0, 77, COLUMNS):
        begin = tl.cdiv(77, COLUMNS) * COLUMNS - COLUMNS - first
        k_ = begin + tl.arange(0, COLUMNS)
        k__in = k_ < 77
        x = tl.load(x_ptr + line * 77 + k_, mask=k__in, other=0.0)
        block = tl.where(k__in, x, tl.full((), float("-inf"), tl.float32))
        v = tl.associative_scan(block, 0, maximum, reverse=True)
        z = tl.maximum(carry, v, propagate_nan=tl.PropagateNan.ALL)
        carry = tl.maximum(carry, tl.reduce(block, 0, maximum), propagate_nan=tl.PropagateNan.ALL)
        tl.store(z_ptr + line * 77 + k_, z, mask=k__in)


@triton.jit
def scans_2_w(x_ptr, w_ptr):
    line = tl.program_id(0)
    carry = tl.full((), 0, tl.int64)
    tl.store(w_ptr + line * 77, tl.full((), 0, tl.int64))
    for first in range(0, 77, COLUMNS):
        k_ = first + tl.arange(0, COLUMNS)
        k__in = k_ < 77
        x = tl.load(x_ptr + line * 77 + k_, mask=k__in, other=0.0)
        v = tl.where(x > 0.0, tl.full((), 1, tl.int64), tl.full((), 0, tl.int64))
        block = tl.where(k__in, v, tl.full((), 0, tl.int64))
        w = carry + tl.associative_scan(block, 0, add)
        carry = carry + tl.reduce(block, 0, add)
        tl.store(w_ptr + line * 77 + k_ + 1, w, mask=(k_ < 77 - 1))


@triton.jit
def scans_3_v(x_ptr, v_ptr):
    line = tl.program_id(0)
    carry = tl.full((), 1.0, tl.float32)
    tl.store(v_ptr + line + 380, tl.full((), 1.0, tl.float32))
    for first in range(0, 77, COLUMNS):
        begin = tl.cdiv(77, COLUMNS) * COLUMNS - COLUMNS - first
        k_ = begin + tl.arange(0, COLUMNS)
        k__in = k_ < 77
        x = tl.load(x_ptr + line * 77 + k_, mask=k__in, other=0.0)
        block = tl.where(k__in, sigmoid(x), tl.full((), 1.0, tl.float32))
        v = carry * tl.associative_scan(block, 0, multiply, reverse=True)
        carry = carry * tl.reduce(block, 0, multiply)
        tl.store(v_ptr + k_ * 5 + line - 5, v, mask=(k_ > 0) & (k_ < 77))


@triton.jit
def scans_4_u(x_ptr, u_ptr):
    line = tl.program_id(0)
    carry = tl.full((), 0.0, tl.float32)
    for first in range(0, 77, COLUMNS):
        begin = tl.cdiv(77, COLUMNS) * COLUMNS - COLUMNS - first
        k_ = begin + tl.arange(0, COLUMNS)
        k__in = k_ < 77
        x = tl.load(x_ptr + line * 77 + k_, mask=k__in, other=0.0)
        block = tl.where(k__in, x, tl.full((), 0.0, tl.float32))
        u = carry + tl.associative_scan(block, 0, add, reverse=True)
        carry = carry + tl.reduce(block, 0, add)
        tl.store(u_ptr + line * 77 + k_, u.to(tl.bfloat16), mask=k__in)

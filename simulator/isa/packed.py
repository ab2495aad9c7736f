"""Packed arithmetic (VOP3P): pairs of 16-bit values, pairs of f32, dot products, mixed-precision multiply-add.

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapter 12.10. A pair lies on the last axis, low
half first, so most functions are the elementwise ones. Dot products add the products one after the other in the
accumulator's format, as the document writes them; products of halves are exact there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from kvc.simulator.isa import floats
from kvc.simulator.isa.bits import Array, sign_extend
from kvc.simulator.isa.chips import SINCE_CDNA4
from kvc.simulator.isa.floats import bf16_to_f32, f16_to_f32, fma_f16, fma_f32
from kvc.simulator.isa.table import op
from kvc.simulator.isa.valu_float import propagating3
from kvc.simulator.isa.valu_int import saturating

_V3P, _V2 = "12.10 VOP3P", "12.7 VOP2"


def _mad(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _sub(a: Array, b: Array) -> Array:
    return a - b


def _add(a: Array, b: Array) -> Array:
    return a + b


for _t in ("i16", "u16"):
    _p = f"pk_{_t}"
    op(f"v_pk_mad_{_t}", "vop3p", _p, f"{_p} {_p} {_p}", _mad, _V3P, clamp_fn=saturating(_t, _mad))
    op(f"v_pk_add_{_t}", "vop3p", _p, f"{_p} {_p}", np.add, _V3P, clamp_fn=saturating(_t, _add))
    op(f"v_pk_sub_{_t}", "vop3p", _p, f"{_p} {_p}", np.subtract, _V3P, clamp_fn=saturating(_t, _sub))
    op(f"v_pk_max_{_t}", "vop3p", _p, f"{_p} {_p}", np.maximum, _V3P)
    op(f"v_pk_min_{_t}", "vop3p", _p, f"{_p} {_p}", np.minimum, _V3P)
op("v_pk_mul_lo_u16", "vop3p", "pk_u16", "pk_u16 pk_u16", np.multiply, _V3P)
op("v_pk_lshlrev_b16", "vop3p", "pk_u16", "pk_u16 pk_u16", lambda n, a: a << (n & 15), _V3P)
op("v_pk_lshrrev_b16", "vop3p", "pk_u16", "pk_u16 pk_u16", lambda n, a: a >> (n & 15), _V3P)
op("v_pk_ashrrev_i16", "vop3p", "pk_i16", "pk_i16 pk_i16", lambda n, a: a >> (n & 15), _V3P)

op("v_pk_add_f16", "vop3p", "pk_f16", "pk_f16 pk_f16", lambda a, b: (f16_to_f32(a) + f16_to_f32(b)).astype(np.float16),
   _V3P)  # fmt: skip
op("v_pk_mul_f16", "vop3p", "pk_f16", "pk_f16 pk_f16", lambda a, b: (f16_to_f32(a) * f16_to_f32(b)).astype(np.float16),
   _V3P)  # fmt: skip
op("v_pk_fma_f16", "vop3p", "pk_f16", "pk_f16 pk_f16 pk_f16", fma_f16, _V3P)
op("v_pk_fmac_f16", "vop2", "pk_f16", "pk_f16 pk_f16 D.pk_f16", fma_f16, _V2)
op("v_pk_min_f16", "vop3p", "pk_f16", "pk_f16 pk_f16", floats.minimum, _V3P)
op("v_pk_max_f16", "vop3p", "pk_f16", "pk_f16 pk_f16", floats.maximum, _V3P)
for _name, _pick in (("minimum3", np.minimum), ("maximum3", np.maximum)):
    op(f"v_pk_{_name}_f16", "vop3p", "pk_f16", "pk_f16 pk_f16 pk_f16", propagating3(_pick), _V3P, archs=SINCE_CDNA4)

op("v_pk_fma_f32", "vop3p", "pk_f32", "pk_f32 pk_f32 pk_f32", fma_f32, _V3P)
op("v_pk_mul_f32", "vop3p", "pk_f32", "pk_f32 pk_f32", np.multiply, _V3P)
op("v_pk_add_f32", "vop3p", "pk_f32", "pk_f32 pk_f32", np.add, _V3P)


def _pk_mov(a: Array, b: Array) -> Array:
    """The dword of each operand that its `op_sel` bit picks: the engine puts it in the low place."""
    return np.stack(np.broadcast_arrays(a[..., 0], b[..., 0]), axis=-1)


op("v_pk_mov_b32", "vop3p", "pk_b32", "pk_b32 pk_b32", _pk_mov, _V3P)

# ---- mixed precision ------------------------------------------------------------------------------------------------


def _fma_to_f16(a: Array, b: Array, c: Array) -> Array:
    return fma_f32(a, b, c).astype(np.float16)


_MIX = "mix_f32 mix_f32 mix_f32"
op("v_fma_mix_f32", "vop3p", "f32", _MIX, fma_f32, _V3P)
op("v_fma_mixlo_f16", "vop3p", "f16.lo", _MIX, _fma_to_f16, _V3P)
op("v_fma_mixhi_f16", "vop3p", "f16.hi", _MIX, _fma_to_f16, _V3P)

# ---- dot products ---------------------------------------------------------------------------------------------------


def _dot2_f16(a: Array, b: Array, c: Array) -> Array:
    products = f16_to_f32(a) * f16_to_f32(b)
    return (c + products[..., 0]) + products[..., 1]


def _dot2_bf16(a: Array, b: Array, c: Array) -> Array:
    products = bf16_to_f32(a) * bf16_to_f32(b)
    return (products[..., 0] + products[..., 1]) + c


def _dot2c_bf16(a: Array, b: Array, c: Array) -> Array:
    products = bf16_to_f32(a) * bf16_to_f32(b)
    return (c + products[..., 0]) + products[..., 1]


def _dot2_int(wide: type) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        products = np.multiply(a, b, dtype=wide)
        return products[..., 0] + products[..., 1] + c

    return run


def _fields(x: Array, bits: int, signed: bool) -> list[Array]:
    parts = [(x >> shift) & ((1 << bits) - 1) for shift in range(0, 32, bits)]
    return [sign_extend(part, bits) for part in parts] if signed else parts


def _dot(bits: int, signed: bool) -> Callable[[Array, Array, Array], Array]:
    """Sum of products of the 8- or 4-bit fields of two dwords, plus the accumulator."""

    def run(a: Array, b: Array, c: Array) -> Array:
        total = c
        for x, y in zip(_fields(a, bits, signed), _fields(b, bits, signed), strict=True):
            total = total + x * y
        return total

    return run


def _clamped(fn: Callable[..., Array], kind: str) -> Callable[..., Array]:
    """The sum in 64 bits, where it is exact, saturated to the accumulator's type."""

    def run(a: Array, b: Array, c: Array) -> Array:
        return saturating(kind, lambda total: total)(fn(a, b, c.astype(np.int64)))

    return run


op("v_dot2_f32_f16", "vop3p", "f32", "pk_f16 pk_f16 f32", _dot2_f16, _V3P)
op("v_dot2c_f32_f16", "vop2", "f32", "pk_f16 pk_f16 D.f32", _dot2_f16, _V2)
op("v_dot2_f32_bf16", "vop3p", "f32", "pk_bf16 pk_bf16 f32", _dot2_bf16, _V3P, archs=SINCE_CDNA4)
op("v_dot2c_f32_bf16", "vop2", "f32", "pk_bf16 pk_bf16 D.f32", _dot2c_bf16, _V2, archs=SINCE_CDNA4)
for _kind, _pair, _wide in (("i32", "i16", np.int32), ("u32", "u16", np.uint32)):
    _types, _exact = f"pk_{_pair} pk_{_pair} {_kind}", _clamped(_dot2_int(np.int64), _kind)
    op(f"v_dot2_{_kind}_{_pair}", "vop3p", _kind, _types, _dot2_int(_wide), _V3P, clamp_fn=_exact)
for _name, _types, _fn, _kind in (
    ("v_dot4_i32_i8", "b32 b32 i32", _dot(8, True), "i32"),
    ("v_dot4_u32_u8", "b32 b32 u32", _dot(8, False), "u32"),
    ("v_dot8_i32_i4", "b32 b32 i32", _dot(4, True), "i32"),
    ("v_dot8_u32_u4", "b32 b32 u32", _dot(4, False), "u32"),
):
    op(_name, "vop3p", _kind, _types, _fn, _V3P, clamp_fn=_clamped(_fn, _kind))
op("v_dot2c_i32_i16", "vop2", "i32", "pk_i16 pk_i16 D.i32", _dot2_int(np.int32), _V2)
op("v_dot4c_i32_i8", "vop2", "i32", "b32 b32 D.i32", _dot(8, True), _V2)
op("v_dot8c_i32_i4", "vop2", "i32", "b32 b32 D.i32", _dot(4, True), _V2)

"""Scalar ALU: SOP1, SOP2, SOPK and SOPC (control flow, EXEC and hardware registers belong to the engine).

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapter 12. Every result is one element per
wave; SCC is a boolean per wave. Shift counts use the low 5 or 6 bits only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from kvc.simulator.isa.bits import Array, first_set, leading_zeros, reverse_bits, select, sign_run
from kvc.simulator.isa.table import op

_S1, _S2, _SK, _SC = "12.2 SOP1", "12.1 SOP2", "12.4 SOPK", "12.3 SOPC"


def _with_scc(fn: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    """Results that set SCC to `D0 != 0`."""

    def run(*sources: Array) -> tuple[Array, Array]:
        result = fn(*sources)
        return result, result != 0

    return run


# ---- SOP2 -----------------------------------------------------------------------------------------------------------


def _add_u32(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _sub_u32(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, b > a


def _add_i32(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_i32(a: Array, b: Array) -> tuple[Array, Array]:
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


def _addc_u32(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) + b + scc
    return total.astype(np.uint32), total >> 32 != 0


def _subb_u32(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) - b - scc
    return total.astype(np.uint32), total >> 63 != 0


def _extreme(better: Callable[[Array, Array], Array], pick: np.ufunc) -> Callable[..., tuple[Array, Array]]:
    def run(a: Array, b: Array) -> tuple[Array, Array]:
        return pick(a, b), better(a, b)

    return run


def _cselect(a: Array, b: Array, scc: Array) -> Array:
    return select(scc, a, b)


def _field_mask(width: Array, bits: int) -> Array:
    """(1 << width) - 1 where a width of `bits` or more means every bit."""
    ones = (np.ones_like(width) << (width & (bits - 1))) - 1
    return ones | np.negative((width >= bits).astype(width.dtype))


def _bfe_unsigned(bits: int) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        field = b.astype(a.dtype)
        return (a >> (field & (bits - 1))) & _field_mask((field >> 16) & 0x7F, bits)

    return run


def _bfe_signed(bits: int) -> Callable[[Array, Array], Array]:
    unsigned, signed = f"u{bits // 8}", f"i{bits // 8}"

    def run(a: Array, b: Array) -> Array:
        field = b.astype(unsigned)
        width = (field >> 16) & 0x7F
        moved = (a >> (field & (bits - 1)).view(signed)).view(unsigned)
        sign = (np.ones_like(width) << ((width - 1) & (bits - 1))) * (width != 0)  # 0 for an empty field
        value = moved & _field_mask(width, bits)
        extended = (value ^ sign) - sign
        return select(width >= bits, value, extended).view(signed)

    return run


def _bfm(bits: int) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        wide = f"u{bits // 8}"
        count, shift = (a & (bits - 1)).astype(wide), (b & (bits - 1)).astype(wide)
        return ((np.ones_like(count) << count) - 1) << shift

    return run


def _absdiff(a: Array, b: Array) -> Array:
    delta = a - b
    return np.abs(delta)  # wraps to itself for the most negative value, as the hardware does


def _shift_add(count: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    def run(a: Array, b: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << count) + b
        return total.astype(np.uint32), total >> 32 != 0

    return run


def _mul_hi(a: Array, b: Array) -> Array:
    wide = np.int64 if a.dtype == np.int32 else np.uint64
    return (np.multiply(a, b, dtype=wide) >> 32).astype(a.dtype)


op("s_add_u32", "sop2", "u32 scc", "u32 u32", _add_u32, _S2)
op("s_sub_u32", "sop2", "u32 scc", "u32 u32", _sub_u32, _S2)
op("s_add_i32", "sop2", "i32 scc", "i32 i32", _add_i32, _S2)
op("s_sub_i32", "sop2", "i32 scc", "i32 i32", _sub_i32, _S2)
op("s_addc_u32", "sop2", "u32 scc", "u32 u32 scc", _addc_u32, _S2)
op("s_subb_u32", "sop2", "u32 scc", "u32 u32 scc", _subb_u32, _S2)
op("s_min_i32", "sop2", "i32 scc", "i32 i32", _extreme(operator.lt, np.minimum), _S2)
op("s_min_u32", "sop2", "u32 scc", "u32 u32", _extreme(operator.lt, np.minimum), _S2)
op("s_max_i32", "sop2", "i32 scc", "i32 i32", _extreme(operator.ge, np.maximum), _S2)
op("s_max_u32", "sop2", "u32 scc", "u32 u32", _extreme(operator.ge, np.maximum), _S2)
op("s_cselect_b32", "sop2", "b32", "b32 b32 scc", _cselect, _S2)
op("s_cselect_b64", "sop2", "b64", "b64 b64 scc", _cselect, _S2)

_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _name, _fn in _LOGIC.items():
    for _t in ("b32", "b64"):
        op(f"s_{_name}_{_t}", "sop2", f"{_t} scc", f"{_t} {_t}", _with_scc(_fn), _S2)

op("s_lshl_b32", "sop2", "u32 scc", "u32 u32", _with_scc(lambda a, b: a << (b & 31)), _S2)
op("s_lshl_b64", "sop2", "u64 scc", "u64 u32", _with_scc(lambda a, b: a << (b & 63)), _S2)
op("s_lshr_b32", "sop2", "u32 scc", "u32 u32", _with_scc(lambda a, b: a >> (b & 31)), _S2)
op("s_lshr_b64", "sop2", "u64 scc", "u64 u32", _with_scc(lambda a, b: a >> (b & 63)), _S2)
op("s_ashr_i32", "sop2", "i32 scc", "i32 i32", _with_scc(lambda a, b: a >> (b & 31)), _S2)
op("s_ashr_i64", "sop2", "i64 scc", "i64 i32", _with_scc(lambda a, b: a >> (b & 63)), _S2)
op("s_bfm_b32", "sop2", "u32", "u32 u32", _bfm(32), _S2)
op("s_bfm_b64", "sop2", "u64", "u32 u32", _bfm(64), _S2)
op("s_mul_i32", "sop2", "u32", "u32 u32", operator.mul, _S2)
op("s_mul_hi_u32", "sop2", "u32", "u32 u32", _mul_hi, _S2)
op("s_mul_hi_i32", "sop2", "i32", "i32 i32", _mul_hi, _S2)
op("s_bfe_u32", "sop2", "u32 scc", "u32 u32", _with_scc(_bfe_unsigned(32)), _S2)
op("s_bfe_i32", "sop2", "i32 scc", "i32 u32", _with_scc(_bfe_signed(32)), _S2)
op("s_bfe_u64", "sop2", "u64 scc", "u64 u32", _with_scc(_bfe_unsigned(64)), _S2)
op("s_bfe_i64", "sop2", "i64 scc", "i64 u32", _with_scc(_bfe_signed(64)), _S2)
op("s_absdiff_i32", "sop2", "i32 scc", "i32 i32", _with_scc(_absdiff), _S2)
for _n in (1, 2, 3, 4):
    op(f"s_lshl{_n}_add_u32", "sop2", "u32 scc", "u32 u32", _shift_add(_n), _S2)
op("s_pack_ll_b32_b16", "sop2", "b32", "b32 b32", lambda a, b: (a & 0xFFFF) | (b << 16), _S2)
op("s_pack_lh_b32_b16", "sop2", "b32", "b32 b32", lambda a, b: (a & 0xFFFF) | (b & 0xFFFF0000), _S2)
op("s_pack_hh_b32_b16", "sop2", "b32", "b32 b32", lambda a, b: (a >> 16) | (b & 0xFFFF0000), _S2)


# ---- SOP1 -----------------------------------------------------------------------------------------------------------


def _groups(x: Array) -> Array:
    """Bit 4 i is set where any of bits [4 i, 4 i + 4) of x is."""
    x = x | (x >> 1)
    x = x | (x >> 2)
    return x & (0x1111111111111111 if x.dtype.itemsize == 8 else 0x11111111)


def _wqm(x: Array) -> Array:
    return _groups(x) * 15


def _quadmask(x: Array) -> Array:
    """Gather bits 0, 4, 8, ... into the low end, by halving the distance between them."""
    wide = x.dtype.itemsize == 8
    x = _groups(x)
    for shift, mask in ((3, 0x0303030303030303), (6, 0x000F000F000F000F), (12, 0x000000FF000000FF)):
        x = (x | (x >> shift)) & (mask if wide else mask & 0xFFFFFFFF)
    return (x | (x >> 24)) & 0xFFFF if wide else x


def _replicate(x: Array) -> Array:
    """Every bit of uint32 twice in a uint64: spread the bits, then copy each one up."""
    wide = x.astype(np.uint64)
    for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F)):
        wide = (wide | (wide << shift)) & mask
    for shift, mask in ((2, 0x3333333333333333), (1, 0x5555555555555555)):
        wide = (wide | (wide << shift)) & mask
    return wide | (wide << 1)


def _ones(x: Array) -> Array:
    return np.bitwise_count(x).astype(np.int32)


def _zeros(x: Array) -> Array:
    return np.bitwise_count(~x).astype(np.int32)


def _bit(x: Array, like: Array) -> Array:
    return np.ones_like(like) << (x & (like.dtype.itemsize * 8 - 1)).astype(like.dtype)


def _sext(bits: int) -> Callable[[Array], Array]:
    return lambda x: (x << (32 - bits)) >> (32 - bits)


for _t in ("b32", "b64"):
    op(f"s_mov_{_t}", "sop1", _t, _t, lambda x: x, _S1)
    op(f"s_cmov_{_t}", "sop1", _t, f"{_t} D.{_t} scc", lambda x, old, scc: select(scc, x, old), _S1)
    op(f"s_not_{_t}", "sop1", f"{_t} scc", _t, _with_scc(operator.invert), _S1)
    op(f"s_wqm_{_t}", "sop1", f"{_t} scc", _t, _with_scc(_wqm), _S1)
    op(f"s_quadmask_{_t}", "sop1", f"{_t} scc", _t, _with_scc(_quadmask), _S1)
    op(f"s_brev_{_t}", "sop1", _t, _t, reverse_bits, _S1)
    op(f"s_bcnt0_i32_{_t}", "sop1", "i32 scc", _t, _with_scc(_zeros), _S1)
    op(f"s_bcnt1_i32_{_t}", "sop1", "i32 scc", _t, _with_scc(_ones), _S1)
    op(f"s_ff0_i32_{_t}", "sop1", "i32", _t, lambda x: first_set(~x), _S1)
    op(f"s_ff1_i32_{_t}", "sop1", "i32", _t, first_set, _S1)
    op(f"s_flbit_i32_{_t}", "sop1", "i32", _t, leading_zeros, _S1)
    op(f"s_bitset0_{_t}", "sop1", _t, f"u32 D.{_t}", lambda x, old: old & ~_bit(x, old), _S1)
    op(f"s_bitset1_{_t}", "sop1", _t, f"u32 D.{_t}", lambda x, old: old | _bit(x, old), _S1)
op("s_flbit_i32", "sop1", "i32", "i32", sign_run, _S1)
op("s_flbit_i32_i64", "sop1", "i32", "i64", sign_run, _S1)
op("s_sext_i32_i8", "sop1", "i32", "i32", _sext(8), _S1)
op("s_sext_i32_i16", "sop1", "i32", "i32", _sext(16), _S1)
op("s_abs_i32", "sop1", "i32 scc", "i32", _with_scc(np.abs), _S1)
op("s_bitreplicate_b64_b32", "sop1", "b64", "b32", _replicate, _S1)


# ---- SOPK and SOPC --------------------------------------------------------------------------------------------------


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": operator.eq,
    "lg": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
for _name, _fn in _COMPARE.items():
    for _t in ("i32", "u32"):
        op(f"s_cmp_{_name}_{_t}", "sopc", "scc", f"{_t} {_t}", _fn, _SC)
    op(f"s_cmpk_{_name}_i32", "sopk", "scc", "i32 simm16", _fn, _SK)
    op(f"s_cmpk_{_name}_u32", "sopk", "scc", "u32 uimm16", _fn, _SK)
op("s_cmp_eq_u64", "sopc", "scc", "u64 u64", operator.eq, _SC)
op("s_cmp_lg_u64", "sopc", "scc", "u64 u64", operator.ne, _SC)
for _t in ("b32", "b64"):
    op(f"s_bitcmp0_{_t}", "sopc", "scc", f"{_t} u32", lambda a, b: a & _bit(b, a) == 0, _SC)
    op(f"s_bitcmp1_{_t}", "sopc", "scc", f"{_t} u32", lambda a, b: a & _bit(b, a) != 0, _SC)
op("s_movk_i32", "sopk", "i32", "simm16", lambda k: k, _SK)
op("s_cmovk_i32", "sopk", "b32", "simm16 D.b32 scc", lambda k, old, scc: select(scc, k.view(np.uint32), old), _SK)
op("s_addk_i32", "sopk", "i32 scc", "simm16 D.i32", lambda k, old: _add_i32(old, k), _SK)
op("s_mulk_i32", "sopk", "i32", "simm16 D.i32", lambda k, old: old * k, _SK)

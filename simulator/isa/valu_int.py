"""Vector integer ALU: 32-, 16- and 64-bit arithmetic, shifts, bit fields, byte tricks, sums of differences.

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapters 12.7-12.9 and 12.11. `u24`/`i24` are
the low 24 bits. Shift counts use the low 4, 5 or 6 bits. `clamp` saturates (the `clamp_fn` of an entry).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from kvc.simulator.isa.bits import (
    Array,
    first_set,
    leading_zeros,
    low_ones,
    reverse_bits,
    select,
    sign_extend,
    sign_run,
)
from kvc.simulator.isa.chips import SINCE_CDNA3, SINCE_CDNA4
from kvc.simulator.isa.table import op

_V1, _V2, _V3 = "12.8 VOP1", "12.7 VOP2", "12.11 VOP3"
_LIMITS = {t: (np.iinfo(d).min, np.iinfo(d).max, d) for t, d in
           (("u16", np.uint16), ("i16", np.int16), ("u32", np.uint32), ("i32", np.int32))}  # fmt: skip


def saturating(kind: str, fn: Callable[..., Array]) -> Callable[..., Array]:
    """`fn` on int64 copies of its operands, clipped to the range of `kind`."""
    low, high, dtype = _LIMITS[kind]

    def run(*sources: Array) -> Array:
        return np.clip(fn(*(s.astype(np.int64) for s in sources)), low, high).astype(dtype)

    return run


def _reversed(fn: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: fn(b, a)


# ---- add, subtract, carry -------------------------------------------------------------------------------------------

for _t, _fmt in (("u32", "vop2"), ("u16", "vop2"), ("i32", "vop3"), ("i16", "vop3")):
    _sec = _V2 if _fmt == "vop2" else _V3
    op(f"v_add_{_t}", _fmt, _t, f"{_t} {_t}", operator.add, _sec, clamp_fn=saturating(_t, operator.add))
    op(f"v_sub_{_t}", _fmt, _t, f"{_t} {_t}", operator.sub, _sec, clamp_fn=saturating(_t, operator.sub))
for _t in ("u32", "u16"):
    _rsub = _reversed(operator.sub)
    op(f"v_subrev_{_t}", "vop2", _t, f"{_t} {_t}", _rsub, _V2, clamp_fn=saturating(_t, _rsub))


def _add_carry(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _sub_borrow(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, b > a


def _add_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _sub_with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    partial = a - b
    return partial - borrow, (b > a) | (partial < borrow)


op("v_add_co_u32", "vop2", "u32 mask", "u32 u32", _add_carry, _V2)
op("v_sub_co_u32", "vop2", "u32 mask", "u32 u32", _sub_borrow, _V2)
op("v_subrev_co_u32", "vop2", "u32 mask", "u32 u32", lambda a, b: _sub_borrow(b, a), _V2)
op("v_addc_co_u32", "vop2", "u32 mask", "u32 u32 mask", _add_with_carry, _V2)
op("v_subb_co_u32", "vop2", "u32 mask", "u32 u32 mask", _sub_with_borrow, _V2)
op("v_subbrev_co_u32", "vop2", "u32 mask", "u32 u32 mask", lambda a, b, c: _sub_with_borrow(b, a, c), _V2)
op("v_cndmask_b32", "vop2", "b32", "b32 b32 mask", lambda a, b, mask: select(mask, b, a), _V2)

# ---- minimum, maximum, median ---------------------------------------------------------------------------------------


def _median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


for _t in ("i32", "u32", "i16", "u16"):
    for _name, _pick in (("min", np.minimum), ("max", np.maximum)):
        op(f"v_{_name}_{_t}", "vop2", _t, f"{_t} {_t}", _pick, _V2)
        op(f"v_{_name}3_{_t}", "vop3", _t, f"{_t} {_t} {_t}", lambda a, b, c, f=_pick: f(f(a, b), c), _V3)
    op(f"v_med3_{_t}", "vop3", _t, f"{_t} {_t} {_t}", _median, _V3)

# ---- logic and shifts -----------------------------------------------------------------------------------------------

op("v_and_b32", "vop2", "b32", "b32 b32", np.bitwise_and, _V2)
op("v_or_b32", "vop2", "b32", "b32 b32", np.bitwise_or, _V2)
op("v_xor_b32", "vop2", "b32", "b32 b32", np.bitwise_xor, _V2)
op("v_xnor_b32", "vop2", "b32", "b32 b32", lambda a, b: ~(a ^ b), _V2)
op("v_not_b32", "vop1", "b32", "b32", np.invert, _V1)
op("v_mov_b32", "vop1", "b32", "b32", lambda a: a, _V1)
op("v_mov_b64", "vop1", "b64", "b64", lambda a: a, _V1, archs=SINCE_CDNA3)
op("v_and_or_b32", "vop3", "b32", "b32 b32 b32", lambda a, b, c: (a & b) | c, _V3)
op("v_or3_b32", "vop3", "b32", "b32 b32 b32", lambda a, b, c: a | b | c, _V3)
op("v_bfi_b32", "vop3", "b32", "b32 b32 b32", lambda a, b, c: c ^ (a & (b ^ c)), _V3)
op("v_xad_u32", "vop3", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c, _V3)
op("v_add3_u32", "vop3", "u32", "u32 u32 u32", lambda a, b, c: a + b + c, _V3)
op("v_lshl_add_u32", "vop3", "u32", "u32 u32 u32", lambda a, b, c: (a << (b & 31)) + c, _V3)
op("v_add_lshl_u32", "vop3", "u32", "u32 u32 u32", lambda a, b, c: (a + b) << (c & 31), _V3)
op("v_lshl_or_b32", "vop3", "b32", "b32 b32 b32", lambda a, b, c: (a << (b & 31)) | c, _V3)
op(
    "v_lshl_add_u64", "vop3", "u64", "u64 u32 u64",
    lambda a, b, c: (a << (b & 7).astype(np.uint64)) + c, _V3, archs=SINCE_CDNA3,
)  # fmt: skip

op("v_lshlrev_b32", "vop2", "b32", "u32 b32", lambda n, a: a << (n & 31), _V2)
op("v_lshrrev_b32", "vop2", "b32", "u32 b32", lambda n, a: a >> (n & 31), _V2)
op("v_ashrrev_i32", "vop2", "i32", "i32 i32", lambda n, a: a >> (n & 31), _V2)
op("v_lshlrev_b16", "vop2", "b16", "u16 b16", lambda n, a: a << (n & 15), _V2)
op("v_lshrrev_b16", "vop2", "b16", "u16 b16", lambda n, a: a >> (n & 15), _V2)
op("v_ashrrev_i16", "vop2", "i16", "i16 i16", lambda n, a: a >> (n & 15), _V2)
op("v_lshlrev_b64", "vop3", "b64", "u32 b64", lambda n, a: a << (n & 63), _V3)
op("v_lshrrev_b64", "vop3", "b64", "u32 b64", lambda n, a: a >> (n & 63), _V3)
op("v_ashrrev_i64", "vop3", "i64", "i32 i64", lambda n, a: a >> (n & 63), _V3)

# ---- bit fields and counts ------------------------------------------------------------------------------------------

_LANE = np.arange(64, dtype=np.uint64)
_BELOW = (np.uint64(1) << _LANE) - np.uint64(1)  # the lanes below each lane
_BELOW_LOW, _BELOW_HIGH = _BELOW.astype(np.uint32), (_BELOW >> np.uint64(32)).astype(np.uint32)


def _constant(x: Array) -> int | None:
    """The value of an operand that is one number for all lanes (an immediate), else None."""
    return int(np.asarray(x).reshape(())) if np.size(x) == 1 else None


def _bfe_u32(a: Array, offset: Array, width: Array) -> Array:
    size = _constant(width)
    if size is not None:
        return (a >> (offset & 31)) & ((1 << (size & 31)) - 1)
    return (a >> (offset & 31)) & low_ones(width & 31)


def _bfe_i32(a: Array, offset: Array, width: Array) -> Array:
    at, size = _constant(offset), _constant(width)
    if at is not None and size is not None and 0 < size & 31 <= 32 - (at & 31):
        return (a << (32 - (size & 31) - (at & 31))) >> (32 - (size & 31))
    width = width & 31
    field = (a >> (offset & 31).view(np.int32)).view(np.uint32) & low_ones(width)
    sign = (low_ones(width) >> 1) + (width != 0)  # the field's top bit; 0 for an empty field
    return ((field ^ sign) - sign).view(np.int32)


def _bitop3(a: Array, b: Array, c: Array, table: int) -> Array:
    """Any boolean function of three operands; bit `4 a + 2 b + c` of the truth table is the result."""
    result = np.zeros_like(a & b & c)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


op("v_bfe_u32", "vop3", "u32", "u32 u32 u32", _bfe_u32, _V3)
op("v_bfe_i32", "vop3", "i32", "i32 u32 u32", _bfe_i32, _V3)
op("v_bfm_b32", "vop3", "b32", "u32 u32", lambda a, b: low_ones(a & 31) << (b & 31), _V3)
op("v_bfrev_b32", "vop1", "b32", "b32", reverse_bits, _V1)
op("v_ffbh_u32", "vop1", "i32", "u32", leading_zeros, _V1)
op("v_ffbl_b32", "vop1", "i32", "b32", first_set, _V1)
op("v_ffbh_i32", "vop1", "i32", "i32", sign_run, _V1)
op("v_bcnt_u32_b32", "vop3", "u32", "b32 u32", lambda a, b: np.bitwise_count(a) + b, _V3)
op("v_mbcnt_lo_u32_b32", "vop3", "u32", "b32 u32", lambda a, b: np.bitwise_count(a & _BELOW_LOW) + b, _V3)
op("v_mbcnt_hi_u32_b32", "vop3", "u32", "b32 u32", lambda a, b: np.bitwise_count(a & _BELOW_HIGH) + b, _V3)
op("v_bitop3_b32", "vop3", "b32", "b32 b32 b32 bitop3", _bitop3, _V3, archs=SINCE_CDNA4)
op("v_bitop3_b16", "vop3", "b16", "b16 b16 b16 bitop3", _bitop3, _V3, archs=SINCE_CDNA4)
op("v_prng_b32", "vop1", "b32", "b32", lambda a: (a << 1) ^ ((a >> 31) * 197), _V1, archs=SINCE_CDNA4)

# ---- multiplication -------------------------------------------------------------------------------------------------


def _u24(a: Array) -> Array:
    return a & 0xFFFFFF


def _i24(a: Array) -> Array:
    return (a << 8) >> 8


def _wide_high(wide: type) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        return (np.multiply(a, b, dtype=wide) >> 32).astype(a.dtype)

    return run


_mul_hi_u32, _mul_hi_i32 = _wide_high(np.uint64), _wide_high(np.int64)
op("v_mul_lo_u32", "vop3", "u32", "u32 u32", np.multiply, _V3)
op("v_mul_lo_i32", "vop3", "i32", "i32 i32", np.multiply, _V3)
op("v_mul_hi_u32", "vop3", "u32", "u32 u32", _mul_hi_u32, _V3)
op("v_mul_hi_i32", "vop3", "i32", "i32 i32", _mul_hi_i32, _V3)
op("v_mul_lo_u16", "vop2", "u16", "u16 u16", np.multiply, _V2)
op("v_mul_u32_u24", "vop2", "u32", "u32 u32", lambda a, b: _u24(a) * _u24(b), _V2)
op("v_mul_i32_i24", "vop2", "i32", "i32 i32", lambda a, b: _i24(a) * _i24(b), _V2)
op("v_mul_hi_u32_u24", "vop2", "u32", "u32 u32", lambda a, b: _mul_hi_u32(_u24(a), _u24(b)), _V2)
op("v_mul_hi_i32_i24", "vop2", "i32", "i32 i32", lambda a, b: _mul_hi_i32(_i24(a), _i24(b)), _V2)


def _mad_u24(a: Array, b: Array, c: Array) -> Array:
    return _u24(a) * _u24(b) + c


def _mad_i24(a: Array, b: Array, c: Array) -> Array:
    return _i24(a) * _i24(b) + c


def _mad_i24_clamp(a: Array, b: Array, c: Array) -> Array:
    return saturating("i32", lambda x, y, z: x * y + z)(_i24(a), _i24(b), c)


def _mad(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _mad_u64_u32(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = np.multiply(a, b, dtype=np.uint64) + c
    return total, total < c


def _mad_i64_i32(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """The mask is bit 64 of the 65-bit sum."""
    product = np.multiply(a, b, dtype=np.int64)
    total = product + c
    overflow = ((product ^ total) & (c ^ total)) < 0
    return total, (total < 0) ^ overflow


op("v_mad_u32_u24", "vop3", "u32", "u32 u32 u32", _mad_u24, _V3, clamp_fn=saturating("u32", _mad_u24))
op("v_mad_i32_i24", "vop3", "i32", "i32 i32 i32", _mad_i24, _V3, clamp_fn=_mad_i24_clamp)
op("v_mad_u32_u16", "vop3", "u32", "u16 u16 u32", lambda a, b, c: np.multiply(a, b, dtype=np.uint32) + c, _V3,
   clamp_fn=saturating("u32", _mad))  # fmt: skip
op("v_mad_i32_i16", "vop3", "i32", "i16 i16 i32", lambda a, b, c: np.multiply(a, b, dtype=np.int32) + c, _V3,
   clamp_fn=saturating("i32", _mad))  # fmt: skip
# gfx9 has two encodings of each: the "legacy" one zeroes the other half of the register, the newer one keeps it.
for _t in ("u16", "i16"):
    op(f"v_mad_{_t}", "vop3", "b16.keep", f"{_t} {_t} {_t}", _mad, _V3, clamp_fn=saturating(_t, _mad))
    op(f"v_mad_legacy_{_t}", "vop3", _t, f"{_t} {_t} {_t}", _mad, _V3, clamp_fn=saturating(_t, _mad))
op("v_mad_u64_u32", "vop3", "u64 mask", "u32 u32 u64", _mad_u64_u32, _V3)
op("v_mad_i64_i32", "vop3", "i64 mask", "i32 i32 i64", _mad_i64_i32, _V3)

# ---- bytes ----------------------------------------------------------------------------------------------------------


def _align(a: Array, b: Array, count: Array) -> Array:
    """Low dword of {a, b} >> count, 0 <= count < 32."""
    shift = _constant(count)
    if shift:
        return (a << (32 - shift)) | (b >> shift)
    return (((a.astype(np.uint64) << 32) | b) >> count).astype(np.uint32)


def _permute_byte(data: Array, selector: Array) -> Array:
    """One byte of v_perm_b32: 0-7 a byte of {S0, S1}, 8-11 the sign of bytes 1, 3, 5, 7, 12 zero, above 0xff."""
    moved = ((data >> ((selector & 7) * 8).astype(np.uint64)) & 0xFF).astype(np.uint32)
    signed = ((data >> (((selector & 3) * 16) + 15).astype(np.uint64)) & 1).astype(np.uint32) * 0xFF
    value = select(selector >= 8, signed, moved)
    value = select(selector >= 12, np.zeros_like(value), value)
    return select(selector >= 13, np.full_like(value, 0xFF), value)


def _perm(a: Array, b: Array, selectors: Array) -> Array:
    selectors = np.asarray(selectors)
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(selectors))
    data = (np.asarray(a).astype(np.uint64) << 32) | b
    pattern = _constant(selectors[:1, :1]) if selectors.ndim == 2 and selectors.shape[-1] == 1 else None
    if pattern is not None and (selectors == pattern).all():  # the usual case: an immediate or an SGPR set from one
        return _perm_constant(data, pattern, shape)
    result: Array = np.uint32(0)
    for byte in range(4):
        result = result | (_permute_byte(data, (selectors >> (8 * byte)) & 0xFF) << (8 * byte))
    return result


def _perm_constant(data: Array, pattern: int, shape: tuple[int, ...]) -> Array:
    result: Array = np.zeros(shape, np.uint32)
    for byte in range(4):
        pick = pattern >> (8 * byte) & 0xFF
        if pick >= 13:
            result = result | (0xFF << (8 * byte))
        elif 8 <= pick < 12:
            result = result | (((data >> (16 * (pick - 8) + 15)) & 1).astype(np.uint32) * 0xFF << (8 * byte))
        elif pick < 8:
            result = result | (((data >> (8 * pick)) & 0xFF).astype(np.uint32) << (8 * byte))
    return result


def _bytes(a: Array, size: int = 4) -> list[Array]:
    return [(a >> (8 * i)) & 0xFF for i in range(size)]


def _lerp(a: Array, b: Array, c: Array) -> Array:
    result: Array = np.uint32(0)
    for i, (x, y, z) in enumerate(zip(_bytes(a), _bytes(b), _bytes(c), strict=True)):
        result = result | (((x + y + (z & 1)) >> 1) << (8 * i))
    return result


def _absdiff(a: Array, b: Array) -> Array:
    return np.maximum(a, b) - np.minimum(a, b)


def _sad_u8(a: Array, b: Array, c: Array) -> Array:
    return sum((_absdiff(x, y) for x, y in zip(_bytes(a), _bytes(b), strict=True)), start=c)


def _msad_u8(a: Array, b: Array, c: Array) -> Array:
    """Bytes of `b` that are zero do not count."""
    pairs = zip(_bytes(a), _bytes(b), strict=True)
    return sum((_absdiff(x, y) * (y != 0) for x, y in pairs), start=c)


def _sad_u16(a: Array, b: Array, c: Array) -> Array:
    return c + _absdiff(a & 0xFFFF, b & 0xFFFF) + _absdiff(a >> 16, b >> 16)


def _windows(a: Array) -> list[Array]:
    """The four dwords of uint64 `a` that start at bytes 0-3."""
    return [(a >> (8 * i)).astype(np.uint32) for i in range(4)]


def _quad_u16(fn: Callable[[Array, Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        result: Array = np.uint64(0)
        for i, window in enumerate(_windows(a)):
            part = fn(window, b, ((c >> (16 * i)) & 0xFFFF).astype(np.uint32)) & 0xFFFF
            result = result | (part.astype(np.uint64) << (16 * i))
        return result

    return run


def _mqsad_u32(a: Array, b: Array, c: Array) -> Array:
    return np.stack([_msad_u8(window, b, c[..., i]) for i, window in enumerate(_windows(a))], axis=-1)


def _sat_pk_u8_i16(a: Array) -> Array:
    low = np.clip(sign_extend(a, 16), 0, 255)
    high = np.clip(a.view(np.int32) >> 16, 0, 255)
    return (low | (high << 8)).astype(np.uint16)


def _ashr_pk(low: int, high: int) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, count: Array) -> Array:
        x = np.clip(a >> (count & 31), low, high) & 0xFF
        y = np.clip(b >> (count & 31), low, high) & 0xFF
        return (x | (y << 8)).astype(np.uint16)

    return run


op("v_alignbit_b32", "vop3", "b32", "b32 b32 u32", lambda a, b, c: _align(a, b, c & 31), _V3)
op("v_alignbyte_b32", "vop3", "b32", "b32 b32 u32", lambda a, b, c: _align(a, b, (c & 3) * 8), _V3)
op("v_perm_b32", "vop3", "b32", "b32 b32 b32", _perm, _V3)
op("v_lerp_u8", "vop3", "u32", "u32 u32 u32", _lerp, _V3)
op("v_sad_u8", "vop3", "u32", "u32 u32 u32", _sad_u8, _V3)
op("v_sad_hi_u8", "vop3", "u32", "u32 u32 u32", lambda a, b, c: (_sad_u8(a, b, np.uint32(0)) << 16) + c, _V3)
op("v_sad_u16", "vop3", "u32", "u32 u32 u32", _sad_u16, _V3)
op("v_sad_u32", "vop3", "u32", "u32 u32 u32", lambda a, b, c: _absdiff(a, b) + c, _V3)
op("v_msad_u8", "vop3", "u32", "u32 u32 u32", _msad_u8, _V3)
op("v_qsad_pk_u16_u8", "vop3", "b64", "b64 b32 b64", _quad_u16(_sad_u8), _V3)
op("v_mqsad_pk_u16_u8", "vop3", "b64", "b64 b32 b64", _quad_u16(_msad_u8), _V3)
op("v_mqsad_u32_u8", "vop3", "b128", "b64 b32 b128", _mqsad_u32, _V3)
op("v_sat_pk_u8_i16", "vop1", "b16", "b32", _sat_pk_u8_i16, _V1)
op("v_ashr_pk_i8_i32", "vop3", "b16.keep", "i32 i32 i32", _ashr_pk(-128, 127), _V3, archs=SINCE_CDNA4)
op("v_ashr_pk_u8_i32", "vop3", "b16.keep", "i32 i32 i32", _ashr_pk(0, 255), _V3, archs=SINCE_CDNA4)

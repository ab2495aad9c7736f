"""Floating-point primitives that NumPy lacks: fused multiply-add rounded once, min/max as the hardware orders them,
and conversions with other roundings. All are vectorised; lanes that need care are found cheaply and fixed apart.

Denormals are kept (MODE.denorm = 3) and the rounding is to nearest even unless a name says otherwise.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from kvc.simulator.isa.bits import Array

# Every half as float32, by its bits: a table look-up is faster than NumPy's conversion on large arrays.
HALF_AS_F32 = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)


def f16_to_f32(x: Array) -> Array:
    """float16 -> float32, exact."""
    return HALF_AS_F32.take(np.asarray(x).view(np.uint16))


# ---- fused multiply-add ---------------------------------------------------------------------------------------------


_LOW_29 = np.uint64(35)  # shifts the low 29 bits of a float64 to the top
_TIE = np.uint64(1 << 63)
_SMALLEST_F32 = np.float32(2.0**-126)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32, rounded once.

    The product is exact in float64, so only the sum rounds there, and a second rounding to float32 goes wrong only
    when the float64 sum lies exactly half-way between two float32 numbers: then its low 29 bits are 1 followed by
    zeros, or, for a denormal result, something longer. Those few lanes are redone with a sum rounded to odd, from
    which rounding to any precision at least two bits shorter is right (Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums", IEEE Trans. Computers 57, 2008).
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = np.add(product, c, out=product) if np.shape(product) == np.shape(c) else np.asarray(product + c)
    result = total.astype(np.float32)
    risky = (total.view(np.uint64) << _LOW_29) == _TIE
    small = np.abs(result) < _SMALLEST_F32
    if np.count_nonzero(small):  # zeros are exact; a denormal may hide a tie
        risky |= small & (result != 0)
    if np.count_nonzero(risky):
        at = np.nonzero(risky)
        x, y, z = (np.broadcast_to(v, result.shape)[at] for v in (a, b, c))
        result[at] = fma_odd(x, y, z).astype(np.float32)
    return result


def fma_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 as float64 rounded to odd: ready to be scaled by a power of two and rounded once more."""
    product = np.multiply(a, b, dtype=np.float64)
    total = np.asarray(np.add(product, c, dtype=np.float64))
    added = total - product
    error = (product - (total - added)) + (c - added)
    inexact = (error != 0) & (error == error)
    away = (error > 0) == (total > 0)  # the exact sum is farther from zero than `total`
    step = np.where(away, 1, -1) * (inexact & (total.view(np.int64) & 1 == 0))
    return (total.view(np.int64) + step).view(np.float64)


def fma_f16(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float16, rounded once.

    Float64 holds the 22-bit product exactly; the sum needs more than 53 bits only when the product lies so far below
    `c` that it cannot reach a half-way point of the result, so rounding float64 to float16 is safe.
    """
    wide = np.multiply(f16_to_f32(a), f16_to_f32(b), dtype=np.float64)
    return (wide + f16_to_f32(c)).astype(np.float16)


_SPLIT = 134217729.0  # 2^27 + 1


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    added = total - a
    return total, (a - (total - added)) + (b - added)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    t, u = a * _SPLIT, b * _SPLIT
    a_high, b_high = t - (t - a), u - (u - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _odd_sum(a: Array, b: Array) -> Array:
    total, error = _two_sum(a, b)
    total = np.asarray(total)
    away = (error > 0) == (total > 0)
    step = np.where(away, 1, -1) * ((error != 0) & (total.view(np.int64) & 1 == 0))
    return (total.view(np.int64) + step).view(np.float64)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float64, rounded once: Dekker's product, then Boldo and Melquiond's sum rounded to odd.

    Lanes whose product or addend comes near the limits of the exponent are redone in exact rational arithmetic.
    """
    plain = np.asarray(a * b + c)
    high, low = _two_product(a, b)
    upper, lower = _two_sum(c, low)
    head, tail = _two_sum(high, upper)
    result = np.asarray(head + _odd_sum(lower, tail))
    # A zero operand makes the plain sum right (in value and sign), and so does an infinity or NaN.
    size = np.abs(high)
    trivial = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0) | (c == 0)
    safe = (size > 2.0**-900) & (size < 2.0**1000) & (np.abs(c) < 2.0**1000) & (np.abs(a) < 2.0**900)
    safe &= np.abs(b) < 2.0**900
    result = np.where(trivial, plain, result)
    result = np.where((c == 0) & (a != 0) & (b != 0), a * b, result)  # an underflow keeps the product's sign
    # An infinite addend absorbs a finite product, even one that overflowed by itself.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, result)
    at = np.nonzero(~(trivial | safe))
    if at[0].size:
        x, y, z = (np.broadcast_to(v, result.shape)[at] for v in (a, b, c))
        result[at] = fma_exact(x, y, z, 0)
    return result


def fma_exact(a: Array, b: Array, c: Array, scale: int) -> Array:
    """(a * b + c) * 2^scale of finite float64 vectors, one lane at a time in rational arithmetic, rounded once."""
    factor = Fraction(2) ** scale
    return np.array([_round_f64((Fraction(x) * Fraction(y) + Fraction(z)) * factor)
                     for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float64)  # fmt: skip


def _round_f64(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator  # Python's integer division rounds once, denormals included
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


# ---- minimum and maximum --------------------------------------------------------------------------------------------

_QUIET = {2: 0x0200, 4: 0x00400000, 8: 0x0008000000000000}


def _unsigned(x: Array) -> Array:
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def quiet(x: Array) -> Array:
    """NaNs made quiet, everything else unchanged."""
    bits = _unsigned(x)
    return (bits | (np.isnan(x).astype(bits.dtype) * _QUIET[x.dtype.itemsize])).view(x.dtype)


def is_signalling(x: Array) -> Array:
    """True for NaNs whose quiet bit is clear."""
    return np.isnan(x) & (_unsigned(x) & _QUIET[x.dtype.itemsize] == 0)


def _ordered_extreme(a: Array, b: Array, pick: np.ufunc) -> Array:
    """Minimum or maximum with -0 < +0, for operands without NaN."""
    result = np.asarray(pick(a, b))
    if result.all():
        return result
    x, y = _unsigned(a), _unsigned(b)
    tied = x & y if pick is np.maximum else x | y
    bits = _unsigned(result)
    equal = np.negative(np.equal(a, b).astype(bits.dtype))
    return (bits ^ ((bits ^ tied) & equal)).view(result.dtype)


def _extreme(a: Array, b: Array, pick: np.ufunc) -> Array:
    """IEEE-mode minimum or maximum: a quiet NaN loses against a number, a signalling one is made quiet and wins."""
    result = np.asarray(pick(a, b))
    largest = np.maximum.reduce(result, axis=None)
    if largest == largest:
        return result if result.all() else _ordered_extreme(a, b, pick)
    a, b = np.broadcast_arrays(a, b)
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    number_a, number_b = np.where(a_nan, b, a), np.where(b_nan, a, b)
    result = _ordered_extreme(number_a, number_b, pick)
    loud: Any = np.where(is_signalling(b), quiet(b), result)
    return np.where(is_signalling(a), quiet(a), loud)


def _half_order(bits: Array) -> Array:
    """int16 patterns of halves <-> integers in the order of the numbers (-0 below +0); its own inverse."""
    return bits ^ ((bits >> 15) & 0x7FFF)


def _extreme_f16(a: Array, b: Array, pick: np.ufunc) -> Array:
    """On integers, because NumPy's own float16 loops are ten times slower."""
    x, y = np.asarray(a).view(np.int16), np.asarray(b).view(np.int16)
    if max(int((x & 0x7FFF).max()), int((y & 0x7FFF).max())) > 0x7C00:  # a NaN
        return _extreme(a, b, pick)
    return _half_order(pick(_half_order(x), _half_order(y))).view(np.float16)


def minimum(a: Array, b: Array) -> Array:
    """v_min_f16/f32/f64 in IEEE mode."""
    return _extreme_f16(a, b, np.minimum) if a.dtype == np.float16 else _extreme(a, b, np.minimum)


def maximum(a: Array, b: Array) -> Array:
    """v_max_f16/f32/f64 in IEEE mode."""
    return _extreme_f16(a, b, np.maximum) if a.dtype == np.float16 else _extreme(a, b, np.maximum)


def minimum3(a: Array, b: Array, c: Array) -> Array:
    """v_min3_*: the minimum of the first two, then of the third."""
    return minimum(minimum(a, b), c)


def maximum3(a: Array, b: Array, c: Array) -> Array:
    """v_max3_*."""
    return maximum(maximum(a, b), c)


def median(a: Array, b: Array, c: Array) -> Array:
    """v_med3_*: with a NaN the minimum of the three; ties between zeros as the document's comparisons resolve them."""
    result = np.asarray(np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)))
    largest = np.maximum.reduce(result, axis=None)
    nan_free = largest == largest and not (np.isnan(a).any() or np.isnan(b).any() or np.isnan(c).any())
    if nan_free and result.all():
        return result
    top = maximum3(a, b, c)
    among: Any = np.where(top == b, maximum(a, c), maximum(a, b))
    among = np.where(top == a, maximum(b, c), among)
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), minimum3(a, b, c), among)


def propagating(a: Array, b: Array, pick: np.ufunc) -> Array:
    """IEEE 754-2019 minimum/maximum: any NaN gives a quiet NaN, and -0 < +0. `pick` is np.minimum or np.maximum."""
    a, b = np.broadcast_arrays(a, b)
    result = _ordered_extreme(np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b), pick)
    result = np.where(np.isnan(b), quiet(b), result)
    return np.where(np.isnan(a), quiet(a), result)


# ---- conversions ----------------------------------------------------------------------------------------------------


def to_integer(x: Array, low: int, high: int, dtype: type) -> Array:
    """Truncate to an integer type and saturate; NaN gives 0."""
    wide = np.asarray(x).astype(np.float64)
    clipped = np.minimum(np.maximum(wide, low), high)
    nan = clipped != clipped
    if np.count_nonzero(nan):
        clipped = np.where(nan, 0.0, clipped)
    return clipped.astype(np.int64).astype(dtype)


def f32_to_f16_rtz(x: Array) -> Array:
    """float32 -> float16 rounded towards zero (so that nothing finite becomes infinite)."""
    x = np.asarray(x)
    half = (x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float16)  # exact for normal halves
    size = np.abs(x)
    normal = (size >= np.float32(2.0**-14)) & (size < np.float32(65536))
    if np.count_nonzero(normal) != normal.size:
        at = np.nonzero(~normal)
        nearest = x[at].astype(np.float16)
        half[at] = (nearest.view(np.uint16) - (np.abs(f16_to_f32(nearest)) > size[at])).view(np.float16)
    return half


def bf16_bits(x: Array) -> Array:
    """float32 -> the bits of bfloat16 in the low half of uint32, to nearest even; NaN becomes a quiet NaN."""
    bits = np.asarray(x).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    nan = x != x
    if np.count_nonzero(nan):
        rounded = np.where(nan, (bits >> 16) | 0x40, rounded)
    return rounded


def f32_to_bf16(x: Array) -> Array:
    """float32 -> the bits of bfloat16 (uint16), to nearest even."""
    return bf16_bits(x).astype(np.uint16)


def bf16_to_f32(bits: Array) -> Array:
    """The bits of bfloat16 (uint16) -> float32, exact."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)

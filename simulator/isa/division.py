"""Helpers of software division (v_div_scale, v_div_fmas, v_div_fixup) and of range reduction (v_trig_preop).

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapter 12.11, corrected. The document's text is
not what makes the published sequence divide correctly; ERRATA in the tests says where it differs. Scaling is by 2^64
(f32) or 2^128 (f64), and v_div_fmas undoes it in the direction that the quotient's exponent says, rounding once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from kvc.simulator.isa import floats
from kvc.simulator.isa.bits import Array
from kvc.simulator.isa.floats import fma_f32, fma_f64
from kvc.simulator.isa.table import op

_V3 = "12.11 VOP3"

_FORMAT: dict[str, tuple[Any, Any, int, int, int, int, int]] = {
    "f32": (np.float32, np.uint32, 23, 0xFF, 64, 96, 23),
    "f64": (np.float64, np.uint64, 52, 0x7FF, 128, 768, 53),
}


def _exponent(x: Array, kind: str) -> Array:
    _, bits, mantissa, top, *_ = _FORMAT[kind]
    return ((np.asarray(x).view(bits) >> mantissa) & top).astype(np.int32)


# Numbers between 2^-n and 2^n: no quotient of two of them needs scaling or fixing up.
_ORDINARY = {"f32": 40, "f64": 300}
_DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64}


def _extraordinary(den: Array, num: Array, kind: str, also: Array | None = None) -> Array | None:
    """Mask of the lanes where a division needs care, or where `also` is not finite; None where there are none."""
    limit = _ORDINARY[kind]
    low, high = _DTYPES[kind](2.0**-limit), _DTYPES[kind](2.0**limit)
    d, n = np.abs(den), np.abs(num)
    ordinary = (d >= low) & (d <= high) & (n >= low) & (n <= high)
    if also is not None:
        ordinary = ordinary & np.isfinite(also)
    return None if np.count_nonzero(ordinary) == ordinary.size else ~ordinary


def _div_scale_fast(kind: str) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """v_div_scale_*: the general rules on the lanes that need them, the operand itself on the others."""
    general = _div_scale(kind)

    def run(x: Array, den: Array, num: Array) -> tuple[Array, Array]:
        special = _extraordinary(den, num, kind)
        shape = np.broadcast_shapes(np.shape(x), np.shape(den), np.shape(num))
        scaled = np.broadcast_to(x, shape).copy()
        mask = np.zeros(shape, np.bool_)
        if special is not None:
            at = np.nonzero(np.broadcast_to(special, shape))
            operands = (np.broadcast_to(v, shape)[at] for v in (x, den, num))
            scaled[at], mask[at] = general(*operands)
        return scaled, mask

    return run


def _div_scale(kind: str) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    dtype, _, _, top, amount, far, tiny = _FORMAT[kind]
    bias = top >> 1

    def run(x: Array, den: Array, num: Array) -> tuple[Array, Array]:
        e_num, e_den = _exponent(num, kind), _exponent(den, kind)
        zero = (num == 0) | (den == 0)
        den_denormal = (e_den == 0) & ~zero
        rcp_denormal = np.abs(den) > dtype(2.0) ** (bias - 1)
        quotient = np.abs(num.astype(np.float64) / den.astype(np.float64))
        quotient_denormal = (quotient < dtype(2.0) ** (1 - bias)) & (num != 0) & ~np.isinf(den)
        is_den, is_num = x == den, x == num
        cases = [
            zero,
            e_num - e_den >= far,
            den_denormal,
            rcp_denormal & quotient_denormal,
            rcp_denormal,
            quotient_denormal,
            e_num <= tiny,
        ]
        shifts = [0, amount * is_den, amount, -amount * is_den, -amount, amount * is_num, amount]
        shift = np.select(cases, shifts, 0).astype(np.int32)
        scaled = np.where(zero, dtype(np.nan), np.ldexp(x, shift))
        mask = np.select(cases, [False, True, False, True, False, True, False], False)
        return scaled, mask

    return run


def _unscale(c: Array, kind: str, mask: Array) -> Array:
    """Exponent to add after v_div_fmas: up where the quotient is at least 1, else down; 0 without the mask."""
    bias, amount = _FORMAT[kind][3] >> 1, _FORMAT[kind][4]
    return np.where(_exponent(c, kind) > bias, amount, -amount) * mask


def _div_fmas_f32(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    result = fma_f32(a, b, c)
    if np.count_nonzero(vcc):
        if result.shape != (shape := np.broadcast_shapes(result.shape, vcc.shape)):
            result = np.broadcast_to(result, shape).copy()  # uniform operands under a mask that is not
        at = np.nonzero(np.broadcast_to(vcc, shape))
        x, y, z = (np.broadcast_to(v, result.shape)[at] for v in (a, b, c))
        result[at] = np.ldexp(floats.fma_odd(x, y, z), _unscale(z, "f32", np.True_).astype(np.int32)).astype(np.float32)
    return result


def _div_fmas_f64(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    result = fma_f64(a, b, c)
    if not np.any(vcc):
        return result
    shift = np.broadcast_to(_unscale(c, "f64", vcc), result.shape)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & ((c != 0) | ((a != 0) & (b != 0)))
    for sign in (1, -1):
        at = np.nonzero((shift == sign * 128) & finite)
        if at[0].size:
            x, y, z = (np.broadcast_to(v, result.shape)[at] for v in (a, b, c))
            result[at] = floats.fma_exact(x, y, z, sign * 128)
    return result


def div_fixup(quotient: Array, den: Array, num: Array) -> Array:
    """v_div_fixup_*: the sign, and the special cases that the iteration cannot give. Any of the three formats."""
    dtype = np.asarray(quotient).dtype.type
    quotient, den, num = np.broadcast_arrays(quotient, den, num)
    sign = np.signbit(den) ^ np.signbit(num)
    magnitude = np.abs(quotient)
    den_inf, num_inf = np.isinf(den), np.isinf(num)
    magnitude = np.where(den_inf | (num == 0), dtype(0), magnitude)
    magnitude = np.where((den == 0) | num_inf, dtype(np.inf), magnitude)
    result = np.where(sign, -magnitude, magnitude)
    invalid = ((den == 0) & (num == 0)) | (den_inf & num_inf)
    result = np.where(invalid, -dtype(np.nan), result)
    result = np.where(np.isnan(den), floats.quiet(den), result)
    return np.where(np.isnan(num), floats.quiet(num), result)


def _div_fixup_fast(kind: str, general: Callable[..., Array]) -> Callable[[Array, Array, Array], Array]:
    """v_div_fixup_*: the general rules on the lanes that need them, the quotient with the right sign on the others."""
    dtype = _DTYPES[kind]
    raw = f"u{np.dtype(dtype).itemsize}"
    sign = 1 << (np.dtype(dtype).itemsize * 8 - 1)

    def run(quotient: Array, den: Array, num: Array) -> Array:
        special = _extraordinary(den, num, kind, quotient)
        q, d, n = (np.asarray(v).view(raw) for v in (quotient, den, num))
        result = ((q & (sign - 1)) | ((d ^ n) & sign)).view(dtype)
        if special is not None:
            at = np.nonzero(np.broadcast_to(special, result.shape))
            operands = (np.broadcast_to(v, result.shape)[at] for v in (quotient, den, num))
            result[at] = general(*operands)
        return result

    return run


def _div_fixup(kind: str, limit: int) -> Callable[[Array, Array, Array], Array]:
    """The f32 and f64 fix-up also decides quotients that left the range of the format, to nearest even: zero where the
    exponents differ by more than `limit`, infinity where the iteration arrived at infinity or NaN.
    """

    def run(quotient: Array, den: Array, num: Array) -> Array:
        result = div_fixup(quotient, den, num)
        ordinary = np.isfinite(den) & np.isfinite(num) & (den != 0) & (num != 0)
        below = ordinary & (_exponent(num, kind) - _exponent(den, kind) < limit)
        above = ordinary & ~np.isfinite(quotient) & ~below
        if below.any() or above.any():
            sign = np.signbit(den) ^ np.signbit(num)
            limits = np.where(above, result.dtype.type(np.inf), result.dtype.type(0))
            result = np.where(below | above, np.where(sign, -limits, limits), result)
        return result

    return run


op("v_div_scale_f32", "vop3", "f32 mask", "f32 f32 f32", _div_scale_fast("f32"), _V3)
op("v_div_scale_f64", "vop3", "f64 mask", "f64 f64 f64", _div_scale_fast("f64"), _V3)
op("v_div_fmas_f32", "vop3", "f32", "f32 f32 f32 vcc", _div_fmas_f32, _V3)
op("v_div_fmas_f64", "vop3", "f64", "f64 f64 f64 vcc", _div_fmas_f64, _V3)
op("v_div_fixup_f32", "vop3", "f32", "f32 f32 f32", _div_fixup_fast("f32", _div_fixup("f32", -150)), _V3)
op("v_div_fixup_f64", "vop3", "f64", "f64 f64 f64", _div_fixup_fast("f64", _div_fixup("f64", -1075)), _V3)
op("v_div_fixup_f16", "vop3", "b16.keep", "f16 f16 f16", lambda q, d, n: div_fixup(q, d, n).view(np.uint16), _V3)
op("v_div_fixup_legacy_f16", "vop3", "f16", "f16 f16 f16", div_fixup, _V3)


@cache
def _two_over_pi() -> int:
    """The first 1201 fraction bits of 2/pi as an integer, by Machin's formula with guard digits."""
    guard = 1 << 1300

    def arctan_inverse(n: int) -> int:
        term = total = guard // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    return (2 * guard * guard // pi) >> 99


def _trig_preop(x: Array, segment: Array) -> Array:
    """53 bits of 2/pi that matter for the reduction of `x`, scaled: segment n starts 53 n bits down."""
    x, segment = np.broadcast_arrays(x, segment)
    exponent = _exponent(x, "f64")
    shift = (segment & 31).astype(np.int64) * 53 + np.maximum(exponent - 1077, 0)
    result = np.empty(x.shape)
    for s in np.unique(shift).tolist():
        window = (_two_over_pi() << s >> 1148) & 0x1FFFFFFFFFFFFF
        result[shift == s] = float(window)
    scale = -53 - shift + 128 * (exponent >= 1968)
    return np.ldexp(result, scale.astype(np.int32))


op("v_trig_preop_f64", "vop3", "f64", "f64 u32", _trig_preop, _V3)

"""Vector float ALU for f32, f64 and f16: arithmetic, rounding, exponent surgery, transcendentals, cube maps.

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapters 12.7-12.11. Where the document leaves
rounding open (v_rcp, v_exp, ...: within 1 ulp) results are correctly rounded. The f32 transcendentals flush
denormals, as the document notes; the f16 and f64 ones do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from kvc.simulator.isa import floats
from kvc.simulator.isa.bits import Array, select
from kvc.simulator.isa.chips import CDNA2_ONLY, SINCE_CDNA3, SINCE_CDNA4
from kvc.simulator.isa.floats import f16_to_f32, fma_f16, fma_f32, fma_f64
from kvc.simulator.isa.table import op

_V1, _V2, _V3 = "12.8 VOP1", "12.7 VOP2", "12.11 VOP3"
_FLOAT: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def _f16(fn: Callable[..., Array]) -> Callable[..., Array]:
    """A function of float16 by way of float32: the second rounding is harmless for sums, products and roots."""

    def run(*sources: Array) -> Array:
        return np.asarray(fn(*(f16_to_f32(s) for s in sources))).astype(np.float16)

    return run


# ---- add, multiply, fused multiply-add ------------------------------------------------------------------------------

for _t, _wrap in (("f32", lambda f: f), ("f16", _f16)):
    op(f"v_add_{_t}", "vop2", _t, f"{_t} {_t}", _wrap(np.add), _V2)
    op(f"v_sub_{_t}", "vop2", _t, f"{_t} {_t}", _wrap(np.subtract), _V2)
    op(f"v_subrev_{_t}", "vop2", _t, f"{_t} {_t}", _wrap(lambda a, b: b - a), _V2)
    op(f"v_mul_{_t}", "vop2", _t, f"{_t} {_t}", _wrap(np.multiply), _V2)
op("v_add_f64", "vop3", "f64", "f64 f64", np.add, _V3)
op("v_mul_f64", "vop3", "f64", "f64 f64", np.multiply, _V3)


def _mad_f32(a: Array, b: Array, c: Array) -> Array:
    return a * b + c  # rounds twice: mad is not fused


def _legacy(product: Array, a: Array, b: Array) -> Array:
    """DirectX 9 rules: zero times anything is +0."""
    zero = (a == 0) | (b == 0)
    if not zero.any():
        return product
    return select(zero, np.zeros_like(product.view(np.uint32)), product.view(np.uint32)).view(np.float32)


def _mul_legacy(a: Array, b: Array) -> Array:
    return _legacy(np.asarray(a * b), a, b)


_mad_f16 = _f16(lambda a, b, c: (a * b).astype(np.float16).astype(np.float32) + c)

op("v_fma_f32", "vop3", "f32", "f32 f32 f32", fma_f32, _V3)
op("v_fma_f64", "vop3", "f64", "f64 f64 f64", fma_f64, _V3)
op("v_fmac_f32", "vop2", "f32", "f32 f32 D.f32", fma_f32, _V2)
op("v_fmac_f64", "vop2", "f64", "f64 f64 D.f64", fma_f64, _V2)
op("v_fmamk_f32", "vop2", "f32", "f32 f32 f32", fma_f32, _V2, archs=SINCE_CDNA3)
op("v_fmaak_f32", "vop2", "f32", "f32 f32 f32", fma_f32, _V2, archs=SINCE_CDNA3)
# gfx9 has two encodings of some 16-bit operations: "legacy" zeroes the other half of the register, the newer keeps it.
op("v_fma_f16", "vop3", "b16.keep", "f16 f16 f16", lambda a, b, c: fma_f16(a, b, c).view(np.uint16), _V3)
op("v_fma_legacy_f16", "vop3", "f16", "f16 f16 f16", fma_f16, _V3)
op("v_mad_f16", "vop3", "b16.keep", "f16 f16 f16", lambda a, b, c: _mad_f16(a, b, c).view(np.uint16), _V3)
op("v_mad_legacy_f16", "vop3", "f16", "f16 f16 f16", _mad_f16, _V3)
op("v_mac_f16", "vop2", "f16", "f16 f16 D.f16", _mad_f16, _V2)
op("v_madmk_f16", "vop2", "f16", "f16 f16 f16", _mad_f16, _V2)  # text order: a, constant, addend
op("v_madak_f16", "vop2", "f16", "f16 f16 f16", _mad_f16, _V2)
op("v_mad_f32", "vop3", "f32", "f32 f32 f32", _mad_f32, _V3, archs=CDNA2_ONLY)
op("v_mac_f32", "vop2", "f32", "f32 f32 D.f32", _mad_f32, _V2, archs=CDNA2_ONLY)
op("v_madmk_f32", "vop2", "f32", "f32 f32 f32", _mad_f32, _V2, archs=CDNA2_ONLY)
op("v_madak_f32", "vop2", "f32", "f32 f32 f32", _mad_f32, _V2, archs=CDNA2_ONLY)
op("v_mad_legacy_f32", "vop3", "f32", "f32 f32 f32", lambda a, b, c: _mul_legacy(a, b) + c, _V3, archs=CDNA2_ONLY)
op("v_mul_legacy_f32", "vop3", "f32", "f32 f32", _mul_legacy, _V3)

# ---- minimum, maximum, median ---------------------------------------------------------------------------------------

for _t, _fmt in (("f32", "vop2"), ("f16", "vop2"), ("f64", "vop3")):
    op(f"v_min_{_t}", _fmt, _t, f"{_t} {_t}", floats.minimum, _V2 if _fmt == "vop2" else _V3)
    op(f"v_max_{_t}", _fmt, _t, f"{_t} {_t}", floats.maximum, _V2 if _fmt == "vop2" else _V3)
for _t in ("f32", "f16"):
    op(f"v_min3_{_t}", "vop3", _t, f"{_t} {_t} {_t}", floats.minimum3, _V3)
    op(f"v_max3_{_t}", "vop3", _t, f"{_t} {_t} {_t}", floats.maximum3, _V3)
    op(f"v_med3_{_t}", "vop3", _t, f"{_t} {_t} {_t}", floats.median, _V3)


def propagating3(pick: np.ufunc) -> Callable[[Array, Array, Array], Array]:
    """v_minimum3/v_maximum3: NaN wins."""
    return lambda a, b, c: floats.propagating(floats.propagating(a, b, pick), c, pick)


op("v_minimum3_f32", "vop3", "f32", "f32 f32 f32", propagating3(np.minimum), _V3, archs=SINCE_CDNA4)
op("v_maximum3_f32", "vop3", "f32", "f32 f32 f32", propagating3(np.maximum), _V3, archs=SINCE_CDNA4)

# ---- rounding to an integer, fraction, exponent and mantissa --------------------------------------------------------


def _fract(x: Array) -> Array:
    """x - floor(x), kept below 1 as OpenCL defines fract (a tiny negative x would round to 1)."""
    x = np.asarray(x)
    return np.minimum(x - np.floor(x), np.nextafter(x.dtype.type(1), x.dtype.type(0)))


def _frexp_mantissa(x: Array) -> Array:
    return np.frexp(x)[0]


def _frexp_exponent(x: Array) -> Array:
    """0 for zero, infinity and NaN."""
    return np.frexp(x)[1] * np.isfinite(x)


def _ldexp(x: Array, exponent: Array) -> Array:
    # Beyond +-3000 every format has over- or underflowed; the clip keeps C's int arithmetic inside its range.
    return np.ldexp(x, np.clip(exponent, -3000, 3000).astype(np.int32))


for _t in ("f32", "f16", "f64"):
    op(f"v_trunc_{_t}", "vop1", _t, _t, np.trunc, _V1)
    op(f"v_ceil_{_t}", "vop1", _t, _t, np.ceil, _V1)
    op(f"v_floor_{_t}", "vop1", _t, _t, np.floor, _V1)
    op(f"v_rndne_{_t}", "vop1", _t, _t, np.rint, _V1)
    op(f"v_fract_{_t}", "vop1", _t, _t, _fract, _V1)
    op(f"v_frexp_mant_{_t}", "vop1", _t, _t, _frexp_mantissa, _V1)
op("v_frexp_exp_i32_f32", "vop1", "i32", "f32", lambda x: _frexp_exponent(x).astype(np.int32), _V1)
op("v_frexp_exp_i32_f64", "vop1", "i32", "f64", lambda x: _frexp_exponent(x).astype(np.int32), _V1)
op("v_frexp_exp_i16_f16", "vop1", "i16", "f16", lambda x: _frexp_exponent(x).astype(np.int16), _V1)
op("v_ldexp_f32", "vop3", "f32", "f32 i32", _ldexp, _V3)
op("v_ldexp_f64", "vop3", "f64", "f64 i32", _ldexp, _V3)
op("v_ldexp_f16", "vop2", "f16", "f16 i16", _ldexp, _V2)

# ---- transcendentals ------------------------------------------------------------------------------------------------


_SMALLEST_F32 = np.float32(2.0**-126)


def _flush(x: Array) -> Array:
    """float32 denormals to zero of the same sign."""
    small = np.abs(x) < _SMALLEST_F32
    if np.count_nonzero(small) == 0:
        return x
    return select(small, np.asarray(x).view(np.uint32) & 0x80000000, np.asarray(x).view(np.uint32)).view(np.float32)


def _flushing(fn: Callable[[Array], Array], wide: bool = True) -> Callable[[Array], Array]:
    """A function of float32 with denormals flushed before and after, rounded once (`wide`: by way of float64)."""

    def run(x: Array) -> Array:
        x = _flush(x)
        return _flush(np.asarray(fn(x.astype(np.float64) if wide else x)).astype(np.float32))

    return run


def _half(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        return np.asarray(fn(f16_to_f32(x).astype(np.float64))).astype(np.float16)

    return run


def _log2(x: Array) -> Array:
    """Of float64, to a few units in its last place: NumPy vectorises log but not log2."""
    return np.log(x) * 1.4426950408889634


def _reciprocal(x: Array) -> Array:
    return np.divide(1, x)


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _rsqrt_f64(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(np.asarray(x).astype(np.longdouble))).astype(np.float64)


def _turn(x: Array, wave: Callable[[Array], Array]) -> Array:
    """Angle in turns folded into [-1/4, 1/4] around the nearest zero of the sine; beyond 256 turns it counts as 0."""
    x = np.where(np.abs(x) <= 256, x, x * 0)  # infinity gives NaN
    return wave(x)


def _sin_turns(x: Array) -> Array:
    fraction = x - np.rint(x)
    folded = np.where(np.abs(fraction) > 0.25, np.copysign(0.5, fraction) - fraction, fraction)
    return np.sin(2 * np.pi * folded)


def _sin(x: Array) -> Array:
    return _turn(x, _sin_turns)


def _cos(x: Array) -> Array:
    return _turn(x, lambda t: _sin_turns(0.25 - np.abs(t - np.rint(t))))


# Division and square root of float32 are correctly rounded by themselves; the others go through float64.
for _name, _fn, _wide in (
    ("exp", np.exp2, True), ("log", _log2, True), ("rcp", _reciprocal, False), ("rsq", _rsqrt, True),
    ("sqrt", np.sqrt, False), ("sin", _sin, True), ("cos", _cos, True),
):  # fmt: skip
    op(f"v_{_name}_f32", "vop1", "f32", "f32", _flushing(_fn, _wide), _V1)
    op(f"v_{_name}_f16", "vop1", "f16", "f16", _half(_fn), _V1)
op("v_rcp_iflag_f32", "vop1", "f32", "f32", _flushing(_reciprocal, False), _V1)
op("v_exp_legacy_f32", "vop1", "f32", "f32", _flushing(np.exp2), _V1)
op("v_log_legacy_f32", "vop1", "f32", "f32", _flushing(_log2), _V1)
op("v_rcp_f64", "vop1", "f64", "f64", _reciprocal, _V1)
op("v_rsq_f64", "vop1", "f64", "f64", _rsqrt_f64, _V1)
op("v_sqrt_f64", "vop1", "f64", "f64", np.sqrt, _V1)

# ---- cube maps ------------------------------------------------------------------------------------------------------


def _major_axis(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """Masks: z is the major axis, y is (otherwise x)."""
    ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
    along_z = (az >= ax) & (az >= ay)
    return along_z, (ay >= ax) & ~along_z


def _cube(pick: Callable[[Array, Array, Array], tuple[Array, Array, Array]]) -> Callable[..., Array]:
    """Result by major axis; `pick` gives the values for z, y and x."""

    def run(x: Array, y: Array, z: Array) -> Array:
        along_z, along_y = _major_axis(x, y, z)
        for_z, for_y, for_x = pick(x, y, z)
        return np.where(along_z, for_z, np.where(along_y, for_y, for_x)).astype(np.float32)

    return run


def _flip(condition: Array, value: Array) -> Array:
    return np.where(condition, -value, value)


_CUBE = "f32 f32 f32"
op("v_cubeid_f32", "vop3", "f32", _CUBE, _cube(lambda x, y, z: (4.0 + (z < 0), 2.0 + (y < 0), 0.0 + (x < 0))), _V3)
op("v_cubema_f32", "vop3", "f32", _CUBE, _cube(lambda x, y, z: (2 * z, 2 * y, 2 * x)), _V3)
op("v_cubesc_f32", "vop3", "f32", _CUBE, _cube(lambda x, y, z: (_flip(z < 0, x), x, _flip(~(x < 0), z))), _V3)
op("v_cubetc_f32", "vop3", "f32", _CUBE, _cube(lambda x, y, z: (-y, _flip(y < 0, z), -y)), _V3)

"""Where the document cannot be the oracle: what it gets wrong or leaves open, why, and what is expected instead.

An expectation takes the raw operands of one lane and gives the raw results. It is written in rationals and Python
floats, independently of the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tests.simulator.isa.minifloats import mini, noise
from tests.simulator.isa.pcode_values import Value, fused, is_nan, round_to

Oracle = Callable[..., list[int]]


@dataclass(frozen=True)
class Erratum:
    reason: str
    expected: Oracle


def _number(width: int, bits: int) -> float:
    return Value("f", width, bits).number


def _rounded(width: int, value: float | Fraction) -> list[int]:
    return [round_to(width, value)]


def _signed_zero(value: float, like: float) -> float:
    return math.copysign(value, like) if value == 0 else value


# ---- rounding and exponents -----------------------------------------------------------------------------------------


def _rndne(width: int) -> Oracle:
    def expected(x: int) -> list[int]:
        value = _number(width, x)
        return _rounded(width, _signed_zero(float(round(value)), value) if math.isfinite(value) else value)

    return expected


def _fract(width: int) -> Oracle:
    below_one = {16: 0x3BFF, 32: 0x3F7FFFFF, 64: 0x3FEFFFFFFFFFFFFF}[width]

    def expected(x: int) -> list[int]:
        value = _number(width, x)
        if not math.isfinite(value):
            return _rounded(width, math.nan)
        return [min(round_to(width, Fraction(value) - math.floor(value)), below_one)]

    return expected


def _frexp_exp(width: int, result: int) -> Oracle:
    def expected(x: int) -> list[int]:
        value = _number(width, x)
        return [(math.frexp(value)[1] if math.isfinite(value) else 0) & ((1 << result) - 1)]

    return expected


def _ldexp(width: int, exponent_bits: int) -> Oracle:
    def expected(x: int, e: int) -> list[int]:
        value, power = _number(width, x), Value("i", exponent_bits, e).number
        if not math.isfinite(value) or value == 0:
            return [x]
        return _rounded(width, Fraction(value) * Fraction(2) ** max(min(power, 4000), -4000))

    return expected


# ---- transcendentals ------------------------------------------------------------------------------------------------


def _flushed(value: float) -> float:
    return math.copysign(0.0, value) if abs(value) < 2.0**-126 else value


def _exp2(x: float) -> float:
    return x if x != x else math.inf if x > 1000 else math.pow(2.0, max(x, -1000.0))


def _log2(x: float) -> float:
    if x == 0:
        return -math.inf
    return math.nan if x < 0 or x != x else x if math.isinf(x) else math.log2(x)


def _reciprocal(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / x


def _sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _rsqrt(x: float) -> float:
    return _reciprocal(_sqrt(x))


def _f32_flushing(fn: Callable[[float], float]) -> Oracle:
    def expected(x: int) -> list[int]:
        result = round_to(32, fn(_flushed(_number(32, x))))
        return [round_to(32, _flushed(_number(32, result)))]

    return expected


def _turns(fn: Callable[[float], float], outside: float, width: int) -> Oracle:
    """Angles are in turns, exact to 256 of them; a larger finite one counts as zero.

    The function's own zeros (where math.sin(2 pi x) gives 1e-16) are exact.
    """

    def expected(x: int) -> list[int]:
        value = _number(width, x)
        if not math.isfinite(value):
            return _rounded(width, math.nan)
        if width == 32:
            value = _flushed(value)
        result = outside if abs(value) > 256 else fn(2 * math.pi * math.fmod(value, 1))
        if abs(result) < 1e-15 and math.fmod(4 * value, 1) == 0:
            result = 0.0
        return _rounded(width, _flushed(result) if width == 32 else result)

    return expected


# ---- division -------------------------------------------------------------------------------------------------------

# width -> (bias, exponent mask, mantissa bits, scaling, exponent distance that overflows, exponent of a tiny numerator)
_DIVISION = {32: (127, 0xFF, 23, 64, 96, 23), 64: (1023, 0x7FF, 52, 128, 768, 53)}


def _div_scale(width: int) -> Oracle:
    bias, top, mantissa, amount, far, tiny = _DIVISION[width]

    def expected(x: int, den: int, num: int) -> list[int]:
        value, d, n = (_number(width, v) for v in (x, den, num))
        e_num, e_den = num >> mantissa & top, den >> mantissa & top
        if n == 0 or d == 0:
            return [round_to(width, math.nan), 0]
        smallest = Fraction(2) ** (1 - bias)
        finite = math.isfinite(n) and math.isfinite(d)
        tiny_reciprocal = d == d and (math.isinf(d) or 1 / abs(Fraction(d)) < smallest)
        tiny_quotient = finite and abs(Fraction(n) / Fraction(d)) < smallest
        is_den, is_num = value == d, value == n
        if e_num - e_den >= far:
            shift, flag = amount * is_den, 1
        elif e_den == 0:
            shift, flag = amount, 0
        elif tiny_reciprocal and tiny_quotient:
            shift, flag = -amount * is_den, 1
        elif tiny_reciprocal:
            shift, flag = -amount, 0
        elif tiny_quotient:
            shift, flag = amount * is_num, 1
        else:
            shift, flag = (amount if e_num <= tiny else 0), 0
        return [*_ldexp(width, 32)(x, shift & 0xFFFFFFFF), flag]

    return expected


def _div_fmas(width: int) -> Oracle:
    bias, top, mantissa, amount, *_ = _DIVISION[width]

    def expected(a: int, b: int, c: int, flag: int) -> list[int]:
        operands = [Value("f", width, v) for v in (a, b, c)]
        plain = fused(*operands)
        x, y, z = (v.number for v in operands)
        if not flag or not all(map(math.isfinite, (x, y, z))):
            return [plain.bits]
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        power = amount if (c >> mantissa & top) > bias else -amount
        return _rounded(width, exact * Fraction(2) ** power) if exact else [plain.bits]

    return expected


def _div_fixup(width: int) -> Oracle:
    bias, top, mantissa, *_ = _DIVISION[width]
    quiet = 1 << (mantissa - 1)
    infinity = top << mantissa

    def expected(quotient: int, den: int, num: int) -> list[int]:
        for v in (num, den):
            if is_nan(width, v):
                return [v | quiet]
        sign = (den ^ num) >> (width - 1) << (width - 1)
        q, d, n = (v & ~(1 << (width - 1)) for v in (quotient, den, num))
        if (d == 0 and n == 0) or (d == n == infinity):
            return [infinity | quiet]
        if d == 0 or n == infinity:
            return [sign | infinity]
        if n == 0 or d == infinity or (n >> mantissa) - (d >> mantissa) < -(bias + mantissa):
            return [sign]
        return [sign | (q if q < infinity else infinity)]

    return expected


def _two_over_pi() -> int:
    """1201 bits of 2/pi, with pi from the Gauss-Legendre iteration (the simulator uses Machin's formula)."""
    from decimal import Decimal, getcontext

    getcontext().prec = 420
    a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal(1) / 4, Decimal(1)
    for _ in range(10):
        a, b, t, p = (a + b) / 2, (a * b).sqrt(), t - p * ((a - b) / 2) ** 2, 2 * p
    return int(2 * 4 * t / (a + b) ** 2 * (1 << 1201))


_BITS = _two_over_pi()


def _trig_preop(x: int, segment: int) -> list[int]:
    exponent = x >> 52 & 0x7FF
    shift = (segment & 31) * 53 + max(exponent - 1077, 0)
    window = sum((_BITS >> (1200 - shift - i) & 1) << (52 - i) for i in range(53) if shift + i <= 1200)
    return _rounded(64, window * Fraction(2) ** (-53 - shift + (128 if exponent >= 1968 else 0)))


# ---- multiply-add, minimum, conversions -----------------------------------------------------------------------------


def _product_sum(a: float, b: float, c: float) -> list[int]:
    """Rounded after the product and after the sum."""
    product = _number(32, round_to(32, Fraction(a) * Fraction(b) if a and b and _finite(a, b) else a * b))
    if _finite(product, c) and product + c:
        return _rounded(32, Fraction(product) + Fraction(c))
    return _rounded(32, product + c)


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _mad(a: int, b: int, c: int) -> list[int]:
    return _product_sum(*(_number(32, v) for v in (a, b, c)))


def _mad_legacy(a: int, b: int, c: int) -> list[int]:
    x, y, z = (_number(32, v) for v in (a, b, c))
    return _product_sum(0.0, 0.0, z) if x == 0 or y == 0 else _product_sum(x, y, z)


def _fma(a: int, b: int, c: int) -> list[int]:
    return [fused(*(Value("f", 32, v) for v in (a, b, c))).bits]


def _propagating3(largest: bool, width: int) -> Oracle:
    def pick(a: int, b: int) -> int:
        for v in (a, b):
            if is_nan(width, v):
                return v | 1 << {16: 9, 32: 22}[width]
        key = lambda v: (_number(width, v), -(v >> (width - 1)))  # noqa: E731 - orders -0 below +0
        return max(a, b, key=key) if largest else min(a, b, key=key)

    def one(a: int, b: int, c: int) -> int:
        return pick(pick(a, b), c)

    def expected(a: int, b: int, c: int) -> list[int]:
        if width == 32:
            return [one(a, b, c)]
        return [one(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) | one(a >> 16, b >> 16, c >> 16) << 16]

    return expected


def _offset_table(x: int) -> list[int]:
    return _rounded(32, ((x & 15) - 16 * (x >> 3 & 1)) / 16)


def _stochastic(kind: str, bits: int) -> Oracle:
    def expected(x: int, random: int, *_: int, flavour: str = "ocp") -> list[int]:
        return [mini(kind, flavour).encode(_number(32, x), noise(random, bits))]

    return expected


def _stochastic_bf16(x: int, random: int) -> list[int]:
    if not math.isfinite(_number(32, x)):
        return [x >> 16 | (0x40 if is_nan(32, x) else 0)]
    units, rest = divmod(x, 1 << 16)
    return [units + (rest + (random >> 16) >= 1 << 16)]


_SIGN = "floor(x + 0.5) loses the sign of zero and misrounds next to a half"
_FRACT = "the instruction is OpenCL's fract: below 1 even for a tiny negative x"
_ZERO = "the exponent of zero is 0, and a denormal has its true exponent"
_POWER = "2 ** e overflows by itself (0 * inf, and e = 128 for a fraction); the scaling is exact and rounded once"
_FLUSH = "denormals are flushed by the f32 transcendentals (a note of the document, not its pseudo-code)"
_ANGLE = "the product with 2 pi is not rounded; beyond 256 turns the angle counts as zero"
_SCALE = "D0 is unset where nothing is scaled; a denormal 1/den is meant in the operand's format; with a denormal"
_SCALE += " quotient as well the denominator is scaled by 2^-64 (2^-128), not up"
_FMAS = "the factor is 2^64 (2^128) up or down, as the exponent of S2 says, and the result is rounded once"
_FIXUP = "the overflow case is meant for the quotient (exponent(S0)): S1's infinities and NaNs were decided before it"
_RANDOM = "the carry of the random addend goes into the exponent, and the sum is truncated, not rounded again"
_UNDEFINED = "no pseudo-code, or one that calls an undefined function"
_LEGACY = "CDNA2 only; the document is CDNA4's"

ERRATA: dict[str, Erratum] = {
    "v_rndne_f16": Erratum(_SIGN, _rndne(16)),
    "v_rndne_f32": Erratum(_SIGN, _rndne(32)),
    "v_rndne_f64": Erratum(_SIGN, _rndne(64)),
    "v_fract_f16": Erratum(_FRACT, _fract(16)),
    "v_fract_f32": Erratum(_FRACT, _fract(32)),
    "v_fract_f64": Erratum(_FRACT, _fract(64)),
    "v_frexp_exp_i16_f16": Erratum(_ZERO, _frexp_exp(16, 16)),
    "v_frexp_exp_i32_f32": Erratum(_ZERO, _frexp_exp(32, 32)),
    "v_frexp_exp_i32_f64": Erratum(_ZERO, _frexp_exp(64, 32)),
    "v_ldexp_f16": Erratum(_POWER, _ldexp(16, 16)),
    "v_ldexp_f32": Erratum(_POWER, _ldexp(32, 32)),
    "v_ldexp_f64": Erratum(_POWER, _ldexp(64, 32)),
    "v_exp_f32": Erratum(_FLUSH, _f32_flushing(_exp2)),
    "v_log_f32": Erratum(_FLUSH, _f32_flushing(_log2)),
    "v_exp_legacy_f32": Erratum(_UNDEFINED, _f32_flushing(_exp2)),
    "v_log_legacy_f32": Erratum(_UNDEFINED, _f32_flushing(_log2)),
    "v_rcp_f32": Erratum(_FLUSH, _f32_flushing(_reciprocal)),
    "v_rcp_iflag_f32": Erratum(_FLUSH, _f32_flushing(_reciprocal)),
    "v_rsq_f32": Erratum(_FLUSH, _f32_flushing(_rsqrt)),
    "v_sqrt_f32": Erratum(_FLUSH, _f32_flushing(_sqrt)),
    "v_sin_f32": Erratum(_ANGLE, _turns(math.sin, 0.0, 32)),
    "v_cos_f32": Erratum(_ANGLE, _turns(math.cos, 1.0, 32)),
    "v_sin_f16": Erratum(_ANGLE, _turns(math.sin, 0.0, 16)),
    "v_cos_f16": Erratum(_ANGLE, _turns(math.cos, 1.0, 16)),
    "v_div_scale_f32": Erratum(_SCALE, _div_scale(32)),
    "v_div_scale_f64": Erratum(_SCALE, _div_scale(64)),
    "v_div_fmas_f32": Erratum(_FMAS, _div_fmas(32)),
    "v_div_fmas_f64": Erratum(_FMAS, _div_fmas(64)),
    "v_div_fixup_f32": Erratum(_FIXUP, _div_fixup(32)),
    "v_div_fixup_f64": Erratum(_FIXUP, _div_fixup(64)),
    "v_trig_preop_f64": Erratum("the 53 bits are the top ones of the shifted fraction, not the low ones", _trig_preop),
    "v_fma_mix_f32": Erratum("the text is that of v_mad_mix; CDNA's is fused", _fma),
    "v_cvt_off_f32_i4": Erratum("the table is declared without its content", _offset_table),
    "v_cvt_sr_fp8_f32": Erratum(_RANDOM, _stochastic("fp8", 20)),
    "v_cvt_sr_bf8_f32": Erratum(_RANDOM, _stochastic("bf8", 21)),
    "v_cvt_sr_f16_f32": Erratum(_UNDEFINED, _stochastic("f16", 13)),
    "v_cvt_sr_bf16_f32": Erratum(_UNDEFINED, _stochastic_bf16),
    "v_minimum3_f32": Erratum(_UNDEFINED, _propagating3(False, 32)),
    "v_maximum3_f32": Erratum(_UNDEFINED, _propagating3(True, 32)),
    "v_pk_minimum3_f16": Erratum(_UNDEFINED, _propagating3(False, 16)),
    "v_pk_maximum3_f16": Erratum(_UNDEFINED, _propagating3(True, 16)),
    "v_mad_f32": Erratum(_LEGACY, _mad),
    "v_mac_f32": Erratum(_LEGACY, _mad),
    "v_madmk_f32": Erratum(_LEGACY, _mad),
    "v_madak_f32": Erratum(_LEGACY, _mad),
    "v_mad_legacy_f32": Erratum(_LEGACY, _mad_legacy),
}

# Results that the document bounds but does not fix: units in the last place allowed against the oracle above.
ULPS = {f"v_{name}_{t}": 1 for name in ("exp", "log", "rcp", "rsq", "sqrt", "sin", "cos") for t in ("f16", "f32")}
ULPS |= {"v_exp_legacy_f32": 1, "v_log_legacy_f32": 1, "v_rcp_iflag_f32": 1, "v_rcp_f64": 1, "v_rsq_f64": 1}
ULPS |= {"v_sqrt_f64": 1}

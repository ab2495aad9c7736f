"""Values of the vendor's pseudo-code: formats, operators and the functions that the document defines.

Everything is Python integers, floats and rationals; nothing here is NumPy's or the simulator's.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


class Unsupported(Exception):
    """The text uses a function or a register that the document does not define."""


@dataclass(frozen=True)
class Value:
    """`bits` of `width` bits, read as kind "u", "i" (two's complement), "f" (IEEE), "bf" (bfloat16) or "b" (raw)."""

    kind: str
    width: int
    bits: int

    @property
    def number(self) -> Any:
        """The value as a Python number."""
        if self.kind == "f":
            return _unpack(self.width, self.bits)
        if self.kind == "bf":
            return _unpack(32, self.bits << 16)
        if self.kind == "i" and self.bits >> (self.width - 1):
            return self.bits - (1 << self.width)
        return self.bits

    @property
    def real(self) -> bool:
        return self.kind in ("f", "bf")


# ---- formats --------------------------------------------------------------------------------------------------------

_LAYOUT = {16: ("<e", "<H", 10, 5), 32: ("<f", "<I", 23, 8), 64: ("<d", "<Q", 52, 11)}


def _unpack(width: int, bits: int) -> float:
    code, raw, *_ = _LAYOUT[width]
    return struct.unpack(code, struct.pack(raw, bits))[0]


def is_nan(width: int, bits: int) -> bool:
    _, _, mantissa, exponent = _LAYOUT[width]
    return (bits >> mantissa) & ((1 << exponent) - 1) == (1 << exponent) - 1 and bits & ((1 << mantissa) - 1) != 0


def round_to(width: int, value: Fraction | float, toward_zero: bool = False) -> int:
    """The bits of `value` rounded once to an IEEE format, to nearest even or towards zero."""
    _, _, mantissa, exponent = _LAYOUT[width]
    top = (1 << exponent) - 1
    sign_bit = 1 << (width - 1)
    if isinstance(value, float):
        if value != value:
            return top << mantissa | 1 << (mantissa - 1)
        sign = math.copysign(1.0, value) < 0
        if math.isinf(value):
            return top << mantissa | (sign_bit if sign else 0)
        value = Fraction(value)
    else:
        sign = value < 0
    size = abs(value)
    if size == 0:
        return sign_bit if sign else 0
    power = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** power > size:
        power -= 1
    lowest = 2 - (1 << (exponent - 1))
    unit = max(power, lowest) - mantissa
    scaled = size / Fraction(2) ** unit
    units = scaled.numerator // scaled.denominator
    rest = scaled - units
    if not toward_zero and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and units & 1)):
        units += 1
    code = units if power < lowest else units + ((max(power, lowest) - lowest) << mantissa)
    if code >= top << mantissa:
        code = (top << mantissa) - 1 if toward_zero else top << mantissa
    return code | (sign_bit if sign else 0)


def from_number(width: int, value: float | Fraction) -> Value:
    return Value("f", width, round_to(width, value))


def convert_float(value: Value, width: int) -> Value:
    """Between IEEE widths; a NaN keeps its payload and stays signalling, because the text asks for it afterwards."""
    if value.kind == "bf":
        value = Value("f", 32, value.bits << 16)
    if value.width == width:
        return Value("f", width, value.bits)
    if not is_nan(value.width, value.bits):
        return from_number(width, value.number)
    _, _, have, _ = _LAYOUT[value.width]
    _, _, want, exponent = _LAYOUT[width]
    payload = value.bits & ((1 << have) - 1)
    payload = payload << (want - have) if want > have else payload >> (have - want)
    sign = value.bits >> (value.width - 1)
    return Value("f", width, sign << (width - 1) | ((1 << exponent) - 1) << want | (payload or 1))


def wrap(kind: str, width: int, number: int) -> Value:
    return Value(kind, width, number & ((1 << width) - 1))


def truth(condition: bool) -> Value:
    return Value("u", 1, int(condition))


def read_as(value: Value, kind: str, width: int) -> Value:
    """`value.f32` and the like: a view of the low bits, or a conversion between floats."""
    if value.real and kind == "f":
        return convert_float(value, width)
    return wrap(kind, width, value.bits)


def assign_as(value: Value, kind: str, width: int) -> Value:
    """What a variable of that type holds after the assignment."""
    if value.real and kind == "f":
        return convert_float(value, width)
    if value.kind == "i" and kind in ("u", "i", "b"):
        return wrap(kind, width, value.number)
    return wrap(kind, width, value.bits)


# ---- operators ------------------------------------------------------------------------------------------------------


def float_binary(sign: str, a: Value, b: Value) -> Value:
    width = max(a.width, b.width)
    a, b = convert_float(a, width), convert_float(b, width)
    x, y = a.number, b.number
    if sign in ("==", "!=", "<>", "<", ">", "<=", ">="):
        # `<>` is "less or greater": false for NaN; Python's other comparisons have IEEE's meaning already.
        table = {"==": x == y, "!=": x != y, "<>": x < y or x > y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}
        return truth(table[sign])
    if x != x or y != y:
        return a if x != x else b
    if sign in "+-" and not (math.isinf(x) or math.isinf(y)):
        exact = Fraction(x) + (Fraction(y) if sign == "+" else -Fraction(y))
        if exact:
            return from_number(width, exact)
    if sign == "*" and x and y and not (math.isinf(x) or math.isinf(y)):
        return from_number(width, Fraction(x) * Fraction(y))
    if sign == "/" and x and y and not (math.isinf(x) or math.isinf(y)):
        return from_number(width, Fraction(x) / Fraction(y))
    return from_number(width, _special(sign, x, y))


def _special(sign: str, x: float, y: float) -> float:
    """Zeros and infinities."""
    if sign == "+":
        return x + y
    if sign == "-":
        return x - y
    if sign == "*":
        return x * y
    if y == 0:
        return math.nan if x == 0 else math.copysign(math.inf, math.copysign(1, x) * math.copysign(1, y))
    return x / y


def int_binary(sign: str, a: Value, b: Value) -> Value:
    if sign in ("<<", ">>"):
        kind = "i" if a.kind == "i" else "u"
        width = max(a.width, 32)
        moved = a.number << b.bits if sign == "<<" else a.number >> b.bits
        return wrap(kind, width, moved)
    x, y = a.number, b.number
    if sign in ("==", "!=", "<>", "<", ">", "<=", ">="):
        table = {"==": x == y, "!=": x != y, "<>": x != y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}
        return truth(table[sign])
    width = max(a.width, b.width, 32)
    # As in C: an operand narrower than 32 bits is promoted to a signed 32-bit one, and unsigned wins at equal width.
    kind = "u" if any(v.kind != "i" and v.width >= 32 for v in (a, b)) else "i"
    result = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}[sign]
    return wrap(kind, width, result)


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c rounded once, in the widest format of the three."""
    width = max(a.width, b.width, c.width)
    a, b, c = (convert_float(v, width) for v in (a, b, c))
    x, y, z = a.number, b.number, c.number
    if any(v != v for v in (x, y, z)):
        return next(v for v, n in ((a, x), (b, y), (c, z)) if n != n)
    if any(math.isinf(v) for v in (x, y, z)):
        product = math.nan if (math.isinf(x) and y == 0) or (math.isinf(y) and x == 0) else None
        if product is None:
            signs = math.copysign(1, x) * math.copysign(1, y)
            product = math.copysign(math.inf, signs) if math.isinf(x) or math.isinf(y) else 0.0
        return from_number(width, product + z)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact:
        return from_number(width, exact)
    if x and y and z:
        return from_number(width, 0.0)
    return from_number(width, math.copysign(1, x) * math.copysign(1, y) * 0.0 + z)


# ---- functions of the document --------------------------------------------------------------------------------------

_LIMITS = {
    "u8": (0, 255), "u16": (0, 65535), "u32": (0, 2**32 - 1), "i8": (-128, 127),
    "i16": (-(2**15), 2**15 - 1), "i32": (-(2**31), 2**31 - 1),
}  # fmt: skip
_MAGNITUDE = {16: 2, 32: 23, 64: 52}


def type_of(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(bf|fp|[uifb])(\d+)", name)
    if match is None:
        raise Unsupported(name)
    return match[1], int(match[2])


def fields(v: Value) -> tuple[int, int, int]:
    """Sign, exponent field and mantissa field."""
    _, _, mantissa, exponent = _LAYOUT[v.width]
    return v.bits >> (v.width - 1), (v.bits >> mantissa) & ((1 << exponent) - 1), v.bits & ((1 << mantissa) - 1)


def _whole(v: Value, how: Callable[[float], int]) -> Value:
    """floor or trunc, keeping the sign of zero."""
    x = v.number
    if x != x or math.isinf(x):
        return v
    return from_number(v.width, math.copysign(float(how(x)), x) if how(x) == 0 else float(how(x)))


def _mantissa(v: Value) -> Value:
    return v if v.number == 0 else from_number(v.width, math.frexp(v.number)[0])


def _scale(v: Value, power: Value) -> Value:
    x = v.number
    if x != x or math.isinf(x) or x == 0:
        return v
    return from_number(v.width, Fraction(x) * Fraction(2) ** max(min(power.number, 5000), -5000))


def _root(v: Value) -> Value:
    x = v.number
    if x != x or x == math.inf or x == 0:
        return v
    return from_number(v.width, math.sqrt(x) if x > 0 else math.nan)


def _log2(v: Value) -> Value:
    x = v.number
    if x == 0:
        return from_number(v.width, -math.inf)
    return from_number(v.width, math.nan if x < 0 or x != x else math.inf if math.isinf(x) else math.log2(x))


def _pow(base: Value, power: Value) -> Value:
    width = max(base.width, power.width)
    try:
        return from_number(width, math.pow(base.number, power.number))
    except OverflowError:
        return from_number(width, math.inf)


def _round_even(x: float, low: int, high: int) -> int:
    return 0 if x != x else round(min(max(x, low), high))


def _exponent(v: Value) -> Value:
    return wrap("i", 32, fields(v)[1])


def _quieten(v: Value) -> Value:
    return Value("f", v.width, v.bits | 1 << (_LAYOUT[v.width][2] - 1))


def _signalling(v: Value) -> bool:
    return is_nan(v.width, v.bits) and not v.bits >> (_LAYOUT[v.width][2] - 1) & 1


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "fma": fused,
    "floor": lambda v: _whole(v, math.floor),
    "trunc": lambda v: _whole(v, math.trunc),
    "fract": lambda v: float_binary("-", v, _whole(v, math.floor)),
    "isEven": lambda v: truth(math.isfinite(v.number) and v.number % 2 == 0),
    "abs": lambda v: Value(v.kind, v.width, v.bits & ~(1 << (v.width - 1))),
    "sqrt": _root,
    "log2": _log2,
    "pow": _pow,
    "sign": lambda v: truth(bool(fields(v)[0])),
    "exponent": _exponent,
    "mantissa": _mantissa,
    "ldexp": _scale,
    "isNAN": lambda v: truth(is_nan(v.width, v.bits)),
    "isSignalNAN": lambda v: truth(_signalling(v)),
    "isQuietNAN": lambda v: truth(is_nan(v.width, v.bits) and not _signalling(v)),
    "cvtToQuietNAN": _quieten,
    "signext": lambda v: Value("i", 64, v.number & (1 << 64) - 1) if v.kind == "i" else v,
    "signext_from_bit": lambda v, n: _sign_from(v, n.bits),
    "f32_to_u8": lambda v: _to_int(v, "u8"),
    "u32_to_u16": lambda v: _clamped(v, "u16"),
    "i32_to_i16": lambda v: _clamped(v, "i16"),
    "bf16_to_f32": lambda v: Value("f", 32, v.bits << 16),
    "f16_to_snorm": lambda v: wrap("i", 16, _round_even(v.number * 32767, -32767, 32767)),
    "f32_to_snorm": lambda v: wrap("i", 16, _round_even(v.number * 32767, -32767, 32767)),
    "f16_to_unorm": lambda v: wrap("u", 16, _round_even(v.number * 65535, 0, 65535)),
    "f32_to_unorm": lambda v: wrap("u", 16, _round_even(v.number * 65535, 0, 65535)),
}


def _sign_from(v: Value, count: int) -> Value:
    if count == 0:
        return wrap("i", v.width, 0)
    field = v.bits & ((1 << count) - 1)
    return wrap("i", v.width, field - (1 << count) if field >> (count - 1) & 1 and count < v.width else field)


def _to_int(v: Value, kind: str) -> Value:
    low, high = _LIMITS[kind]
    x = v.number
    number = 0 if x != x else (high if x > 0 else low) if math.isinf(x) else max(low, min(high, math.trunc(x)))
    return wrap(kind[0], int(kind[1:]), number)


def _clamped(v: Value, kind: str) -> Value:
    low, high = _LIMITS[kind]
    return wrap(kind[0], int(kind[1:]), max(low, min(high, v.number)))


def conversion(name: str, v: Value, toward_zero: bool) -> Value:
    """a_to_b between integers and IEEE floats."""
    match = re.fullmatch(r"([a-z]+\d+)_to_([a-z]+\d+)", name)
    if match is None:
        raise Unsupported(name)
    (from_kind, from_width), (kind, width) = type_of(match[1]), type_of(match[2])
    if from_kind not in "uif" or (kind not in "uif" and kind != "bf"):
        raise Unsupported(name)
    v = read_as(v, from_kind, from_width)
    if from_kind == "f" and kind in "ui":
        return _to_int(v, match[2])
    if kind == "bf":
        return _to_bf16(v)
    if kind == "f":
        if from_kind == "f":
            if toward_zero and not is_nan(v.width, v.bits):
                return Value("f", width, round_to(width, v.number, toward_zero=True))
            return convert_float(v, width)
        return from_number(width, Fraction(v.number))
    return wrap(kind, width, v.number)


def _to_bf16(v: Value) -> Value:
    if is_nan(32, v.bits):
        return Value("bf", 16, v.bits >> 16 | 0x40)
    units, rest = divmod(v.bits, 1 << 16)
    return Value("bf", 16, units + (rest > 0x8000 or (rest == 0x8000 and units & 1 == 1)))


def wave(name: str, angle: Value) -> Value:
    x = angle.number
    if not math.isfinite(x):
        return from_number(angle.width, math.nan)
    return from_number(angle.width, getattr(math, name)(x))

"""Small floats by exhaustive search: an oracle that shares no arithmetic with the simulator's encoder.

A format is the sorted list of its non-negative finite values as rationals; encoding finds the two neighbours of a
number in that list. The document's undefined functions (`f32_to_fp8_scale` and its kin) are built from it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from tests.simulator.isa.pcode_values import Value, is_nan, round_to

# name -> (exponent bits, mantissa bits, bias, number of finite codes, overflow code, NaN code, one zero only)
_FORMATS = {
    ("fp8", "ocp"): (4, 3, 7, 127, 0x7F, 0x7F, False),
    ("bf8", "ocp"): (5, 2, 15, 124, 0x7C, 0x7E, False),
    ("fp8", "fnuz"): (4, 3, 8, 128, 0x80, 0x80, True),
    ("bf8", "fnuz"): (5, 2, 16, 128, 0x80, 0x80, True),
    ("fp6", "ocp"): (2, 3, 1, 32, 31, 31, False),
    ("bf6", "ocp"): (3, 2, 3, 32, 31, 31, False),
    ("fp4", "ocp"): (2, 1, 1, 8, 7, 7, False),
    ("f16", "ocp"): (5, 10, 15, 0x7C00, 0x7C00, 0x7E00, False),
}
_MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}


@dataclass(frozen=True)
class Format:
    values: tuple[Fraction, ...]  # one more than the finite codes: where the next one would be
    bits: int
    mantissa: int
    overflow: int
    nan: int
    one_zero: bool

    def encode(self, x: float | Fraction, noise: Fraction | None = None) -> int:
        """The code of `x` to nearest even, or up where the fraction of a step plus `noise` reaches 1."""
        sign = math.copysign(1.0, x) < 0 if isinstance(x, float) else x < 0
        if isinstance(x, float) and not math.isfinite(x):
            code = self.nan if x != x else self.overflow
        else:
            code = self._magnitude(abs(Fraction(x)), noise)
        if self.one_zero and code in (0, 0x80):
            return code
        return code | (int(sign) << (self.bits - 1))

    def _magnitude(self, x: Fraction, noise: Fraction | None) -> int:
        if x >= self.values[-1]:
            return self.overflow
        low = bisect_right(self.values, x) - 1
        part = (x - self.values[low]) / (self.values[low + 1] - self.values[low])
        half = Fraction(1, 2)
        up = part > half or (part == half and low & 1 == 1) if noise is None else part + noise >= 1
        code = low + up
        return self.overflow if code >= len(self.values) - 1 else code

    def decode(self, code: int) -> float:
        magnitude = code & ((1 << (self.bits - 1)) - 1)
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        if self.one_zero and code == 0x80:
            return math.nan
        if magnitude < len(self.values) - 1:
            return sign * float(self.values[magnitude])
        return sign * math.inf if magnitude == self.overflow != self.nan else math.nan


@cache
def mini(name: str, flavour: str) -> Format:
    key = (name, flavour) if (name, flavour) in _FORMATS else (name, "ocp")
    exponent, mantissa, bias, count, overflow, nan, one_zero = _FORMATS[key]
    values = []
    for code in range(count + 1):
        e, m = divmod(code, 1 << mantissa)
        significand = Fraction(m, 1 << mantissa) + (1 if e else 0)
        values.append(significand * Fraction(2) ** (max(e, 1) - bias))
    return Format(tuple(values), 1 + exponent + mantissa, mantissa, overflow, nan, one_zero)


def scale_of(exponent_field: int) -> Fraction | None:
    """2^(e - 127); None for the NaN 255."""
    return None if exponent_field & 0xFF == 255 else Fraction(2) ** ((exponent_field & 0xFF) - 127)


def noise(random: int, bits: int) -> Fraction:
    """The top `bits` bits of a 32-bit random number as a fraction below 1."""
    return Fraction(random >> (32 - bits), 1 << bits)


def _wide(kind: str, bits: int) -> float:
    if kind == "f32":
        return Value("f", 32, bits).number
    return Value("bf" if kind == "bf16" else "f", 16, bits & 0xFFFF).number


def _to_wide(kind: str, x: float | Fraction) -> Value:
    if kind != "bf16":
        width = int(kind[1:])
        return Value("f", width, round_to(width, x))
    single = round_to(32, x)
    if is_nan(32, single):
        return Value("bf", 16, single >> 16)
    units, rest = divmod(single, 1 << 16)
    return Value("bf", 16, units + (rest > 0x8000 or (rest == 0x8000 and units & 1 == 1)))


def _divided(x: float, scale: int) -> float | Fraction:
    factor = scale_of(scale)
    if factor is None:
        return math.copysign(math.nan, x)
    return Fraction(x) / factor if math.isfinite(x) and x else x


def undefined_function(flavour: str, name: str) -> Callable[..., Value] | None:
    """The document's conversions to and from small formats, by name; None for a name of another shape."""
    to_mini = re.fullmatch(r"(f32|f16|bf16)_to_((?:fp|bf)[864])(_sr)?(_scale)?", name)
    from_mini = re.fullmatch(r"((?:fp|bf)[864])_to_(f32|f16|bf16)(_scale)?", name)
    if to_mini:
        wide, target, stochastic, scaled = to_mini.groups()
        fmt = mini(target, flavour)
        steps = max(_MANTISSA[wide] - fmt.mantissa, 1)

        def encode(x: Value, *rest: Value) -> Value:
            number: float | Fraction = _wide(wide, x.bits)
            if scaled:
                number = _divided(float(number), rest[-1].bits)
            added = noise(rest[0].bits, steps) if stochastic else None
            return Value("b", fmt.bits, fmt.encode(number, added))

        return encode
    if from_mini:
        source, wide, scaled = from_mini.groups()
        fmt = mini(source, flavour)

        def decode(code: Value, *rest: Value) -> Value:
            number = fmt.decode(code.bits)
            factor = scale_of(rest[0].bits) if scaled else Fraction(1)
            if factor is None or number != number:
                return _to_wide(wide, math.nan)
            return _to_wide(wide, Fraction(number) * factor if math.isfinite(number) and number else number)

        return decode
    return None

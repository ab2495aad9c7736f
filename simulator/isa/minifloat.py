"""Small floating-point formats (8, 6 and 4 bits): decoding tables and rounding encoders.

Formats: OCP "8-bit Floating Point Specification" 1.0 and "Microscaling Formats" 1.0 for gfx950's; the FNUZ pair of
gfx942 has one zero, one NaN (0x80) and a bias one larger. Without MODE.FP16_OVFL an 8-bit overflow gives infinity or
NaN; the 6- and 4-bit formats have neither and saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from kvc.simulator.isa.bits import Array


@dataclass(frozen=True)
class MiniFloat:
    """A sign bit, `exponent` bits and `mantissa` bits; `largest` is the code of the largest finite number.

    `overflow` and `nan` are the codes (without sign) that an overflow and a NaN become. `fnuz`: code 0x80 is NaN, there
    is no -0, and overflow and NaN lose their sign.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    fnuz: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa


FP8_FNUZ = MiniFloat(4, 3, 8, 0x7F, 0x80, 0x80, fnuz=True)
BF8_FNUZ = MiniFloat(5, 2, 16, 0x7F, 0x80, 0x80, fnuz=True)
FP8_OCP = MiniFloat(4, 3, 7, 0x7E, 0x7F, 0x7F)
BF8_OCP = MiniFloat(5, 2, 15, 0x7B, 0x7C, 0x7E)
FP6 = MiniFloat(2, 3, 1, 0x1F, 0x1F, 0x1F)
BF6 = MiniFloat(3, 2, 3, 0x1F, 0x1F, 0x1F)
FP4 = MiniFloat(2, 1, 1, 0x7, 0x7, 0x7)

BY_FLAVOUR = {
    ("fp8", "fnuz"): FP8_FNUZ, ("bf8", "fnuz"): BF8_FNUZ,
    ("fp8", "ocp"): FP8_OCP, ("bf8", "ocp"): BF8_OCP,
}  # fmt: skip


def _value(fmt: MiniFloat, code: int) -> float:
    sign = -1.0 if code >> (fmt.bits - 1) else 1.0
    magnitude = code & ((1 << (fmt.bits - 1)) - 1)
    if fmt.fnuz and code == 0x80:
        return float("nan")
    if magnitude > fmt.largest:
        return sign * float("inf") if magnitude == fmt.overflow != fmt.nan else float("nan")
    exponent, mantissa = magnitude >> fmt.mantissa, magnitude & ((1 << fmt.mantissa) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - fmt.bias - fmt.mantissa)
    return sign * (mantissa + (1 << fmt.mantissa)) * 2.0 ** (exponent - fmt.bias - fmt.mantissa)


@cache
def _table(fmt: MiniFloat) -> Array:
    return np.array([_value(fmt, code) for code in range(1 << fmt.bits)], np.float32)


def decode(fmt: MiniFloat, codes: Array) -> Array:
    """Codes -> float32, exact."""
    return _table(fmt).take(codes)


def encode(fmt: MiniFloat, x: Array, noise: Array | None = None) -> Array:
    """float32 or float64 -> codes (uint32), to nearest even.

    With `noise` in [0, 1) the rounding is stochastic: up where the fraction of a unit in the last place plus `noise`
    reaches one.
    """
    wide = np.asarray(x).astype(np.float64)
    magnitude = np.abs(wide)
    finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
    lowest = 1 - fmt.bias
    exponent = np.where(finite > 0, np.maximum(np.frexp(finite)[1] - 1, lowest), lowest)
    units = np.ldexp(finite, fmt.mantissa - exponent)
    units = np.rint(units) if noise is None else np.floor(units + noise)
    # Adding the units to the exponent field lets a carry out of the mantissa raise the exponent.
    code = (units + np.ldexp((exponent - lowest).astype(np.float64), fmt.mantissa)).astype(np.int64)
    code = np.where((code > fmt.largest) | np.isinf(magnitude), fmt.overflow, code)
    code = np.where(np.isnan(wide), fmt.nan, code)
    negative = np.signbit(wide)
    if fmt.fnuz:
        negative = negative & (code != 0) & (code != 0x80)
    return (code | (negative.astype(np.int64) << (fmt.bits - 1))).astype(np.uint32)


def noise_from(random: Array, bits: int) -> Array:
    """The top `bits` bits of uint32 as a fraction in [0, 1): what stochastic rounding adds below the last place."""
    return np.ldexp((np.asarray(random) >> (32 - bits)).astype(np.float64), -bits)


def scale_factor(scale: Array) -> Array:
    """2^(e - 127) as float64 for the exponent field e of a float32; 255 is NaN (OCP E8M0)."""
    exponent = ((np.asarray(scale).view(np.uint32) >> 23) & 0xFF).astype(np.int32)
    return np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127))


def unpack6(words: Array) -> Array:
    """[..., 6] dwords -> [..., 32] fields of six bits, lowest first."""
    wide = np.asarray(words).astype(np.uint64)
    fields = []
    for i in range(32):
        word, offset = divmod(6 * i, 32)
        field = wide[..., word] >> offset
        if offset > 26:
            field = field | (wide[..., word + 1] << (32 - offset))
        fields.append(field & 63)
    return np.stack(fields, axis=-1).astype(np.uint32)


def pack6(codes: Array) -> Array:
    """[..., 32] fields of six bits -> [..., 6] dwords."""
    wide = np.asarray(codes).astype(np.uint64)
    words = np.zeros((*wide.shape[:-1], 7), np.uint64)
    for i in range(32):
        word, offset = divmod(6 * i, 32)
        moved = wide[..., i] << offset
        words[..., word] |= moved & 0xFFFFFFFF
        words[..., word + 1] |= moved >> 32
    return words[..., :6].astype(np.uint32)

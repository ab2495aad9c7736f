"""Conversions: v_cvt_* between integers, floats, packed pairs and the 8-, 6- and 4-bit formats.

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapters 12.8 and 12.11. Float to integer
truncates, saturates and turns NaN into 0. The scaled conversions of gfx950 divide by the scale before they encode and
multiply after they decode; the scale is the exponent field of a float32. Stochastic rounding adds the top bits of the
random operand below the last kept place and truncates (the document names its functions without defining them).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from kvc.simulator.isa import floats, minifloat
from kvc.simulator.isa.bits import Array
from kvc.simulator.isa.chips import SINCE_CDNA3, SINCE_CDNA4
from kvc.simulator.isa.floats import bf16_to_f32, f16_to_f32, f32_to_bf16, to_integer
from kvc.simulator.isa.minifloat import BY_FLAVOUR, MiniFloat, decode, encode, noise_from, scale_factor
from kvc.simulator.isa.table import op

_V1, _V3 = "12.8 VOP1", "12.11 VOP3"
_I32, _U32 = (-(2**31), 2**31 - 1, np.int32), (0, 2**32 - 1, np.uint32)
_I16, _U16, _U8 = (-(2**15), 2**15 - 1, np.int16), (0, 2**16 - 1, np.uint16), (0, 255, np.uint32)
_Limits = tuple[int, int, type]


def _as(dtype: type) -> Callable[[Array], Array]:
    return lambda x: np.asarray(x).astype(dtype)


def _integer(limits: _Limits) -> Callable[[Array], Array]:
    return lambda x: to_integer(x, *limits)


# ---- one value ------------------------------------------------------------------------------------------------------

op("v_cvt_i32_f64", "vop1", "i32", "f64", _integer(_I32), _V1)
op("v_cvt_u32_f64", "vop1", "u32", "f64", _integer(_U32), _V1)
op("v_cvt_i32_f32", "vop1", "i32", "f32", _integer(_I32), _V1)
op("v_cvt_u32_f32", "vop1", "u32", "f32", _integer(_U32), _V1)
op("v_cvt_i16_f16", "vop1", "i16", "f16", _integer(_I16), _V1)
op("v_cvt_u16_f16", "vop1", "u16", "f16", _integer(_U16), _V1)
op("v_cvt_f64_i32", "vop1", "f64", "i32", _as(np.float64), _V1)
op("v_cvt_f64_u32", "vop1", "f64", "u32", _as(np.float64), _V1)
op("v_cvt_f32_i32", "vop1", "f32", "i32", _as(np.float32), _V1)
op("v_cvt_f32_u32", "vop1", "f32", "u32", _as(np.float32), _V1)
op("v_cvt_f16_i16", "vop1", "f16", "i16", _as(np.float16), _V1)
op("v_cvt_f16_u16", "vop1", "f16", "u16", _as(np.float16), _V1)
op("v_cvt_f16_f32", "vop1", "f16", "f32", _as(np.float16), _V1)
op("v_cvt_f32_f16", "vop1", "f32", "f16", f16_to_f32, _V1)
op("v_cvt_f32_f64", "vop1", "f32", "f64", _as(np.float32), _V1)
op("v_cvt_f64_f32", "vop1", "f64", "f32", _as(np.float64), _V1)
op("v_cvt_f32_bf16", "vop1", "f32", "bf16", bf16_to_f32, _V1, archs=SINCE_CDNA4)
op("v_cvt_rpi_i32_f32", "vop1", "i32", "f32", lambda x: to_integer(np.floor(x + np.float32(0.5)), *_I32), _V1)
op("v_cvt_flr_i32_f32", "vop1", "i32", "f32", lambda x: to_integer(np.floor(x), *_I32), _V1)
_OFFSETS = np.array([*range(8), *range(-8, 0)], np.float32) / 16
op("v_cvt_off_f32_i4", "vop1", "f32", "u32", lambda x: _OFFSETS.take(x & 15), _V1)
for _i in range(4):
    op(f"v_cvt_f32_ubyte{_i}", "vop1", "f32", "u32", lambda x, s=8 * _i: ((x >> s) & 255).astype(np.float32), _V1)


def _norm(scale: int, low: int, dtype: type) -> Callable[[Array], Array]:
    """[-1, 1] or [0, 1] to a normalised 16-bit integer, to nearest even; NaN gives 0."""

    def run(x: Array) -> Array:
        return to_integer(np.rint(np.asarray(x).astype(np.float64) * scale), low, scale, dtype)

    return run


_snorm, _unorm = _norm(32767, -32767, np.int16), _norm(65535, 0, np.uint16)
op("v_cvt_norm_i16_f16", "vop1", "i16", "f16", _snorm, _V1)
op("v_cvt_norm_u16_f16", "vop1", "u16", "f16", _unorm, _V1)


# ---- pairs ----------------------------------------------------------------------------------------------------------


def _pair(fn: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    """Convert two values to 16 bits each and pack them, the first one low."""

    def run(a: Array, b: Array) -> Array:
        low, high = np.asarray(fn(a)).view(np.uint16), np.asarray(fn(b)).view(np.uint16)
        return low.astype(np.uint32) | (high.astype(np.uint32) << 16)

    return run


def _saturated(limits: _Limits) -> Callable[[Array], Array]:
    low, high, dtype = limits
    return lambda x: np.clip(x, low, high).astype(dtype)


def _identity(x: Array) -> Array:
    return x


op("v_cvt_pkrtz_f16_f32", "vop3", "b32", "f32 f32", _pair(floats.f32_to_f16_rtz), _V3)
op("v_cvt_pk_f16_f32", "vop3", "b32", "f32 f32", _pair(_as(np.float16)), _V3, archs=SINCE_CDNA4)
op(
    "v_cvt_pk_bf16_f32", "vop3", "b32", "f32 f32",
    lambda a, b: floats.bf16_bits(a) | (floats.bf16_bits(b) << 16), _V3, archs=SINCE_CDNA4,
)  # fmt: skip
op("v_cvt_pknorm_i16_f32", "vop3", "b32", "f32 f32", _pair(_snorm), _V3)
op("v_cvt_pknorm_u16_f32", "vop3", "b32", "f32 f32", _pair(_unorm), _V3)
op("v_cvt_pknorm_i16_f16", "vop3", "b32", "f16 f16", _pair(_snorm), _V3)
op("v_cvt_pknorm_u16_f16", "vop3", "b32", "f16 f16", _pair(_unorm), _V3)
op("v_cvt_pk_u16_u32", "vop3", "b32", "u32 u32", _pair(_saturated(_U16)), _V3)
op("v_cvt_pk_i16_i32", "vop3", "b32", "i32 i32", _pair(_saturated(_I16)), _V3)
op("v_pack_b32_f16", "vop3", "b32", "f16 f16", _pair(_identity), _V3)


def _insert_byte(x: Array, index: Array, into: Array) -> Array:
    shift = (index & 3) * 8
    return (into & ~(np.uint32(0xFF) << shift)) | (to_integer(x, *_U8) << shift)


op("v_cvt_pk_u8_f32", "vop3", "u32", "f32 u32 u32", _insert_byte, _V3)
op("v_cvt_pkaccum_u8_f32", "vop3", "u32", "f32 u32 D.u32", _insert_byte, _V3)

# ---- 8-bit floats ---------------------------------------------------------------------------------------------------


def _two_codes(first: Array, second: Array, bits: int = 8) -> Array:
    return (first | (second << bits)).astype(np.uint16)


def _halves(word: Array, bits: int = 8) -> Array:
    """The two codes of a word on a new last axis."""
    word = np.asarray(word)
    return np.stack([word & ((1 << bits) - 1), (word >> bits) & ((1 << bits) - 1)], axis=-1)


def _register_fp8(kind: str, noise_bits: int) -> None:
    def pack(a: Array, b: Array, flavour: str) -> Array:
        fmt = BY_FLAVOUR[kind, flavour]
        return _two_codes(encode(fmt, a), encode(fmt, b))

    def stochastic(x: Array, random: Array, flavour: str) -> Array:
        return encode(BY_FLAVOUR[kind, flavour], x, noise_from(random, noise_bits)).astype(np.uint8)

    def unpack(word: Array, flavour: str) -> Array:
        return decode(BY_FLAVOUR[kind, flavour], _halves(word))

    def one(code: Array, flavour: str) -> Array:
        return decode(BY_FLAVOUR[kind, flavour], code)

    op(f"v_cvt_pk_{kind}_f32", "vop3", "b16.keep", "f32 f32 fp8", pack, _V3, archs=SINCE_CDNA3)
    op(f"v_cvt_sr_{kind}_f32", "vop3", "b8.keep", "f32 u32 fp8", stochastic, _V3, archs=SINCE_CDNA3)
    op(f"v_cvt_pk_f32_{kind}", "vop1", "pk_f32", "b16 fp8", unpack, _V1, archs=SINCE_CDNA3)
    op(f"v_cvt_f32_{kind}", "vop1", "f32", "u8 fp8", one, _V1, archs=SINCE_CDNA3)


_register_fp8("fp8", 20)
_register_fp8("bf8", 21)

# ---- stochastic rounding to 16 bits ---------------------------------------------------------------------------------


def _sr_bf16(x: Array, random: Array) -> Array:
    """Adding below the last place on the bits themselves carries into the exponent; infinity and NaN stay."""
    bits = np.asarray(x).view(np.uint32)
    rounded = (bits + (random >> 16)) >> 16
    return np.where(np.isfinite(x), rounded, f32_to_bf16(x)).astype(np.uint16)


_HALF = MiniFloat(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00)


def _sr_f16(x: Array, random: Array) -> Array:
    return encode(_HALF, x, noise_from(random, 13)).astype(np.uint16)


op("v_cvt_sr_f16_f32", "vop3", "b16.keep", "f32 u32", _sr_f16, _V3, archs=SINCE_CDNA4)
op("v_cvt_sr_bf16_f32", "vop3", "b16.keep", "f32 u32", _sr_bf16, _V3, archs=SINCE_CDNA4)

# ---- scaled conversions (gfx950) ------------------------------------------------------------------------------------

_MINI = {
    "fp8": minifloat.FP8_OCP, "bf8": minifloat.BF8_OCP,
    "fp6": minifloat.FP6, "bf6": minifloat.BF6, "fp4": minifloat.FP4,
}  # fmt: skip
_WIDEN: dict[str, Callable[[Array], Array]] = {"f32": _identity, "f16": f16_to_f32, "bf16": bf16_to_f32}
_SOURCE_MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}


def _narrow(kind: str, value: Array) -> Array:
    """float64 -> the raw array of a wide format, rounded once."""
    if kind == "f16":
        return value.astype(np.float16)
    single = value.astype(np.float32)
    return single if kind == "f32" else f32_to_bf16(single)


def _divided(wide: str, x: Array, scale: Array) -> Array:
    value = np.asarray(_WIDEN[wide](x)).astype(np.float64)
    return np.copysign(value / scale_factor(scale), value)  # a NaN scale keeps the sign


def _multiplied(mini: str, wide: str, codes: Array, scale: Array) -> Array:
    return _narrow(wide, decode(_MINI[mini], codes).astype(np.float64) * scale_factor(scale))


def _noise(mini: str, wide: str, random: Array) -> Array:
    """The random bits that the hardware can add: as many as the source's mantissa has below the target's."""
    return noise_from(random, max(_SOURCE_MANTISSA[wide] - _MINI[mini].mantissa, 1))


def _advance(random: Array) -> Array:
    """v_prng_b32: the next random number of a sequence."""
    return (random << 1) ^ ((random >> 31) * 197)


def _register_scaled_8_and_4(mini: str, wide: str) -> None:
    """The conversions of one or two values between `mini` (8 or 4 bits) and `wide`."""
    fmt, bits = _MINI[mini], _MINI[mini].bits
    word, part = ("b16", "b16.keep") if bits == 8 else ("u8", "b8.keep")
    dtype = np.uint16 if bits == 8 else np.uint8
    pair = f"pk_{wide}"

    def pack2(a: Array, b: Array, scale: Array) -> Array:
        low, high = (encode(fmt, _divided(wide, x, scale)) for x in (a, b))
        return _two_codes(low, high, bits).astype(dtype)

    def pack_pair(x: Array, scale: Array) -> Array:
        return pack2(x[..., 0], x[..., 1], scale)

    def unpack(codes: Array, scale: Array) -> Array:
        return _multiplied(mini, wide, _halves(codes, bits), np.asarray(scale)[..., None])

    prefix = "v_cvt_scalef32"
    if wide == "f32":
        op(f"{prefix}_pk_{mini}_f32", "vop3", part, "f32 f32 f32", pack2, _V3, archs=SINCE_CDNA4)
    else:
        op(f"{prefix}_pk_{mini}_{wide}", "vop3", part, f"{pair} f32", pack_pair, _V3, archs=SINCE_CDNA4)
    op(f"{prefix}_pk_{wide}_{mini}", "vop3", pair, f"{word} f32", unpack, _V3, archs=SINCE_CDNA4)
    if bits == 8:
        _register_scaled_single(mini, wide)
    else:
        _register_scaled_sr_fp4(wide)


def _register_scaled_single(mini: str, wide: str) -> None:
    fmt = _MINI[mini]

    def stochastic(x: Array, random: Array, scale: Array) -> Array:
        return encode(fmt, _divided(wide, x, scale), _noise(mini, wide, random)).astype(np.uint8)

    def one(code: Array, scale: Array) -> Array:
        value = _multiplied(mini, wide, code, scale)
        return value if wide == "f32" else value.view(np.uint16)

    op(f"v_cvt_scalef32_sr_{mini}_{wide}", "vop3", "b8.keep", f"{wide} u32 f32", stochastic, _V3, archs=SINCE_CDNA4)
    if wide != "bf16":
        dst = "f32" if wide == "f32" else "b16.keep"
        op(f"v_cvt_scalef32_{wide}_{mini}", "vop3", dst, "u8 f32", one, _V3, archs=SINCE_CDNA4)


def _register_scaled_sr_fp4(wide: str) -> None:
    def stochastic(x: Array, random: Array, scale: Array) -> Array:
        codes = []
        for i in range(2):
            codes.append(encode(minifloat.FP4, _divided(wide, x[..., i], scale), _noise("fp4", wide, random)))
            random = _advance(random)
        return (codes[0] | (codes[1] << 4)).astype(np.uint8)

    op(f"v_cvt_scalef32_sr_pk_fp4_{wide}", "vop3", "b8.keep", f"pk_{wide} u32 f32", stochastic, _V3, archs=SINCE_CDNA4)


def _elements(wide: str, words: Array) -> Array:
    """[..., n] dwords -> the 32-bit or 16-bit values in them on the last axis."""
    words = np.ascontiguousarray(words)
    return words.view({"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[wide])


def _register_scaled_6(mini: str, wide: str) -> None:
    """The conversions of 32 values between six bits and `wide`."""
    fmt = _MINI[mini]
    big = "b1024" if wide == "f32" else "b512"
    prefix = "v_cvt_scalef32"

    def pack(words: Array, scale: Array) -> Array:
        return minifloat.pack6(encode(fmt, _divided(wide, _elements(wide, words), np.asarray(scale)[..., None])))

    def pack_interleaved(first: Array, second: Array, scale: Array) -> Array:
        first, second = np.broadcast_arrays(first, second)
        both = np.stack([first, second], axis=-1).reshape(*first.shape[:-1], 32)
        return pack(both, scale)

    def stochastic(words: Array, random: Array, scale: Array) -> Array:
        values = _divided(wide, _elements(wide, words), np.asarray(scale)[..., None])
        codes = []
        for i in range(32):
            codes.append(encode(fmt, values[..., i], _noise(mini, wide, random)))
            random = _advance(random)
        return minifloat.pack6(np.stack(codes, axis=-1))

    def unpack(words: Array, scale: Array) -> Array:
        value = _multiplied(mini, wide, minifloat.unpack6(words), np.asarray(scale)[..., None])
        return np.ascontiguousarray(value).view(np.uint32)

    if wide == "f32":
        op(f"{prefix}_2xpk16_{mini}_f32", "vop3", "b192", "b512 b512 f32", pack_interleaved, _V3, archs=SINCE_CDNA4)
    else:
        op(f"{prefix}_pk32_{mini}_{wide}", "vop3", "b192", f"{big} f32", pack, _V3, archs=SINCE_CDNA4)
    op(f"{prefix}_sr_pk32_{mini}_{wide}", "vop3", "b192", f"{big} u32 f32", stochastic, _V3, archs=SINCE_CDNA4)
    op(f"{prefix}_pk32_{wide}_{mini}", "vop3", big, "b192 f32", unpack, _V3, archs=SINCE_CDNA4)


for _wide in ("f32", "f16", "bf16"):
    for _mini in ("fp8", "bf8", "fp4"):
        _register_scaled_8_and_4(_mini, _wide)
    for _mini in ("fp6", "bf6"):
        _register_scaled_6(_mini, _wide)

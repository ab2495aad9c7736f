"""Operand text to closures: registers and constants as typed arrays, with modifiers, op_sel, DPP and SDWA applied.

Source: "AMD Instinct CDNA3 Instruction Set Architecture", sections 3 (registers), 6 (vector ALU operands), 12.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from kvc.diagnostics import KvcError
from kvc.simulator.asm import CODE_BASE, INSTRUCTION_BYTES, Assembly, Instruction
from kvc.simulator.state import EXEC, M0, SCALAR_BIT, SCC_BIT, U32, U64, VCC, Group

Reader = Callable[[Group], np.ndarray]

# Apertures of the flat address space: the high dword of generic pointers into LDS and scratch.
SHARED_APERTURE = 0x0002_0000
PRIVATE_APERTURE = 0x0003_0000

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "f64": np.float64, "u64": np.uint64, "i64": np.int64, "b64": np.uint64, "f32": np.float32, "u32": np.uint32,
        "i32": np.int32, "b32": np.uint32, "f16": np.float16, "u16": np.uint16, "i16": np.int16, "b16": np.uint16,
        "bf16": np.uint16, "u8": np.uint8, "i8": np.int8, "b8": np.uint8, "pk_f16": np.float16, "pk_i16": np.int16,
        "pk_u16": np.uint16, "pk_b16": np.uint16, "pk_bf16": np.uint16, "pk_f32": np.float32, "pk_b32": np.uint32,
        "mix_f32": np.float32,
    }.items()
}  # fmt: skip
FLOATS = frozenset({"f64", "f32", "f16", "bf16", "pk_f16", "pk_bf16", "pk_f32", "mix_f32"})
WIDE = {"b96": 3, "b128": 4, "b192": 6, "b256": 8, "b512": 16, "b1024": 32}

_NAMED = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "exec": (EXEC, 2), "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1), "m0": (M0, 1), "flat_scratch": (102, 2), "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1), "xnack_mask": (104, 2), "xnack_mask_lo": (104, 1), "xnack_mask_hi": (105, 1),
}  # fmt: skip
_SPECIAL = frozenset(
    [
        "scc",
        "src_scc",
        "vccz",
        "src_vccz",
        "execz",
        "src_execz",
        "src_shared_base",
        "src_private_base",
        "src_shared_limit",
        "src_private_limit",
        "off",
        "null",
    ]
)
_REGISTER = re.compile(r"^(v|a|s|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])$")
_INT = re.compile(r"^-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"^-?\d+\.\d*(e[+-]?\d+)?$", re.I)
_LIT = re.compile(r"^lit(?:64)?\((.+)\)$")


@dataclass(frozen=True)
class Operand:
    """`kind`: "v" (register 0-511, accumulation registers from 256), "s", "int", "float", "special", "symbol"."""

    kind: str
    register: int = 0
    count: int = 1
    value: float = 0
    name: str = ""
    neg: bool = False
    absolute: bool = False
    sext: bool = False


def refuse(ins: Instruction, what: str) -> KvcError:
    """KVC0902 for an instruction whose `what` the simulator does not know."""
    return KvcError("KVC0902", f"{what} in `{ins.text}` (line {ins.line})")


def parse_operand(text: str, ins: Instruction) -> Operand:
    """Read one operand. KVC0902 for a form that is not known."""
    operand = _read_operand(text)
    if operand.kind == "ttmp":
        raise refuse(ins, "trap register")
    return operand


@lru_cache(maxsize=1 << 14)
def _read_operand(text: str) -> Operand:
    neg = absolute = sext = False
    if text.startswith("-") and not _INT.match(text) and not _FLOAT.match(text):
        neg, text = True, text[1:]
    for prefix in ("neg(", "abs(", "sext("):
        if text.startswith(prefix):
            neg, absolute, sext = neg or prefix == "neg(", absolute or prefix == "abs(", sext or prefix == "sext("
            text = text[len(prefix) : -1]
    if text.startswith("|"):
        absolute, text = True, text[1:-1]
    flags: dict[str, Any] = {"neg": neg, "absolute": absolute, "sext": sext}
    if text in _NAMED:
        register, count = _NAMED[text]
        return Operand("s", register, count, **flags)
    match = _REGISTER.match(text)
    if match:
        first = int(match[2] or match[3])
        count = int(match[4]) - first + 1 if match[4] else 1
        kind = {"s": "s", "ttmp": "ttmp"}.get(match[1], "v")
        return Operand(kind, first + (256 if match[1] == "a" else 0), count, **flags)
    literal = _LIT.match(text)
    if literal:
        text = literal[1]
    if _INT.match(text):
        return Operand("int", value=int(text, 0), name="literal" if literal else "", **flags)
    if _FLOAT.match(text):
        return Operand("float", value=float(text), **flags)
    if text in _SPECIAL:
        return Operand("special", name=text.removeprefix("src_"), **flags)
    return Operand("symbol", name=text, **flags)


_INV_2PI = {2: 0x3118, 4: 0x3E22F983, 8: 0x3FC45F306DC9C882}


def constant_bits(operand: Operand, kind: str, ins: Instruction) -> int:
    """Bits of an inline constant or literal when read as `kind`: 64 bits for 8-byte types, else 32."""
    wide = kind in ("f64", "u64", "i64", "b64")
    if operand.kind == "int":
        value = int(operand.value)
        inline = -16 <= value <= 64
        if kind == "f64" and not inline and not operand.name:
            return (value & 0xFFFF_FFFF) << 32 if value < 1 << 32 else value
        if kind == "i64" and not inline and value & 0x8000_0000 and value < 1 << 32:
            value -= 1 << 32
        return value & (0xFFFF_FFFF_FFFF_FFFF if wide else 0xFFFF_FFFF)
    if operand.kind != "float":
        raise refuse(ins, f"constant {operand.name!r}")
    half = kind in ("f16", "pk_f16", "b16", "u16", "i16", "pk_u16", "pk_i16", "pk_b16")
    size = 2 if half else 8 if wide else 4
    if abs(operand.value - 0.15915494) < 1e-7:
        return _INV_2PI[size]
    if kind in ("bf16", "pk_bf16"):
        return struct.unpack("<I", struct.pack("<f", operand.value))[0] >> 16
    return int.from_bytes(struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], operand.value), "little")


def symbol_value(operand: Operand, ins: Instruction, assembly: Assembly) -> int:
    """A label or `sym@rel32@lo+4`, relative to this instruction's literal; low or high dword for @lo and @hi."""
    value = assembly.evaluate(operand.name, CODE_BASE + ins.index * INSTRUCTION_BYTES + 4)
    return value >> 32 if "@hi" in operand.name else value


def set_bits(operand: Operand, count: int) -> list[int]:
    """Numbers of an operand's registers in register sets."""
    if operand.kind == "v":
        return list(range(operand.register, operand.register + count))
    if operand.kind == "s" and operand.register < EXEC:
        return [SCALAR_BIT + operand.register + i for i in range(count)]
    if operand.kind == "special" and operand.name == "scc":
        return [SCC_BIT]
    if operand.kind == "special" and operand.name == "vccz":
        return [SCALAR_BIT + VCC, SCALAR_BIT + VCC + 1]
    return []


def dwords(kind: str) -> int:
    """Registers that an operand of this type occupies."""
    if kind in WIDE:
        return WIDE[kind]
    return 2 if kind in ("f64", "u64", "i64", "b64", "pk_f32", "pk_b32", "mask", "vcc") else 1


# ---- raw readers: uint32 [W, 64], [W, 1] or [1, 1]


def raw_vector(operand: Operand, kind: str, ins: Instruction, assembly: Assembly, part: int = 0) -> Reader:
    """The operand's dword `part` in a vector instruction."""
    register = operand.register + part
    if operand.kind == "v":

        def read_v(g: Group) -> np.ndarray:
            array = g.R[register]
            return array if array.dtype is U32 else array.view(U32)

        return read_v
    scalar = raw_scalar(operand, kind, ins, assembly, part)
    if operand.kind in ("int", "float", "symbol"):
        value = scalar(cast(Any, None))[None]  # a literal reads no registers
        return lambda g: value
    return lambda g: scalar(g)[:, None]


def raw_scalar(operand: Operand, kind: str, ins: Instruction, assembly: Assembly, part: int = 0) -> Reader:
    """The operand's dword `part` in a scalar instruction: uint32 [W] or [1]."""
    if operand.kind == "s":
        register = operand.register + part
        if register >= EXEC:
            shift = np.uint64(0 if register == EXEC else 32)
            return lambda g: (g.exec64 >> shift).astype(U32)

        def read_s(g: Group) -> np.ndarray:
            array = g.S[register]
            return array if array.dtype is U32 else array.view(U32)

        return read_s
    if operand.kind == "special":
        return _special(operand, ins, part)
    bits = symbol_value(operand, ins, assembly) if operand.kind == "symbol" else constant_bits(operand, kind, ins)
    value = np.array([(bits >> 32 * part) & 0xFFFF_FFFF], U32)
    return lambda g: value


def _special(operand: Operand, ins: Instruction, part: int) -> Reader:
    if operand.name == "scc":
        return (lambda g: g.scc.astype(U32)) if part == 0 else (lambda g: np.zeros(g.W, U32))
    if operand.name == "vccz":
        return lambda g: (g.spair(VCC) == 0).astype(U32)
    if operand.name == "execz":
        return lambda g: (g.exec64 == 0).astype(U32)
    aperture = {"shared_base": SHARED_APERTURE, "private_base": PRIVATE_APERTURE}.get(operand.name)
    if aperture is None:
        raise refuse(ins, f"operand {operand.name!r}")
    value = np.array([aperture if part else 0], U32)
    return lambda g: value


# ---- typed readers


def scalar_reader(operand: Operand, kind: str, ins: Instruction, assembly: Assembly) -> Reader:
    """Typed operand of a scalar instruction, [W] or [1]."""
    if operand.neg or operand.absolute:
        raise refuse(ins, "float modifier of a scalar operand")
    if kind in ("simm16", "uimm16"):
        value = int(operand.value) & 0xFFFF
        immediate = np.array([value - (value >> 15 << 16) if kind == "simm16" else value], np.int64).astype(np.int32)
        return lambda g: immediate
    dtype = DTYPES[kind]
    if dtype.itemsize == 8:
        if operand.kind == "s":
            register = operand.register
            return lambda g: g.spair(register).view(dtype)
        low = raw_scalar(operand, kind, ins, assembly, 0)
        high = raw_scalar(operand, kind, ins, assembly, 1)
        return lambda g: (low(g).astype(U64) | high(g).astype(U64) << np.uint64(32)).view(dtype)
    raw = raw_scalar(operand, kind, ins, assembly)
    if dtype.itemsize == 4:
        return raw if dtype is U32 else lambda g: raw(g).view(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return lambda g: raw(g).astype(unsigned).view(dtype)


def vector_reader(
    operand: Operand,
    kind: str,
    ins: Instruction,
    assembly: Assembly,
    position: int,
    reshape: Callable[[Group, np.ndarray], np.ndarray] | None = None,
) -> Reader:
    """Typed operand of a vector instruction; `position` indexes op_sel and its kin; `reshape` is DPP or SDWA."""
    if kind == "mask":
        if operand.kind != "s":
            raise refuse(ins, "lane mask")
        register = operand.register
        return lambda g: g.mask(register)
    if kind in WIDE:
        parts = [raw_vector(operand, kind, ins, assembly, i) for i in range(WIDE[kind])]
        return lambda g: np.stack(np.broadcast_arrays(*(part(g) for part in parts)), axis=-1)
    if kind in ("pk_f32", "pk_b32"):
        return _packed_pair(operand, kind, ins, assembly, position)
    dtype = DTYPES[kind]
    if dtype.itemsize == 8:
        return _signed(_eight_bytes(operand, kind, ins, assembly, reshape), kind, operand, ins)
    raw = raw_vector(operand, kind, ins, assembly)
    if reshape is not None:
        plain = raw
        change = reshape
        raw = lambda g: change(g, plain(g))  # noqa: E731
    if kind.startswith("pk_"):
        return _packed_halves(raw, operand, kind, ins, position)
    if kind == "mix_f32":
        return _mixed(raw, operand, ins, assembly, position)
    if dtype.itemsize == 4:
        base: Reader
        if operand.kind == "v" and reshape is None:
            register = operand.register

            def base(g: Group) -> np.ndarray:
                array = g.R[register]
                return array if array.dtype is dtype else array.view(dtype)

        elif dtype is U32:
            base = raw
        else:
            base = lambda g: raw(g).view(dtype)  # noqa: E731
        return _signed(base, kind, operand, ins)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    shift = np.uint32(part_shift(ins, dtype.itemsize, position))
    if shift:
        base = lambda g: (raw(g) >> shift).astype(unsigned).view(dtype)  # noqa: E731
    else:
        base = lambda g: raw(g).astype(unsigned).view(dtype)  # noqa: E731
    return _signed(base, kind, operand, ins)


def part_shift(ins: Instruction, size: int, position: int) -> int:
    """Bits below the half (`size` 2) or byte (1) of a source that op_sel picks; a byte takes its first two bits."""
    chosen = ins.mods.get("op_sel")
    if size == 1:
        return 8 * _selected(chosen, 0) + 16 * _selected(chosen, 1)
    return 16 * _selected(chosen, position)


def _selected(bits: tuple[int, ...] | None, position: int, default: int = 0) -> int:
    return bits[position] if bits is not None and position < len(bits) else default


def _eight_bytes(
    operand: Operand, kind: str, ins: Instruction, assembly: Assembly, reshape: Callable[..., np.ndarray] | None
) -> Reader:
    dtype, register = DTYPES[kind], operand.register
    if reshape is not None:
        change = reshape
        low = raw_vector(operand, kind, ins, assembly, 0)
        high = raw_vector(operand, kind, ins, assembly, 1)
        shift = np.uint64(32)
        return lambda g: (change(g, low(g)).astype(U64) | change(g, high(g)).astype(U64) << shift).view(dtype)
    if operand.kind == "v":
        return lambda g: g.pair(register).view(dtype)
    scalar = scalar_reader(Operand(operand.kind, register, 2, operand.value, operand.name), kind, ins, assembly)
    if operand.kind in ("int", "float"):
        value = scalar(cast(Any, None))[None]  # a literal reads no registers
        return lambda g: value
    return lambda g: scalar(g)[:, None]


def _signed(base: Reader, kind: str, operand: Operand, ins: Instruction) -> Reader:
    """Apply |x| and -x."""
    if not (operand.neg or operand.absolute):
        return base
    if kind not in FLOATS:
        if kind not in ("b32", "b64", "b16"):
            raise refuse(ins, "float modifier of an integer operand")
        sign = DTYPES[kind].type(1 << 8 * DTYPES[kind].itemsize - 1)
        return _sign_bits(base, sign, operand)
    if kind == "bf16":
        return _sign_bits(base, np.uint16(0x8000), operand)
    if operand.neg and operand.absolute:
        return lambda g: -np.abs(base(g))
    return (lambda g: np.abs(base(g))) if operand.absolute else (lambda g: -base(g))


def _sign_bits(base: Reader, sign: Any, operand: Operand) -> Reader:
    def read(g: Group) -> np.ndarray:
        value = base(g)
        if operand.absolute:
            value = value & ~sign
        return value ^ sign if operand.neg else value

    return read


def _packed_pair(operand: Operand, kind: str, ins: Instruction, assembly: Assembly, position: int) -> Reader:
    """Two dwords of a pair as op_sel (for the low result) and op_sel_hi (for the high one) choose them."""
    dtype, register = DTYPES[kind], operand.register
    low = _selected(ins.mods.get("op_sel"), position)
    high = low if ins.name == "v_pk_mov_b32" else _selected(ins.mods.get("op_sel_hi"), position, 1)
    negate = _selected(ins.mods.get("neg_lo"), position), _selected(ins.mods.get("neg_hi"), position)
    if operand.neg or operand.absolute:
        raise refuse(ins, "modifier of a packed operand")
    if operand.kind in ("int", "float"):
        # An inline constant has one dword; both results read it where op_sel says so, else the encoding is unsure.
        if low != high and operand.value != 0:
            raise refuse(ins, "high half of an inline constant")
        bits = np.array([[[constant_bits(operand, "f32", ins)] * 2]], U32).view(dtype)
        return _negate_parts(lambda g: bits, negate)

    def words(g: Group) -> np.ndarray:
        if operand.kind == "v":
            return g.pair(register)[..., None].view(dtype)
        return np.ascontiguousarray(g.spair(register))[:, None, None].view(dtype)

    if (low, high) == (0, 1):
        return _negate_parts(words, negate)
    if low == high:
        return _negate_parts(lambda g: words(g)[..., [low, low]], negate)
    return _negate_parts(lambda g: words(g)[..., ::-1], negate)


def _negate_parts(base: Reader, negate: tuple[int, int]) -> Reader:
    if not any(negate):
        return base
    if all(negate):
        return lambda g: -base(g)
    part = 0 if negate[0] else 1

    def read(g: Group) -> np.ndarray:
        value = base(g).copy()
        value[..., part] = -value[..., part]
        return value

    return read


def _packed_halves(raw: Reader, operand: Operand, kind: str, ins: Instruction, position: int) -> Reader:
    dtype = DTYPES[kind]
    low = _selected(ins.mods.get("op_sel"), position)
    high = _selected(ins.mods.get("op_sel_hi"), position, 1)
    negate = _selected(ins.mods.get("neg_lo"), position), _selected(ins.mods.get("neg_hi"), position)
    if operand.neg or operand.absolute:
        raise refuse(ins, "modifier of a packed operand")
    flip = np.array([negate[0] << 15, negate[1] << 15], np.uint16) if any(negate) else None

    def read(g: Group) -> np.ndarray:
        words = np.ascontiguousarray(raw(g))
        halves = words[..., None].view(np.uint16)
        if (low, high) != (0, 1):
            halves = halves[..., [low, high]]
        if flip is not None:
            halves = halves ^ flip
        return halves.view(dtype)

    return read


def _mixed(raw: Reader, operand: Operand, ins: Instruction, assembly: Assembly, position: int) -> Reader:
    """v_*_mix_*: f32, or with op_sel_hi a half chosen by op_sel; neg_lo negates and neg_hi takes the absolute value."""
    half = _selected(ins.mods.get("op_sel_hi"), position)
    top = _selected(ins.mods.get("op_sel"), position)
    if half and operand.kind in ("int", "float"):
        raw = raw_vector(operand, "f16", ins, assembly)

    def read(g: Group) -> np.ndarray:
        bits = raw(g)
        if not half:
            return bits.view(np.float32)
        return (bits >> 16 if top else bits).astype(np.uint16).view(np.float16).astype(np.float32)

    negative = operand.neg != bool(_selected(ins.mods.get("neg_lo"), position))
    absolute = operand.absolute or bool(_selected(ins.mods.get("neg_hi"), position))
    return _signed(read, "f32", Operand("v", neg=negative, absolute=absolute), ins)

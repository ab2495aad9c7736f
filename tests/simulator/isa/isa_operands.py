"""Operands for opcode tests: random and edge values of every type of the table, as NumPy arrays and as raw integers."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np

LANES = 64


def _f32(*values: float) -> list[int]:
    return [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]


_EDGES_F32 = [
    0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFA00000,
    0x00000001, 0x807FFFFF, 0x00800000, 0x80800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F7FFFFF, 0x3F800001,
    *_f32(1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 65504, 65519.9, 65520, 2**31, -(2.0**31), 2**32, 6e-8, 3e-8, 448, 464, 240),
    *_f32(1 + 2**-11, 1 + 3 * 2**-11, 2**-14 - 2**-25, 2.0**-126, 2.0**126, 3.0, -7.25, 0.1, 255.5, 32767.5, 1e-38),
]  # fmt: skip
_EDGES_F16 = [
    0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0xFD00, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF,
    0x3C00, 0xBC00, 0x3800, 0xB800, 0x3E00, 0x4100, 0x3BFF, 0x3C01, 0x1400, 0x5BF8, 0x7800, 0x0801,
]  # fmt: skip
_EDGES_F64 = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in (
    0.0, -0.0, float("inf"), -float("inf"), 5e-324, 2.0**-1022, -(2.0**-1022) + 5e-324, 1.7976931348623157e308, 1.0,
    -1.0, 0.5, -0.5, 1.5, 2.5, 3.0, 2.0**31, 2.0**32, -(2.0**31) - 0.5, 1e-300, 1e300, 0.1, 1 + 2**-52,
    2.0**1022, 2.0**-1000,
)] + [0x7FF8000000000000, 0x7FF0000000000001, 0xFFFC000000000000]  # fmt: skip
_EDGES_INT = [0, 1, 2, 7, 8, 15, 31, 32, 33, 63, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF]
_EDGES_INT += [
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x00FF00FF,
    0x12345678,
    0x07060504,
    0x0C0D080B,
    0x00200000,
    0x001F0003,
]
_WIDE = [0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0x100000000, 0x00000001FFFFFFFF]

# type -> (bits of one element, elements on the last axis, NumPy dtype)
SHAPES: dict[str, tuple[int, int, Any]] = {
    "f64": (64, 1, np.float64), "u64": (64, 1, np.uint64), "i64": (64, 1, np.int64), "b64": (64, 1, np.uint64),
    "f32": (32, 1, np.float32), "mix_f32": (32, 1, np.float32), "u32": (32, 1, np.uint32), "i32": (32, 1, np.int32),
    "b32": (32, 1, np.uint32), "simm16": (32, 1, np.int32), "uimm16": (32, 1, np.int32),
    "f16": (16, 1, np.float16), "u16": (16, 1, np.uint16), "i16": (16, 1, np.int16), "b16": (16, 1, np.uint16),
    "bf16": (16, 1, np.uint16), "u8": (8, 1, np.uint8), "b8": (8, 1, np.uint8), "i8": (8, 1, np.int8),
    "pk_f16": (16, 2, np.float16), "pk_i16": (16, 2, np.int16), "pk_u16": (16, 2, np.uint16),
    "pk_b16": (16, 2, np.uint16), "pk_bf16": (16, 2, np.uint16), "pk_f32": (32, 2, np.float32),
    "pk_b32": (32, 2, np.uint32), "b96": (32, 3, np.uint32), "b128": (32, 4, np.uint32), "b192": (32, 6, np.uint32),
    "b512": (32, 16, np.uint32), "b1024": (32, 32, np.uint32),
}  # fmt: skip


def _random_float(rng: random.Random, bits: int) -> int:
    """Half of the time any pattern, half of the time a number of moderate size (so that sums do not all overflow)."""
    if rng.random() < 0.4:
        return rng.getrandbits(bits)
    value = rng.choice((1, -1)) * rng.uniform(0.5, 2) * 2.0 ** rng.randint(-6, 6)
    code, raw = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]
    return struct.unpack(raw, struct.pack(code, value))[0]


def element(rng: random.Random, kind: str) -> int:
    """The bits of one element of a type, an edge value in two draws of five."""
    bits, _, dtype = SHAPES[kind]
    edge = rng.random() < 0.4
    if kind == "simm16":
        value = rng.choice(_EDGES_INT) if edge else rng.getrandbits(16)
        value &= 0xFFFF
        return (value - (value >> 15 << 16)) & 0xFFFFFFFF
    if kind == "uimm16":
        return rng.choice(_EDGES_INT) & 0xFFFF if edge else rng.getrandbits(16)
    if kind in ("bf16", "pk_bf16"):
        return (rng.choice(_EDGES_F32) if edge else _random_float(rng, 32)) >> 16
    if np.issubdtype(dtype, np.floating):
        edges = {16: _EDGES_F16, 32: _EDGES_F32, 64: _EDGES_F64}[bits]
        return rng.choice(edges) if edge else _random_float(rng, bits)
    if bits == 64 and edge:
        return rng.choice([*_EDGES_INT, *_WIDE])
    return rng.choice(_EDGES_INT) & ((1 << bits) - 1) if edge else rng.getrandbits(bits)


def draw(rng: random.Random, kind: str, waves: int) -> list[int]:
    """waves * 64 raw operands (all elements of a lane in one integer, the first lowest)."""
    bits, count, _ = SHAPES[kind]
    return [sum(element(rng, kind) << (bits * i) for i in range(count)) for _ in range(waves * LANES)]


def to_array(raw: list[int], kind: str) -> Any:
    """Raw operands -> the array that the table's function takes: [waves, 64] or [waves, 64, elements]."""
    bits, count, dtype = SHAPES[kind]
    data = b"".join(value.to_bytes(bits * count // 8, "little") for value in raw)
    array = np.frombuffer(data, dtype)
    return array.reshape(-1, LANES) if count == 1 else array.reshape(-1, LANES, count)


def from_array(array: Any, kind: str) -> list[int]:
    """The result of a table's function -> raw integers, by lane."""
    bits, count, _ = SHAPES[kind]
    size = bits * count // 8
    array = np.ascontiguousarray(array)
    assert array.dtype.itemsize * 8 == bits, f"{kind} from {array.dtype}"
    data = array.tobytes()
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]

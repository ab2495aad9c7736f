"""The integer side of a PTX kernel, run for the lanes of one wave: addresses, predicates and loop counters.

Every instruction is executed once, in the order of the text. That gives the addresses of the first pass through each
loop, which say how an access spreads over memory, and the values from which the number of passes follows. What is not
integer arithmetic on known values is unknown (None), and stays so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

LANES = 32
Lanes = np.ndarray | None

_MASK = {8: 0xFF, 16: 0xFFFF, 32: 0xFFFFFFFF}
_COMPARE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BITS = re.compile(r"^[subf](\d+)$")


@dataclass
class Registers:
    """Values of the wave's registers by name. `special` holds %tid.x and the like."""

    special: dict[str, int | np.ndarray]
    values: dict[str, Lanes] = field(default_factory=dict)
    pointers: int = 0

    def read(self, operand: str) -> Lanes:
        """The value of a register, an immediate or a symbol; None where unknown."""
        operand = operand.strip()
        if operand not in self.values:
            self.values[operand] = self._constant(operand)
        return self.values[operand]

    def _constant(self, operand: str) -> Lanes:
        if operand in self.special:
            return np.broadcast_to(np.asarray(self.special[operand], np.int64), (LANES,))
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
            return np.full(LANES, _wrapped(int(operand.rstrip("U"), 0)), np.int64)
        return np.zeros(LANES, np.int64) if operand == "global_smem" else None

    def address(self, operand: str) -> Lanes:
        """The value of `[reg+offset]`."""
        base, _, offset = operand.strip(" []").partition("+")
        value = self.read(base)
        more = self.read(offset) if offset.strip() else np.zeros(LANES, np.int64)
        return None if value is None or more is None else value + more

    def guard(self, predicate: str) -> np.ndarray | None:
        """The lanes that `@p` or `@!p` leaves active; all for no guard, None where unknown."""
        if not predicate:
            return np.ones(LANES, bool)
        value = self.values.get(predicate.lstrip("@!"))
        if value is None:
            return None
        return ~value.astype(bool) if predicate.startswith("@!") else value.astype(bool)


def _wrapped(value: int) -> int:
    """An immediate as a signed 64-bit number."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _signed(x: np.ndarray, bits: int) -> np.ndarray:
    if bits >= 64:
        return x
    half = 1 << (bits - 1)
    return ((x + half) & ((half << 1) - 1)) - half


def _typed(x: np.ndarray, kind: str) -> np.ndarray:
    """`x` as an operation of this type sees it."""
    found = _BITS.match(kind)
    bits = int(found[1]) if found else 64
    if bits >= 64:
        return x
    return x & _MASK[bits] if kind.startswith("u") else _signed(x, bits)


def execute(registers: Registers, opcode: str, operands: Sequence[str]) -> None:
    """Run one instruction on the integer registers; its destination becomes unknown where it is no integer work."""
    parts = opcode.split(".")
    if not operands:
        return
    target = operands[0]
    if parts[0] == "setp":
        registers.values[target] = _compared(registers, parts, operands)
        return
    if not target.startswith("%"):
        return
    if parts[-1].startswith(("f", "bf")):
        registers.values[target] = None
        return
    if parts[:2] == ["ld", "param"]:
        registers.pointers += 1
        registers.values[target] = np.full(LANES, registers.pointers << 40, np.int64)
        return
    handler = _HANDLERS.get(parts[0])
    given = [registers.read(o) for o in operands[1:]]
    known = [g for g in given if g is not None]
    if handler is None or len(known) != len(given) or not known:
        registers.values[target] = None
        return
    found = _BITS.match(parts[-1])
    bits = int(found[1]) if found else 64
    wide = "wide" in parts
    result = handler(parts, known)
    registers.values[target] = None if result is None else result if wide else _signed(result, bits)


def _compared(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Lanes:
    left, right = registers.read(operands[1]), registers.read(operands[2])
    if left is None or right is None or parts[1] not in _COMPARE or parts[-1].startswith("f"):
        return None
    kind = parts[-1]
    return _COMPARE[parts[1]](_typed(left, kind), _typed(right, kind)).astype(np.int64)


def _shift_right(parts: Sequence[str], given: Sequence[np.ndarray]) -> np.ndarray:
    return _typed(given[0], parts[-1]) >> np.minimum(given[1], 63)


def _field(parts: Sequence[str], given: Sequence[np.ndarray]) -> np.ndarray:
    value, start, length = given
    return (_typed(value, "u" + parts[-1][1:]) >> start) & ((1 << length) - 1)


def _times(parts: Sequence[str], given: Sequence[np.ndarray]) -> np.ndarray | None:
    if "hi" in parts:
        kind = parts[-1]
        if not kind.endswith("32"):
            return None
        return (_typed(given[0], kind) * _typed(given[1], kind)) >> 32
    kind = parts[-1]
    with np.errstate(over="ignore"):
        return _typed(given[0], kind) * _typed(given[1], kind)


def _multiply_add(parts: Sequence[str], given: Sequence[np.ndarray]) -> np.ndarray | None:
    product = _times(parts, given[:2])
    return None if product is None else product + given[2]


def _divided(parts: Sequence[str], given: Sequence[np.ndarray]) -> np.ndarray | None:
    left, right = (_typed(x, parts[-1]) for x in given)
    if not right.all():
        return None
    quotient = np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))
    return quotient if parts[0] == "div" else left - quotient * right


_HANDLERS: dict[str, Callable[[Sequence[str], list[np.ndarray]], np.ndarray | None]] = {
    "mov": lambda p, g: g[0],
    "cvta": lambda p, g: g[0],
    "cvt": lambda p, g: _typed(g[0], p[-1]),
    "add": lambda p, g: g[0] + g[1],
    "sub": lambda p, g: g[0] - g[1],
    "neg": lambda p, g: -g[0],
    "abs": lambda p, g: np.abs(g[0]),
    "and": lambda p, g: g[0] & g[1],
    "or": lambda p, g: g[0] | g[1],
    "xor": lambda p, g: g[0] ^ g[1],
    "not": lambda p, g: 1 - g[0] if p[-1] == "pred" else ~g[0],
    "shl": lambda p, g: g[0] << np.minimum(g[1], 62),
    "shr": _shift_right,
    "bfe": _field,
    "mul": _times,
    "mad": _multiply_add,
    "div": _divided,
    "rem": _divided,
    "min": lambda p, g: np.minimum(_typed(g[0], p[-1]), _typed(g[1], p[-1])),
    "max": lambda p, g: np.maximum(_typed(g[0], p[-1]), _typed(g[1], p[-1])),
    "selp": lambda p, g: np.where(g[2].astype(bool), g[0], g[1]),
}

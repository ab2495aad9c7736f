"""What the machine reads: the layout of its records, and the parts that all kinds of instructions share."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvc.simulator.asm import Instruction
from kvc.simulator.operands import Operand, constant_bits, symbol_value
from kvc.simulator.program import Program
from kvc.simulator.state import LANES
from kvc.simulator.step import Step

SET_WORDS = 11
MOST_WORDS, MOST_TARGETS = 8, 4
ONES = 0xFFFF_FFFF
SCC = 128

_OP_NAMES = (
    "alu", "refused", "nop", "jump", "branch", "end", "barrier", "wait", "saveexec", "load", "store", "lds_read",
    "lds_write", "smem", "mfma", "readlane", "writelane", "swap", "permute", "swizzle", "setpc", "getpc", "fence",
    "load_lds",
)  # fmt: skip
OPS = {name: i for i, name in enumerate(_OP_NAMES)}
VECTOR, SCALAR, CONSTANT, MASK, SCC_LANES, EXEC_LANES, VCCZ, EXECZ = range(8)
SHIFT, HALVES, SIGNED, MIXED = range(1, 5)
MOVED = 128  # a word whose lanes DPP moves first
SPREAD, DEMAND, LINEAR, BITWISE, SELECT, OWN, PAIRS, PACKED, LOW_FIRST = range(9)
CONDITIONS = ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz")
BITWISE_KIND = {"and": 1, "andn2": 1, "nand": 1, "or": 2, "orn2": 2, "nor": 2}
COMBINE = ("and", "or", "xor", "andn1", "andn2", "orn1", "orn2", "nand", "nor", "xnor")
TAG_LOAD, TAG_STORE, TAG_FLAT = 1, 2, 32
SADDR, PAIR, BUFFER = range(3)

WORD = np.dtype(
    [
        ("kind", "u1"),
        ("change", "u1"),
        ("shift", "u1"),
        ("upper", "u1"),
        ("index", "i4"),
        ("keep", "u4"),
        ("flip", "u4"),
    ]
)
TARGET = np.dtype(
    [("kind", "u1"), ("post", "u1"), ("shift", "u1"), ("extend", "u1"), ("index", "i4"), ("field", "u4"),
     ("factor", "f4")]
)  # fmt: skip
INS = np.dtype(
    [(name, "i4") for name in ("op", "fn", "imm", "taint", "words", "targets", "scalar", "dpp", "source_at",
                               "source_count", "target_at", "target_count", "starts", "jump", "order", "tag")]
    + [("p", "i4", 12), ("reads", "u8", SET_WORDS), ("writes", "u8", SET_WORDS), ("both", "u8", SET_WORDS),
       ("w", WORD, MOST_WORDS), ("d", TARGET, MOST_TARGETS)]
)  # fmt: skip
DPP = np.dtype(
    [("index", "u1", LANES), ("valid", "u1", LANES), ("write", "u1", LANES), ("zero_fill", "i4"), ("pad", "i4")]
)


_NUMBERS = tuple(name for name in INS.names or () if INS[name].shape == () and INS[name].kind == "i")
_SETS = ("reads", "writes", "both")
_PACKING = struct.Struct(f"={len(_NUMBERS)}i12i{3 * SET_WORDS}Q" + "4BiII" * MOST_WORDS + "4BiIf" * MOST_TARGETS)
_NO_SET, _NO_WORD, _NO_TARGET = [0] * SET_WORDS, (0,) * 7, (0, 0, 0, 0, 0, 0, 0.0)


class Record(dict[str, Any]):
    """One instruction on its way into an INS: its fields by name, `w` and `d` as lists of WORDs and TARGETs."""

    def __init__(self, starts: bool) -> None:
        super().__init__(dict.fromkeys(_NUMBERS, 0))
        self.update(dict.fromkeys(_SETS, _NO_SET))
        self["starts"], self["dpp"], self["p"] = starts, -1, [0] * 12
        self["w"], self["d"] = [_NO_WORD] * MOST_WORDS, [_NO_TARGET] * MOST_TARGETS

    def pack(self) -> bytes:
        operands = [field for key in ("w", "d") for item in self[key] for field in item]
        sets = [word for key in _SETS for word in self[key]]
        return _PACKING.pack(*(self[name] for name in _NUMBERS), *self["p"], *sets, *operands)


class NoForm(Exception):
    """Why an instruction has no record."""


@dataclass(frozen=True)
class MatrixForm:
    """Shape, element kinds and layout of one matrix instruction; tables of the small formats or None.

    `left_index` [blocks, M, K] and `right_index` [blocks, K, N] number the elements of the operands: lane + 64 j for
    element j of a lane.
    """

    numbers: tuple[int, ...]  # m, n, k, blocks, per_lane, left kind, right kind, integer result
    left_index: np.ndarray
    right_index: np.ndarray
    left_table: np.ndarray | None
    right_table: np.ndarray | None


@dataclass
class Encoded:
    """All of a program, in the arrays the machine reads. `reasons` say why instructions have no record."""

    code: np.ndarray
    sources: np.ndarray
    source_bits: np.ndarray
    targets: np.ndarray
    constants: np.ndarray
    dpp: np.ndarray
    matrices: list[MatrixForm]
    reasons: dict[int, str]


def _set(registers: int) -> list[int]:
    """A register set as the machine's words."""
    return [registers >> 64 * i & 0xFFFF_FFFF_FFFF_FFFF for i in range(SET_WORDS)]


class Builder:
    """Pools of a program, and the parts of records."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.assembly = program.assembly
        self.accumulators_at = max(program.registers.vgprs, 1)
        self.sources: list[tuple[int, int]] = []
        self.targets: list[int] = []
        self.constants: dict[int, int] = {}
        self.moves: list[Any] = []
        self.matrices: list[MatrixForm] = []
        self.reasons: dict[int, str] = {}

    def _row(self, register: int) -> int:
        return register if register < 256 else register - 256 + self.accumulators_at

    def _constant(self, value: int) -> int:
        return self.constants.setdefault(value & ONES, len(self.constants))

    def _checks(self, record: Record, step: Step, taint: int, sources: list[tuple[int, int]] | None = None) -> None:
        """What the checkers need: `sources` are those whose stale bits count, all of the step's by default."""
        record.update(zip(_SETS, map(_set, (step.read_mask, step.write_mask, step.regs)), strict=True))
        chosen = step.sources if sources is None else sources
        record["source_at"], record["source_count"] = len(self.sources), len(chosen)
        self.sources += chosen
        record["target_at"], record["target_count"] = len(self.targets), len(step.targets)
        self.targets += step.targets
        record["taint"] = taint
        record["order"] = {"": 0, "vm": 1, "ds": 2}[step.in_order]

    def _word(self, operand: Operand, kind: str, ins: Instruction, part: int, scalar: bool) -> tuple[Any, ...]:
        """Where dword `part` of an operand comes from, unchanged: a WORD."""
        if operand.kind == "v":
            if scalar:
                raise NoForm("vector operand of a scalar instruction")
            return (VECTOR, 0, 0, 0, self._row(operand.register + part), ONES, 0)
        if operand.kind == "s":
            return (SCALAR, 0, 0, 0, operand.register + part, ONES, 0)
        if operand.kind == "special":
            if operand.name in ("scc", "vccz", "execz") and not part:
                return ({"scc": SCC_LANES, "vccz": VCCZ, "execz": EXECZ}[operand.name], 0, 0, 0, 0, ONES, 0)
            raise NoForm(f"operand {operand.name!r}")
        if operand.kind == "symbol":
            bits = symbol_value(operand, ins, self.assembly)
        else:
            bits = constant_bits(operand, kind, ins)
        return (CONSTANT, 0, 0, 0, self._constant(bits >> 32 * part), ONES, 0)

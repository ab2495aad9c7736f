"""Decoded instructions as records for the second tier.

Operands, modifiers, register sets and rules for values never written come from the NumPy tier's own decoder (`Step`,
`Operand`); what has no record here becomes an instruction that ends a run in this tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.simulator import alu, control, lanes, mfma, smem, vmem
from kvc.simulator import lds as lds_unit
from kvc.simulator.asm import Instruction
from kvc.simulator.isa.table import REGISTRY, Op
from kvc.simulator.native.source import FLAVOURS, MASKS, numbers, plain, words
from kvc.simulator.operands import FLOATS, Operand, constant_bits, parse_operand, part_shift, set_bits, symbol_value
from kvc.simulator.program import Program, decode
from kvc.simulator.state import EXEC, LANES, VCC
from kvc.simulator.step import Step

SET_WORDS = 11
MOST_WORDS, MOST_TARGETS = 8, 4
_ONES = 0xFFFF_FFFF
_SCC = 128

_OP_NAMES = (
    "alu", "refused", "nop", "jump", "branch", "end", "barrier", "wait", "saveexec", "load", "store", "lds_read",
    "lds_write", "smem", "mfma", "readlane", "writelane", "swap", "permute", "swizzle", "setpc", "getpc", "fence",
    "load_lds",
)  # fmt: skip
OPS = {name: i for i, name in enumerate(_OP_NAMES)}
_VECTOR, _SCALAR, _CONSTANT, _MASK, _SCC_LANES, _EXEC_LANES, _VCCZ, _EXECZ = range(8)
_SHIFT, _HALVES, _SIGNED, _MIXED = range(1, 5)
_MOVED = 128  # a word whose lanes DPP moves first
_SPREAD, _DEMAND, _LINEAR, _BITWISE, _SELECT, _OWN, _PAIRS, _PACKED, _LOW_FIRST = range(9)
_CONDITIONS = ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz")
_COMBINE = ("and", "or", "xor", "andn1", "andn2", "orn1", "orn2", "nand", "nor", "xnor")
_TAG_LOAD, _TAG_STORE, _TAG_FLAT = 1, 2, 32
_SADDR, _PAIR, _BUFFER = range(3)

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


class NoForm(Exception):
    """Why an instruction has no record."""


@dataclass(frozen=True)
class MatrixForm:
    """Shape, element kinds and layout of one matrix instruction; tables of the small formats or None."""

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
    return [registers >> 64 * i & 0xFFFF_FFFF_FFFF_FFFF for i in range(SET_WORDS)]


class Encoder:
    """Builds the records of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.assembly = program.assembly
        self.accumulators_at = max(program.registers.vgprs, 1)
        self.code = np.zeros(len(self.assembly.code), INS)
        self.sources: list[tuple[int, int]] = []
        self.targets: list[int] = []
        self.constants: dict[int, int] = {}
        self.moves: list[Any] = []
        self.matrices: list[MatrixForm] = []
        self.reasons: dict[int, str] = {}

    def encode(self) -> Encoded:
        after_end = True
        for ins in self.assembly.code:
            record = self.code[ins.index]
            record["starts"] = after_end or ins.index in self.program.targets
            after_end = ins.name in control.TERMINATORS
            record["dpp"] = -1
            try:
                self._instruction(ins, record)
            except (NoForm, KvcError) as problem:
                record["op"] = OPS["refused"]
                self.reasons[ins.index] = f"`{ins.text}`: {problem}"
        values = np.array(list(self.constants) or [0], np.uint32)
        return Encoded(
            self.code,
            np.array([register for register, _ in self.sources] or [0], np.int32),
            np.array([bits for _, bits in self.sources] or [0], np.uint32),
            np.array(self.targets or [0], np.int32),
            np.ascontiguousarray(np.broadcast_to(values[:, None], (len(values), LANES))),
            np.array(self.moves, DPP) if self.moves else np.zeros(1, DPP),
            self.matrices,
            self.reasons,
        )

    # ---- parts of records

    def _row(self, register: int) -> int:
        return register if register < 256 else register - 256 + self.accumulators_at

    def _constant(self, value: int) -> int:
        return self.constants.setdefault(value & _ONES, len(self.constants))

    def _checks(self, record: Any, step: Step, taint: int, sources: list[tuple[int, int]] | None = None) -> None:
        """What the checkers need: `sources` are those whose stale bits count, all of the step's by default."""
        record["reads"], record["writes"], record["both"] = map(_set, (step.read_mask, step.write_mask, step.regs))
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
            return (_VECTOR, 0, 0, 0, self._row(operand.register + part), _ONES, 0)
        if operand.kind == "s":
            return (_SCALAR, 0, 0, 0, operand.register + part, _ONES, 0)
        if operand.kind == "special":
            if operand.name in ("scc", "vccz", "execz") and not part:
                return ({"scc": _SCC_LANES, "vccz": _VCCZ, "execz": _EXECZ}[operand.name], 0, 0, 0, 0, _ONES, 0)
            raise NoForm(f"operand {operand.name!r}")
        if operand.kind == "symbol":
            bits = symbol_value(operand, ins, self.assembly)
        else:
            bits = constant_bits(operand, kind, ins)
        return (_CONSTANT, 0, 0, 0, self._constant(bits >> 32 * part), _ONES, 0)

    # ---- dispatch

    def _instruction(self, ins: Instruction, record: Any) -> None:
        step = decode(ins, self.assembly, self.program.arch)
        name = ins.name
        if name in ("v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32"):
            self._lane(ins, record, step)
        elif name in lanes.DECODERS and not name.startswith("v_mbcnt"):
            self._move_lanes(ins, record, step)
        elif smem.is_smem(name):
            self._scalar_load(ins, record, step)
        elif control.decode(ins, self.assembly) is not None:
            self._control(ins, record, step)
        elif name.startswith("ds_"):
            self._lds(ins, record, step)
        elif vmem.is_vmem(name):
            self._vmem(ins, record, step)
        elif mfma.is_mfma(name):
            self._matrix(ins, record, step)
        else:
            self._alu(ins, record, step, REGISTRY[name])

    # ---- ALU

    def _alu(self, ins: Instruction, record: Any, step: Step, op: Op) -> None:
        form = f"{op.name} clamp" if ins.mods.get("clamp") and op.clamp_fn is not None else op.name
        if form not in numbers():
            raise NoForm("opcode without a C form")
        bound = alu._Bound(ins, op)
        scalar = op.fmt in alu._SCALAR_FORMATS
        encoding = "dpp" if "dpp" in ins.suffix else "sdwa" if ins.suffix == "sdwa" else ""
        record["op"], record["fn"], record["scalar"] = OPS["alu"], numbers()[form], scalar
        record["imm"] = int(ins.mods.get("bitop3", 0))
        if "fp8" in op.src:
            record["imm"] = FLAVOURS.index(arch_row(self.program.arch).fp8)
        if encoding == "dpp":
            record["dpp"] = self._dpp(ins)
        inputs: list[tuple[Any, ...]] = []
        for position, (kind, operand) in enumerate(zip(op.src, bound.sources, strict=True)):
            if kind in ("bitop3", "fp8"):
                continue
            inputs += self._source(ins, op, kind, operand, position, encoding, scalar)
        outputs = [
            item
            for kind, operand in zip(op.dst, bound.targets, strict=True)
            for item in self._target(ins, op, kind, operand, encoding, scalar)
        ]
        if len(inputs) > MOST_WORDS or len(outputs) > MOST_TARGETS:
            raise NoForm("more operands than a record holds")
        record["words"], record["targets"] = len(inputs), len(outputs)
        for i, item in enumerate(inputs):
            record["w"][i] = item
        for i, target in enumerate(outputs):
            record["d"][i] = target
        record["p"][11] = any(kind in ("mask", "vcc") for kind in op.dst)
        self._checks(record, step, self._alu_taint(ins, op, bound, encoding, record))

    def _alu_taint(self, ins: Instruction, op: Op, bound: Any, encoding: str, record: Any) -> int:
        """The exact rules that compiled code needs; the others spread, which never says less than the NumPy tier's."""
        if any(target.kind == "s" and target.register >= EXEC for target in bound.targets):
            return _DEMAND
        if op.fmt in alu._SCALAR_FORMATS or encoding or alu._field(ins, op, op.dst[0], encoding) is not None:
            return _SPREAD
        if op.name in alu._LOW_FIRST:
            record["p"][0] = _high_words(op)
            return _LOW_FIRST
        if op.fmt == "vop3p" and op.dst[0].startswith("pk_") and all(kind.startswith("pk_") for kind in op.src):
            record["p"][0] = op.name == "v_pk_mov_b32"
            return _PAIRS if words(op.dst[0]) == 2 else _PACKED
        if any(source.neg or source.absolute for source in bound.sources) or words(op.dst[0]) > 1:
            return _SPREAD
        if op.name == "v_cndmask_b32" and bound.sources[2].kind == "s" and bound.sources[2].register < EXEC:
            return _SELECT
        if op.name in alu._LINEAR:
            record["p"][0] = sum(1 << i for i in alu._LINEAR[op.name])
            return _LINEAR
        bitwise = alu._bitwise_name(ins.name)
        if bitwise in ("and", "or", "xor", "xnor", "not", "mov"):
            record["p"][0] = {"and": 1, "or": 2}.get(bitwise, 0)
            return _BITWISE
        return _SPREAD

    def _source(
        self, ins: Instruction, op: Op, kind: str, operand: Operand, position: int, encoding: str, scalar: bool
    ) -> list[tuple[Any, ...]]:
        """The WORDs of one source."""
        kind = kind.removeprefix("D.")
        if kind in MASKS:
            return [self._mask_source(kind, operand, scalar)]
        if kind in ("simm16", "uimm16"):
            value = int(operand.value) & 0xFFFF
            value -= value >> 15 << 16 if kind == "simm16" else 0
            return [(_CONSTANT, 0, 0, 0, self._constant(value), _ONES, 0)]
        if scalar:
            return [self._word(operand, kind, ins, part, True) for part in range(words(kind))]
        if kind in ("pk_f32", "pk_b32"):
            return self._packed_pair(ins, op, kind, operand, position)
        count = words(kind)
        items = [list(self._word(operand, kind, ins, part, False)) for part in range(count)]
        self._select(ins, kind, operand, position, encoding, items)
        self._sign(kind, operand, items[-1])
        moved = encoding == "dpp" and position == 0
        for item in items:
            if moved:
                item[1] |= _MOVED
            elif item[1] == 0 and (item[5] != _ONES or item[6]):
                item[1] = _SHIFT
        if moved and operand.kind != "v":
            raise NoForm("DPP source")
        return [tuple(item) for item in items]

    def _mask_source(self, kind: str, operand: Operand, scalar: bool) -> tuple[Any, ...]:
        if kind == "scc":
            return (_SCC_LANES, 0, 0, 0, 0, _ONES, 0)
        if kind == "exec" or (kind == "mask" and operand.register == EXEC):
            return (_EXEC_LANES, 0, 0, 0, 0, _ONES, 0)
        register = VCC if kind == "vcc" else operand.register
        return (_MASK, 0, 0, 0, register, _ONES, 0)

    def _select(
        self, ins: Instruction, kind: str, operand: Operand, position: int, encoding: str, items: list[list[Any]]
    ) -> None:
        """op_sel, and the selections of SDWA: fills change, shift, upper, keep and flip of the one word."""
        item = items[0]
        if encoding == "sdwa":
            shift, width = lanes._SELECT[ins.mods.get(f"src{position}_sel", "DWORD")]
            if width == 32:
                return
            if operand.sext:
                item[1:4] = [_SIGNED, 32 - width - shift, 32 - width]
            else:
                item[1:4], item[5] = [_SHIFT, shift, 0], (1 << width) - 1
            return
        if operand.sext:
            raise NoForm("sext()")
        if kind == "mix_f32":
            self._mixed(ins, operand, position, item)
        elif kind.startswith("pk_"):
            low = _bit(ins, "op_sel", position, 0)
            high = _bit(ins, "op_sel_hi", position, 1)
            negate = _bit(ins, "neg_lo", position, 0) << 15 | _bit(ins, "neg_hi", position, 0) << 31
            if operand.neg or operand.absolute:
                raise NoForm("modifier of a packed operand")
            if (low, high) != (0, 1) or negate:
                item[1:4], item[6] = [_HALVES, 16 * low, 16 * high], negate
        elif plain(kind) in ("f16", "u16", "i16", "b16", "bf16"):
            shift = part_shift(ins, 2, position)
            if shift:
                item[1:4] = [_SHIFT, shift, 0]
        elif plain(kind) in ("u8", "i8", "b8"):
            item[1:4] = [_SHIFT, part_shift(ins, 1, position), 0]

    def _mixed(self, ins: Instruction, operand: Operand, position: int, item: list[Any]) -> None:
        half, top = _bit(ins, "op_sel_hi", position, 0), _bit(ins, "op_sel", position, 0)
        if half and operand.kind in ("int", "float"):
            item[4] = self._constant(constant_bits(operand, "f16", ins))
        if half:
            item[1:4] = [_MIXED, 16 * top, 0]
        negative = operand.neg != bool(_bit(ins, "neg_lo", position, 0))
        absolute = operand.absolute or bool(_bit(ins, "neg_hi", position, 0))
        item[5], item[6] = (0x7FFF_FFFF if absolute else _ONES), (0x8000_0000 if negative else 0)

    def _sign(self, kind: str, operand: Operand, item: list[Any]) -> None:
        """|x| and -x on the word with the sign."""
        if kind == "mix_f32" or not (operand.neg or operand.absolute):
            return
        if kind not in FLOATS and kind not in ("b32", "b64", "b16"):
            raise NoForm("float modifier of an integer")
        sign = 0x8000 if plain(kind) in ("f16", "bf16", "b16") else 0x8000_0000
        if operand.absolute:
            item[5] &= ~sign & _ONES
        if operand.neg:
            item[6] |= sign

    def _packed_pair(
        self, ins: Instruction, op: Op, kind: str, operand: Operand, position: int
    ) -> list[tuple[Any, ...]]:
        if operand.neg or operand.absolute:
            raise NoForm("operand of a packed instruction")
        picks = _bit(ins, "op_sel", position, 0), _bit(ins, "op_sel_hi", position, 1)
        if op.name == "v_pk_mov_b32":
            picks = (picks[0], picks[0])
        signs = _bit(ins, "neg_lo", position, 0), _bit(ins, "neg_hi", position, 0)
        out = []
        for pick, sign in zip(picks, signs, strict=True):
            item = list(self._word(operand, "f32", ins, pick if operand.kind in ("v", "s") else 0, False))
            if sign:
                item[1], item[6] = _SHIFT, 0x8000_0000
            out.append(tuple(item))
        return out

    def _target(
        self, ins: Instruction, op: Op, kind: str, operand: Operand, encoding: str, scalar: bool
    ) -> list[tuple[Any, ...]]:
        """The TARGETs of one result."""
        if scalar:
            if kind == "scc":
                return [(3, 0, 0, 0, _SCC, _ONES, 1.0)]
            return [(1, 0, 0, 0, operand.register + i, _ONES, 1.0) for i in range(words(kind))]
        if kind in MASKS:
            if encoding == "dpp":
                raise NoForm("lane mask written under DPP")
            return [(2, 0, 0, 0, EXEC if kind == "exec" else VCC if kind == "vcc" and operand.kind != "s"
                     else operand.register, _ONES, 1.0)]  # fmt: skip
        if operand.kind != "v":
            raise NoForm("scalar target of a vector instruction")
        post, factor = self._output_modifiers(ins, kind)
        rows = [self._row(operand.register + i) for i in range(words(kind))]
        if len(rows) > 1:
            return [(0, 0, 0, 0, row, _ONES, 1.0) for row in rows]
        shift, extend, field, pad = self._placement(ins, op, kind, encoding)
        return [(0, post | 8 * pad, shift, extend, rows[0], field, factor)]

    def _output_modifiers(self, ins: Instruction, kind: str) -> tuple[int, float]:
        if not any(name in ins.mods for name in ("clamp", "mul", "div")):
            return 0, 1.0
        base = plain(kind)
        if base not in FLOATS:
            return 0, 1.0
        if base != "f32":
            raise NoForm("output modifier")
        factor = {2: 2.0, 4: 4.0}.get(ins.mods.get("mul", 0)) or (0.5 if ins.mods.get("div") == 2 else 1.0)
        return 1 | 2 * bool(ins.mods.get("clamp")), factor

    def _placement(self, ins: Instruction, op: Op, kind: str, encoding: str) -> tuple[int, int, int, bool]:
        """Shift left, bits above the result, the bits of the register that are written, whether others become zero."""
        field = alu._field(ins, op, kind, encoding)
        if encoding == "sdwa":
            shift, width = lanes._SELECT[ins.mods.get("dst_sel", "DWORD")]
            if width == 32:
                return 0, 0, _ONES, False
            if ins.mods.get("dst_unused") == "UNUSED_SEXT":
                return shift, 32 - width, _ONES, False
            if ins.mods.get("dst_unused") == "UNUSED_PRESERVE":
                return shift, 0, field if field is not None else _ONES, False
            return shift, 32 - width, _ONES, True
        base, _, part = kind.partition(".")
        if part:
            return alu._part_shift(ins, base, part), 0, field if field is not None else _ONES, False
        return (16, 0, field, False) if field is not None else (0, 0, _ONES, False)

    def _dpp(self, ins: Instruction) -> int:
        move = lanes.dpp_control(ins)
        row = np.zeros((), DPP)
        row["index"], row["valid"], row["write"], row["zero_fill"] = move.index, move.valid, move.write, move.zero_fill
        self.moves.append(row[()])
        return len(self.moves) - 1

    # ---- between lanes

    def _lane(self, ins: Instruction, record: Any, step: Step) -> None:
        target, source, *selector = (parse_operand(text, ins) for text in ins.operands)
        writes = ins.name == "v_writelane_b32"
        record["op"] = OPS["writelane" if writes else "readlane"]
        record["w"][0] = self._word(source, "b32", ins, 0, writes)
        if selector:
            record["w"][1] = self._word(selector[0], "u32", ins, 0, True)
        record["words"] = 1 + len(selector)
        if not writes and (target.kind != "s" or target.register >= EXEC):
            raise NoForm("target")
        record["p"][0] = self._row(target.register) if writes else target.register
        self._checks(record, step, _OWN)

    def _move_lanes(self, ins: Instruction, record: Any, step: Step) -> None:
        operands = [parse_operand(text, ins) for text in ins.operands[:3]]
        rows = [self._row(operand.register) if operand.kind == "v" else -1 for operand in operands]
        if "swap" in ins.name:
            record["op"] = OPS["swap"]
            record["p"][:3] = [*rows, {"v_permlane16_swap_b32": 16, "v_permlane32_swap_b32": 32}.get(ins.name, 0)]
        elif ins.name == "ds_swizzle_b32":
            record["op"] = OPS["swizzle"]
            row = np.zeros((), DPP)
            row["index"] = lanes._swizzle_lanes(ins.mods.get("offset", 0), ins)
            self.moves.append(row[()])
            record["dpp"] = len(self.moves) - 1
            record["p"][:5] = [rows[0], -1, rows[1], 0, 0]
        else:
            record["op"] = OPS["permute"]
            push = ins.name == "ds_permute_b32"
            record["p"][:5] = [rows[0], rows[1], rows[2], int(ins.mods.get("offset", 0)), push]
        self._checks(record, step, _OWN)

    # ---- control

    def _control(self, ins: Instruction, record: Any, step: Step) -> None:
        name = ins.name
        saves = control._SAVEEXEC.match(name)
        taint = _DEMAND
        if saves:
            target, source = (parse_operand(text, ins) for text in ins.operands)
            record["op"], record["words"] = OPS["saveexec"], 2
            for i in range(2):
                record["w"][i] = self._word(source, "b64", ins, i, True)
            record["p"][:3] = [target.register, _COMBINE.index(saves[1]), saves[2] == "wrexec"]
            taint = _OWN
        elif name.startswith("s_cbranch_") and name.removeprefix("s_cbranch_") in _CONDITIONS:
            record["op"], record["jump"] = OPS["branch"], control._target(ins, self.assembly)
            record["p"][0] = _CONDITIONS.index(name.removeprefix("s_cbranch_"))
        elif name == "s_branch":
            record["op"], record["jump"] = OPS["jump"], control._target(ins, self.assembly)
        elif name in ("s_setpc_b64", "s_swappc_b64"):
            operands = [parse_operand(text, ins) for text in ins.operands]
            record["op"] = OPS["setpc"]
            record["p"][:2] = [operands[0].register if len(operands) == 2 else -1, operands[-1].register]
        elif name == "s_getpc_b64":
            record["op"], record["p"][0] = OPS["getpc"], parse_operand(ins.operands[0], ins).register
        elif name == "s_waitcnt":
            vm, lgkm = control.counters(ins)
            record["op"] = OPS["wait"]
            record["p"][:2] = [-1 if vm is None else vm, -1 if lgkm is None else lgkm]
        elif name in ("s_endpgm", "s_barrier"):
            record["op"] = OPS["end" if name == "s_endpgm" else "barrier"]
        elif name in control._IDLE or name == "v_nop" or name == "s_setreg_imm32_b32":
            record["op"] = OPS["nop"]
        else:
            raise NoForm("opcode without a C form")
        self._checks(record, step, taint)

    # ---- memory

    def _scalar_load(self, ins: Instruction, record: Any, step: Step) -> None:
        match = smem._LOAD.match(ins.name)
        if match is None:
            if ins.name in smem._CLOCKS:
                raise NoForm("clock")
            record["op"] = OPS["nop"]
            self._checks(record, step, _OWN)
            return
        target, base, *rest = (parse_operand(text, ins) for text in ins.operands)
        record["op"], record["words"] = OPS["smem"], len(rest)
        signs = 0
        for i, operand in enumerate(rest):
            record["w"][i] = self._word(operand, "u32", ins, 0, True)
            signs |= (operand.kind == "int") << i
        offset = int(ins.mods.get("offset", 0))
        record["p"][:6] = [target.register, base.register, int(match[2] or 1), offset, bool(match[1]), signs]
        self._checks(record, step, _DEMAND)

    def _vmem(self, ins: Instruction, record: Any, step: Step) -> None:
        if ins.name in vmem._FLAT_FENCES:
            record["op"] = OPS["fence"]
            self._checks(record, step, _OWN)
            return
        match = vmem._NAME.match(ins.name)
        assert match is not None
        space, action, rest = match.groups()
        table = {"load": vmem._LOADS, "store": vmem._STORES}.get(action, {})
        into_lds = rest.startswith("lds_") or "lds" in ins.mods
        rest = rest.removeprefix("lds_")
        if rest not in table or space == "scratch":
            raise NoForm("opcode without a C form")
        form = table[rest]
        texts = list(ins.operands)
        if into_lds:
            self._load_to_lds(ins, record, step, space, form, texts)
            return
        loads = action == "load"
        data = parse_operand(texts.pop(0 if loads or space == "buffer" else 1), ins).register
        count = max(form.width // 4, 1)
        record["op"] = OPS[action]
        flags = (form.signed | 2 * form.half | 4 * form.high) if loads else (16 if form.high else 0)
        record["tag"] = _TAG_FLAT if space == "flat" else _TAG_LOAD if loads else _TAG_STORE
        record["p"][3:7] = [int(ins.mods.get("offset", 0)), self._row(data), form.width, flags]
        self._address(ins, record, space, texts)
        own = len(step.sources) - (count if not loads else int(form.half))
        self._checks(record, step, _DEMAND, step.sources[:own])

    def _load_to_lds(
        self, ins: Instruction, record: Any, step: Step, space: str, form: vmem.Form, texts: list[str]
    ) -> None:
        record["op"] = OPS["load_lds"]
        offset = int(ins.mods.get("offset", 0))
        record["p"][3:9] = [offset, 0, form.width, form.signed, 0, offset]
        self._address(ins, record, space, texts)
        self._checks(record, step, _DEMAND)

    def _address(self, ins: Instruction, record: Any, space: str, texts: list[str]) -> None:
        """p[0] the form, p[1] the vector register, p[2] the scalar one, p[7] what a buffer's offset is made of."""
        operands = [parse_operand(text, ins) for text in texts]
        record["p"][1] = self._row(operands[0].register)
        if space == "buffer":
            record["p"][0], record["p"][2] = _BUFFER, operands[1].register
            record["p"][7] = ("offen" in ins.mods) | 2 * ("idxen" in ins.mods)
            record["w"][0] = self._word(operands[2], "u32", ins, 0, True)
            record["words"] = 1
            if operands[0].kind != "v":
                record["p"][1] = 0
        elif len(operands) > 1 and operands[1].kind == "s":
            record["p"][0], record["p"][2] = _SADDR, operands[1].register
        else:
            record["p"][0] = _PAIR

    def _lds(self, ins: Instruction, record: Any, step: Step) -> None:
        registers = [self._row(parse_operand(text, ins).register) for text in ins.operands]
        two = lds_unit._TWO.match(ins.name)
        read = lds_unit._READ.match(ins.name)
        offset, second, flags, data2 = int(ins.mods.get("offset", 0)), -1, 0, 0
        if two:
            reads, width = two[1] == "read", int(two[3]) // 8
            scale = width * (64 if two[2] else 1)
            offset, second = (int(ins.mods.get(key, 0)) * scale for key in ("offset0", "offset1"))
            data2 = registers[2] if not reads else 0
        elif read or ins.name in lds_unit._READ_WORDS:
            reads = True
            width = lds_unit._READ_WORDS.get(ins.name) or (1 if read and read[1].endswith("8") else 2)
            if read:
                flags = read[1].startswith("i") | 2 * bool(read[2]) | 4 * bool(read[3])
        elif ins.name in lds_unit._TRANSPOSE:
            reads, width = True, 8
            record["p"][7] = lds_unit._TRANSPOSE[ins.name]
        elif ins.name in lds_unit._WRITE:
            reads, width, flags = False, lds_unit._WRITE[ins.name], 16 if ins.name.endswith("_hi") else 0
        else:
            raise NoForm("opcode without a C form")
        record["op"] = OPS["lds_read" if reads else "lds_write"]
        first, address = registers[:2] if reads else (registers[1], registers[0])
        record["p"][:7] = [first, address, offset, second, width, flags, data2]
        self._checks(record, step, _DEMAND, step.sources[:1])

    # ---- matrices

    def _matrix(self, ins: Instruction, record: Any, step: Step) -> None:
        if ins.name.startswith("v_accvgpr_"):
            self._accumulator_move(ins, record, step)
            return
        match = mfma._NAME.match(ins.name)
        assert match is not None
        scaled, result, m, n, k, kind = match.groups()
        if scaled or result == "f64" or "f8f6f4" in ins.name or ins.mods.get("blgp"):
            raise NoForm("matrix format")
        target, a, b, c = (parse_operand(text, ins) for text in ins.operands[:4])
        kinds = mfma._kinds(ins, kind)
        per_lane = a.count * 32 // mfma._BITS[kinds[0]]
        shape = mfma.Shape(int(m), int(n), int(k), LANES * per_lane // (int(m) * int(k)), per_lane)
        broadcast = int(ins.mods.get("cbsz", 0)), int(ins.mods.get("abid", 0))
        order = tuple(mfma._row_order(shape, False))
        left = mfma._operand_index(shape, shape.m, order, broadcast)
        right = mfma._operand_index(shape, shape.n, tuple(range(shape.n)), (0, 0))
        codes, tables = zip(*(self._elements(kind) for kind in kinds), strict=True)
        form = MatrixForm(
            (*shape, *codes, int(result == "i32")), np.ascontiguousarray(left, np.int64),
            np.ascontiguousarray(right, np.int64), *tables,
        )  # fmt: skip
        record["op"], record["fn"] = OPS["mfma"], len(self.matrices)
        self.matrices.append(form)
        accumulator = -1
        if c.kind == "v":
            accumulator = self._row(c.register)
        else:
            bits = constant_bits(c, "i32" if result == "i32" else "f32", ins)
            record["w"][0] = (_CONSTANT, 0, 0, 0, self._constant(bits), _ONES, 0)
        registers = shape.m * shape.n * shape.blocks // LANES
        rows = [self._row(operand.register) for operand in (target, a, b)]
        record["p"][:5] = [*rows, accumulator, registers]
        inputs = [(register, _ONES) for operand in (a, b) for register in set_bits(operand, operand.count)]
        self._checks(record, step, _OWN, inputs)

    def _elements(self, kind: str) -> tuple[int, np.ndarray | None]:
        plain_kinds = {"f16": 0, "bf16": 1, "bf16_1k": 1, "f32": 2, "i8": 4, "xf32": 5}
        if kind in plain_kinds:
            return plain_kinds[kind], None
        return 3, np.ascontiguousarray(mfma._small_table(kind, arch_row(self.program.arch).fp8), np.float32)

    def _accumulator_move(self, ins: Instruction, record: Any, step: Step) -> None:
        target, source = (parse_operand(text, ins) for text in ins.operands)
        record["op"], record["fn"], record["words"], record["targets"] = OPS["alu"], numbers()["v_mov_b32"], 1, 1
        record["w"][0] = self._word(source, "b32", ins, 0, False)
        record["d"][0] = (0, 0, 0, 0, self._row(target.register), _ONES, 1.0)
        self._checks(record, step, _BITWISE)


def _bit(ins: Instruction, name: str, position: int, default: int) -> int:
    bits = ins.mods.get(name)
    return bits[position] if bits is not None and position < len(bits) else default


def _high_words(op: Op) -> int:
    """The upper words of 64-bit sources, one bit for each word of a record."""
    mask = at = 0
    for kind in op.src:
        at += words(kind)
        mask |= (words(kind) == 2) << (at - 1)
    return mask

"""Records of ALU instructions: operands with their modifiers, results with theirs, rules for values never written."""

from __future__ import annotations

from typing import Any

import numpy as np
from kvc.arch import arch as arch_row
from kvc.simulator import alu, lanes
from kvc.simulator.asm import Instruction
from kvc.simulator.isa.table import Op
from kvc.simulator.native.records import (
    BITWISE,
    BITWISE_KIND,
    CONSTANT,
    DEMAND,
    DPP,
    EXEC_LANES,
    HALVES,
    LINEAR,
    LOW_FIRST,
    MASK,
    MIXED,
    MOST_TARGETS,
    MOST_WORDS,
    MOVED,
    ONES,
    OPS,
    PACKED,
    PAIRS,
    SCC,
    SCC_LANES,
    SELECT,
    SHIFT,
    SIGNED,
    SPREAD,
    Builder,
    NoForm,
    Record,
)
from kvc.simulator.native.source import FLAVOURS, MASKS, numbers, plain, words
from kvc.simulator.operands import FLOATS, Operand, constant_bits, part_shift
from kvc.simulator.state import EXEC, VCC
from kvc.simulator.step import Step


class AluBuilder(Builder):
    """Instructions of the opcode table."""

    def _alu(self, ins: Instruction, record: Record, step: Step, op: Op) -> None:
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

    def _alu_taint(self, ins: Instruction, op: Op, bound: Any, encoding: str, record: Record) -> int:
        """The exact rules that compiled code needs; the others spread, which never says less than the NumPy tier's."""
        if any(target.kind == "s" and target.register >= EXEC for target in bound.targets):
            return DEMAND
        bitwise = alu._bitwise_name(ins.name)
        if op.fmt in alu._SCALAR_FORMATS and bitwise is not None and len(bound.sources) <= 2:
            record["p"][:2] = [BITWISE_KIND.get(bitwise, 0), bitwise in ("andn2", "orn2")]
            return BITWISE
        if op.fmt in alu._SCALAR_FORMATS or encoding or alu._field(ins, op, op.dst[0], encoding) is not None:
            return SPREAD
        if op.name == "v_mov_b64":
            return PAIRS
        if op.name in alu._LOW_FIRST:
            record["p"][0] = _high_words(op)
            return LOW_FIRST
        if op.fmt == "vop3p" and op.dst[0].startswith("pk_") and all(kind.startswith("pk_") for kind in op.src):
            record["p"][0] = op.name == "v_pk_mov_b32"
            return PAIRS if words(op.dst[0]) == 2 else PACKED
        if any(source.neg or source.absolute for source in bound.sources) or words(op.dst[0]) > 1:
            return SPREAD
        if op.name == "v_cndmask_b32" and bound.sources[2].kind == "s" and bound.sources[2].register < EXEC:
            return SELECT
        if op.name in alu._LINEAR:
            record["p"][0] = sum(1 << i for i in alu._LINEAR[op.name])
            return LINEAR
        if bitwise in ("and", "or", "xor", "xnor", "not", "mov"):
            record["p"][0] = BITWISE_KIND.get(bitwise, 0)
            return BITWISE
        return SPREAD

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
            return [(CONSTANT, 0, 0, 0, self._constant(value), ONES, 0)]
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
                item[1] |= MOVED
            elif item[1] == 0 and (item[5] != ONES or item[6]):
                item[1] = SHIFT
        if moved and operand.kind != "v":
            raise NoForm("DPP source")
        return [tuple(item) for item in items]

    def _mask_source(self, kind: str, operand: Operand, scalar: bool) -> tuple[Any, ...]:
        if kind == "scc":
            return (SCC_LANES, 0, 0, 0, 0, ONES, 0)
        if kind == "exec" or (kind == "mask" and operand.register == EXEC):
            return (EXEC_LANES, 0, 0, 0, 0, ONES, 0)
        register = VCC if kind == "vcc" else operand.register
        return (MASK, 0, 0, 0, register, ONES, 0)

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
                item[1:4] = [SIGNED, 32 - width - shift, 32 - width]
            else:
                item[1:4], item[5] = [SHIFT, shift, 0], (1 << width) - 1
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
                item[1:4], item[6] = [HALVES, 16 * low, 16 * high], negate
        elif plain(kind) in ("f16", "u16", "i16", "b16", "bf16"):
            shift = part_shift(ins, 2, position)
            if shift:
                item[1:4] = [SHIFT, shift, 0]
        elif plain(kind) in ("u8", "i8", "b8"):
            item[1:4] = [SHIFT, part_shift(ins, 1, position), 0]

    def _mixed(self, ins: Instruction, operand: Operand, position: int, item: list[Any]) -> None:
        half, top = _bit(ins, "op_sel_hi", position, 0), _bit(ins, "op_sel", position, 0)
        if half and operand.kind in ("int", "float"):
            item[4] = self._constant(constant_bits(operand, "f16", ins))
        if half:
            item[1:4] = [MIXED, 16 * top, 0]
        negative = operand.neg != bool(_bit(ins, "neg_lo", position, 0))
        absolute = operand.absolute or bool(_bit(ins, "neg_hi", position, 0))
        item[5], item[6] = (0x7FFF_FFFF if absolute else ONES), (0x8000_0000 if negative else 0)

    def _sign(self, kind: str, operand: Operand, item: list[Any]) -> None:
        """|x| and -x on the word with the sign."""
        if kind == "mix_f32" or not (operand.neg or operand.absolute):
            return
        if kind not in FLOATS and kind not in ("b32", "b64", "b16"):
            raise NoForm("float modifier of an integer")
        sign = 0x8000 if plain(kind) in ("f16", "bf16", "b16") else 0x8000_0000
        if operand.absolute:
            item[5] &= ~sign & ONES
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
                item[1], item[6] = SHIFT, 0x8000_0000
            out.append(tuple(item))
        return out

    def _target(
        self, ins: Instruction, op: Op, kind: str, operand: Operand, encoding: str, scalar: bool
    ) -> list[tuple[Any, ...]]:
        """The TARGETs of one result."""
        if scalar:
            if kind == "scc":
                return [(3, 0, 0, 0, SCC, ONES, 1.0)]
            return [(1, 0, 0, 0, operand.register + i, ONES, 1.0) for i in range(words(kind))]
        if kind in MASKS:
            if encoding == "dpp":
                raise NoForm("lane mask written under DPP")
            return [(2, 0, 0, 0, EXEC if kind == "exec" else VCC if kind == "vcc" and operand.kind != "s"
                     else operand.register, ONES, 1.0)]  # fmt: skip
        if operand.kind != "v":
            raise NoForm("scalar target of a vector instruction")
        post, factor = self._output_modifiers(ins, kind)
        rows = [self._row(operand.register + i) for i in range(words(kind))]
        if len(rows) > 1:
            return [(0, 0, 0, 0, row, ONES, 1.0) for row in rows]
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
                return 0, 0, ONES, False
            if ins.mods.get("dst_unused") == "UNUSED_SEXT":
                return shift, 32 - width, ONES, False
            if ins.mods.get("dst_unused") == "UNUSED_PRESERVE":
                return shift, 0, field if field is not None else ONES, False
            return shift, 32 - width, ONES, True
        base, _, part = kind.partition(".")
        if part:
            return alu._part_shift(ins, base, part), 0, field if field is not None else ONES, False
        return (16, 0, field, False) if field is not None else (0, 0, ONES, False)

    def _dpp(self, ins: Instruction) -> int:
        move = lanes.dpp_control(ins)
        row = np.zeros((), DPP)
        row["index"], row["valid"], row["write"], row["zero_fill"] = move.index, move.valid, move.write, move.zero_fill
        self.moves.append(row[()])
        return len(self.moves) - 1


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

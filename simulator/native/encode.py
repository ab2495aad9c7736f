"""Decoded instructions as records for the second tier.

Operands, modifiers, register sets and rules for values never written come from the NumPy tier's own decoder (`Step`,
`Operand`); what has no record here becomes an instruction that ends a run in this tier.
"""

from __future__ import annotations

import numpy as np
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.simulator import control, lanes, mfma, smem, vmem
from kvc.simulator.asm import Instruction
from kvc.simulator.isa.table import REGISTRY
from kvc.simulator.native.alu_records import AluBuilder
from kvc.simulator.native.memory_records import MemoryBuilder
from kvc.simulator.native.records import (
    BITWISE,
    COMBINE,
    CONDITIONS,
    CONSTANT,
    DEMAND,
    DPP,
    INS,
    ONES,
    OPS,
    OWN,
    Encoded,
    MatrixForm,
    NoForm,
    Record,
)
from kvc.simulator.native.source import numbers
from kvc.simulator.operands import constant_bits, parse_operand, set_bits
from kvc.simulator.state import EXEC, LANES
from kvc.simulator.step import Step


class Encoder(AluBuilder, MemoryBuilder):
    """Builds the records of one program."""

    def encode(self) -> Encoded:
        after_end = True
        packed = bytearray()
        for ins in self.assembly.code:
            record = Record(after_end or ins.index in self.program.targets)
            after_end = ins.name in control.TERMINATORS
            try:
                self._instruction(ins, record)
            except (NoForm, KvcError) as problem:
                record["op"] = OPS["refused"]
                self.reasons[ins.index] = f"`{ins.text}`: {problem}"
            packed += record.pack()
        values = np.array(list(self.constants) or [0], np.uint32)
        return Encoded(
            np.frombuffer(packed, INS),
            np.array([register for register, _ in self.sources] or [0], np.int32),
            np.array([bits for _, bits in self.sources] or [0], np.uint32),
            np.array(self.targets or [0], np.int32),
            np.ascontiguousarray(np.broadcast_to(values[:, None], (len(values), LANES))),
            np.array(self.moves, DPP) if self.moves else np.zeros(1, DPP),
            self.matrices,
            self.reasons,
        )

    # ---- dispatch

    def _instruction(self, ins: Instruction, record: Record) -> None:
        step = self.program.step(ins.index)
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

    # ---- between lanes

    def _lane(self, ins: Instruction, record: Record, step: Step) -> None:
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
        self._checks(record, step, OWN)

    def _move_lanes(self, ins: Instruction, record: Record, step: Step) -> None:
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
        self._checks(record, step, OWN)

    # ---- control

    def _control(self, ins: Instruction, record: Record, step: Step) -> None:
        name = ins.name
        saves = control._SAVEEXEC.match(name)
        taint = DEMAND
        if saves:
            target, source = (parse_operand(text, ins) for text in ins.operands)
            record["op"], record["words"] = OPS["saveexec"], 2
            for i in range(2):
                record["w"][i] = self._word(source, "b64", ins, i, True)
            record["p"][:3] = [target.register, COMBINE.index(saves[1]), saves[2] == "wrexec"]
            taint = OWN
        elif name.startswith("s_cbranch_") and name.removeprefix("s_cbranch_") in CONDITIONS:
            record["op"], record["jump"] = OPS["branch"], control._target(ins, self.assembly)
            record["p"][0] = CONDITIONS.index(name.removeprefix("s_cbranch_"))
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

    # ---- matrices

    def _matrix(self, ins: Instruction, record: Record, step: Step) -> None:
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
            (*shape, *codes, int(result == "i32")), _by_element(left, shape.per_lane),
            _by_element(right.transpose(0, 2, 1), shape.per_lane), *tables,
        )  # fmt: skip
        record["op"], record["fn"] = OPS["mfma"], len(self.matrices)
        self.matrices.append(form)
        accumulator = -1
        if c.kind == "v":
            accumulator = self._row(c.register)
        else:
            bits = constant_bits(c, "i32" if result == "i32" else "f32", ins)
            record["w"][0] = (CONSTANT, 0, 0, 0, self._constant(bits), ONES, 0)
        registers = shape.m * shape.n * shape.blocks // LANES
        rows = [self._row(operand.register) for operand in (target, a, b)]
        record["p"][:5] = [*rows, accumulator, registers]
        inputs = [(register, ONES) for operand in (a, b) for register in set_bits(operand, operand.count)]
        self._checks(record, step, OWN, inputs)

    def _elements(self, kind: str) -> tuple[int, np.ndarray | None]:
        plain_kinds = {"f16": 0, "bf16": 1, "bf16_1k": 1, "f32": 2, "i8": 4, "xf32": 5}
        if kind in plain_kinds:
            return plain_kinds[kind], None
        return 3, np.ascontiguousarray(mfma._small_table(kind, arch_row(self.program.arch).fp8), np.float32)

    def _accumulator_move(self, ins: Instruction, record: Record, step: Step) -> None:
        target, source = (parse_operand(text, ins) for text in ins.operands)
        record["op"], record["fn"], record["words"], record["targets"] = OPS["alu"], numbers()["v_mov_b32"], 1, 1
        record["w"][0] = self._word(source, "b32", ins, 0, False)
        record["d"][0] = (0, 0, 0, 0, self._row(target.register), ONES, 1.0)
        self._checks(record, step, BITWISE)


def _by_element(index: np.ndarray, per_lane: int) -> np.ndarray:
    """Numbers of elements counted lane by lane, counted element by element instead: lane + 64 j for element j."""
    return np.ascontiguousarray(index % per_lane * LANES + index // per_lane, np.int64)

"""Records of memory instructions: scalar, vector and LDS."""

from __future__ import annotations

from kvc.simulator import lds as lds_unit
from kvc.simulator import smem, vmem
from kvc.simulator.asm import Instruction
from kvc.simulator.native.records import (
    BUFFER,
    DEMAND,
    OPS,
    OWN,
    PAIR,
    SADDR,
    TAG_FLAT,
    TAG_LOAD,
    TAG_STORE,
    Builder,
    NoForm,
    Record,
)
from kvc.simulator.operands import parse_operand
from kvc.simulator.step import Step


class MemoryBuilder(Builder):
    """Loads and stores."""

    def _scalar_load(self, ins: Instruction, record: Record, step: Step) -> None:
        match = smem._LOAD.match(ins.name)
        if match is None:
            if ins.name in smem._CLOCKS:
                raise NoForm("clock")
            record["op"] = OPS["nop"]
            self._checks(record, step, OWN)
            return
        target, base, *rest = (parse_operand(text, ins) for text in ins.operands)
        record["op"], record["words"] = OPS["smem"], len(rest)
        signs = 0
        for i, operand in enumerate(rest):
            record["w"][i] = self._word(operand, "u32", ins, 0, True)
            signs |= (operand.kind == "int") << i
        offset = int(ins.mods.get("offset", 0))
        record["p"][:6] = [target.register, base.register, int(match[2] or 1), offset, bool(match[1]), signs]
        self._checks(record, step, DEMAND)

    def _vmem(self, ins: Instruction, record: Record, step: Step) -> None:
        if ins.name in vmem._FLAT_FENCES:
            record["op"] = OPS["fence"]
            self._checks(record, step, OWN)
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
        record["tag"] = TAG_FLAT if space == "flat" else TAG_LOAD if loads else TAG_STORE
        record["p"][3:7] = [int(ins.mods.get("offset", 0)), self._row(data), form.width, flags]
        self._address(ins, record, space, texts)
        own = len(step.sources) - (count if not loads else int(form.half))
        self._checks(record, step, DEMAND, step.sources[:own])

    def _load_to_lds(
        self, ins: Instruction, record: Record, step: Step, space: str, form: vmem.Form, texts: list[str]
    ) -> None:
        record["op"] = OPS["load_lds"]
        offset = int(ins.mods.get("offset", 0))
        record["p"][3:9] = [offset, 0, form.width, form.signed, 0, offset]
        self._address(ins, record, space, texts)
        self._checks(record, step, DEMAND)

    def _address(self, ins: Instruction, record: Record, space: str, texts: list[str]) -> None:
        """p[0] the form, p[1] the vector register, p[2] the scalar one, p[7] what a buffer's offset is made of."""
        operands = [parse_operand(text, ins) for text in texts]
        record["p"][1] = self._row(operands[0].register)
        if space == "buffer":
            record["p"][0], record["p"][2] = BUFFER, operands[1].register
            record["p"][7] = ("offen" in ins.mods) | 2 * ("idxen" in ins.mods)
            record["w"][0] = self._word(operands[2], "u32", ins, 0, True)
            record["words"] = 1
            if operands[0].kind != "v":
                record["p"][1] = 0
        elif len(operands) > 1 and operands[1].kind == "s":
            record["p"][0], record["p"][2] = SADDR, operands[1].register
        else:
            record["p"][0] = PAIR

    def _lds(self, ins: Instruction, record: Record, step: Step) -> None:
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
        self._checks(record, step, DEMAND, step.sources[:1])

"""A loaded assembly file: kernels, and basic blocks of decoded steps made when first reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import kvc.simulator.isa  # noqa: F401  (fills the table)
from kvc.arch import CDNA, arch
from kvc.diagnostics import KvcError
from kvc.simulator import alu, control, lanes, lds, mfma, smem, vmem
from kvc.simulator.abi import KernelInfo, kernels_of
from kvc.simulator.asm import DATA_BASE, Assembly, Instruction, parse
from kvc.simulator.isa.table import REGISTRY
from kvc.simulator.operands import refuse
from kvc.simulator.state import EXEC, N_VECTOR, SCALAR_BIT, VCC
from kvc.simulator.step import Step

_REGISTER = re.compile(r"(?<![\w.$@])([vas])(?:(\d+)|\[(\d+)(?::(\d+))?\])(?![\w.$@])")


class Block:
    """Steps up to a terminator (`end`, its last step) or to the next branch target; `waves` counts executions."""

    __slots__ = ("classes", "end", "following", "steps", "waves")

    def __init__(self, steps: list[Step], end: Step | None, following: int) -> None:
        self.steps = steps
        self.end = end
        self.following = following
        self.waves = 0
        self.classes: dict[str, int] = {}
        for step in [*steps, *([end] if end else [])]:
            self.classes[step.kind] = self.classes.get(step.kind, 0) + 1


@dataclass(frozen=True)
class Registers:
    """Registers that a file names: highest vector, accumulation and scalar register, exclusive."""

    vgprs: int
    agprs: int
    sgprs: int


class Program:
    """One assembly file for one chip. `kernels` maps names to KernelInfo; `loops`: some branch goes back."""

    def __init__(self, assembly: Assembly, arch_name: str, kernels: dict[str, KernelInfo], file: str) -> None:
        self.assembly = assembly
        self.arch = arch_name
        self.kernels = kernels
        self.file = file
        self.blocks: dict[int, Block] = {}
        self._steps: dict[int, Step] = {}
        self.targets = _branch_targets(assembly)
        self.native: Any = None  # the records of the second tier, made when it first runs this program
        self.loops = any(
            assembly.labels.get(ins.operands[-1], ins.index + 1) <= ins.index
            for ins in assembly.code
            if ins.operands and ins.name in control.TERMINATORS
        )
        self.registers = _registers(assembly)
        self.register_numbers = _register_numbers(self.registers)
        units = [lds.access_width(ins.name) for ins in assembly.code]
        self.lds_granule = min((unit for unit in units if unit), default=4)
        self.constants: dict[str, int] = {name: DATA_BASE + at for name, at in assembly.data.items()}

    def block(self, pc: int) -> Block:
        """The block that starts at instruction `pc`, decoded on first use. KVC0902 for an unknown opcode."""
        found = self.blocks.get(pc)
        if found is None:
            found = self.blocks[pc] = self._decode(pc)
        return found

    def _decode(self, pc: int) -> Block:
        steps: list[Step] = []
        code = self.assembly.code
        at = pc
        while at < len(code):
            step = self.step(at)
            at += 1
            if code[at - 1].name in control.TERMINATORS:
                return Block(steps, step, at)
            steps.append(step)
            if at in self.targets:
                return Block(steps, None, at)
        raise KvcError("KVC0901", f"code runs past the end of the file after instruction {at - 1}")

    def step(self, index: int) -> Step:
        """The decoded instruction `index`, decoded once. KVC0902 where it is not known."""
        found = self._steps.get(index)
        if found is None:
            found = self._steps[index] = decode(self.assembly.code[index], self.assembly, self.arch)
        return found

    def decode_all(self) -> list[KvcError]:
        """Decode every instruction of the file and return what is not understood (empty when all is)."""
        problems: list[KvcError] = []
        for ins in self.assembly.code:
            try:
                self.step(ins.index)
            except KvcError as error:
                problems.append(error)
        return problems

    def executed(self) -> set[int]:
        """Numbers of the instructions that some wave has run since `reset_counters`."""
        ran = [item for item in self.blocks.values() if item.waves]
        return {step.ins.index for item in ran for step in [*item.steps, *([item.end] if item.end else [])]}

    def reset_counters(self) -> None:
        for block in self.blocks.values():
            block.waves = 0
            for step in [*block.steps, *([block.end] if block.end else [])]:
                step.executions = 0
                step.stats = {key: value for key, value in step.stats.items() if key == "flops"}


def decode(ins: Instruction, assembly: Assembly, arch_name: str) -> Step:
    """Bind one instruction. KVC0902 naming it when the simulator does not know it, or its operands are not its own."""
    try:
        return _decode(ins, assembly, arch_name)
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        # Decoders take operands by position and kind: text that no assembler wrote has too few, or others.
        raise refuse(ins, f"operands of {ins.name!r} ({type(error).__name__})") from error


def _decode(ins: Instruction, assembly: Assembly, arch_name: str) -> Step:
    name = ins.name
    if name in lanes.DECODERS:
        return lanes.DECODERS[name](ins, assembly)
    if smem.is_smem(name):
        return smem.decode(ins, assembly)
    step = control.decode(ins, assembly)
    if step is not None:
        return step
    if name.startswith("ds_"):
        return lds.decode(ins, assembly)
    if vmem.is_vmem(name):
        return vmem.decode(ins, assembly)
    if mfma.is_mfma(name):
        return mfma.decode(ins, assembly, arch_name)
    op = REGISTRY.get(name)
    if op is None:
        raise refuse(ins, f"opcode {name!r}")
    return alu.decode(ins, op, assembly, arch_name)


def load(text: str, arch_name: str, code_object: bytes | None = None, file: str = "<assembly>") -> Program:
    """Read assembly for `arch_name`; the kernel descriptors come from `code_object` (ELF) when given, else from the
    text. KVC0105 for a chip that is no CDNA one, KVC0901 for text that does not parse or is for another chip.
    """
    row = arch(arch_name)
    if row.name not in CDNA:
        raise KvcError("KVC0105", f"the simulator has no {arch_name}", hint=f"one of: {', '.join(CDNA)}")
    assembly = parse(text, file)
    if assembly.target and not re.search(rf"{arch_name}\b", assembly.target):
        raise KvcError("KVC0901", f"assembly for {assembly.target} loaded as {arch_name}")
    return Program(assembly, arch_name, kernels_of(assembly, code_object), file)


def _branch_targets(assembly: Assembly) -> set[int]:
    """Instructions that a branch, call or symbol names, and entries of kernels."""
    used = {assembly.labels[name] for name in assembly.descriptors if name in assembly.labels}
    for ins in assembly.code:
        for text in ins.operands:
            label = text.partition("@")[0]
            if label in assembly.labels:
                used.add(assembly.labels[label])
    return used


def _register_numbers(used: Registers) -> list[int]:
    """Numbers in the set space of the registers that a wave of this program has; SCC and EXEC are held apart."""
    scalars = [*range(used.sgprs), *range(102, EXEC)]
    return [*range(used.vgprs), *range(256, 256 + used.agprs), *(SCALAR_BIT + register for register in scalars)]


def _registers(assembly: Assembly) -> Registers:
    top = {"v": 0, "a": 0, "s": 0}
    for ins in assembly.code:
        for text in ins.operands:
            for kind, one, first, last in _REGISTER.findall(text):
                if last and int(last) < int(first):
                    raise KvcError("KVC0901", f"line {ins.line}: {text}: the registers run backwards")
                top[kind] = max(top[kind], int(last or first or one) + 1)
    if max(top["v"], top["a"]) > N_VECTOR // 2:
        raise KvcError("KVC0901", f"v{top['v'] - 1} or a{top['a'] - 1}: a wave has {N_VECTOR // 2} of each")
    if top["s"] > VCC:
        raise KvcError("KVC0901", f"s{top['s'] - 1}: a wave has s0 to s{VCC - 1}")
    return Registers(max(top["v"], 1), top["a"], min(top["s"], 102))

"""Correct kernels that faults are put into: every pattern of both backends at sizes with tails on every axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvc.arch import arch
from kvc.emitter import Candidate, Compiled, Emitter, Task, target
from kvc.executor import LaunchPlan
from kvc.kernel import KernelSpec
from kvc.simulator import Memory, load
from kvc.simulator.launch import launch
from kvc.text import parse_kernel
from kvc.verify.buffers import bind, launch_plans
from kvc.verify.judge import Bench, judge
from kvc.verify.oracle import Examiner
from kvc.verify.verdict import Verified

from tests.adversarial.local import LocalPool
from tests.backends.triton import cases, test_attention

#: Kernels whose simulation takes seconds say nothing that a smaller one does not.
TOO_LARGE = frozenset({"statistics", "long_rows"})


@dataclass(frozen=True)
class Key:
    """Names a subject: the target, the emitter ("" for the first that fits) and the name of its spec."""

    target: str
    emitter: str
    name: str
    text: str


def keys(language: str) -> list[Key]:
    """All subjects of a target."""
    if language == "hip":
        from tests.backends.hip import test_emitters as hip

        tables = (hip.POINTWISE, hip.WINDOWS, hip.ROWS, hip.LONG_ROWS, hip.CONTRACTIONS, hip.SKINNY, hip.GENERIC)
        name_of = {text: name for table in tables for name, text in table.items()}
        cases_ = [(emitter, text) for emitter, text in hip.CASES if name_of[text] not in TOO_LARGE]
        return [Key("hip", emitter, name_of[text], text) for emitter, text in cases_]
    found = [Key("triton", "", name, text) for name, text in cases.SPECS.items()]
    return found + [Key("triton", "", f"attention_{n}", test_attention.SPECS[n]) for n in ("plain", "causal")]


class Subject:
    """A correct kernel: candidate, code objects and the references that copies of it are judged with."""

    def __init__(self, key: Key, chip: str) -> None:
        self.key = key
        self.spec: KernelSpec = parse_kernel(key.text)
        task = Task(self.spec, arch(chip))
        self.language = target(key.target)
        emitters: list[Emitter] = [e for e in self.language.emitters() if not key.emitter or e.name == key.emitter]
        emitter = next(e for e in emitters if e.supports(task).ok)
        self.candidate: Candidate = next(iter(emitter.propose(task, emitter.space(task).default, (), 0)))
        self.compiled: Compiled = self.language.compile(self.candidate)
        self.examiner = Examiner(self.spec, 0)
        self.name = f"{key.target}/{emitter.name.split('.')[1]}/{key.name}"

    @cached_property
    def is_correct(self) -> bool:
        """Whether the unchanged kernel passes, under which alone a rejected copy means anything."""
        return isinstance(judge(self.candidate, Bench(LocalPool(self.compiled), "sim"), self.examiner), Verified)  # type: ignore[arg-type]

    @cached_property
    def plans(self) -> list[LaunchPlan]:
        return launch_plans(self.candidate, self.compiled)

    @cached_property
    def executed(self) -> list[set[int]]:
        """For each launch the lines of its assembly that some wave ran, on the first input set."""
        memory = Memory(self.candidate.task.arch.name)
        buffers, fresh = bind(self.candidate, self.examiner.reference(self.examiner.input_sets[0]).inputs)
        device = {}
        for name, array in buffers.items():
            device[name] = memory.upload(array, name) if name not in fresh else memory.alloc(array.nbytes, name=name)
        lines = []
        for plan in self.plans:
            program = load(plan.asm, self.candidate.task.arch.name, plan.binary)
            args = [device[str(v)] if kind == "buffer" else v for kind, v in plan.args]
            report = launch(program, plan.kernel, plan.grid, plan.block, args, mem=memory, dynamic_lds=plan.dynamic_lds)
            lines.append({program.assembly.code[n].line for n in report.executed})
        return lines

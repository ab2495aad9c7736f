"""Judging without processes: the gates of a worker, run in this one.

For the mutation engine, where thousands of changed copies of kvc's own kernels are judged: no candidate of a stranger
comes here. The judge itself, its comparisons and the simulator are the ones that judge every kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Compiled, target
from kvc.executor import Execution, LaunchPlan
from kvc.simulator.executor import SimExecutor
from kvc.simulator.machine import SimOptions
from kvc.verify.verdict import Rejected

#: A correct kernel of the small specs here ends long before; a fault that loops forever is stopped early.
MAX_INSTRUCTIONS = 400_000


class LocalPool:
    """Stands in for kvc.verify.pool.WorkerPool. `compiled` replaces what `prepare` would compile; `patient`: run as
    long as the simulator allows."""

    def __init__(self, compiled: Compiled | None = None, patient: bool = False) -> None:
        self.compiled = compiled
        self.options = SimOptions() if patient else SimOptions(max_instructions=MAX_INSTRUCTIONS)

    def prepare(self, candidate: Candidate) -> Compiled | Rejected:
        if self.compiled is not None:
            return self.compiled
        language = target(candidate.target)
        errors = language.lint(candidate.source, candidate.task.arch)
        if errors:
            return Rejected("lint", errors[0])
        try:
            compiled = language.compile(candidate)
        except KvcError as error:
            return Rejected("compile", error.diagnostic)
        limits = getattr(language, "limits", None)
        problems = limits(candidate, compiled) if limits is not None else []
        return Rejected("resources", problems[0]) if problems else compiled

    def execute(
        self,
        launches: Sequence[LaunchPlan],
        buffers: Mapping[str, np.ndarray],
        *,
        outputs: Collection[str],
        executor: str,
        arch: str,
        seed: int,
    ) -> Execution:
        return SimExecutor(arch_row(arch), seed=seed, options=self.options).execute(launches, buffers, outputs=outputs)


def with_assembly(compiled: Compiled, kernel: str, asm: str) -> Compiled:
    """A compiled candidate in which one kernel runs other assembly."""
    objects = dict(compiled.objects)
    original = objects[kernel].asm
    for name, code in objects.items():
        if code.asm == original:
            objects[name] = replace(code, asm=asm)
    return replace(compiled, objects=objects)

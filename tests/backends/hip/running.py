"""Emit, compile and run a spec on the simulator, in this process."""

from __future__ import annotations

from functools import cache

import torch
from kvc.arch import arch
from kvc.backends.hip import HipTarget
from kvc.emitter import Candidate, Emitter, Knob, Task
from kvc.kernel import KernelSpec
from kvc.simulator.executor import SimExecutor
from kvc.text import parse_kernel
from kvc.verify.buffers import bind, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.oracle import Examiner

TARGET = HipTarget()


@cache
def spec_of(text: str) -> KernelSpec:
    return parse_kernel(text)


@cache
def examiner(text: str) -> Examiner:
    return Examiner(spec_of(text))


def emitter(name: str) -> Emitter:
    return next(e for e in TARGET.emitters() if e.name == name)


def emit(text: str, name: str, gfx: str, knobs: tuple[tuple[str, Knob], ...] | None = None) -> Candidate:
    """The candidate of one emitter for its best guess, or for `knobs`."""
    task = Task(spec_of(text), arch(gfx))
    support = emitter(name).supports(task)
    assert support.ok, support.reason
    setting = emitter(name).space(task).default if knobs is None else knobs
    return next(iter(emitter(name).propose(task, setting, (), 0)))


def run(candidate: Candidate, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs on the simulator; the source must be free of findings and within the GPU's limits."""
    assert TARGET.lint(candidate.source, candidate.task.arch) == []
    compiled = TARGET.compile(candidate)
    assert TARGET.limits(candidate, compiled) == []
    buffers, fresh = bind(candidate, inputs)
    executor = SimExecutor(candidate.task.arch, seed=1)
    done = executor.execute(launch_plans(candidate, compiled), buffers, outputs=fresh)
    assert [h for launch in done.evidence["launches"] for h in launch["hazards"]] == []
    return outputs_of(candidate.task.spec, done.buffers)


def verify(candidate: Candidate, text: str, input_set: str = "normal") -> None:
    """The candidate's outputs against the float64 oracle and the working-precision yardstick."""
    reference = examiner(text).reference(input_set)
    got = run(candidate, reference.inputs)
    for out in candidate.task.spec.outputs:
        one = (r[out.name] for r in (reference.oracle, reference.working, reference.probe))
        found = compare(out.name, out.dtype, got[out.name], *one, input_set=input_set)
        assert found.diagnostic is None, f"{out.name}: {found.diagnostic}\n{candidate.source}"

"""Workers without processes: a "kernel" is a Python function on flat NumPy buffers, so that a fault is one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, CodeObject, Compiled, Launch, Origin, Task
from kvc.executor import UNWRITTEN_BYTE, Execution
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.text import parse_kernel
from kvc.verify.buffers import outputs_of, pack, unpack
from kvc.verify.judge import Bench

Buffers = dict[str, np.ndarray]
Behaviour = Callable[[KernelSpec, Buffers, int], None]

SOFTMAX = """kernel softmax(x: f32[m=13,k=67]) -> (y: f32[m,k]) {
  mx: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - mx[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}"""
LINEAR = """kernel linear(x: bf16[m=33,k=40], w: bf16[n=35,k], b: bf16[n]) -> (y: bf16[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * w[n,k]
  y[m,n] = t[m,n] + b[n]
}"""
ARGMAX = """kernel top(x: f32[m=9,k=21]) -> (y: i64[m]) {
  y[m] = argmax(k) x[m,k]
}"""


class FakePool:
    """Stands in for WorkerPool: compiles to nothing, runs the behaviour."""

    def __init__(self, behaviour: Behaviour, spec: KernelSpec) -> None:
        self.behaviour = behaviour
        self.spec = spec
        self.runs = 0

    def prepare(self, candidate: Candidate) -> Compiled:
        return Compiled({n.kernel: CodeObject("", b"code", (("fake", "1"),)) for n in candidate.launches})

    def execute(
        self, launches: Any, buffers: Buffers, *, outputs: Any, executor: str, arch: str, seed: int
    ) -> Execution:
        self.runs += 1
        after = {name: array.copy() for name, array in buffers.items()}
        for name in outputs:
            after[name][:] = UNWRITTEN_BYTE
        self.behaviour(self.spec, after, seed)
        return Execution(after, {"launches": []})


def correct(spec: KernelSpec, buffers: Buffers, seed: int) -> None:
    """Runs the spec in its working dtype."""
    store(spec, buffers, interpret(spec, inputs_of(spec, buffers), "working"))


def inputs_of(spec: KernelSpec, buffers: Buffers) -> dict[str, torch.Tensor]:
    return {
        o.name: unpack(buffers[o.name], o.dtype, spec.shape_of(o.name), spec.strides_of(o.name)) for o in spec.inputs
    }


def store(spec: KernelSpec, buffers: Buffers, results: dict[str, torch.Tensor]) -> None:
    for o in spec.outputs:
        raw = pack(results[o.name].to(getattr(torch, o.dtype.torch_name)), spec.strides_of(o.name))
        buffers[o.name][:] = raw


def spoiled(change: Callable[[dict[str, torch.Tensor]], None]) -> Behaviour:
    """Correct, but for a change to the results (by output name, in place)."""

    def run(spec: KernelSpec, buffers: Buffers, seed: int) -> None:
        correct(spec, buffers, seed)
        change(outputs_of(spec, buffers))

    return run


def candidate_for(spec: KernelSpec, **launch: Any) -> Candidate:
    args = tuple(o.name for o in (*spec.inputs, *spec.outputs))
    settings = {"grid": (1, 1, 1), "block": (64, 1, 1), "args": args, **launch}
    task = Task(spec, arch("gfx942"))
    return Candidate(task, "fake", "by_hand", "source", (Launch("k", **settings),), (), (), Origin("hand", "1"))


def bench_for(text: str, behaviour: Behaviour) -> tuple[Candidate, Bench]:
    spec = parse_kernel(text)
    return candidate_for(spec), Bench(FakePool(behaviour, spec), "fake")  # type: ignore[arg-type]


def failing(code: str, message: str = "fault") -> Behaviour:
    def run(spec: KernelSpec, buffers: Buffers, seed: int) -> None:
        raise KvcError(code, message)

    return run

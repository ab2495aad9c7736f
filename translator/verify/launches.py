"""Launch by launch: does every kernel agree with float64 on what it was really given?

A whole model is compared from end to end, where small errors may grow: a batch norm over two values, or a comparison
close to a threshold, makes rounding visible in the result, whoever rounds. Followed launch by launch, each kernel is
judged on the values that the launches before it left, so that nothing grows; a kernel that is wrong still shows, and so
does one that is given the wrong tensor, since the plan says which it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvc.diagnostics import Diagnostic
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.plan import Plan
from kvc.plan_run import run_plan
from kvc.verify.buffers import bind, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.judge import Bench
from kvc.verify.oracle import Examiner, perturbed
from kvc.verify.verdict import Artifact

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

#: Runs kernel number n of a plan on inputs by operand name; gives its outputs.
RunNumbered = Callable[[int, "Tensors"], "Tensors"]


@dataclass(frozen=True)
class Followed:
    """`launches` were followed; `kernel` is the number in the plan of the first that disagrees, and `diagnostic` says
    how (None where all agree)."""

    launches: int
    kernel: int | None = None
    diagnostic: Diagnostic | None = None


def follow(plan: Plan, feed: Tensors, run: RunNumbered, seed: int = 0) -> Followed:
    """Run a plan on `feed` (graph inputs by name, in their own dtypes), comparing what each launch gives with the
    float64 meaning of its kernel on the same inputs. Later launches go on from what was really computed."""
    numbers = {id(spec): n for n, spec in enumerate(plan.kernels)}
    growth: dict[int, float] = {}
    count = 0
    first: list[tuple[int, Diagnostic]] = []

    def launch(spec: KernelSpec, inputs: Tensors) -> Tensors:
        nonlocal count
        count += 1
        number = numbers[id(spec)]
        got = run(number, inputs)
        if not first:
            if number not in growth:
                growth[number] = Examiner(spec).growth
            found = _difference(spec, inputs, got, growth[number], seed)
            first.extend([(number, found)] if found is not None else [])
        return got

    run_plan(plan, feed, launch)
    if first:
        return Followed(count, *first[0])
    return Followed(count)


def _difference(spec: KernelSpec, inputs: Tensors, got: Tensors, growth: float, seed: int) -> Diagnostic | None:
    oracle, working = interpret(spec, inputs), interpret(spec, inputs, "working")
    probe = interpret(spec, perturbed(inputs, seed), "oracle", seed)
    for out in spec.outputs:
        result = compare(
            out.name, out.dtype, got[out.name], oracle[out.name], working[out.name], probe[out.name], growth=growth
        )
        if result.diagnostic is not None:
            return result.diagnostic
    return None


def executed(artifacts: Sequence[Artifact], bench: Bench) -> RunNumbered:
    """Kernels of a translation as an executor runs them, in a worker. Raises whatever an execution raises."""

    def run(number: int, inputs: Tensors) -> Tensors:
        candidate, compiled = artifacts[number].candidate, artifacts[number].verified.compiled
        buffers, fresh = bind(candidate, inputs)
        done = bench.pool.execute(
            launch_plans(candidate, compiled), buffers, outputs=fresh, executor=bench.executor,
            arch=candidate.task.arch.name, seed=bench.seed,
        )  # fmt: skip
        return outputs_of(candidate.task.spec, done.buffers)

    return run

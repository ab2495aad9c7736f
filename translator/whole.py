"""References for whole-model verification: the original module in float64, or the graph interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.lower import lower
from kvc.optable.random import BUFFER
from kvc.plan import Plan
from kvc.plan_run import run_plan
from kvc.verify.model import ModelReference, overlaps, reference_of_module
from kvc.verify.oracle import Examiner, perturbed

if TYPE_CHECKING:
    import torch
    from kvc.frontends.fx.capture import Captured


def growth_of(plan: Plan) -> float:
    """The growth of rounding errors in the longest sum of any kernel."""
    return max((Examiner(spec).growth for spec in plan.kernels), default=2.0)


def model_reference(captured: Captured, plan: Plan, seed: int = 0) -> ModelReference:
    """The original module in float64 and as it is. Modules that mix float types by hand do not run in float64, and
    those that draw random numbers draw others than the graph: for them the oracle is the graph, interpreted."""
    growth = growth_of(plan)
    if not any(i.target == BUFFER for i in captured.graph.inputs):
        try:
            reference = reference_of_module(captured.module, captured.args, captured.kwargs, seed, growth)
            types = [captured.graph.types[name] for name in captured.graph.outputs]
            reference = replace(reference, captured={f"out{n}": t.strides for n, t in enumerate(types)})
            # A module that was read from elsewhere (ONNX) says itself where it comes from and what agrees with it.
            confirmed = getattr(captured.module, "confirmed", None)
            return replace(reference, source=confirmed()) if callable(confirmed) else reference
        except (RuntimeError, TypeError):
            pass
    state = {name: t.detach().clone() for name, t in captured.module.state_dict().items()}
    return reference_of_graph(plan, captured.feed(), state, captured.args, captured.kwargs, seed, "example inputs")


def reference_of_graph(
    plan: Plan,
    feed: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int,
    input_set: str,
) -> ModelReference:
    """The reference by interpreting the graph: in float64, in its working dtypes, and in float64 on moved inputs.
    `feed` gives every graph input by name; `args`, `kwargs` and `state` are the same values as the module takes
    them."""
    oracle = _evaluate(plan, feed, "oracle")
    working = _evaluate(plan, feed, "working")
    probe = _evaluate(plan, perturbed(feed, seed), "oracle", seed)
    return ModelReference(
        tuple(args), dict(kwargs), dict(state), oracle, working, probe, "graph in float64", growth_of(plan), input_set
    )


def _evaluate(
    plan: Plan, feed: Mapping[str, torch.Tensor], mode: str, nudge: int | None = None
) -> dict[str, torch.Tensor]:
    """Outputs by path and changed buffers by state_dict name; `nudge` as in kvc.interpret."""
    graph = plan.graph
    if plan.fallbacks:

        def run(spec: KernelSpec, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
            return interpret(spec, inputs, mode, nudge)

        given = {n: x.double() if mode == "oracle" and x.is_floating_point() else x for n, x in feed.items()}
        values = run_plan(plan, given, run)
    else:
        whole, _ = lower(graph)
        given = {o.name: feed[o.name].reshape(whole.shape_of(o.name)) for o in whole.inputs}
        values = {n: v.reshape(graph.types[n].shape) for n, v in interpret(whole, given, mode, nudge).items()}
    values = {**{i.name: feed[i.name] for i in graph.inputs}, **values}
    targets = {i.name: i.target for i in graph.inputs}
    results = {f"out{n}": _laid_out(values[name], graph.types[name].strides) for n, name in enumerate(graph.outputs)}
    return {**results, **{targets[buffer]: values[value] for buffer, value in graph.mutations}}


def _laid_out(t: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with the strides that the original gives it, unless they put several elements at one place."""
    import torch

    if overlaps(t.shape, strides):
        return t
    return torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t)

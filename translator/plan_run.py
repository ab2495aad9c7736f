"""Runs a plan step by step, with a callback for each kernel: by default the float64 interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kvc.dtypes import DType
from kvc.graph import Arg, Node, Ref, TensorType
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.plan import Invoke, Plan

if TYPE_CHECKING:
    import torch

#: Runs a kernel on inputs of its operands' shapes, by operand name; gives its outputs by operand name.
RunKernel = Callable[[KernelSpec, Mapping[str, "torch.Tensor"]], Mapping[str, "torch.Tensor"]]


def run_plan(
    plan: Plan, inputs: Mapping[str, torch.Tensor], run_kernel: RunKernel = interpret
) -> dict[str, torch.Tensor]:
    """Values of the graph's outputs and buffer updates by name, in the shapes of the graph. `inputs`: the graph's
    inputs by name. Tensors are dropped after their last use, as the memory plan does."""
    values = {i.name: inputs[i.name] for i in plan.graph.inputs}
    values |= {name: empty_tensor(t) for name, t in plan.empties.items()}
    last = _last_uses(plan)
    for n, step in enumerate(plan.steps):
        if isinstance(step, Invoke):
            _invoke(plan, plan.kernels[step.kernel], step, values, run_kernel)
        else:
            results = call_node(step.node, values)
            values.update(zip(step.node.outputs, results, strict=True))
        for value in [v for v in values if last.get(v, n) == n and v in plan.buffers and v not in plan.graph.live_out]:
            del values[value]
    types = plan.graph.types
    return {v: values[v].reshape(types[v].shape) for v in sorted(plan.graph.live_out)}


def empty_tensor(t: TensorType) -> torch.Tensor:
    """A tensor of a type, its elements not set."""
    import torch

    return torch.empty_strided(t.shape, t.strides, dtype=getattr(torch, t.dtype.torch_name))


def _invoke(plan: Plan, spec: KernelSpec, step: Invoke, values: dict[str, torch.Tensor], run_kernel: RunKernel) -> None:
    operands = {o.name: values[v].reshape(spec.shape_of(o.name)) for o, v in zip(spec.inputs, step.inputs, strict=True)}
    results = run_kernel(spec, operands)
    for operand, value in zip(spec.outputs, step.outputs, strict=True):
        values[value] = results[operand.name].reshape(plan.buffers[value].shape)


def _last_uses(plan: Plan) -> dict[str, int]:
    last: dict[str, int] = {}
    for n, step in enumerate(plan.steps):
        last.update(dict.fromkeys(step.inputs if isinstance(step, Invoke) else step.node.refs, n))
    return last


def call_node(node: Node, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs of a fallback node, by torch."""
    result = overload(node.op)(*(_argument(a, values) for a in node.args), **dict(_attributes(node)))
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def overload(op: str) -> Any:
    """The torch operator of a graph op: an ATen name ("aten.sort.stable"), or the first one that imports as it."""
    import torch
    from kvc.ops import op_table

    name = op.removeprefix("aten.")
    if name == op and op in op_table():
        name = op_table()[op].aten[0]
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


def _argument(arg: Arg, values: Mapping[str, torch.Tensor]) -> Any:
    import torch

    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, tuple):
        return [_argument(a, values) for a in arg]
    return getattr(torch, arg.torch_name) if isinstance(arg, DType) else arg


def _attributes(node: Node) -> list[tuple[str, Any]]:
    return [(name, _argument(value, {})) for name, value in node.attrs]

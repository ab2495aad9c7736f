"""The part of a model that one kernel computes, as a Python function over torch.ops.aten that anyone can run.

A kernel of a plan names the graph's nodes that it covers. Where these are whole operators, and the function on drawn
inputs gives what the spec gives, it is the kernel's functional form; where the kernel cuts an operator in parts there
is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvc.dtypes import DType
from kvc.graph import Arg, Node, Ref
from kvc.plan import Invoke, Plan

if TYPE_CHECKING:
    import torch

#: What torch raises where an overload does not take the arguments that a graph node holds.
_REFUSED = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)


def functional(plan: Plan, step: Invoke, seed: int = 0) -> str:
    """Source of `def functional(...)`, whose arguments are the kernel's inputs in operand order and whose results are
    its outputs; "" where there is none."""
    nodes = _region(plan, step)
    if not nodes:
        return ""
    try:
        lines = [_statement(n) for n in nodes]
    except (AttributeError, KeyError):
        return ""  # an operator of kvc's own table that ATen has no name for
    arguments = list(dict.fromkeys(step.inputs))
    body = "\n".join(f"    {line}" for line in lines)
    text = (
        f"import torch\n\n\ndef functional({', '.join(arguments)}):\n{body}\n"
        f"    return {', '.join(step.outputs)}{',' if len(step.outputs) == 1 else ''}\n"
    )
    return text if _agrees(text, plan, step, seed) else ""


def _region(plan: Plan, step: Invoke) -> list[Node]:
    """The nodes that lead from the kernel's inputs to its outputs, views that nobody materialised among them; empty
    where an output is no value of the graph, or a value from before the inputs is needed."""
    producer = plan.graph.producer
    given, found = set(step.inputs), set()
    queue = list(step.outputs)
    while queue:
        name = queue.pop()
        if name in given:
            continue
        node = producer.get(name)
        if node is None:
            return []
        if node.name not in found:
            found.add(node.name)
            queue += node.refs
    return [n for n in plan.graph.nodes if n.name in found]


def _statement(node: Node) -> str:
    from kvc.plan_run import overload

    found = overload(node.op)
    name = f"torch.ops.{found}"
    arguments = [_text(a) for a in node.args] + [f"{key}={_text(value)}" for key, value in node.attrs]
    return f"{', '.join(node.outputs)} = {name}({', '.join(arguments)})"


def _text(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, tuple):
        return f"[{', '.join(map(_text, arg))}]"
    if isinstance(arg, DType):
        return f"torch.{arg.torch_name}"
    if isinstance(arg, float) and (arg != arg or arg in (float("inf"), float("-inf"))):
        return f"float('{arg}')"
    return repr(arg)


def _agrees(text: str, plan: Plan, step: Invoke, seed: int) -> bool:
    """Whether the function gives what the spec gives in its working dtypes, within the dtype's tolerance."""
    import torch
    from kvc.interpret import interpret
    from kvc.verify.compare import limits
    from kvc.verify.inputs import draw

    spec, types = plan.kernels[step.kernel], plan.graph.types
    drawn = draw(spec, "normal", seed)
    expected = interpret(spec, drawn)
    given: dict[str, torch.Tensor] = {}
    for operand, value in zip(spec.inputs, step.inputs, strict=True):
        shape = plan.buffers[value].shape if value in plan.buffers else types[value].shape
        given[value] = drawn[operand.name].reshape(shape)
    scope: dict[str, Any] = {}
    exec(compile(text, "<functional>", "exec"), scope)
    try:
        with torch.no_grad():
            got = scope["functional"](*given.values())
    except _REFUSED:
        return False
    for operand, result in zip(spec.outputs, got, strict=True):
        want = expected[operand.name]
        if result.numel() != want.numel() or str(result.dtype) != f"torch.{operand.dtype.torch_name}":
            return False
        want, have = want.double(), result.reshape(want.shape).double()
        finite = want.isfinite() & have.isfinite()
        allowed = limits(want.masked_fill(~finite, 0.0), operand.dtype, 4.0) if operand.dtype.is_float else 0.0
        if bool(((want - have).abs().masked_fill(~finite, 0.0) > allowed).any()) or float(finite.double().mean()) < 0.5:
            return False
    return True

"""Folds constants: tensors that are one literal become that literal where they are read, and small constant
computations are done now. Values of parameters and inputs are never looked at.
"""

from __future__ import annotations

from dataclasses import replace

from kvc.diagnostics import KvcError
from kvc.dtypes import BOOL
from kvc.graph import Graph, Input, Node, Ref
from kvc.lower import fallbacks, lower
from kvc.passes.canonicalize import renamed_args, without_dead

Literal = bool | int | float

MAX_POINTS = 64  # largest constant tensor that is worked out now

# Operators that take a number in the place of the tensor at these positions.
_TAKES_NUMBER: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge"),
        (1,),
    ),
    "pow": (1,),
    "where": (1, 2),
    "masked_fill": (2,),
}
# x op literal == x
_NEUTRAL: dict[str, Literal] = {"mul": 1, "div": 1, "pow": 1}


def fold(graph: Graph) -> Graph:
    """An equal graph in which constants are literals of the nodes that read them."""
    known: dict[str, Literal] = {}
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        node = replace(node, args=renamed_args(node.args, renamed))
        node = _with_literals(graph, node, known)
        value = _constant(graph, node, known)
        if value is not None:
            known[node.name] = value
            attrs = (("size", node.type.shape), ("fill_value", value), ("dtype", node.type.dtype))
            node = Node(node.outputs, "full", (), attrs, node.types, node.loc)
        elif _is_neutral(graph, node) and node.name not in graph.live_out:
            renamed[node.name] = node.refs[0]
            continue
        nodes.append(node)
    return without_dead(replace(graph, nodes=tuple(nodes)))


def _is_neutral(graph: Graph, node: Node) -> bool:
    """Whether the node multiplies, divides or raises by one and keeps the type."""
    if node.op not in _NEUTRAL or len(node.args) + len(node.attrs) != 2 or len(node.refs) != 1:
        return False
    number = node.args[1] if len(node.args) == 2 else node.attrs[0][1]
    source = graph.types[node.refs[0]]
    same = source.dtype is node.type.dtype and source.shape == node.type.shape
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return same and is_number and number == _NEUTRAL[node.op] and isinstance(node.args[0], Ref)


def _with_literals(graph: Graph, node: Node, known: dict[str, Literal]) -> Node:
    """The node with constant operands replaced by numbers, where it then still has its type."""
    for position in _TAKES_NUMBER.get(node.op, ()):
        if position >= len(node.args):
            continue
        arg = node.args[position]
        if not isinstance(arg, Ref) or arg.name not in known:
            continue
        args = (*node.args[:position], known[arg.name], *node.args[position + 1 :])
        changed = replace(node, args=args)
        if changed.refs and _has_own_type(graph, changed):
            node = changed
    return node


def _has_own_type(graph: Graph, node: Node) -> bool:
    inputs = tuple(_input(r, graph) for r in dict.fromkeys(node.refs))
    try:
        lower(Graph("fold", inputs, (node,), node.outputs))
    except KvcError as e:
        if e.code != "KVC0302":
            raise
        return False
    return True


def _input(name: str, graph: Graph) -> Input:
    return Input(name, graph.types[name], "user")


def _constant(graph: Graph, node: Node, known: dict[str, Literal]) -> Literal | None:
    """The one value of all elements of the node's result, where it follows from constants alone."""
    if len(node.outputs) != 1 or node.type.numel > MAX_POINTS or any(r not in known for r in node.refs):
        return _fill(node)
    if node.type.numel == 0:
        return None
    import torch
    from kvc.interpret import interpret

    inputs = tuple(_input(r, graph) for r in dict.fromkeys(node.refs))
    if any(i.type.numel > MAX_POINTS for i in inputs):
        return None
    alone = Graph("fold", inputs, (node,), node.outputs)
    if fallbacks(alone):
        return None
    spec, _ = lower(alone)
    feed = {
        i.name: torch.full(i.type.shape, known[i.name], dtype=getattr(torch, i.type.dtype.torch_name)) for i in inputs
    }
    values = interpret(spec, {o.name: feed[o.name] for o in spec.inputs}, "working")[node.name]
    first = values.reshape(-1)[0]
    if not bool((values == first).all()):
        return None
    value: Literal = first.item()
    return value if node.type.dtype is not BOOL else bool(value)


def _fill(node: Node) -> Literal | None:
    """The literal of a tensor made by `full`, whatever its size."""
    if node.op != "full":
        return None
    arguments = dict(node.attrs)
    value = arguments.get("fill_value", node.args[1] if len(node.args) > 1 else None)
    if not isinstance(value, bool | int | float):
        return None
    if node.type.dtype.is_float:
        return float(value)
    return bool(value) if node.type.dtype is BOOL else int(value)

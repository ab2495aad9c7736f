"""Drops nodes that change nothing, merges equal nodes, removes what nothing reads.

Whether a node changes anything is read off its meaning, so no list of no-op operators has to be kept: it is an
identity when its meaning gives an argument back, or copies one at the same point.
"""

from __future__ import annotations

from dataclasses import replace

from kvc.builder import Builder
from kvc.diagnostics import KvcError
from kvc.graph import Arg, Graph, Node, Ref
from kvc.kernel import Axis, Load
from kvc.lower import meaning_of


def canonicalize(graph: Graph) -> Graph:
    """An equal graph without identities, repeated nodes and dead nodes. Values that leave the graph keep their node,
    since each is a tensor of its own with its own strides."""
    renamed: dict[str, str] = {}
    seen: dict[tuple[object, ...], Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = replace(node, args=renamed_args(node.args, renamed))
        free = not graph.live_out & set(node.outputs)
        source = identity_source(graph, node)
        if free and source is not None:
            renamed[node.name] = source
            continue
        key = (node.op, node.args, node.attrs, node.types)
        if free and source is None and key in seen and has_meaning(graph, node):
            renamed.update(zip(node.outputs, seen[key].outputs, strict=True))
            continue
        seen.setdefault(key, node)
        nodes.append(node)
    return without_dead(replace(graph, nodes=tuple(nodes)))


def renamed_args(args: tuple[Arg, ...], names: dict[str, str]) -> tuple[Arg, ...]:
    """Arguments that read other values."""

    def visit(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(names.get(arg.name, arg.name))
        return tuple(visit(a) for a in arg) if isinstance(arg, tuple) else arg

    return tuple(visit(a) for a in args)


def _written(graph: Graph, node: Node) -> tuple[Builder, tuple[str, ...]] | None:
    """The node's statements over operands of their own, and the names of its results; None where it has no meaning."""
    k = Builder(frozenset(node.refs))
    values = {r: k.operand(r, graph.types[r].dtype, graph.types[r].shape) for r in dict.fromkeys(node.refs)}
    try:
        results = meaning_of(k, node, values)
    except KvcError as e:
        if e.code != "KVC0203":
            raise
        return None
    return k, tuple(r.name for r in results)


def has_meaning(graph: Graph, node: Node) -> bool:
    """Whether the op table defines the node (so that it is a function of its arguments alone)."""
    return _written(graph, node) is not None


def identity_source(graph: Graph, node: Node) -> str | None:
    """The value that the node merely repeats, if it does."""
    if len(node.outputs) != 1 or not node.refs:
        return None
    written = _written(graph, node)
    if written is None:
        return None
    k, (result,) = written
    if result in node.refs:
        return result
    if len(k.stmts) != 1 or k.stmts[0].over is not None:
        return None
    stmt = k.stmts[0]
    load = stmt.expr
    if not isinstance(load, Load) or load.tensor not in node.refs or load.other is not None:
        return None
    source = graph.types[load.tensor]
    same = source.dtype is node.type.dtype and source.shape == node.type.shape
    return load.tensor if same and load.index == tuple(Axis(a) for a in stmt.axes) else None


def without_dead(graph: Graph) -> Graph:
    """The graph without nodes none of whose outputs is read."""
    needed = set(graph.live_out)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.refs)
    return replace(graph, nodes=tuple(kept[::-1]))

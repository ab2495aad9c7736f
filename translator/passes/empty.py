"""Tensors without elements: nobody computes them, so what they would be computed from is not needed either."""

from __future__ import annotations

from dataclasses import replace

from kvc.dtypes import BOOL
from kvc.graph import Graph, Node, TensorType
from kvc.passes.canonicalize import without_dead


def empty(graph: Graph) -> Graph:
    """An equal graph in which every result without elements is a `full` of its own."""
    nodes: list[Node] = []
    for node in graph.nodes:
        hollow = [(name, t) for name, t in zip(node.outputs, node.types, strict=True) if t.numel == 0]
        nodes += [_full(name, t, node) for name, t in hollow]
        if len(hollow) < len(node.outputs):
            names = dict(hollow)
            nodes.append(replace(node, outputs=tuple(_unread(n, graph) if n in names else n for n in node.outputs)))
    return without_dead(replace(graph, nodes=tuple(nodes)))


def _full(name: str, t: TensorType, node: Node) -> Node:
    value = False if t.dtype is BOOL else 0.0 if t.dtype.is_float else 0
    return Node((name,), "full", (), (("size", t.shape), ("fill_value", value), ("dtype", t.dtype)), (t,), node.loc)


def _unread(name: str, graph: Graph) -> str:
    """A name for a result that nobody reads any more."""
    fresh = f"{name}_"
    while fresh in graph.types:
        fresh += "_"
    return fresh

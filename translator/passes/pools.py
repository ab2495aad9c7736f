"""A maximum over windows of maxima over windows is one over larger windows, where no value would be looked at twice.

Window j of the outer pool spans the inner windows s2 j .. s2 j + k2 - 1. These cover s1 s2 j .. s1 s2 j + K - 1 with
K = s1 (k2 - 1) + k1, without gaps when k1 >= s1. With m = floor((n - k1) / s1) for the inner pool, (m + 1 - k2) / s2
and (n - K) / (s1 s2) have the same floor, so that extents agree. A maximum is not rounded: the values are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from kvc.graph import Arg, Attr, Graph, Node, Ref
from kvc.passes.canonicalize import without_dead
from kvc.patterns import WINDOW_POINTS

_RANKS = {"max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3}
_PARAMETERS = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_Sizes = tuple[int, ...]


@dataclass(frozen=True)
class _Pool:
    """What a max pool reads, and its windows by dim."""

    x: str
    size: _Sizes
    stride: _Sizes
    padding: _Sizes


def compose_pools(graph: Graph) -> Graph:
    """An equal graph in which a max pool that only another max pool reads is part of that one."""
    pools: dict[str, _Pool] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        pool = _pool(node)
        if pool is not None:
            inner = pools.get(pool.x)
            alone = inner is not None and pool.x not in graph.live_out and len(graph.users[pool.x]) == 1
            composed = _composed(inner, pool) if inner is not None and alone else None
            if composed is not None:
                pool = composed
                attrs = (("kernel_size", pool.size), ("stride", pool.stride), ("padding", pool.padding))
                node = replace(node, args=(Ref(pool.x),), attrs=attrs)
            pools[node.name] = pool
        nodes.append(node)
    return without_dead(replace(graph, nodes=tuple(nodes)))


def _composed(inner: _Pool, outer: _Pool) -> _Pool | None:
    """Both as one, where the inner windows leave no gaps and the outer ones share no inner one. A border of the outer
    pool would be filled with maxima of the inner one's surroundings, so it must have none."""
    gaps = any(k < s for k, s in zip(inner.size, inner.stride, strict=True))
    shared = any(k > s for k, s in zip(outer.size, outer.stride, strict=True))
    if gaps or shared or any(outer.padding):
        return None
    dims = list(zip(inner.size, inner.stride, outer.size, outer.stride, strict=True))
    size = tuple(s1 * (k2 - 1) + k1 for k1, s1, k2, _ in dims)
    if prod(size) > WINDOW_POINTS:  # what a backend walks through in one thread
        return None
    return _Pool(inner.x, size, tuple(s1 * s2 for _, s1, _, s2 in dims), inner.padding)


def _pool(node: Node) -> _Pool | None:
    """The max pool that a node is, without holes and with extents rounded down; None for anything else."""
    rank = _RANKS.get(node.op)
    if rank is None or not isinstance(node.args[0], Ref):
        return None
    given: dict[str, Arg | Attr] = dict(zip(_PARAMETERS, node.args, strict=False)) | dict(node.attrs)
    size = _each(given["kernel_size"], rank)
    stride = _each(given.get("stride") or given["kernel_size"], rank)
    padding, dilation = _each(given.get("padding", 0), rank), _each(given.get("dilation", 1), rank)
    if size is None or stride is None or padding is None or dilation != (1,) * rank or given.get("ceil_mode", False):
        return None
    return _Pool(node.args[0].name, size, stride, padding)


def _each(value: object, rank: int) -> _Sizes | None:
    """A size for each dim; one stands for all. None where it is no number."""
    if isinstance(value, int):
        return (value,) * rank
    if not isinstance(value, tuple | list) or not all(isinstance(v, int) for v in value):
        return None
    return tuple(value) * (rank if len(value) == 1 else 1)

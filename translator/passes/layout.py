"""Chooses the order of an intermediate's dims: memory that only kernels see need not follow the model's permutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvc.kernel import Call, Const, Expr, KernelSpec, Load, transform
from kvc.passes import channels_last
from kvc.passes.fuse import Fusion
from kvc.patterns import Contraction

Order = tuple[int, ...]  # old positions of the dims, in their new order


def relayout(whole: KernelSpec, fusion: Fusion) -> tuple[KernelSpec, dict[str, str]]:
    """The spec with the dims of intermediates in the order in which they are best written and read: channels last
    between convolutions (kvc.passes.channels_last); the digits of one axis of a reader side by side (heads of an
    attention, which the output projection sums over); else a contraction writes in its own axis order, so that rows of
    tiles are written whole. Also gives the copies of weights that came in, with the statement that each was made for.
    """
    choice = channels_last.choose(fusion)
    orders: dict[str, Order] = dict(choice.orders)
    reads: dict[str, list[Load]] = {}
    for stmt in whole.body:
        for load in stmt.loads():
            reads.setdefault(load.tensor, []).append(load)
    for group in fusion.groups:
        trial = fusion.kernel(group)
        contraction = issubclass(trial.kind, Contraction)
        for out in trial.spec.outputs:
            # Outputs of a pointwise kernel share one order, so that one index serves them all.
            if out.name in fusion.live or out.name in orders or not (contraction or len(trial.spec.outputs) == 1):
                continue
            order = _as_read(whole, out.name, reads.get(out.name, []))
            if order is None and isinstance(trial.pattern, Contraction):
                order = _as_written(trial.spec.stmt[out.name].axes, trial.pattern.stmt.axes)
            rank = len(whole.stmt[out.name].axes)
            if order is not None and len(order) == rank and order != tuple(range(rank)):
                orders[out.name] = order
    if not orders:
        return whole, {}
    whole, copies = channels_last.apply(whole, fusion, choice)
    return permute(whole, orders), copies


def _as_written(axes: tuple[str, ...], domain: tuple[str, ...]) -> Order | None:
    return tuple(axes.index(a) for a in domain) if set(axes) == set(domain) else None


def _as_read(whole: KernelSpec, tensor: str, reads: list[Load]) -> Order | None:
    """An order in which dims that are read at `e // n` and `e % n` are adjacent; None where no read is like that, or
    two reads disagree."""
    dims = whole.stmt[tensor].axes
    follows: dict[int, int] = {}
    for load in reads:
        for i, j in _digit_pairs(whole, load, dims):
            if follows.setdefault(i, j) != j:
                return None
    if not follows or len(set(follows.values())) != len(follows):
        return None
    order: list[int] = []
    for last in range(len(dims)):
        if last in follows:
            continue
        chain = [last]
        while (before := next((i for i, j in follows.items() if j == chain[0]), None)) is not None:
            chain.insert(0, before)
        order.extend(chain)
    return tuple(order) if len(order) == len(dims) else None


def _digit_pairs(whole: KernelSpec, load: Load, dims: tuple[str, ...]) -> list[tuple[int, int]]:
    """Positions (i, j) where the load reads dim i at `e // n` and dim j, of extent n, at `e % n`."""
    pairs = []
    for i, high in enumerate(load.index):
        for j, low in enumerate(load.index):
            match high, low:
                case Call("floordiv", (a, Const(n))), Call("mod", (b, Const(m))) if (a, n) == (b, m):
                    if n == whole.size[dims[j]].size:
                        pairs.append((i, j))
    return pairs


def permute(whole: KernelSpec, orders: Mapping[str, Order]) -> KernelSpec:
    """The spec with the dims of temporaries in another order."""

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.tensor in orders:
            return replace(expr, index=tuple(expr.index[i] for i in orders[expr.tensor]))
        return expr

    body = []
    for stmt in whole.body:
        stmt = stmt.map(lambda root: transform(root, visit))
        if stmt.target in orders:
            stmt = replace(stmt, axes=tuple(stmt.axes[i] for i in orders[stmt.target]))
        body.append(stmt)
    return replace(whole, body=tuple(body))

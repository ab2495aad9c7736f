"""Removes axes of extent 1: what keepdim, unsqueeze and a batch of one leave behind hides patterns and adds nothing.

Outputs lose their unit dims too: the shape of the buffer they are written to (Plan.buffers) is the same memory.
"""

from __future__ import annotations

from dataclasses import replace

from kvc.kernel import Const, Expr, KernelSpec, Load, Order, Reduce, Scan, Scatter, Stmt, substitute, transform
from kvc.passes.access import rounded
from kvc.simplify import IndexAlgebra, simplify_stmt

_VALUE_OF_ONE = ("sum", "prod", "max", "min")  # reductions of a single point to that point


def drop_unit_axes(spec: KernelSpec) -> KernelSpec:
    """The spec without static axes of extent 1, wherever every access proves to read index 0."""
    unit = {s.name for s in spec.sizes if s.size == 1}
    kept = _kept_dims(spec, unit)
    dropped = {s.target: [i for i, a in enumerate(s.axes) if a in unit and i not in kept[s.target]] for s in spec.body}
    algebra = IndexAlgebra(spec.size)

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and dropped.get(expr.tensor):
            return replace(expr, index=_without(expr.index, dropped[expr.tensor]))
        return expr

    dims = {s.target: _without(s.axes, dropped[s.target]) for s in spec.body} | {o.name: o.dims for o in spec.inputs}
    body = []
    for stmt in spec.body:
        stmt = stmt.map(lambda root: transform(root, visit))
        stmt = _drop(spec, stmt, [stmt.axes[i] for i in dropped[stmt.target]], unit)
        body.append(simplify_stmt(algebra, dims.__getitem__, stmt))
    outputs = tuple(
        replace(
            o,
            dims=_without(o.dims, dropped[o.name]),
            strides=_without(o.strides, dropped[o.name]) if o.strides is not None else None,
        )
        for o in spec.outputs
    )
    return replace(spec, body=tuple(body), outputs=outputs)


def _without(items: tuple, positions: list[int]) -> tuple:
    return tuple(x for i, x in enumerate(items) if i not in positions)


def _kept_dims(spec: KernelSpec, unit: set[str]) -> dict[str, set[int]]:
    """Dims of temporaries that must stay: read at an index that may not be 0, or bound by a
    loop, scan, sort or scatter."""
    algebra = IndexAlgebra(spec.size)
    kept: dict[str, set[int]] = {s.target: set() for s in spec.body}
    for stmt in spec.body:
        if isinstance(stmt.over, Scan | Order):
            kept[stmt.target].add(stmt.axes.index(stmt.over.axis))
        if stmt.loop is not None:
            kept[stmt.target].add(stmt.axes.index(stmt.loop.axis))
        if isinstance(stmt.over, Scatter):
            kept[stmt.target].update(i for i, e in enumerate(stmt.over.index) if algebra.interval(e) != (0, 0))
        for load in stmt.loads():
            if load.tensor in kept:
                kept[load.tensor].update(i for i, e in enumerate(load.index) if algebra.interval(e) != (0, 0))
    return kept


def _drop(spec: KernelSpec, stmt: Stmt, own: list[str], unit: set[str]) -> Stmt:
    """The statement without its own axes `own` and without the unit axes it reduces over."""
    over = stmt.over
    inner = [a for a in stmt.inner_axes if a in unit]
    if isinstance(over, Reduce):
        left = tuple(a for a in over.axes if a not in unit)
        if left:
            over = replace(over, axes=left)
        elif over.op in _VALUE_OF_ONE and over.where is None:
            over = None
        else:
            inner = []
    elif isinstance(over, Scatter):
        positions = [i for i, a in enumerate(stmt.axes) if a in own]
        over = replace(over, axes=tuple(a for a in over.axes if a not in unit), index=_without(over.index, positions))
    axes = tuple(a for a in stmt.axes if a not in own)
    gone: dict[str, Expr] = {a: Const(0) for a in (*own, *inner)}
    stmt = replace(stmt, axes=axes, over=over)
    if gone:
        stmt = stmt.map(lambda root: substitute(root, gone))
    if over is None and isinstance(stmt.expr, Const):
        stmt = replace(stmt, expr=rounded(spec, stmt.expr, stmt.dtype))
    return stmt


__all__ = ["drop_unit_axes"]

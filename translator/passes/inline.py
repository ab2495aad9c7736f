"""Folds views into the accesses of their readers, so that a reshape, slice, permute, pad or flip never moves memory."""

from __future__ import annotations

from dataclasses import replace

from kvc.kernel import Const, Expr, KernelSpec, Load, Stmt, needed, transform
from kvc.passes.access import compose, loads_in_index
from kvc.simplify import IndexAlgebra, simplify_stmt


def is_view(spec: KernelSpec, stmt: Stmt) -> bool:
    """Whether a statement only reads one tensor elsewhere (no arithmetic, no rounding, no indirection), or one literal
    everywhere."""
    if stmt.over is not None or stmt.loop is not None:
        return False
    if not isinstance(stmt.expr, Load):
        return isinstance(stmt.expr, Const)
    return stmt.dtype is spec.dtype_of(stmt.expr.tensor) and not loads_in_index(stmt.expr)


def fold_views(spec: KernelSpec) -> KernelSpec:
    """The spec in which no statement reads a view. Views that are outputs stay, as copies of what they show."""
    algebra = IndexAlgebra(spec.size)
    views: dict[str, Stmt] = {}
    body = []

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.tensor in views:
            return compose(spec, algebra, expr, views[expr.tensor])
        return expr

    for stmt in spec.body:
        if any(load.tensor in views for load in stmt.loads()):
            stmt = simplify_stmt(algebra, spec.dims_of, stmt.map(lambda root: transform(root, visit)))
        if is_view(spec, stmt):
            views[stmt.target] = stmt
        body.append(stmt)
    return drop_dead(replace(spec, body=tuple(body)))


def drop_dead(spec: KernelSpec) -> KernelSpec:
    """The spec without statements that no output needs, and without axes that nothing uses."""
    live = needed(spec.body, (o.name for o in spec.outputs))
    body = tuple(s for s in spec.body if s.target in live)
    return used_sizes(replace(spec, body=body))


def used_sizes(spec: KernelSpec) -> KernelSpec:
    """The spec with each axis it uses once, in order of first mention in the text."""
    from kvc.canonical import axis_order

    sizes = spec.size
    return replace(spec, sizes=tuple(sizes[a] for a in axis_order(spec)))

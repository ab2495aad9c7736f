"""Composition of accesses: the value of a pointwise statement at an index, with guards that stay correct.

`t[f(i) | g]`, where `t[a] = e(a)`, becomes `e(f(i))`. A guard cannot always move inwards: `x[i - 1 | 0]` of a slice
`x[i] = y[i + 2]` must give 0 at i = 0 although y[1] exists. Then the condition is written out,
`where(i >= 1, y[i + 1 | 0], 0)`, and the inner load keeps a guard so that neither branch leaves the tensor.
"""

from __future__ import annotations

from kvc.dtypes import BOOL, F32, F64, DType
from kvc.kernel import (
    Axis,
    Cast,
    Const,
    Expr,
    KernelSpec,
    Load,
    Operand,
    Stmt,
    axes_of,
    call,
    loads,
    substitute,
    transform,
)
from kvc.simplify import IndexAlgebra, Linear, in_bounds


def compose(spec: KernelSpec, algebra: IndexAlgebra, load: Load, stmt: Stmt) -> Expr:
    """The value of `load`, a read of the pointwise `stmt`, in terms of what the statement reads. Rounds to the
    statement's dtype, as a store would have done. `spec` gives the types and shapes of all tensors involved."""
    value = substitute(stmt.expr, dict(zip(stmt.axes, load.index, strict=True)))
    guard = load.other
    if guard is None or in_bounds(algebra, load.index, stmt.axes):
        return rounded(spec, value, stmt.dtype)
    single = loads(stmt.expr)
    if len(single) == 1 and not loads_in_index(single[0]) and _transfers(spec, algebra, load, stmt, single[0]):
        if isinstance(stmt.expr, Load):
            return Load(stmt.expr.tensor, loads(value)[0].index, guard)
        if isinstance(guard, Const) and not axes_outside(stmt.expr) and fixes(stmt.expr, single[0], guard):
            moved = transform(value, lambda e: Load(e.tensor, e.index, guard) if isinstance(e, Load) else e)
            return rounded(spec, moved, stmt.dtype)
    inside = [
        test
        for index, dim in zip(load.index, stmt.axes, strict=True)
        if not in_bounds(algebra, (index,), (dim,))
        for test in _inside(algebra, index, dim)
    ]
    condition = inside[0]
    for test in inside[1:]:
        condition = call("and", condition, test)
    return call("where", condition, rounded(spec, _guarded(spec, algebra, value), stmt.dtype), guard)


def rounded(spec: KernelSpec, value: Expr, dtype: DType) -> Expr:
    """`value` as a store to `dtype` and a load back would give it."""
    if isinstance(value, Load) and spec.dtype_of(value.tensor) is dtype:
        return value
    if isinstance(value, Const):  # literals are weak, a loaded value is not; float and bool literals join alike
        alike = (dtype in (F32, F64), dtype is BOOL) if isinstance(value.value, bool | float) else (False, False)
        return value if alike[isinstance(value.value, bool)] else Cast(dtype, value)
    if isinstance(value, Cast) and value.dtype is dtype:
        return value
    return value if spec.type_of(value) is dtype else Cast(dtype, value)


def loads_in_index(load: Load) -> bool:
    """Whether the access is indirect: some index is itself loaded."""
    return any(loads(index) for index in load.index)


def axes_outside(expr: Expr) -> list[str]:
    """Axes that an expression uses as values, outside the index of any load."""
    return axes_of(transform(expr, lambda e: Const(0) if isinstance(e, Load) else e))


def fixes(expr: Expr, load: Load, value: Const) -> bool:
    """Whether the expression maps `value`, put in place of its only load, to itself: relu(0) == 0, x * 2 with 0."""
    from kvc.interpret import interpret

    at = transform(expr, lambda e: Cast(F64, value) if e == load else e)
    out = KernelSpec("fixes", (), (), (Operand("y", F64, ()),), (Stmt("y", F64, (), at),))
    return float(interpret(out, {})["y"]) == float(value.value)


def _transfers(spec: KernelSpec, algebra: IndexAlgebra, load: Load, stmt: Stmt, inner: Load) -> bool:
    """Whether the inner load with the outer guard is outside its tensor exactly where it has to give that guard."""
    if inner.other is not None and inner.other != load.other:
        return False
    source = [algebra.sizes[d].size for d in spec.dims_of(inner.tensor)]
    for index, axis in zip(load.index, stmt.axes, strict=True):
        if in_bounds(algebra, (index,), (axis,)):
            continue
        extent = algebra.sizes[axis].size
        if extent is None or not any(
            _covers(algebra.linear(e), axis, extent, n, inner.other is not None)
            for e, n in zip(inner.index, source, strict=True)
        ):
            return False
    return True


def _covers(index: Linear, axis: str, extent: int, source: int | None, guarded: bool) -> bool:
    """Whether leaving [0, extent) along `axis` makes `axis + shift` leave [0, source)."""
    terms, shift = index.terms, index.constant
    if terms != ((Axis(axis), 1),) or source is None:
        return False
    if shift == 0 and extent == source:
        return True
    return guarded and shift <= 0 and extent + shift >= source


def _inside(algebra: IndexAlgebra, index: Expr, dim: str) -> list[Expr]:
    """The tests that an index has to pass to lie within its dim; the constant stands on the right."""
    low, high = algebra.interval(index)
    size = algebra.sizes[dim].size
    linear = algebra.linear(index)
    moving = Linear(linear.terms, 0).expr()
    tests: list[Expr] = []
    if low < 0:
        tests.append(call("ge", moving, -linear.constant))
    if size is None:
        tests.append(call("lt", index, algebra.extent(dim)))
    elif high >= size:
        tests.append(call("lt", moving, size - linear.constant))
    return tests


def _guarded(spec: KernelSpec, algebra: IndexAlgebra, value: Expr) -> Expr:
    """The expression with a guard on each load that may now leave its tensor; the guard value is never selected."""

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.other is not None:
            return expr
        if in_bounds(algebra, expr.index, spec.dims_of(expr.tensor)):
            return expr
        dtype = spec.dtype_of(expr.tensor)
        return Load(expr.tensor, expr.index, Const(0.0 if dtype.is_float else False if dtype is BOOL else 0))

    return transform(value, visit)


__all__ = ["compose", "fixes", "loads_in_index", "rounded"]

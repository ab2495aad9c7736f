"""Masked terms: a sum of products may leave out those whose other factor is exactly zero.

Attention behind a mask weights what a row must not see with exp(-inf) = 0. IEEE then says that an infinite or NaN value
there still makes the sum NaN, and so does eager; kernels that never visit what is masked give the sum of the others.
Both are right, and only there: a value that any row weights with another number must show.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kvc.dtypes import F32
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load, Reduce, Stmt, call, walk


def without_masked(spec: KernelSpec) -> KernelSpec | None:
    """The spec in which a factor of zero leaves its product out; None where nothing is masked by -inf."""
    masks = any(isinstance(e, Const) and e.value == -math.inf for s in spec.body for r in s.roots for e in walk(r))
    if not masks or not any(map(_factors, spec.body)):
        return None
    body: list[Stmt] = []
    for stmt in spec.body:
        factors = _factors(stmt)
        body += _split(stmt, *factors) if factors else [stmt]
    return replace(spec, body=tuple(body))


def _factors(stmt: Stmt) -> tuple[Expr, Expr] | None:
    over, expr = stmt.over, stmt.expr
    is_sum = isinstance(over, Reduce) and over.op == "sum" and stmt.dtype.is_float and stmt.loop is None
    if is_sum and isinstance(expr, Call) and expr.fn == "mul":
        return expr.args[0], expr.args[1]
    return None


def _split(stmt: Stmt, x: Expr, y: Expr) -> list[Stmt]:
    """The sum of what is finite, and whether anything else counts."""
    counts = call("or", call("and", _bad(x), call("ne", y, 0.0)), call("and", _bad(y), call("ne", x, 0.0)))
    count, total = f"{stmt.target}_kvc_counts", f"{stmt.target}_kvc_finite"
    at = tuple(Axis(a) for a in stmt.axes)
    finite = call("mul", call("where", _bad(x), 0.0, x), call("where", _bad(y), 0.0, y))
    return [
        replace(stmt, target=count, dtype=F32, expr=call("where", counts, 1.0, 0.0)),
        replace(stmt, target=total, expr=finite),
        replace(stmt, over=None, expr=call("where", call("gt", Load(count, at), 0.0), math.nan, Load(total, at))),
    ]


def _bad(x: Expr) -> Expr:
    return call("or", call("isnan", x), call("isinf", x))

"""The pattern of scaled dot-product attention: two contractions around a softmax, as one kernel.

    scores = q k^T over d;  u = score(scores);  top = max u;  e = exp(u - top);  total = sum e;  output = e v over n

The scores need never exist in memory: their maximum and the sums can be taken block by block, with what was summed
before scaled down whenever the maximum grows (online softmax). `score` is any pointwise function of the scores, so
scale, additive and boolean masks, causal or windowed, and biases are all one pattern; heads of q may share those of k
and v, since an operand's index is any expression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvc.dtypes import DType
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    KernelSpec,
    Load,
    Reduce,
    Stmt,
    axes_of,
    loads,
    substitute,
    transform,
)
from kvc.patterns import dependents, is_plain, operands_of, product_factors
from kvc.simplify import IndexAlgebra


@dataclass(frozen=True)
class Attention:
    """`scores` = sum over `d` of `q` * `k` (over batch + m + d and batch + n + d); `score` is an expression of the
    scores over batch + m + n; `output` = sum over `n` of the weights * `v` (batch + n + e). The weights are rounded to
    `weight` before that product, None where they are not; they are divided by their sum `total` before it where
    `normalised`. `epilogue`: pointwise statements over batch + m + e."""

    scores: Stmt
    top: Stmt
    total: Stmt
    output: Stmt
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    d: tuple[str, ...]
    e: tuple[str, ...]
    q: Expr
    k: Expr
    v: Expr
    score: Expr
    weight: DType | None
    normalised: bool
    epilogue: tuple[Stmt, ...]


def match_attention(spec: KernelSpec) -> Attention | str:
    """The pattern, or the reason why the spec is not one."""
    owned = dependents(spec)
    sums = [s for s in owned.values() if s.over is not None or s.loop is not None]
    if len(sums) != 4 or not all(isinstance(s.over, Reduce) and s.over.where is None for s in sums):
        return "it is not two contractions around a softmax"
    scores, top, total, output = sums
    ops = [s.over.op for s in sums if isinstance(s.over, Reduce)]
    if ops != ["sum", "max", "sum", "sum"] or not top.inner_axes == total.inner_axes == output.inner_axes:
        return "its reductions are not those of attention"
    kept = {s.target for s in sums}
    for stmt in spec.body:
        for load in stmt.loads():
            if load.tensor in owned and not is_plain(load, owned[load.tensor].axes):
                return f"{stmt.target} reads {load.tensor} at other points than its owner's"
    first = operands_of(spec, scores)
    if isinstance(first, str):
        return first
    n = top.inner_axes
    q, k, m, free = first.a, first.b, first.m, first.n
    if set(m) == set(n):
        q, k, m, free = k, q, free, m
    if set(free) != set(n) or not m or set(top.axes) != {*first.batch, *m} or set(total.axes) != set(top.axes):
        return "its softmax is not along one side of the scores"
    score = inlined(spec, top.expr, kept)
    weights = _weights(score, top)
    if inlined(spec, total.expr, kept) not in weights:
        return "it does not sum exp(score - max)"
    second = _second(spec, output, weights, total, kept)
    if isinstance(second, str):
        return second
    v, weight, normalised = second
    e = tuple(a for a in output.axes if a not in {*first.batch, *m})
    if set(axes_of(v)) & set(m) or not e or {*output.axes} != {*first.batch, *m, *e}:
        return "its output has another domain"
    after = list(owned.values())[list(owned).index(output.target) + 1 :]
    names = {o.name for o in spec.outputs}
    epilogue = tuple(s for s in spec.body if s is not output and (s in after or s.target in names))
    for s in epilogue:
        if set(s.axes) != set(output.axes) or s.over is not None:
            return f"{s.target} has another domain than the output"
        if {r.tensor for r in s.loads()} & (
            set(owned) - {output.target, total.target, top.target} - {x.target for x in after}
        ):
            return f"{s.target} reads the scores"
    sides = (first.batch, m, n, scores.inner_axes, e)
    return Attention(scores, top, total, output, *sides, q, k, v, score, weight, normalised, epilogue)


def inlined(spec: KernelSpec, expr: Expr, kept: set[str]) -> Expr:
    """The expression with pointwise temporaries replaced by what they are, roundings included; those of `kept` stay."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Load) or e.tensor not in spec.stmt or e.tensor in kept or e.other is not None:
            return e
        stmt = spec.stmt[e.tensor]
        if stmt.over is not None or stmt.loop is not None:
            return e
        value = inlined(spec, substitute(stmt.expr, dict(zip(stmt.axes, e.index, strict=True))), kept)
        return value if spec.type_of(value) is stmt.dtype else Cast(stmt.dtype, value)

    return transform(expr, visit)


def _weights(score: Expr, top: Stmt) -> tuple[Expr, ...]:
    """The forms of exp(score - max). Where all may be masked, an infinite maximum shifts by zero instead."""
    largest: Expr = Load(top.target, tuple(Axis(a) for a in top.axes))
    guarded = Call("where", (Call("eq", (largest, Const(-math.inf))), Const(0.0), largest))
    infinite = Call("where", (Call("isinf", (largest,)), Const(0.0), largest))
    return tuple(Call("exp", (Call("sub", (score, shift)),)) for shift in (largest, guarded, infinite))


def _second(
    spec: KernelSpec, output: Stmt, weights: tuple[Expr, ...], total: Stmt, kept: set[str]
) -> tuple[Expr, DType | None, bool] | str:
    """The other operand of the second product, the rounding of the weights, and whether they are normalised."""
    sums = Load(total.target, tuple(Axis(a) for a in total.axes))
    found: tuple[DType | None, bool] | None = None
    rest: list[Expr] = []
    for factor in product_factors(output.expr):
        value = inlined(spec, factor, kept)
        rounded = value.dtype if isinstance(value, Cast) else None
        inner = value.arg if isinstance(value, Cast) else value
        normalised = isinstance(inner, Call) and inner.fn == "div" and inner.args[1] == sums
        if normalised and isinstance(inner, Call):
            inner = inner.args[0]
        if inner in weights and found is None:
            found = (rounded, normalised)
        else:
            rest.append(factor)
    if found is None or not rest:
        return "its second product is not with the weights"
    v = rest[0]
    for factor in rest[1:]:
        v = Call("mul", (v, factor))
    if any(load.tensor in kept for load in loads(inlined(spec, v, kept))):
        return "its values depend on the scores"
    return v, *found


# ---------------------------------------------------------------- masks


@dataclass(frozen=True)
class Masked:
    """A score as `value` where all of `conditions` hold, else minus infinity."""

    conditions: tuple[Expr, ...]
    value: Expr


def masked(score: Expr) -> Masked:
    """Take masks off a score: `where(c, a, -inf)`, also under a product with a positive constant."""
    match score:
        case Call("where", (condition, value, Const(other))) if other == -math.inf:
            inner = masked(value)
            return Masked((condition, *inner.conditions), inner.value)
        case Call("where", (condition, Const(other), value)) if other == -math.inf:
            inner = masked(value)
            return Masked((_negated(condition), *inner.conditions), inner.value)
        case Call("mul", (value, Const(factor))) if not isinstance(factor, bool) and factor > 0:
            inner = masked(value)
            return Masked(inner.conditions, Call("mul", (inner.value, Const(factor))))
    return Masked((), score)


def _negated(condition: Expr) -> Expr:
    match condition:
        case Call("not", (inner,)):
            return inner
        case Call("eq", (inner, Const(value))) if value == 0 and _is_comparison(inner):
            return inner
    return Call("not", (condition,))


def _is_comparison(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.fn in ("le", "lt", "ge", "gt", "eq", "ne", "and", "or", "not")


def causal_reach(algebra: IndexAlgebra, condition: Expr, m: str, n: str) -> int | None:
    """c, where the condition is exactly n <= m + c; None where it says anything else."""
    match condition:
        case Call("le" | "lt" as fn, (low, high)):
            pass
        case Call("ge" | "gt" as fn, (high, low)):
            pass
        case _:
            return None
    if not (algebra.is_index(low) and algebra.is_index(high)):
        return None
    gap = algebra.linear(high).plus(algebra.linear(low), -1)
    if gap.coefficients != {Axis(m): 1, Axis(n): -1}:
        return None
    return gap.constant - (fn in ("lt", "gt"))

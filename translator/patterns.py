"""Which schedule fits a spec: target-neutral patterns that both backends emit from.

Each `match_*` gives the pattern or the reason (text) why the spec is not one. `match` picks the most specific; the
last resort, `stages`, fits every spec: one launch per tensor that must exist in memory.

Terms: a statement is *dependent* on a reduction when its value follows, through any chain, from the reduction's
result. Pointwise temporaries that are not dependent can be recomputed at any index; dependent ones must be read where
the thread that owns the reduction's result can see them, that is with plain axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from kvc.functions import FUNCTIONS
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    KernelSpec,
    Load,
    Loop,
    Order,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    axes_of,
    loads,
    walk,
)
from kvc.simplify import IndexAlgebra, steps

if TYPE_CHECKING:
    from kvc.attention import Attention

WINDOW_POINTS = 1024  # a reduction up to this many points may run inside one thread
SERIAL_POINTS = 16  # below this a reduction is a window even when it reads like a row


@dataclass(frozen=True)
class Pointwise:
    """No reductions; every output over the domain `axes` (order of the first output)."""

    axes: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """Every reduction is over exactly `inner`; every dependent statement over `outer` or `outer` + `inner`.
    `stmts` are the statements that the row's owner computes, in order (other temporaries are recomputed)."""

    outer: tuple[str, ...]
    inner: tuple[str, ...]
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True)
class Contraction:
    """`stmt` = sum over `k` of `a * b`; `a` reads axes of batch + m + k, `b` of batch + n + k. `n` holds the fastest
    axis of the first output where that is possible. `epilogue`: pointwise statements over batch + m + n."""

    stmt: Stmt
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    a: Expr
    b: Expr
    epilogue: tuple[Stmt, ...]


@dataclass(frozen=True)
class Window:
    """Small reductions evaluated inside the thread that owns a point of `axes`, the domain of every output.
    `stmts`: the reductions and the statements that depend on them, in order."""

    axes: tuple[str, ...]
    stmts: tuple[Stmt, ...]


@dataclass(frozen=True)
class Recurrence:
    """A loop that one launch runs from its first step to its last.

    Points of `batch` never meet: each can run all steps by itself. Within a step, `phases` run one after the other. The
    statements of a phase have the same axes, read each other at their own point and earlier phases anywhere, so that
    between phases all must wait for all, and inside one nobody. No phase needs to wait where `is_local`: then each
    point of the domain reads its own past alone. `shared`: statements that some phase reads at other points than its
    own, or after the phase that gives them; their values must outlive the phase. `carried`: those that the next step
    reads.
    """

    loop: Loop
    batch: tuple[str, ...]
    phases: tuple[tuple[Stmt, ...], ...]
    shared: frozenset[str]
    carried: frozenset[str]

    @property
    def is_local(self) -> bool:
        return len(self.phases) == 1 and set(self.phases[0][0].axes) == {self.loop.axis, *self.batch}

    def lanes(self, phase: tuple[Stmt, ...]) -> tuple[str, ...]:
        """The axes of a phase that are shared out within one point of the batch."""
        return tuple(a for a in phase[0].axes if a != self.loop.axis and a not in self.batch)


@dataclass(frozen=True)
class Stage:
    """One launch that defines `target`; kind: "pointwise" | "reduce" | "scan" | "order" | "scatter" | "loop". A loop
    defines several tensors: `targets` are those that anything outside it reads, `target` the first of them."""

    target: str
    kind: str
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Staged:
    """Launches in order; every stage's target is an output or goes to scratch memory."""

    stages: tuple[Stage, ...]


Pattern: TypeAlias = "Pointwise | Rows | Contraction | Window | Recurrence | Attention | Staged"


def match(spec: KernelSpec) -> Pattern:
    """The most specific pattern of a spec."""
    for matcher in _matchers().values():
        found = matcher(spec)
        if not isinstance(found, str):
            return found
    return stages(spec)


def _matchers() -> dict[str, Callable[[KernelSpec], Pattern | str]]:
    """The matchers by name, most specific first."""
    from kvc.attention import match_attention  # it is made of what stands here

    return {
        "pointwise": match_pointwise, "window": match_window, "contraction": match_contraction, "rows": match_rows,
        "recurrence": match_recurrence, "attention": match_attention,
    }  # fmt: skip


def why_not(spec: KernelSpec) -> dict[str, str]:
    """The patterns that come before the one that `match` gives, each with the reason why the spec is none."""
    reasons: dict[str, str] = {}
    for name, matcher in _matchers().items():
        found = matcher(spec)
        if not isinstance(found, str):
            return reasons
        reasons[name] = found
    return reasons


# ---------------------------------------------------------------- shared facts


def dependents(spec: KernelSpec) -> dict[str, Stmt]:
    """Reductions (anything with `over`), loops, and all statements that follow from one, by target, in order."""
    found: dict[str, Stmt] = {}
    for stmt in spec.body:
        if stmt.over is not None or stmt.loop is not None or any(load.tensor in found for load in stmt.loads()):
            found[stmt.target] = stmt
    return found


def points(spec: KernelSpec, axes: tuple[str, ...]) -> int:
    return prod(spec.extent(a) for a in axes)


def is_plain(load: Load, axes: tuple[str, ...]) -> bool:
    """Whether the load reads its tensor at exactly these axes, unguarded."""
    return load.other is None and load.index == tuple(Axis(a) for a in axes)


def _misread(spec: KernelSpec, owned: dict[str, Stmt]) -> str:
    """The reason why some dependent temporary cannot be taken from its owner's registers, "" if all can."""
    for stmt in spec.body:
        for load in stmt.loads():
            if load.tensor in owned and not is_plain(load, owned[load.tensor].axes):
                return f"{stmt.target} reads {load.tensor} at other points than its owner's"
    return ""


def _output_stmts(spec: KernelSpec) -> list[Stmt]:
    return [spec.stmt[o.name] for o in spec.outputs]


# ---------------------------------------------------------------- patterns


def match_pointwise(spec: KernelSpec) -> Pointwise | str:
    if spec.loops:
        return "it loops"
    if any(s.over is not None for s in spec.body):
        return "it has reductions"
    first, *rest = _output_stmts(spec)
    extents = [spec.extent(a) for a in first.axes]
    if any([spec.extent(a) for a in s.axes] != extents for s in rest):
        return "its outputs have different domains"
    return Pointwise(first.axes)


def match_rows(spec: KernelSpec) -> Rows | str:
    if spec.loops:
        return "it loops"
    owned = dependents(spec)
    reductions = [s for s in owned.values() if s.over is not None]
    if not reductions:
        return "it has no reduction"
    if not all(isinstance(s.over, Reduce) for s in reductions):
        return "it scans, sorts or scatters"
    outer = reductions[0].axes
    inner = reductions[0].inner_axes
    for s in reductions:
        if s.inner_axes != inner or set(s.axes) != set(outer):
            return f"{s.target} reduces other axes than {reductions[0].target}"
    domains = (set(outer), {*outer, *inner})
    for s in (*owned.values(), *_output_stmts(spec)):
        if set(s.axes) not in domains:
            return f"{s.target} has another domain than the rows"
    misread = _misread(spec, owned)
    if misread:
        return misread
    outputs = {o.name for o in spec.outputs}
    stmts = tuple(s for s in spec.body if s.target in owned or s.target in outputs)
    return Rows(outer, inner, stmts)


def match_window(spec: KernelSpec) -> Window | str:
    if spec.loops:
        return "it loops"
    owned = dependents(spec)
    reductions = [s for s in owned.values() if s.over is not None]
    if not reductions:
        return "it has no reduction"
    first, *rest = _output_stmts(spec)
    domain = set(first.axes)
    if any(set(s.axes) != domain for s in (*rest, *owned.values())):
        return "its statements have different domains"
    for s in reductions:
        if not isinstance(s.over, Reduce):
            return "it scans, sorts or scatters"
        if points(spec, s.inner_axes) > WINDOW_POINTS:
            return f"{s.target} reduces more than {WINDOW_POINTS} points"
        if any(load.tensor in owned and spec.stmt[load.tensor].over is None for load in s.loads()):
            return f"{s.target} reduces a result of another reduction"
        if not (_slides(s) or points(spec, s.inner_axes) <= SERIAL_POINTS):
            return f"{s.target} reduces whole rows"
        operands = operands_of(spec, s)
        if not isinstance(operands, str) and operands.m and operands.n:
            return f"{s.target} is a contraction"
    misread = _misread(spec, owned)
    if misread:
        return misread
    outputs = {o.name for o in spec.outputs}
    return Window(first.axes, tuple(s for s in spec.body if s.target in owned or s.target in outputs))


def _slides(stmt: Stmt) -> bool:
    """Whether some index mixes an axis of the reduction with one of the domain, as in x[2*i + r]."""
    inner, outer = set(stmt.inner_axes), set(stmt.axes)
    for load in stmt.loads():
        for index in load.index:
            used = set(axes_of(index))
            if used & inner and used & outer:
                return True
    return False


@dataclass(frozen=True)
class Operands:
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    a: Expr
    b: Expr


def product_factors(expr: Expr) -> list[Expr]:
    """The factors of a product, left to right."""
    if isinstance(expr, Call) and expr.fn == "mul":
        return [f for arg in expr.args for f in product_factors(arg)]
    return [expr]


def operands_of(spec: KernelSpec, stmt: Stmt) -> Operands | str:
    """Split the body of a sum into two operands by the axes that its factors read."""
    over = stmt.over
    if not isinstance(over, Reduce) or over.op != "sum" or over.where is not None:
        return "it is not a plain sum"
    factors = product_factors(stmt.expr)
    readers = [f for f in factors if loads(f)]
    if len(readers) < 2:
        return "it is not a sum of products"
    reads = {f: set(axes_of(f)) for f in readers}
    first = max(readers, key=lambda f: len(reads[f]))
    left, right = [first], [f for f in readers if f is not first]
    # Any factor that adds no axis to the first operand may join it, as long as the second keeps one.
    for f in list(right):
        if len(right) > 1 and reads[f] <= reads[first]:
            right.remove(f)
            left.append(f)
    left += [f for f in factors if f not in readers]
    axes_a = {a for f in left for a in axes_of(f)}
    axes_b = {a for f in right for a in axes_of(f)}
    if not (axes_a & set(over.axes) and axes_b & set(over.axes)):
        return "an operand does not depend on the summed axes"
    if any(a not in axes_a | axes_b for a in stmt.axes):
        return "neither operand depends on some axis of the result"
    batch = tuple(a for a in stmt.axes if a in axes_a and a in axes_b)
    m = tuple(a for a in stmt.axes if a in axes_a and a not in axes_b)
    n = tuple(a for a in stmt.axes if a in axes_b and a not in axes_a)
    return Operands(batch, m, n, _product(left), _product(right))


def _product(factors: list[Expr]) -> Expr:
    result = factors[0]
    for f in factors[1:]:
        result = Call("mul", (result, f))
    return result


def match_contraction(spec: KernelSpec) -> Contraction | str:
    if spec.loops:
        return "it loops"
    owned = dependents(spec)
    reductions = [s for s in owned.values() if s.over is not None]
    if len(reductions) != 1:
        return f"it has {len(reductions)} reductions"
    stmt = reductions[0]
    operands = operands_of(spec, stmt)
    if isinstance(operands, str):
        return operands
    outputs = _output_stmts(spec)
    for s in (*owned.values(), *outputs):
        if set(s.axes) != set(stmt.axes):
            return f"{s.target} has another domain than the contraction"
    misread = _misread(spec, owned)
    if misread:
        return misread
    a, b, m, n = operands.a, operands.b, operands.m, operands.n
    if not (m or n):
        return "its operands read the same rows"
    if not (m and n) and _along_rows(stmt, a if m else b):
        return "it multiplies with a vector, along rows"
    fastest = outputs[0].axes[-1] if outputs[0].axes else ""
    if fastest in m or (not n and m):
        a, b, m, n = b, a, n, m
    names = {o.name for o in spec.outputs}
    epilogue = tuple(s for s in spec.body if s is not stmt and (s.target in owned or s.target in names))
    return Contraction(stmt, operands.batch, m, n, stmt.inner_axes, a, b, epilogue)


def batch_is_finest(spec: KernelSpec, pattern: Contraction) -> bool:
    """Whether results of neighbouring batch entries lie between neighbouring results of one, as the parity classes of a
    transposed convolution do: then entries that run together fill whole cache lines."""
    out = spec.outputs[0].name
    steps = dict(zip(spec.dims_of(out), spec.strides_of(out), strict=True))
    fine = [steps[a] for a in pattern.batch if spec.extent(a) > 1 and a in steps]
    rest = [steps[a] for a in (*pattern.m, *pattern.n) if spec.extent(a) > 1 and a in steps]
    return bool(fine) and bool(rest) and min(fine) < min(rest)


def vanishing(spec: KernelSpec, pattern: Contraction) -> Expr | None:
    """A condition on the batch alone without which both operands are zero, where there is one: no product is needed
    then. One operand is `where(condition, value, 0)`; the other reads past its tensor, whose guard gives zero, whenever
    a part of the condition fails (zero times an infinity is no zero, so that one operand alone proves nothing)."""
    for operand, other in ((pattern.a, pattern.b), (pattern.b, pattern.a)):
        match operand, other:
            case Call("where", (condition, _, Const(zero))), Load(tensor, index, Const(outside)):
                bounds = {Call("lt", (i, Const(n))) for i, n in zip(index, spec.shape_of(tensor), strict=True)}
                alone = set(axes_of(condition)) <= set(pattern.batch) and not loads(condition)
                if zero == outside == 0 and alone and set(_conjuncts(condition)) <= bounds:
                    return condition
    return None


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Call) and condition.fn == "and":
        return [part for arg in condition.args for part in _conjuncts(arg)]
    return [condition]


def _along_rows(stmt: Stmt, operand: Expr) -> bool:
    """Whether an operand is read with a summed axis fastest: a product without a second free operand is then limited
    by memory, and best read row by row."""
    summed = set(stmt.inner_axes)
    reads = [load.index for load in loads(operand) if any(summed & set(axes_of(i)) for i in load.index)]
    return all(summed & set(axes_of(index[-1])) for index in reads)


# ---------------------------------------------------------------- loops


def match_recurrence(spec: KernelSpec) -> Recurrence | str:
    if len(spec.loops) != 1:
        return f"it has {len(spec.loops)} loops"
    (loop,) = spec.loops
    if any(s.over is not None and s.loop is None for s in spec.body):
        return "it reduces outside its loop"
    if any(s.loop is None for s in _output_stmts(spec)):
        return "it has outputs outside its loop"
    return recurrence(spec, loop)


def recurrence(spec: KernelSpec, loop: Loop) -> Recurrence:
    """How one loop of a spec runs."""
    stmts = spec.loops[loop]
    own = {s.target: s for s in stmts}
    reads = [(s, load, own[load.tensor]) for s in stmts for load in s.loads() if load.tensor in own]
    batch = [a for a in stmts[0].axes if a != loop.axis and all(a in s.axes for s in stmts)]
    for _, load, source in reads:
        at = dict(zip(source.axes, load.index, strict=True))
        batch = [a for a in batch if at[a] == Axis(a)]
    algebra = IndexAlgebra(spec.size)
    phases: list[list[Stmt]] = []
    number: dict[str, int] = {}
    for s in stmts:
        if not (phases and _joins_phase(s, {p.target: p for p in phases[-1]}, algebra)):
            phases.append([])
        phases[-1].append(s)
        number[s.target] = len(phases) - 1
    shared: set[str] = set()
    carried: set[str] = set()
    for s, load, source in reads:
        is_now = steps(algebra, loop.axis, load.index[source.axes.index(loop.axis)]) == 0
        if not is_now:
            carried.add(source.target)
        if not is_now or number[s.target] != number[source.target]:
            shared.add(source.target)
    return Recurrence(loop, tuple(batch), tuple(map(tuple, phases)), frozenset(shared), frozenset(carried))


def _joins_phase(stmt: Stmt, phase: dict[str, Stmt], algebra: IndexAlgebra) -> bool:
    """Whether a statement can run at the points of a phase, straight after its statements."""
    if any(set(s.axes) != set(stmt.axes) for s in phase.values()):
        return False
    loop = stmt.loop
    assert loop is not None
    for load in stmt.loads():
        if load.tensor not in phase:
            continue
        axes = phase[load.tensor].axes
        # The step before is complete, wherever it is read.
        is_now = steps(algebra, loop.axis, load.index[axes.index(loop.axis)]) == 0
        if is_now and not is_plain(load, axes):
            return False
    return True


# ---------------------------------------------------------------- the generic pattern

_KIND: dict[type, str] = {Reduce: "reduce", Scan: "scan", Order: "order", Scatter: "scatter", type(None): "pointwise"}
_CHEAP = frozenset({"add", "sub", "mul", "neg", "abs", "minimum", "maximum", "relu", "where"})


def stages(spec: KernelSpec) -> Staged:
    """Materialise outputs, results of reductions, and pointwise temporaries that would be recomputed too often."""
    outputs = {o.name for o in spec.outputs}
    keep = {s.target for s in spec.body if (s.over is not None and s.loop is None) or s.target in outputs}
    for reader in spec.body:
        domain = points(spec, (*reader.axes, *reader.inner_axes))
        for load in reader.loads():
            temp = spec.stmt.get(load.tensor)
            if temp is not None and temp.loop is not None:
                if temp.loop != reader.loop:
                    keep.add(temp.target)
            elif temp is not None and not is_cheap(temp.expr) and domain > 4 * points(spec, temp.axes):
                keep.add(temp.target)
    found: list[Stage] = []
    for loop, group in groupby(spec.body, key=lambda s: s.loop):
        kept = [s for s in group if s.target in keep]
        if loop is None:
            found += [Stage(s.target, _KIND[type(s.over)]) for s in kept]
        elif kept:
            found.append(Stage(kept[0].target, "loop", tuple(s.target for s in kept)))
    return Staged(tuple(found))


def is_cheap(expr: Expr) -> bool:
    """A few ALU instructions beside its loads: cheaper to compute again than to store and load."""
    work = 0
    for node in walk(expr):
        if isinstance(node, Call) and node.fn not in _CHEAP and FUNCTIONS[node.fn].result != "bool":
            return False
        work += isinstance(node, Call | Cast)
    return work <= 4


__all__ = [
    "Contraction",
    "Pattern",
    "Pointwise",
    "Recurrence",
    "Rows",
    "Stage",
    "Staged",
    "Window",
    "batch_is_finest",
    "match",
    "match_contraction",
    "match_pointwise",
    "match_recurrence",
    "match_rows",
    "match_window",
    "recurrence",
    "stages",
    "vanishing",
    "why_not",
]

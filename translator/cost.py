"""What a spec costs at least: floating-point operations and bytes of memory traffic.

`flops` and `bytes_moved` depend on the spec alone, so they serve the report, the tuner and the roofline floor (no
kernel can be faster than peak rates allow). `Cost` adds what fusion has to weigh: evaluations of temporaries that are
computed again at each read, and the fixed price of a launch.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from math import prod

from kvc.functions import FUNCTIONS
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load, Order, Scatter, Stmt, axes_of, loads
from kvc.patterns import Contraction, Pattern, Rows, Staged, dependents, points
from kvc.simplify import IndexAlgebra

# Prices in bytes of memory traffic, from the ratios of current data-centre GPUs (MI300X: 82 T plain ALU operations/s,
# 5.3 TB/s): an operation is worth 1/16 byte, and the 3 us or so that a dependent launch costs are worth 16 MB.
OPS_PER_BYTE = 16
LAUNCH_BYTES = 16 << 20
# Rows needed to keep all memory channels busy when a workgroup owns a row (MI300X has 304 compute units).
ROWS_IN_FLIGHT = 256
# Columns of a contraction's output that share one read of its operand (the usual tile).
TILE = 128

# Plain ALU operations that a primitive takes; what is not listed takes one. Transcendentals run at a quarter rate and
# need range reduction; a division is a reciprocal and two Newton steps.
_WEIGHT = {"div": 8, "sqrt": 8, "rsqrt": 6, "fmod": 12, "mod": 12, "floordiv": 12, "pow": 32, "atan2": 40, "log1p": 16,
           "expm1": 16, "exp": 8, "exp2": 4, "log": 8, "log2": 4, "log10": 8, "sin": 24, "cos": 24, "tan": 32,
           "erf": 24, "erfc": 24, "tanh": 16}  # fmt: skip
_RARE = 24  # inverse and hyperbolic functions


@cache
def weight(fn: str) -> int:
    """Plain ALU operations of one call of a function."""
    function = FUNCTIONS[fn]
    if function.expand is not None:
        return work(function.expand(*(Axis(f"x{i}") for i in range(function.arity))))
    if fn in _WEIGHT:
        return _WEIGHT[fn]
    return _RARE if function.result == "float" else 1


def work(expr: Expr) -> int:
    """ALU operations to evaluate an expression once; index arithmetic and loads are not counted."""
    if isinstance(expr, Load):
        return 0
    own = weight(expr.fn) if isinstance(expr, Call) else 0
    return own + sum(work(child) for child in expr.children)


def is_transcendental(expr: Expr) -> bool:
    """Whether evaluating the expression takes more than a few plain operations anywhere."""
    return any(isinstance(e, Call) and weight(e.fn) > 4 for e in _values(expr))


def _values(expr: Expr) -> list[Expr]:
    if isinstance(expr, Load):
        return [expr]
    return [expr, *(e for child in expr.children for e in _values(child))]


def flops(spec: KernelSpec) -> int:
    """Arithmetic operations on values, each function call counted as one, with one more for each point that a
    reduction or scan combines: a matrix product is 2*m*n*k. Comparisons, selections and sorting count nothing."""
    total = 0
    for stmt in spec.body:
        combines = stmt.over is not None and not isinstance(stmt.over, Order)
        domain = stmt.over.axes if isinstance(stmt.over, Scatter) else (*stmt.axes, *stmt.inner_axes)
        total += points(spec, domain) * (arithmetic(stmt.expr) + combines)
    return total


def arithmetic(expr: Expr) -> int:
    """Calls in an expression that compute a number from values: no comparison, selection or index arithmetic."""
    return sum(
        isinstance(e, Call) and FUNCTIONS[e.fn].result in ("same", "float") and not _is_index(e) for e in _values(expr)
    )


def _is_index(expr: Expr) -> bool:
    return not loads(expr) and all(isinstance(e, Axis | Const | Call) for e in _values(expr)) and bool(axes_of(expr))


def bytes_moved(spec: KernelSpec, expected: bool = False) -> int:
    """Bytes that any kernel for the spec must read and write: each input element that is needed once, each output
    element once. Indirect accesses count a single element in each indirect dimension, since all indices may be equal;
    with `expected` they count as if all differed, and overlapping accesses of one tensor are added up."""
    algebra = IndexAlgebra(spec.size)
    touched: dict[str, list[int]] = defaultdict(list)
    for stmt in spec.body:
        for load in stmt.loads():
            if load.tensor in spec.stmt:
                continue
            touched[load.tensor].append(_touched(spec, algebra, load, expected))
    total = 0
    for operand in spec.inputs:
        numel = points(spec, operand.dims)
        counts = touched.get(operand.name, [0])
        total += min(numel, sum(counts) if expected else max(counts)) * operand.dtype.bytes
    return total + sum(points(spec, o.dims) * o.dtype.bytes for o in spec.outputs)


def _touched(spec: KernelSpec, algebra: IndexAlgebra, load: Load, expected: bool) -> int:
    """Distinct elements that a load touches."""
    count = 1
    for index, dim in zip(load.index, spec.dims_of(load.tensor), strict=True):
        extent = spec.extent(dim)
        domain = points(spec, tuple(axes_of(index)))
        if loads(index):
            count *= min(extent, domain) if expected else 1
            continue
        low, high = algebra.interval(index)
        span = min(high, extent - 1) - max(low, 0) + 1
        count *= int(max(0, min(span, domain)))
    return min(count, points(spec, tuple(dict.fromkeys(a for i in load.index for a in axes_of(i)))))


# ---------------------------------------------------------------- what fusion weighs


def price(spec: KernelSpec, pattern: Pattern) -> float:
    """Cost of a kernel in bytes of traffic: memory, launch, and pointwise work with its repetitions."""
    traffic = float(bytes_moved(spec, expected=True))
    if isinstance(pattern, Rows) and any(set(o.dims) & set(pattern.inner) for o in spec.outputs):
        # Whoever writes the row again after reducing it has to own all of it; a mere reduction can be split.
        traffic *= max(1.0, ROWS_IN_FLIGHT / max(points(spec, pattern.outer), 1))
    return traffic + LAUNCH_BYTES * launches(pattern) + repeated_work(spec, pattern) / OPS_PER_BYTE


def launches(pattern: Pattern) -> int:
    """How many launches a kernel of this pattern takes."""
    return len(pattern.stages) if isinstance(pattern, Staged) else 1


def repeated_work(spec: KernelSpec, pattern: Pattern) -> float:
    """ALU operations of all statements, where a temporary that no thread owns is computed at every read. The product
    inside a contraction is left out: fusion does not change it."""
    times = evaluations(spec, pattern)
    return sum(
        times[s.target] * work(s.expr)
        for s in spec.body
        if not (isinstance(pattern, Contraction) and s.target == pattern.stmt.target)
    )


def evaluations(spec: KernelSpec, pattern: Pattern) -> dict[str, float]:
    """How often each statement's expression is evaluated. Owned statements (outputs, and what follows from a
    reduction) once a point; others once for each distinct read by each of their readers."""
    owned = {*dependents(spec), *(o.name for o in spec.outputs)}
    times: dict[str, float] = {}
    reads: dict[str, dict[tuple[Expr, ...], float]] = defaultdict(dict)
    for stmt in reversed(spec.body):
        if stmt.target in owned:
            times[stmt.target] = float(points(spec, (*stmt.axes, *stmt.inner_axes)))
        else:
            times[stmt.target] = sum(reads[stmt.target].values())
        for load in stmt.loads():
            if load.tensor in spec.stmt:
                count = times[stmt.target]
                if isinstance(stmt.over, Order):
                    count *= spec.extent(stmt.over.axis)  # ranks are counted against every other element
                if isinstance(pattern, Contraction) and stmt.target == pattern.stmt.target:
                    count = operand_evaluations(spec, pattern, load)
                seen = reads[load.tensor]
                seen[load.index] = max(seen.get(load.index, 0.0), count)
    return times


def operand_evaluations(spec: KernelSpec, pattern: Contraction, load: Load) -> float:
    """How often a contraction evaluates one of its operands: at each of its points, once for each tile of the other."""
    in_a = any(e == load for e in loads(pattern.a))
    own, other = (pattern.m, pattern.n) if in_a else (pattern.n, pattern.m)
    tiles = -(-points(spec, other) // TILE)
    return float(prod(points(spec, axes) for axes in (pattern.batch, own, pattern.k)) * tiles)


def stmt_points(spec: KernelSpec, stmt: Stmt) -> int:
    """Points at which a statement's expression is combined."""
    return points(spec, (*stmt.axes, *stmt.inner_axes))


__all__ = [
    "arithmetic",
    "bytes_moved",
    "evaluations",
    "flops",
    "is_transcendental",
    "price",
    "stmt_points",
    "weight",
    "work",
]

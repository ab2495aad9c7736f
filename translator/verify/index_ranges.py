"""Ranges of operands that reach an index through arithmetic: positions that count a mask, plus an offset.

An operand that indexes an axis as it is stays inside the axis. Where arithmetic stands between, the interval of the
index follows from the operand's, and the operand's is narrowed until the index stays inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from kvc.kernel import Axis, Call, Cast, Const, Expr, KernelSpec, Load, Reduce, Scan, Scatter, Stmt, walk

Interval = tuple[float, float]

_ROUNDS = 24  # an offset takes one, a product one for each power of two
_ANY = (-inf, inf)
# What values pass through on their way to an index.
_LINEAR = frozenset({"add", "sub", "mul", "neg", "minimum", "maximum", "where", "floor", "round", "trunc"})


def float_indices(spec: KernelSpec) -> dict[str, int]:
    """Float operands whose values, made integers, index a tensor, with the extent of the smallest axis indexed."""
    sources = _linear_sources(spec)
    found: dict[str, int] = {}
    for index, extent in _indices(spec):
        for operand in {o for load in walk(index) if isinstance(load, Load) for o in sources.get(load.tensor, ())}:
            found[operand] = min(found.get(operand, extent), extent)
    return {o.name: found[o.name] for o in spec.inputs if o.dtype.is_float and o.name in found}


def narrowed(spec: KernelSpec, ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """`ranges` ([low, high) by operand) narrowed until no index leaves its axis, as far as intervals tell; as they were
    where that does not come to an end."""
    sources = _linear_sources(spec)
    indices = [
        (index, extent, {o for e in walk(index) if isinstance(e, Load) for o in sources.get(e.tensor, ())} & {*ranges})
        for index, extent in _indices(spec)
    ]
    result = dict(ranges)
    for _ in range(_ROUNDS):
        intervals = _Intervals(spec, result)
        under, over = dict.fromkeys(result, 0.0), dict.fromkeys(result, 0.0)
        for index, extent, operands in indices:
            low, high = intervals.of(index)
            below, above = max(-low, 0.0), max(high - (extent - 1), 0.0)
            for operand in operands if below or above else ():
                first, last = (above, below) if _falls(spec, result, index, operand) else (below, above)
                under[operand], over[operand] = max(under[operand], first), max(over[operand], last)
        if not any(under.values()) and not any(over.values()):
            return result
        result = {o: _cut(first, end, under[o], over[o]) for o, (first, end) in result.items()}
    return dict(ranges)


def _falls(spec: KernelSpec, ranges: Mapping[str, tuple[int, int]], index: Expr, operand: str) -> bool:
    """Whether an index falls while an operand grows: it is then the operand's largest value that is too low."""
    first, end = ranges[operand]
    ends = [_Intervals(spec, {**ranges, operand: (at, at + 1)}).of(index) for at in (first, end - 1)]
    return ends[0] > ends[1]


def _cut(first: int, end: int, under: float, over: float) -> tuple[int, int]:
    """A range less what its index lies outside the axis; half of it, where the index grows faster than its operand."""
    if first + under < end - over:
        return int(first + under), int(end - over)
    half = max((end - first) // 2, 1)
    return (first, first + half) if over >= under else (end - half, end)


def _indices(spec: KernelSpec) -> Iterator[tuple[Expr, int]]:
    """Indirect indices that no guard covers, with the extent of what they index."""
    for stmt in spec.body:
        for root in stmt.roots:
            for load in (e for e in walk(root) if isinstance(e, Load) and e.other is None):
                for index, dim in zip(load.index, spec.dims_of(load.tensor), strict=True):
                    if any(isinstance(e, Load) for e in walk(index)):
                        yield index, spec.extent(dim)
        if isinstance(stmt.over, Scatter):
            for index, axis in zip(stmt.over.index, stmt.axes, strict=True):
                yield index, spec.extent(axis)


def _linear_sources(spec: KernelSpec) -> dict[str, tuple[str, ...]]:
    """For each tensor the operands whose values it is made of by arithmetic that an interval follows."""
    sources: dict[str, tuple[str, ...]] = {o.name: (o.name,) for o in spec.inputs}
    for stmt in spec.body:
        plain = stmt.over is None or (isinstance(stmt.over, Reduce | Scan) and stmt.dtype.is_integer)
        linear = all(e.fn in _LINEAR for e in walk(stmt.expr) if isinstance(e, Call))
        if plain and (linear or stmt.dtype.is_integer) and stmt.loop is None:
            read = [o for load in stmt.loads() for o in sources.get(load.tensor, ())]
            sources[stmt.target] = tuple(dict.fromkeys(read))
    return sources


class _Intervals:
    """Closed intervals of the tensors of a spec, from those of its integer operands."""

    def __init__(self, spec: KernelSpec, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.spec = spec
        self.known: dict[str, Interval] = {name: (low, high - 1) for name, (low, high) in ranges.items()}
        for operand in spec.inputs:
            if operand.dtype.kind == "bool":
                self.known[operand.name] = (0, 1)
        for stmt in spec.body:
            self.known[stmt.target] = self._stmt(stmt)

    def _stmt(self, stmt: Stmt) -> Interval:
        if stmt.loop is not None or isinstance(stmt.over, Scatter):
            return _ANY
        low, high = self.of(stmt.expr)
        if stmt.over is None:
            return low, high
        if isinstance(stmt.over, Reduce | Scan) and stmt.over.op in ("max", "min"):
            return low, high
        if isinstance(stmt.over, Reduce | Scan) and stmt.over.op == "sum":
            axes = stmt.over.axes if isinstance(stmt.over, Reduce) else (stmt.over.axis,)
            count = 1
            for axis in axes:
                count *= self.spec.extent(axis)
            return min(low, low * count), max(high, high * count)
        if isinstance(stmt.over, Reduce) and stmt.over.op.startswith("arg"):
            return 0, self.spec.extent(stmt.over.axes[0]) - 1
        return _ANY if isinstance(stmt.over, Reduce | Scan) or stmt.over.kind == "sort" else self._order(stmt)

    def _order(self, stmt: Stmt) -> Interval:
        axis = getattr(stmt.over, "axis", stmt.axes[-1])
        return 0, self.spec.extent(axis) - 1

    def of(self, expr: Expr) -> Interval:
        """The interval of an expression's values."""
        match expr:
            case Const(value):
                return float(value), float(value)
            case Axis(name):
                return 0, self.spec.extent(name) - 1
            case Load(tensor):
                return self.known.get(tensor, _ANY)
            case Cast(dtype, arg):
                low, high = self.of(arg)
                return (0, 1) if dtype.kind == "bool" else (low, high)
            case Call(fn, args):
                return _call(fn, [self.of(a) for a in args])
        return _ANY


def _call(fn: str, args: list[Interval]) -> Interval:
    if fn in ("lt", "le", "gt", "ge"):
        (a, b), (c, d) = args if fn in ("lt", "le") else args[::-1]
        always, never = (b < c, a >= d) if fn in ("lt", "gt") else (b <= c, a > d)
        return (1, 1) if always else (0, 0) if never else (0, 1)
    if fn in ("eq", "ne", "and", "or", "not", "isnan", "isinf"):
        return 0, 1
    if fn == "where":
        condition, yes, no = args
        if condition in ((0, 0), (1, 1)):
            return yes if condition == (1, 1) else no
        return min(yes[0], no[0]), max(yes[1], no[1])
    if fn == "neg":
        return -args[0][1], -args[0][0]
    if len(args) == 1:
        return args[0] if fn in ("floor", "ceil", "trunc", "round") else _ANY
    (a, b), (c, d) = args[:2]
    if fn == "add":
        return a + c, b + d
    if fn == "sub":
        return a - d, b - c
    if fn in ("minimum", "maximum"):
        pick = min if fn == "minimum" else max
        return pick(a, c), pick(b, d)
    if fn == "mul" and inf not in map(abs, (a, b, c, d)):
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    if fn == "floordiv" and c == d and c > 0:
        return a // c if a > -inf else a, b // c if b < inf else b
    if fn == "mod" and c == d and c > 0:
        return (a, b) if a >= 0 and b < c else (0, c - 1)
    return _ANY

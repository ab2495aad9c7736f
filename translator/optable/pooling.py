"""Pooling: small reductions over windows, with guards at the border."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from kvc.builder import Builder, Tensor
from kvc.dtypes import I64, DType
from kvc.kernel import Axis, Cast, Expr, call
from kvc.ops import op
from kvc.optable._common import flatten, pair, sample, t, terms

Ints = int | Sequence[int]


def lowest(dtype: DType) -> float | int:
    """The identity of max for values of a dtype."""
    if dtype.is_float:
        return -inf
    return 0 if dtype.kind == "uint" else -(2 ** (dtype.bits - 1))


class Windows:
    """Geometry of a pooling op over the last `rank` dims. Extents as in ATen's pooling_output_shape: with ceil_mode the
    last window may hang over the end, as long as it starts inside the input or its left padding."""

    def __init__(
        self, x: Tensor, rank: int, size: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
    ) -> None:
        self.shape = x.shape[-rank:]
        self.size = pair(size, rank)
        self.stride = pair(stride, rank) if stride not in ((), []) and stride is not None else self.size
        self.padding, self.dilation = pair(padding, rank), pair(dilation, rank)
        self.out = tuple(self._extent(i, ceil) for i in range(rank))

    def _extent(self, i: int, ceil: bool) -> int:
        n, s, p = self.shape[i], self.stride[i], self.padding[i]
        span = n + 2 * p - self.dilation[i] * (self.size[i] - 1) - 1
        out = (span + (s - 1 if ceil else 0)) // s + 1
        return out - 1 if ceil and (out - 1) * s >= n + p else out

    @property
    def inside(self) -> bool:
        """Whether no window leaves the input."""
        return not any(self.padding) and all(
            (o - 1) * s + d * (k - 1) < n
            for o, s, d, k, n in zip(self.out, self.stride, self.dilation, self.size, self.shape, strict=True)
        )

    def index(self, points: Sequence[Axis], window: Sequence[Expr]) -> tuple[Expr, ...]:
        result = []
        for i, (point, at) in enumerate(zip(points, window, strict=True)):
            left = point * self.stride[i] if self.stride[i] != 1 else point
            right = at * self.dilation[i] if self.dilation[i] != 1 else at
            result.append(left + right - self.padding[i] if self.padding[i] else left + right)
        return tuple(result)


def _max_pool(k: Builder, x: Tensor, w: Windows) -> Tensor:
    rank = len(w.out)
    axes = k.axes((*x.shape[:-rank], *w.out))
    window = k.axes(w.size, "r")
    index = (*axes[:-rank], *w.index(axes[-rank:], window))
    value = x.at(index, None if w.inside else lowest(x.dtype))
    return k.define(x.dtype, axes, value, k.reduce("max", *window))


def _max_index(k: Builder, x: Tensor, w: Windows) -> Tensor:
    """Row-major position, within the spatial dims, of each window's maximum."""
    rank = len(w.out)
    axes = k.axes((*x.shape[:-rank], *w.out))
    flat = k.axis(prod(w.size), "r")
    value = x.at(
        (*axes[:-rank], *w.index(axes[-rank:], _unflatten(flat, w.size))), None if w.inside else lowest(x.dtype)
    )
    best = k.define(I64, axes, value, k.reduce("argmax", flat))
    axes = k.axes_like(best)
    position = w.index(axes[-rank:], _unflatten(best[axes], w.size))
    return k.define(I64, axes, flatten(position, w.shape))


def _unflatten(flat: Expr, size: Sequence[int]) -> list[Expr]:
    parts: list[Expr] = []
    step = prod(size)
    for i, n in enumerate(size):
        step //= n
        part = flat // step if step > 1 else flat
        parts.append(part % n if i else part)
    return parts


def _register_max(rank: int) -> None:
    x = t(2, 3, *(9, 8, 7)[:rank])
    samples = (
        sample(x, 2),
        sample(x, 3, 2, 1),
        sample(x, 3, 2, 0, 1, True),
        sample(x, 2, 1, 0, 2),
        sample(x, 3, 2, 1, 1, True),
        sample(t(3, *(9, 8, 7)[:rank]), 2),
        sample(t(1, 2, *(5, 6, 7)[:rank], dtype="bf16"), 2),
    )

    def plain(
        k: Builder,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> Tensor:
        return _max_pool(k, self, Windows(self, rank, kernel_size, stride, padding, dilation, ceil_mode))

    def indexed(
        k: Builder,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        w = Windows(self, rank, kernel_size, stride, padding, dilation, ceil_mode)
        return _max_pool(k, self, w), _max_index(k, self, w)

    op(f"max_pool{rank}d.default", name=f"max_pool{rank}d", samples=samples)(plain)
    op(f"max_pool{rank}d_with_indices.default", name=f"max_pool{rank}d_with_indices", samples=samples)(indexed)


def counts(w: Windows, include_pad: bool, points: Sequence[Axis]) -> float | Expr:
    """What a window's sum is divided by: a number, where it is the same for all, else an expression."""

    def extent(i: int, start: int) -> int:
        stop = min(start + w.size[i], w.shape[i] + w.padding[i])
        return stop - start if include_pad else min(stop, w.shape[i]) - max(start, 0)

    counts: list[list[int]] = []
    for i, out in enumerate(w.out):
        counts.append([extent(i, o * w.stride[i] - w.padding[i]) for o in range(out)])
    if all(len(set(c)) == 1 for c in counts):
        return float(prod(c[0] for c in counts))
    parts: list[Expr] = []
    for i, point in enumerate(points):
        start = point * w.stride[i] - w.padding[i]
        stop = call("minimum", start + w.size[i], w.shape[i] + (w.padding[i] if include_pad else 0))
        parts.append(stop - (start if include_pad else call("maximum", start, 0)))
    return terms(parts, "mul")


def _register_avg(rank: int) -> None:
    x = t(2, 3, *(9, 8, 7)[:rank])
    samples = (
        sample(x, 2),
        sample(x, 3, 2, 1),
        sample(x, 3, 2, 1, count_include_pad=False),
        sample(x, 3, 2, 0, ceil_mode=True),
        sample(x, 3, 2, 1, True, True),
        sample(t(3, *(9, 8, 7)[:rank]), 2),
        # The CPU has no bf16 average in three dimensions to compare with.
        *((sample(t(1, 2, *(5, 6)[:rank], dtype="bf16"), 2),) if rank < 3 else ()),
        *((sample(x, 2, divisor_override=3),) if rank > 1 else ()),
    )

    def meaning(
        k: Builder,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        w = Windows(self, rank, kernel_size, stride, padding, 1, ceil_mode)
        axes = k.axes((*self.shape[:-rank], *w.out))
        window = k.axes(w.size, "r")
        value = self.at((*axes[:-rank], *w.index(axes[-rank:], window)), None if w.inside else 0)
        total = k.define(self.dtype.compute, axes, value, k.sum(*window))
        axes = k.axes_like(total)
        count = float(divisor_override) if divisor_override else counts(w, count_include_pad, axes[-rank:])
        return k.define(self.dtype, axes, total[axes] / count)

    op(f"avg_pool{rank}d.default", name=f"avg_pool{rank}d", samples=samples)(meaning)


# ---------------------------------------------------------------- adaptive


def _span(i: int, n: int, out: int) -> tuple[int, int]:
    """First and one-past-last input position of an adaptive window: floor(i n / out), ceil((i + 1) n / out)."""
    return i * n // out, -(-(i + 1) * n // out)


def _adaptive_index(k: Builder, n: int, out: int, point: Axis) -> tuple[Expr, Axis, Expr | None, int | Expr]:
    """(input index, window axis, condition that the position is in the window, its length) of one dim."""
    if n % out == 0:
        size = n // out
        r = k.axis(size, "r")
        return (r if out == 1 else point * size + r), r, None, size
    longest = max(b - a for a, b in (_span(i, n, out) for i in range(out)))
    r = k.axis(longest, "r")
    start = point * n // out
    stop = (point * n + (n + out - 1)) // out
    return start + r, r, call("lt", start + r, stop), stop - start


def adaptive(
    k: Builder, x: Tensor, out: Sequence[int | None]
) -> tuple[list[Axis], list[Expr], list[Axis], Expr | None, list[int | Expr]]:
    """(axes of the result, index into x, window axes, condition that a position is in the window, window lengths) of
    adaptive windows over the last dims."""
    rank = len(out)
    full = [x.shape[-rank + i] if n is None or n < 0 else n for i, n in enumerate(out)]
    axes = list(k.axes((*x.shape[:-rank], *full)))
    index: list[Expr] = list(axes[:-rank])
    window: list[Axis] = []
    conditions: list[Expr] = []
    lengths = []
    for i in range(rank):
        at, r, condition, length = _adaptive_index(k, x.shape[-rank + i], full[i], axes[len(axes) - rank + i])
        index.append(at)
        window.append(r)
        lengths.append(length)
        if condition is not None:
            conditions.append(condition)
    return axes, index, window, terms(conditions, "and") if conditions else None, lengths


def adaptive_counts(shape: Sequence[int], out: Sequence[int], points: Sequence[Axis], dtype: DType) -> float | Expr:
    """How many positions of dims `shape` the adaptive window at each of `points` (of extents `out`) averages."""
    lengths: list[int | Expr] = []
    for n, m, point in zip(shape, out, points, strict=True):
        lengths.append(n // m if n % m == 0 else (point * n + (n + m - 1)) // m - point * n // m)
    return _product(lengths, dtype)


def _product(lengths: Sequence[int | Expr], dtype: DType) -> float | Expr:
    numbers = [n for n in lengths if isinstance(n, int)]
    if len(numbers) == len(lengths):
        return float(prod(numbers))
    factors = [n if isinstance(n, Expr) else call("add", n, 0) for n in lengths]
    return Cast(dtype.compute, terms(factors, "mul"))


def _register_adaptive(rank: int) -> None:
    spatial = (8, 6, 4)[:rank]
    x = t(2, 3, *spatial)
    odd = (3, 4, 3)[:rank]
    samples = (
        sample(x, (1,) * rank),
        sample(x, (2,) * rank),
        sample(x, odd),
        sample(t(3, *spatial), (2,) * rank),
        sample(t(2, 3, *(3, 2, 3)[:rank]), (4, 3, 4)[:rank]),
        sample(t(2, 3, *spatial, dtype="bf16"), (1,) * rank),
    )

    def average(k: Builder, self: Tensor, output_size: Sequence[int]) -> Tensor:
        axes, index, window, condition, lengths = adaptive(k, self, pair(output_size, rank))
        value = self.at(index, 0.0 if condition is not None else None)
        total = k.define(self.dtype.compute, axes, value, k.sum(*window, where=condition))
        return k.define(self.dtype, axes, total[tuple(axes)] / _product(lengths, self.dtype))

    def maximum(k: Builder, self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
        axes, index, window, condition, _ = adaptive(k, self, pair(output_size, rank))
        value = self.at(index, lowest(self.dtype) if condition is not None else None)
        best = k.define(self.dtype, axes, value, k.reduce("max", *window, where=condition))
        return best, _adaptive_where(k, self, best, rank)

    overloads = [f"adaptive_avg_pool{rank}d.default", f"_adaptive_avg_pool{rank}d.default"]
    op(*overloads[: 1 if rank == 1 else 2], name=f"adaptive_avg_pool{rank}d", samples=samples)(average)
    op(f"adaptive_max_pool{rank}d.default", name=f"adaptive_max_pool{rank}d", samples=samples[:4])(maximum)


def _adaptive_where(k: Builder, x: Tensor, best: Tensor, rank: int) -> Tensor:
    """Row-major position of each adaptive window's maximum: the first position in the window that holds it."""
    shape = x.shape[-rank:]
    axes = k.axes_like(best)
    points = axes[-rank:]
    starts: list[Expr] = []
    stops: list[Expr] = []
    longest = []
    for point, n, out in zip(points, shape, best.shape[-rank:], strict=True):
        starts.append(point * n // out)
        stops.append((point * n + (n + out - 1)) // out)
        longest.append(max(b - a for a, b in (_span(i, n, out) for i in range(out))))
    flat = k.axis(prod(longest), "r")
    at = [s + w for s, w in zip(starts, _unflatten(flat, longest), strict=True)]
    # The guard value stands for positions outside the window, so it must lose against every value inside.
    inside = terms([call("lt", a, stop) for a, stop in zip(at, stops, strict=True)], "and")
    low = lowest(x.dtype)
    value = call("where", inside, x.at((*axes[:-rank], *at), low), low)
    where = k.define(I64, axes, value, k.reduce("argmax", flat))
    o = k.axes_like(where)
    first = [p * n // out for p, n, out in zip(o[-rank:], shape, best.shape[-rank:], strict=True)]
    offset = _unflatten(where[o], longest)
    return k.define(I64, o, flatten([a + b for a, b in zip(first, offset, strict=True)], shape))


for _rank in (1, 2, 3):
    _register_max(_rank)
    _register_avg(_rank)
    _register_adaptive(_rank)

"""Positions in sorted values, histograms, and what runs over a tensor's elements in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kvc.builder import Builder, Tensor
from kvc.dtypes import I32, I64
from kvc.kernel import Cast, Const, Expr, Scan, Scatter, call
from kvc.ops import op
from kvc.optable._common import Scalar, at, bools, clip, flatten, ints, positive, sample, t

# ---------------------------------------------------------------- sorted values


@op("bucketize.Tensor", samples=(sample(t(3, 4), t(1)),))
def bucketize(k: Builder, self: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    """How many boundaries lie below each value (`right`: or are equal to it)."""
    axes, n = k.axes_like(self), k.axis(boundaries.shape[0], "n")
    below = call("le" if right else "lt", boundaries[n], self[axes])
    total = k.define(I64, axes, call("where", below, 1, 0), k.sum(n))
    return k.round(total, I32 if out_int32 else I64)


@op(
    "searchsorted.Tensor",
    samples=(
        sample(t(1), t(3, 4)),
        sample(t(2, 1), t(2, 5), right=True),
        sample(t(1), t(4), out_int32=True, side="right"),
    ),
)
def searchsorted(
    k: Builder,
    sorted_sequence: Tensor,
    self: Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many of the sequence's values (its last dim; its other dims are those of `self`, unless it has one) lie below
    each value. Counting needs no order, so that `sorter` does not matter."""
    axes, n = k.axes_like(self), k.axis(sorted_sequence.shape[-1], "n")
    lead = axes[:-1] if sorted_sequence.rank > 1 else ()
    below = call("le" if right or side == "right" else "lt", sorted_sequence[(*lead, n)], self[axes])
    total = k.define(I64, axes, call("where", below, 1, 0), k.sum(n))
    return k.round(total, I32 if out_int32 else I64)


@op("searchsorted.Scalar", samples=(sample(t(1), 0.25),))
def searchsorted_scalar(
    k: Builder,
    sorted_sequence: Tensor,
    self: Scalar,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    n = k.axis(sorted_sequence.shape[-1], "n")
    below = call("le" if right or side == "right" else "lt", sorted_sequence[n], self)
    total = k.define(I64, (), call("where", below, 1, 0), k.sum(n))
    return k.round(total, I32 if out_int32 else I64)


# ---------------------------------------------------------------- histograms


@op("histc.default", samples=(sample(positive(40), 8, 0.0, 1.0), sample(t(5, 6), 5, -1, 1), sample(t(30), 4)))
def histc(k: Builder, self: Tensor, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Tensor:
    """How many values fall in each of `bins` equal parts of [min, max], or of the values' own range where those are
    equal; the last part holds its upper end, values outside count nowhere."""
    axes = k.axes_like(self)
    low: Expr = Const(float(min))
    high: Expr = Const(float(max))
    if min == max:
        low, high = k.define(self.dtype, (), self[axes], k.reduce("min", *axes))[()], Const(0.0)
        high = k.define(self.dtype, (), self[axes], k.reduce("max", *axes))[()]
    axes = k.axes_like(self)
    value = self[axes]
    place = clip(Cast(I64, call("floor", (value - low) * float(bins) / (high - low))), 0, bins - 1)
    inside = call("and", call("ge", value, low), call("le", value, high))
    over = Scatter("sum", tuple(a.name for a in axes), (place,), Const(0))
    counts = k.define(I64, (k.axis(bins, "n"),), call("where", inside, 1, 0), over)
    return k.round(counts, self.dtype)


# ---------------------------------------------------------------- row-major order


def digits(position: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    """The index of a row-major position."""
    result: list[Expr] = []
    step = prod(shape)
    for i, n in enumerate(shape):
        step //= n
        part = position // step if step > 1 else position
        result.append(part % n if i else part)
    return tuple(result)


def _ranks(k: Builder, mask: Tensor, shape: Sequence[int]) -> Tensor:
    """How many of the mask (broadcast to `shape`) are set before each row-major position."""
    flat = k.axis(prod(shape), "n")
    index = digits(flat, shape)
    offset = len(shape) - mask.rank
    read = mask[tuple(Const(0) if n == 1 else index[i + offset] for i, n in enumerate(mask.shape))]
    return k.define(I64, (flat,), call("where", read, 1, 0), Scan("sum", flat.name, exclusive=True))


@op("masked_scatter.default", samples=(sample(t(3, 4), bools(3, 4), t(12)), sample(t(3, 4), bools(4), t(5, 4))))
def masked_scatter(k: Builder, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """self, with what the mask picks replaced by the values of `source` in their order."""
    ranks = _ranks(k, mask, self.shape)
    axes = k.axes_like(self)
    # Past the last value nothing is picked.
    position = call("minimum", ranks[flatten(axes, self.shape)], prod(source.shape) - 1)
    taken = k.define(I64, axes, position)
    axes = k.axes_like(self)
    value = source[digits(taken[axes], source.shape)]
    return k.define(self.dtype, axes, call("where", at(mask, axes, self.shape), value, self[axes]))


@op(
    "masked_scatter_backward.default",
    samples=(sample(t(3, 4), bools(3, 4), (15,)), sample(t(3, 4), bools(3, 4), (4, 3))),
)
def masked_scatter_backward(k: Builder, grad_output: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """What the mask picks of the gradient, in order, then zeros."""
    ranks = _ranks(k, mask, grad_output.shape)
    size = prod(sizes)
    axes = k.axes_like(grad_output)
    position = call("minimum", ranks[flatten(axes, grad_output.shape)], size - 1)
    value = call("where", at(mask, axes, grad_output.shape), grad_output[axes], 0.0)
    over = Scatter("sum", tuple(a.name for a in axes), digits(position, sizes), Const(0.0))
    return k.define(grad_output.dtype, k.axes(sizes), value, over)


@op(
    "put.default",
    samples=(sample(t(3, 4), ints(1, below=12), t(1)), sample(t(3, 4), ints(2, 3, below=12), t(2, 3), True)),
)
def put(k: Builder, self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """self, with source at the row-major positions `index` (added to what is there, with `accumulate`)."""
    axes = k.axes_like(index)
    size = prod(self.shape)
    place = index[axes]
    place_ = call("where", call("lt", place, 0), place + size, place)
    value = source[axes if source.shape == index.shape else digits(flatten(axes, index.shape), source.shape)]
    out = k.axes_like(self)
    combine = "sum" if accumulate else "set"
    over = Scatter(combine, tuple(a.name for a in axes), digits(place_, self.shape), self[out])
    return k.define(self.dtype, out, value, over)

"""Gradients of pooling and of replicated padding. Each input position gathers from the windows that hold it, so that no
two threads add to one place and the result does not depend on their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Const, Expr, Scatter, call
from kvc.ops import op
from kvc.optable._common import clip, flatten, ints, sample, t, terms
from kvc.optable.conv import gather_dim
from kvc.optable.pooling import Ints, Windows, adaptive, adaptive_counts, counts

Value = Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr]


def _gathered(k: Builder, grad: Tensor, shape: Sequence[int], w: Windows, value: Value) -> Tensor:
    """sum over the windows that hold a position of value(index of the window, the position), in the shape of the input.
    The windows of a position are those of a transposed convolution with a filter of the window's size."""
    rank = len(w.out)
    lead = k.axes(shape[:-rank])
    dims = [gather_dim(k, w.shape[i], w.size[i], w.stride[i], w.padding[i], w.dilation[i]) for i in range(rank)]
    position = []
    for i, dim in enumerate(dims):
        own: Expr = dim.axes[0]
        if len(dim.axes) > 1:
            own = dim.axes[0] * w.stride[i] + dim.axes[1] - w.padding[i]
        position.append(own)
    found = value((*lead, *(dim.x for dim in dims)), tuple(position))
    conditions = [dim.condition for dim in dims if dim.condition is not None]
    if conditions:
        found = call("where", terms(conditions, "and"), found, 0.0)
    axes = (*lead, *(a for dim in dims for a in dim.axes))
    total = k.define(grad.dtype.compute, axes, found, k.sum(*(dim.window for dim in dims)))
    if total.shape == tuple(shape):
        return k.round(total, grad.dtype)
    out = k.axes(shape)
    places = (i for dim, point in zip(dims, out[-rank:], strict=True) for i in dim.place(point))
    return k.define(grad.dtype, out, total[(*out[:-rank], *places)])


def _register_max(rank: int) -> None:
    spatial = (4, 3, 2)[-rank:]
    size = prod(spatial)
    one = (1,) * rank

    def meaning(
        k: Builder,
        grad_output: Tensor,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        """Each window's gradient to the position of its maximum. `indices` are what the pooling gave: a position
        outside its window, which no pooling gives, would be left out."""
        w = Windows(self, rank, kernel_size, stride, padding, dilation, ceil_mode)

        def value(window: tuple[Expr, ...], position: tuple[Expr, ...]) -> Expr:
            hit = call("eq", indices.at(window, -1), flatten(position, w.shape))
            return call("where", hit, grad_output.at(window, 0.0), 0.0)

        return _gathered(k, grad_output, self.shape, w, value)

    grad, x = t(2, 3, *one), t(2, 3, *spatial)
    where = ints(2, 3, *one, below=size)
    samples = (sample(grad, x, spatial, spatial, (0,) * rank, one, False, where),)
    op(f"max_pool{rank}d_with_indices_backward.default", name=f"max_pool{rank}d_backward", samples=samples)(meaning)


def _register_avg(rank: int) -> None:
    spatial = (9, 8, 7)[:rank]
    none, one, two, three = (0,) * rank, (1,) * rank, (2,) * rank, (3,) * rank
    x = t(2, 3, *spatial)
    halves, thirds = tuple(n // 2 for n in spatial), tuple((n + 2 - 3) // 2 + 1 for n in spatial)
    up = tuple(-(-(n - 3) // 2) + 1 for n in spatial)
    samples = (
        sample(t(2, 3, *halves), x, two, two, none, False, True, None),
        sample(t(2, 3, *thirds), x, three, two, one, False, True, None),
        sample(t(2, 3, *thirds), x, three, two, one, False, False, None),
        sample(t(2, 3, *up), x, three, two, none, True, True, None),
        sample(t(2, 3, *halves), x, two, (), none, False, True, 3),
        sample(t(3, *halves), t(3, *spatial), two, two, none, False, True, None),
    )

    def meaning(
        k: Builder,
        grad_output: Tensor,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        """Each window's gradient, divided by how many positions it averages, to all of them."""
        w = Windows(self, rank, kernel_size, stride, padding, 1, ceil_mode)
        axes = k.axes_like(grad_output)
        count = float(divisor_override) if divisor_override else counts(w, count_include_pad, axes[-rank:])
        if isinstance(count, Expr):
            share = k.define(grad_output.dtype.compute, axes, grad_output[axes] / count)
            return _gathered(k, grad_output, self.shape, w, lambda window, _: share.at(window, 0.0))
        return _gathered(k, grad_output, self.shape, w, lambda window, _: grad_output.at(window, 0.0) / count)

    op(f"avg_pool{rank}d_backward.default", name=f"avg_pool{rank}d_backward", samples=samples)(meaning)


def _register_adaptive(rank: int) -> None:
    spatial = (8, 6, 4)[:rank]
    odd = (3, 4, 3)[:rank]
    x = t(2, 3, *spatial)

    def average(k: Builder, grad_output: Tensor, self: Tensor) -> Tensor:
        """The windows that hold position i of n are [i*out // n, ceil((i+1)*out / n)): those of adaptive pooling from
        the output's size to the input's."""
        axes = k.axes_like(grad_output)
        count = adaptive_counts(self.shape[-rank:], grad_output.shape[-rank:], axes[-rank:], self.dtype)
        share = k.define(grad_output.dtype.compute, axes, grad_output[axes] / count)
        out, index, window, condition, _ = adaptive(k, share, self.shape[-rank:])
        value = share.at(index, 0.0 if condition is not None else None)
        total = k.define(share.dtype, out, value, k.sum(*window, where=condition))
        return k.round(total, self.dtype)

    def maximum(k: Builder, grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
        out, index, window, condition, _ = adaptive(k, grad_output, self.shape[-rank:])
        guard = (0.0, -1) if condition is not None else (None, None)
        hit = call("eq", indices.at(index, guard[1]), flatten(out[-rank:], self.shape[-rank:]))
        value = call("where", hit, grad_output.at(index, guard[0]), 0.0)
        total = k.define(grad_output.dtype.compute, out, value, k.sum(*window, where=condition))
        return k.round(total, self.dtype)

    op(
        f"_adaptive_avg_pool{rank}d_backward.default",
        name=f"adaptive_avg_pool{rank}d_backward",
        samples=(
            sample(t(2, 3, *(2,) * rank), x),
            sample(t(2, 3, *odd), x),
            sample(t(2, 3, *spatial), t(2, 3, *odd)),
            sample(t(2, 3, *(1,) * rank), x),
        ),
    )(average)
    one = (1,) * rank
    op(
        f"adaptive_max_pool{rank}d_backward.default",
        name=f"adaptive_max_pool{rank}d_backward",
        samples=(sample(t(2, 3, *one), x, ints(2, 3, *one, below=prod(spatial))),),
    )(maximum)


def _register_replication(rank: int) -> None:
    spatial = (5, 4, 3)[:rank]
    around = ((1, 2), (2, 0), (1, 1))[:rank]
    padded = tuple(n + a + b for n, (a, b) in zip(spatial, around, strict=True))
    pad = tuple(e for pair in reversed(around) for e in pair)

    def meaning(k: Builder, grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
        axes = k.axes_like(grad_output)
        index: list[Expr] = list(axes[:-rank])
        for i, point in enumerate(axes[-rank:]):
            before, n = padding[2 * (rank - 1 - i)], self.shape[i - rank]
            index.append(clip(point - before if before else point, 0, n - 1))
        return added(k, self, axes, index, grad_output[axes])

    op(
        f"replication_pad{rank}d_backward.default",
        name=f"replication_pad{rank}d_backward",
        samples=(sample(t(2, 3, *padded), t(2, 3, *spatial), pad),),
    )(meaning)


def added(k: Builder, like: Tensor, axes: Sequence[Axis], index: Sequence[Expr], value: Expr) -> Tensor:
    """Zeros in the shape and dtype of `like`, to which `value` is added at `index` for each point of `axes`."""
    over = Scatter("sum", tuple(a.name for a in axes), tuple(index), Const(0.0))
    return k.round(k.define(like.dtype.compute, k.axes_like(like), value, over), like.dtype)


for _rank in (1, 2, 3):
    if _rank > 1:
        _register_max(_rank)
        _register_avg(_rank)
        _register_adaptive(_rank)
    _register_replication(_rank)

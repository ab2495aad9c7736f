"""Convolution of any rank, as a sum over channels and window (implicit GEMM is how it is read)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Const, Expr, call
from kvc.ops import op
from kvc.optable._common import pair, sample, t, terms

Ints = int | Sequence[int]


def _bias(k: Builder, acc: Tensor, bias: Tensor | None, like: Tensor, channel: int) -> Tensor:
    if bias is None:
        return k.round(acc, like.dtype)
    axes = k.axes_like(acc)
    return k.define(like.dtype, axes, acc[axes] + bias[axes[channel]])


def _merge(k: Builder, acc: Tensor, out: int) -> Tensor:
    """[b, g, o, ...] -> [b, g*o, ...]"""
    per = acc.shape[2]
    axes = k.axes((acc.shape[0], out, *acc.shape[3:]))
    return k.define(acc.dtype, axes, acc[(axes[0], axes[1] // per, axes[1] % per, *axes[2:])])


def convolve(
    k: Builder, x: Tensor, w: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    """x[b, c, ...] * w[o, c / groups, ...]; positions outside x count as zero.

    With groups of more than one channel on both sides, the group is an axis of its own, so that each group is a plain
    contraction; with one channel it stays an index (depthwise convolution, which is a window, not a contraction).
    """
    if x.rank == w.rank - 1:
        return _unbatched(k, convolve, x, w, bias, stride, padding, dilation, groups)
    rank = x.rank - 2
    s, p, d = pair(stride, rank), pair(padding, rank), pair(dilation, rank)
    per_in, per_out = w.shape[1], w.shape[0] // groups
    extents = tuple((n + 2 * p[i] - d[i] * (w.shape[2 + i] - 1) - 1) // s[i] + 1 for i, n in enumerate(x.shape[2:]))
    batch = k.axis(x.shape[0], "b")
    c = k.axis(per_in, "c")
    window = k.axes(w.shape[2:], "r")
    by_group = groups > 1 and per_in > 1 and per_out > 1
    if by_group:
        g, o = k.axis(groups, "g"), k.axis(per_out, "o")
        out: tuple[Axis, ...] = (g, o)
        x_channel: Expr = g * per_in + c
        w_channel: Expr = g * per_out + o
    else:
        o = k.axis(w.shape[0], "o")
        out, w_channel = (o,), o
        group = o if per_out == 1 else o // per_out
        x_channel = c if groups == 1 else (group * per_in + c if per_in > 1 else group)
    points = k.axes(extents, "i")
    index = [_position(points[i], window[i], s[i], d[i], p[i]) for i in range(rank)]
    guarded = any(p) or any(
        (extents[i] - 1) * s[i] + (w.shape[2 + i] - 1) * d[i] - p[i] >= n for i, n in enumerate(x.shape[2:])
    )
    value = x.at((batch, x_channel, *index), other=0.0 if guarded else None)
    weight = w[(w_channel, c if per_in > 1 or groups == 1 else 0, *window)]
    inner = (c, *window) if per_in > 1 or groups == 1 else window
    acc = k.define(x.dtype.compute, (batch, *out, *points), value * weight, k.sum(*inner))
    if by_group:
        acc = _merge(k, acc, w.shape[0])
    return _bias(k, acc, bias, x, 1)


def _position(point: Axis, window: Axis, stride: int, dilation: int, padding: int) -> Expr:
    left = point * stride if stride != 1 else point
    right = window * dilation if dilation != 1 else window
    return left + right - padding if padding else left + right


def _unbatched(k: Builder, fn: Callable[..., Tensor], x: Tensor, *rest: Any) -> Tensor:
    axes = k.axes((1, *x.shape))
    batched = k.define(x.dtype, axes, x[axes[1:]])
    y = fn(k, batched, *rest)
    axes = k.axes(y.shape[1:])
    return k.define(y.dtype, axes, y[(Const(0), *axes)])


@dataclass(frozen=True)
class _Gather:
    """One spatial dim of a transposed convolution: `axes` of the result, the window axis that is summed over, where
    x and w are read, under which condition (None: always), and `place`: where output position p lies in the result."""

    axes: tuple[Axis, ...]
    window: Axis
    x: Expr
    w: Expr
    condition: Expr | None
    place: Callable[[Expr], tuple[Expr, ...]]


def gather_dim(k: Builder, extent: int, size: int, stride: int, padding: int, dilation: int) -> _Gather:
    """Output p gets w[r] from x[(p + padding - dilation r) / stride] for the r that make the quotient exact.

    Where stride and dilation share no factor, those r are every stride-th: p + padding = stride q + phase, r = first +
    stride t with first = phase / dilation (mod stride). Summing over t for each (q, phase) wastes no term and leaves a
    plain contraction. Otherwise all r are tried under the condition.
    """
    if stride > 1 and gcd(stride, dilation) == 1:
        q, phase = k.axis((extent - 1 + padding) // stride + 1, "q"), k.axis(stride, "p")
        step = k.axis(-(-size // stride), "r")
        inverse = pow(dilation, -1, stride)
        first: Expr = phase if inverse == 1 else phase * inverse % stride
        back: Expr = step if dilation == 1 else step * dilation
        source = q - back
        if dilation != 1:
            source = source + (phase - first * dilation) // stride
        r = first + step * stride
        # Past the window's end nothing is read, so that an infinite x does not meet a zero weight.
        condition = call("lt", r, size) if size % stride else None
        return _Gather((q, phase), step, source, r, condition, lambda p: _divided(p, padding, stride))
    point, window = k.axis(extent, "i"), k.axis(size, "r")
    reach = point + padding - (window * dilation if dilation != 1 else window)
    if stride == 1:
        return _Gather((point,), window, reach, window, None, lambda p: (p,))
    return _Gather((point,), window, reach // stride, window, call("eq", reach % stride, 0), lambda p: (p,))


def _divided(p: Expr, padding: int, stride: int) -> tuple[Expr, ...]:
    shifted = p + padding if padding else p
    return shifted // stride, shifted % stride


def transposed(
    k: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Tensor:
    """The adjoint of a convolution, gathered: y[b, o, p] = sum(c, r) x[b, c, (p + pad - dil*r) / stride] * w[c, o, r]
    over the r for which the quotient is exact."""
    if x.rank == w.rank - 1:
        return _unbatched(k, transposed, x, w, bias, stride, padding, output_padding, groups, dilation)
    rank = x.rank - 2
    s, p, e, d = pair(stride, rank), pair(padding, rank), pair(output_padding, rank), pair(dilation, rank)
    per_in, per_out = x.shape[1] // groups, w.shape[1]
    extents = tuple(
        (n - 1) * s[i] - 2 * p[i] + d[i] * (w.shape[2 + i] - 1) + e[i] + 1 for i, n in enumerate(x.shape[2:])
    )
    batch = k.axis(x.shape[0], "b")
    g = (k.axis(groups, "g"),) if groups > 1 else ()
    o, c = k.axis(per_out, "o"), k.axis(per_in, "c")
    channel = g[0] * per_in + c if g else c
    dims = [gather_dim(k, extents[i], w.shape[2 + i], s[i], p[i], d[i]) for i in range(rank)]
    conditions = [dim.condition for dim in dims if dim.condition is not None]
    value: Expr = x.at((batch, channel, *(dim.x for dim in dims)), other=0.0)
    if conditions:
        value = call("where", terms(conditions, "and"), value, 0.0)
    weight = w.at((channel, o, *(dim.w for dim in dims)), other=0.0 if conditions else None)
    axes = (batch, *g, o, *(a for dim in dims for a in dim.axes))
    acc = k.define(x.dtype.compute, axes, value * weight, k.sum(c, *(dim.window for dim in dims)))
    if bias is None and not g and acc.shape[2:] == extents:
        return k.round(acc, x.dtype)
    out = k.axes((x.shape[0], groups * per_out, *extents))
    group = (out[1] // per_out, out[1] % per_out) if g else (out[1],)
    result = acc[(out[0], *group, *(i for dim, point in zip(dims, out[2:], strict=True) for i in dim.place(point)))]
    return k.define(x.dtype, out, result if bias is None else result + bias[out[1]])


def same_padding(x: Tensor, w: Tensor, dilation: Sequence[int]) -> tuple[list[int], list[int]]:
    """Zeros before and after each spatial dim for padding="same" (the odd one goes after)."""
    total = [d * (n - 1) for d, n in zip(dilation, w.shape[2:], strict=True)]
    return [n // 2 for n in total], [n - n // 2 for n in total]


def _conv(rank: int) -> None:
    spatial = (9, 7, 6)[:rank]
    window = (3, 2, 3)[:rank]
    x, w = t(2, 4, *spatial), t(6, 4, *window)
    one, two = (1,) * rank, (2,) * rank
    samples = (
        sample(x, w),
        sample(x, w, t(6), two, one),
        sample(x, w, t(6), padding=one, dilation=two),
        sample(x, t(6, 2, *window), t(6), one, one, one, 2),
        sample(x, t(4, 1, *window), None, padding=one, groups=4),
        sample(x, t(8, 1, *window), None, groups=4),
        sample(t(4, *spatial), w, t(6)),
        sample(t(2, 3, *spatial, dtype="bf16"), t(5, 3, *window, dtype="bf16"), t(5, dtype="bf16"), padding=one),
        sample(x, w, t(6), padding="same"),
        sample(x, t(6, 4, *one), None, padding="valid"),
    )

    def meaning(
        k: Builder,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Tensor:
        if padding == "valid":
            padding = 0
        if isinstance(padding, str):
            from kvc.optable.join import constant_pad_nd

            before, after = same_padding(input, weight, pair(dilation, rank))
            both = [n for b, a in zip(reversed(before), reversed(after), strict=True) for n in (b, a)]
            if before == after:
                return convolve(k, input, weight, bias, stride, before, dilation, groups)
            input, padding = constant_pad_nd(k, input, both), 0
        return convolve(k, input, weight, bias, stride, padding, dilation, groups)

    op(f"conv{rank}d.default", f"conv{rank}d.padding", name=f"conv{rank}d", samples=samples)(meaning)


def _conv_transpose(rank: int) -> None:
    spatial = (5, 4, 3)[:rank]
    window = (3, 2, 3)[:rank]
    x, w = t(2, 4, *spatial), t(4, 6, *window)
    none, one, two = (0,) * rank, (1,) * rank, (2,) * rank
    samples = (
        sample(x, w),
        sample(x, w, t(6), two, one, one),
        sample(x, w, t(6), (3,) * rank, none, none, 1, two),
        sample(x, w, None, two, one, none, 1, two),
        sample(x, w, None, (3,) * rank, one, two, 1, (4,) * rank),
        sample(x, t(4, 3, *window), t(6), two, one, none, 2),
        sample(t(4, *spatial), w, t(6)),
        sample(t(1, 4, *spatial, dtype="bf16"), t(4, 3, *window, dtype="bf16"), None, two),
    )

    def meaning(
        k: Builder,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        dilation: Ints = 1,
    ) -> Tensor:
        return transposed(k, input, weight, bias, stride, padding, output_padding, groups, dilation)

    suffix = "default" if rank == 1 else "input"
    op(f"conv_transpose{rank}d.{suffix}", name=f"conv_transpose{rank}d", samples=samples)(meaning)


for _rank in (1, 2, 3):
    _conv(_rank)
    _conv_transpose(_rank)


@op(
    "convolution.default",
    samples=(
        sample(t(2, 4, 9, 7), t(6, 4, 3, 3), t(6), (2, 1), (1, 1), (1, 1), False, (0, 0), 1),
        sample(t(2, 4, 5, 4), t(4, 3, 3, 2), None, (2, 2), (1, 0), (1, 1), True, (1, 0), 2),
    ),
)
def convolution(
    k: Builder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    if transposed:
        return _transposed(k, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolve(k, input, weight, bias, stride, padding, dilation, groups)


_transposed = transposed


@op("im2col.default", samples=(sample(t(2, 3, 7, 6), (3, 2), (1, 2), (1, 0), (2, 1)),))
def im2col(k: Builder, self: Tensor, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Tensor:
    """Windows as columns: [b, c*kh*kw, positions]."""
    from kvc.optable.views import reshaped

    size, d, p, s = (pair(v, 2) for v in (kernel_size, dilation, padding, stride))
    b, c, *spatial = self.shape
    extents = [(n + 2 * p[i] - d[i] * (size[i] - 1) - 1) // s[i] + 1 for i, n in enumerate(spatial)]
    axes = k.axes((b, c, *size, *extents))
    index = [_position(axes[4 + i], axes[2 + i], s[i], d[i], p[i]) for i in range(2)]
    windows = k.define(self.dtype, axes, self.at((axes[0], axes[1], *index), other=0))
    return reshaped(k, windows, (b, c * prod(size), prod(extents)))

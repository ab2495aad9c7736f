"""Interpolation. Source coordinates are worked out per output coordinate, as ATen's kernels do."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import floor

from kvc.builder import Builder, Tensor
from kvc.dtypes import F32, I64
from kvc.kernel import Axis, Cast, Expr, call
from kvc.ops import op
from kvc.optable._common import clip, sample, t

Scales = Sequence[float | None] | None


def _f32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def _output(x: Tensor, rank: int, size: Sequence[int] | None, factors: Sequence[float] | None) -> tuple[int, ...]:
    if size is not None:
        return tuple(size)
    assert factors is not None
    return tuple(floor(n * f) for n, f in zip(x.shape[-rank:], factors, strict=True))


def _scale(n: int, out: int, factor: float | None) -> float:
    """Input steps for one output step."""
    return 1.0 / factor if factor else n / out


def _nearest_index(point: Axis, n: int, out: int, factor: float | None, exact: bool) -> Expr:
    """floor(point * scale), or floor((point + 0.5) * scale) where `exact`: an integer formula where it gives the same
    positions as ATen's float32 arithmetic, which is what decides."""
    scale = _f32(_scale(n, out, factor))
    half = 0.5 if exact else 0.0
    wanted = [min(floor(_f32(_f32(i + half) * scale)), n - 1) for i in range(out)]
    if wanted == list(range(out)):
        return point
    if wanted == [(2 * i + 1) * n // (2 * out) if exact else i * n // out for i in range(out)]:
        if not exact and out % n == 0:
            return point // (out // n)
        if not exact and n % out == 0:
            return point * (n // out)
        return (point * (2 * n) + n) // (2 * out) if exact else point * n // out
    position = (Cast(F32, point) + half) * scale if exact else Cast(F32, point) * scale
    return clip(Cast(I64, call("floor", position)), 0, n - 1)


def _nearest(k: Builder, x: Tensor, out: Sequence[int], factors: Scales, exact: bool) -> Tensor:
    rank = len(out)
    axes = k.axes((*x.shape[:-rank], *out))
    steps = factors or (None,) * rank
    index = [
        _nearest_index(axes[len(axes) - rank + i], x.shape[-rank + i], out[i], steps[i], exact) for i in range(rank)
    ]
    return k.define(x.dtype, axes, x[(*axes[:-rank], *index)])


def _register_nearest(rank: int, exact: bool) -> None:
    name = f"{'_' if exact else ''}upsample_nearest{'_exact' if exact else ''}{rank}d"
    spatial = (5, 4, 3)[:rank]
    x = t(2, 3, *spatial)

    def sized(
        k: Builder, self: Tensor, output_size: Sequence[int], *scales: float | None, **named: float | None
    ) -> Tensor:
        given = scales or tuple(named.get(s) for s in _scale_names(rank))
        return _nearest(k, self, output_size, given, exact)

    def vec(
        k: Builder, input: Tensor, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None = None
    ) -> Tensor:
        return _nearest(k, input, _output(input, rank, output_size, scale_factors), scale_factors, exact)

    op(f"{name}.default", name=name, samples=(sample(x, (10, 8, 6)[:rank]), sample(x, (7, 9, 4)[:rank])))(sized)
    op(
        f"{name}.vec",
        name=f"{name}_vec",
        samples=(
            sample(x, None, (2.0,) * rank),
            sample(x, None, (1.7, 2.0, 0.6)[:rank]),
            sample(x, (3, 3, 5)[:rank], None),
        ),
    )(vec)


def _scale_names(rank: int) -> tuple[str, ...]:
    return {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]


def _corner(k: Builder, n: int, out: int, corners: bool, factor: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """(lower position, upper position, weight of the upper one) for each output coordinate."""
    point = k.axis(out)
    if corners:
        source: Expr = Cast(F32, point) * ((n - 1) / (out - 1) if out > 1 else 0.0)
    else:
        source = call("maximum", (Cast(F32, point) + 0.5) * _scale(n, out, factor) - 0.5, 0.0)
    at = k.define(F32, (point,), source)
    point = k.axis(out)
    low = k.define(I64, (point,), clip(Cast(I64, call("floor", at[point])), 0, n - 1))
    point = k.axis(out)
    high = k.define(I64, (point,), call("minimum", low[point] + 1, n - 1))
    point = k.axis(out)
    weight = k.define(F32, (point,), clip_unit(at[point] - Cast(F32, low[point])))
    return low, high, weight


def clip_unit(value: Expr) -> Expr:
    return call("minimum", call("maximum", value, 0.0), 1.0)


def _linear(k: Builder, x: Tensor, out: Sequence[int], corners: bool, factors: Scales) -> Tensor:
    """Linear interpolation along each spatial dim: a weighted sum over the 2^rank corners."""
    rank = len(out)
    steps = factors or (None,) * rank
    tables = [_corner(k, x.shape[-rank + i], out[i], corners, steps[i]) for i in range(rank)]
    axes = k.axes((*x.shape[:-rank], *out))
    points = axes[-rank:]

    def blend(dim: int, index: tuple[Expr, ...]) -> Expr:
        if dim == rank:
            return x[(*axes[:-rank], *index)]
        low, high, weight = tables[dim]
        w = weight[points[dim]]
        return (1.0 - w) * blend(dim + 1, (*index, low[points[dim]])) + w * blend(dim + 1, (*index, high[points[dim]]))

    return k.define(x.dtype, axes, blend(0, ()))


def _register_linear(rank: int) -> None:
    name = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}[rank]
    x = t(2, 3, *(5, 4, 3)[:rank])

    def sized(
        k: Builder,
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
        **named: float | None,
    ) -> Tensor:
        given = scales or tuple(named.get(s) for s in _scale_names(rank))
        return _linear(k, self, output_size, align_corners, given)

    def vec(
        k: Builder,
        input: Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None = None,
    ) -> Tensor:
        out = _output(input, rank, output_size, scale_factors)
        return _linear(k, input, out, align_corners, scale_factors)

    op(f"{name}.default", name=name, samples=(sample(x, (10, 8, 6)[:rank], False), sample(x, (7, 9, 4)[:rank], True)))(
        sized
    )
    op(
        f"{name}.vec",
        name=f"{name}_vec",
        samples=(sample(x, None, False, (2.0,) * rank), sample(x, (3, 7, 5)[:rank], True, None)),
    )(vec)


# ---------------------------------------------------------------- antialiased

_KEYS = -0.5  # the shape of the antialiasing cubic, that of Pillow


def _hat(x: Expr) -> Expr:
    """The triangle of a linear filter, at a distance x >= 0."""
    return call("maximum", 1.0 - x, 0.0)


def _cubic(x: Expr) -> Expr:
    """Keys' cubic convolution, at a distance x >= 0."""
    a = _KEYS
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    return call("where", call("lt", x, 1.0), near, call("where", call("lt", x, 2.0), far, 0.0))


def _blur(
    k: Builder, n: int, out: int, corners: bool, factor: float | None, reach: int, filter_: Callable[[Expr], Expr]
) -> Tensor:
    """[out, n]: how much each input position counts for each output one. A filter of `reach` positions to each side is
    stretched to cover what one output position covers; its weights add up to one (ATen's UpSampleKernel)."""
    scale = ((n - 1) / (out - 1) if out > 1 else 0.0) if corners else _scale(n, out, factor)
    support, stretch = (reach * scale, 1.0 / scale) if scale >= 1.0 else (float(reach), 1.0)
    o, i = k.axis(out), k.axis(n)
    centre = (Cast(F32, o) + 0.5) * scale
    first = clip(Cast(I64, call("trunc", centre - support + 0.5)), 0, n)
    stop = clip(Cast(I64, call("trunc", centre + support + 0.5)), 0, n)
    inside = call("and", call("ge", i, first), call("lt", i, stop))
    distance = call("abs", (Cast(F32, i) - centre + 0.5) * stretch)
    weights = k.define(F32, (o, i), call("where", inside, filter_(distance), 0.0))
    o, i = k.axis(out), k.axis(n)
    total = k.define(F32, (o,), weights[o, i], k.sum(i))
    o, i = k.axis(out), k.axis(n)
    return k.define(F32, (o, i), weights[o, i] / total[o])


def _register_blurred(name: str, reach: int, filter_: Callable[[Expr], Expr]) -> None:
    def tables(
        k: Builder, spatial: Sequence[int], out: Sequence[int], corners: bool, factors: Sequence[float | None]
    ) -> list[Tensor]:
        return [_blur(k, n, m, corners, f, reach, filter_) for n, m, f in zip(spatial, out, factors, strict=True)]

    def apply(k: Builder, x: Tensor, weights: Sequence[Tensor], transpose: bool) -> Tensor:
        """A product with each axis' matrix, the last axis first."""
        for axis in (3, 2):
            w = weights[axis - 2]
            axes = k.axes(tuple(w.shape[int(transpose)] if i == axis else e for i, e in enumerate(x.shape)))
            r = k.axis(x.shape[axis], "r")
            source = tuple(r if i == axis else a for i, a in enumerate(axes))
            weight = w[r, axes[axis]] if transpose else w[axes[axis], r]
            x = k.define(x.dtype.compute, axes, x[source] * weight, k.sum(r))
        return x

    def sized(
        k: Builder,
        self: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        weights = tables(k, self.shape[2:], output_size, align_corners, (scales_h, scales_w))
        return k.round(apply(k, self, weights, False), self.dtype)

    def vec(
        k: Builder,
        input: Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None = None,
    ) -> Tensor:
        out = _output(input, 2, output_size, scale_factors)
        return sized(k, input, out, align_corners, *(scale_factors or (None, None)))

    def gradient(
        k: Builder,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        weights = tables(k, input_size[2:], output_size, align_corners, (scales_h, scales_w))
        return k.round(apply(k, grad_output, weights, True), grad_output.dtype)

    x = t(2, 3, 8, 9)
    sizes = ((3, 4), (11, 5))
    op(
        f"{name}.default",
        name=name,
        samples=(*(sample(x, s, False) for s in sizes), sample(x, (4, 6), True)),
    )(sized)
    op(f"{name}.vec", name=f"{name}_vec", samples=(sample(x, (5, 5), False, None), sample(x, None, False, (0.5, 1.5))))(
        vec
    )
    op(
        f"{name}_backward.default",
        name=f"{name}_backward",
        samples=tuple(sample(t(2, 3, *s), s, (2, 3, 8, 9), False) for s in sizes),
    )(gradient)


_register_blurred("_upsample_bilinear2d_aa", 1, _hat)
_register_blurred("_upsample_bicubic2d_aa", 2, _cubic)

for _rank in (1, 2, 3):
    _register_nearest(_rank, False)
    _register_nearest(_rank, True)
    _register_linear(_rank)

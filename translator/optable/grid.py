"""Sampling at points that are data: grid_sample in two and three dimensions, and its gradients.

A point g in [-1, 1] stands for position v of an axis of n. Around v lie taps (one, two or four along each axis) at
whole positions, each with a weight that is a function of where v lies between them (ATen's GridSampler.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvc.builder import Builder, Tensor
from kvc.dtypes import F32, F64, I64
from kvc.kernel import Axis, Cast, Const, Expr, Scatter, call
from kvc.ops import op
from kvc.optable._common import sample, t, terms, unsupported

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_CUBIC_SHAPE = -0.75  # of Keys' convolution, as ATen has it


@dataclass(frozen=True)
class _Axis:
    """One spatial axis. Tensors over (batch, point): the position `base` of the first tap, `part` how far the point
    lies beyond it (beyond the second tap of four), `slope` the change of position with g."""

    n: int
    base: Tensor
    part: Tensor
    slope: Tensor | None


def _folded(v: Expr, n: int, padding: int, corners: bool) -> Expr:
    """A position brought inside the axis, for the modes that do so."""
    if padding == _ZEROS:
        return v
    if padding == _REFLECTION:
        low, span = (0.0, n - 1.0) if corners else (-0.5, float(n))
        if span == 0:
            return Const(0.0)
        away = call("abs", v - low)
        extra = call("fmod", away, span)
        odd = call("eq", call("fmod", call("floor", away / span), 2.0), 1.0)
        v = call("where", odd, span - extra, extra) + low
    return call("minimum", call("maximum", v, 0.0), float(n - 1))


def _fold_slope(v: Expr, n: int, padding: int, corners: bool) -> Expr:
    """The derivative of `_folded`: 0 where it clips, -1 where an odd number of reflections turned it round."""
    if padding == _ZEROS:
        return Const(1.0)
    sign: Expr = Const(1.0)
    inner = v
    if padding == _REFLECTION:
        low, span = (0.0, n - 1.0) if corners else (-0.5, float(n))
        if span == 0:
            return Const(0.0)
        away = call("abs", v - low)
        extra = call("fmod", away, span)
        odd = call("eq", call("fmod", call("floor", away / span), 2.0), 1.0)
        inner = call("where", odd, span - extra, extra) + low
        negative = call("where", call("lt", v, low), -1.0, 1.0)
        sign = call("where", odd, -negative, negative)
    inside = call("and", call("gt", inner, 0.0), call("lt", inner, float(n - 1)))
    return call("where", inside, sign, 0.0)


def _axes(k: Builder, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool, slopes: bool) -> list[_Axis]:
    """The taps of each spatial axis; the grid's last dim counts axes from the last one."""
    rank = grid.shape[-1]
    wide = F64 if grid.dtype is F64 else F32
    found = []
    for i in range(rank):
        n = x.shape[2 + i]
        points = k.axes(grid.shape[:-1])
        g = grid[(*points, Const(rank - 1 - i))]
        raw = (g + 1.0) * (0.5 * (n - 1)) if corners else ((g + 1.0) * float(n) - 1.0) * 0.5
        at = k.define(wide, points, raw)
        points = k.axes(at.shape)
        v = at[points] if mode == _CUBIC else _folded(at[points], n, padding, corners)
        position = k.define(wide, points, v)
        points = k.axes(at.shape)
        whole = call("round" if mode == _NEAREST else "floor", position[points])
        base = k.define(I64, points, Cast(I64, whole))
        points = k.axes(at.shape)
        part = k.define(wide, points, position[points] - call("floor", position[points]))
        slope = None
        if slopes:
            points = k.axes(at.shape)
            change = Const(1.0) if mode == _CUBIC else _fold_slope(at[points], n, padding, corners)
            slope = k.define(wide, points, change * (0.5 * (n - 1) if corners else 0.5 * n))
        found.append(_Axis(n, base, part, slope))
    return found


_TAPS = {_LINEAR: 2, _NEAREST: 1, _CUBIC: 4}


def _weight(mode: int, tap: Axis, f: Expr, slope: bool) -> Expr:
    """The weight of a tap, or its derivative by the position."""
    if mode == _NEAREST:
        return Const(0.0 if slope else 1.0)
    if mode == _LINEAR:
        second = call("eq", tap, 1)
        return call("where", second, 1.0, -1.0) if slope else call("where", second, f, 1.0 - f)
    a = _CUBIC_SHAPE
    choices = []
    for number in range(4):
        d = f + 1.0 if number == 0 else f if number == 1 else 1.0 - f if number == 2 else 2.0 - f
        side = 1.0 if number < 2 else -1.0
        if number in (0, 3):
            value = (a * d - 5.0 * a) * d * d + 8.0 * a * d - 4.0 * a
            change = ((3.0 * a * d - 10.0 * a) * d + 8.0 * a) * side
        else:
            value = ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
            change = (3.0 * (a + 2.0) * d - 2.0 * (a + 3.0)) * d * side
        choices.append(change if slope else value)
    result = choices[3]
    for number in (2, 1, 0):
        result = call("where", call("eq", tap, number), choices[number], result)
    return result


class _Sampling:
    """The taps around each point, ready to be read."""

    def __init__(
        self, k: Builder, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool, slopes: bool = False
    ) -> None:
        if mode == _CUBIC and x.rank != 4:
            raise unsupported("cubic sampling in three dimensions")
        self.k, self.x, self.mode, self.padding, self.corners = k, x, mode, padding, corners
        self.rank = grid.shape[-1]
        self.axes = _axes(k, x, grid, mode, padding, corners, slopes)

    def taps(self) -> tuple[Axis, ...]:
        return self.k.axes((_TAPS[self.mode],) * self.rank, "r")

    def index(self, points: Sequence[Axis], taps: Sequence[Axis]) -> list[Expr]:
        """The position of a tap along each axis; with zeros for padding it may lie outside."""
        result = []
        for axis, tap in zip(self.axes, taps, strict=True):
            at = axis.base[tuple(points)] + tap
            if self.mode == _CUBIC:
                at = at - 1
                if self.padding != _ZEROS:
                    folded = _folded(Cast(F32, at), axis.n, self.padding, self.corners)
                    at = Cast(I64, folded)
            result.append(at)
        return result

    def weight(self, points: Sequence[Axis], taps: Sequence[Axis], slope: int = -1) -> Expr:
        """The product of a tap's weights, with the derivative in the place of axis `slope`."""
        factors = [
            _weight(self.mode, tap, axis.part[tuple(points)], i == slope)
            for i, (axis, tap) in enumerate(zip(self.axes, taps, strict=True))
        ]
        return terms(factors, "mul")


def _sample(
    k: Builder, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """[n, c, points]: the taps around each point, weighted."""
    s = _Sampling(k, input, grid, interpolation_mode, padding_mode, align_corners)
    n, c, *out = k.axes((*input.shape[:2], *grid.shape[1:-1]))
    taps, points = s.taps(), (n, *out)
    value = input.at((n, c, *s.index(points, taps)), 0.0) * s.weight(points, taps)
    return k.round(k.define(input.dtype.compute, (n, c, *out), value, k.sum(*taps)), input.dtype)


def _gradients(
    k: Builder,
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool] = (True, True),
) -> tuple[Tensor, Tensor]:
    """Of the input: each tap gets its share, added where points meet. Of the grid: how the sample changes with the
    point."""
    s = _Sampling(k, input, grid, interpolation_mode, padding_mode, align_corners, slopes=True)
    n, c, *out = k.axes(grad_output.shape)
    taps, points = s.taps(), (n, *out)
    index = s.index(points, taps)
    inside = [call("and", call("ge", at, 0), call("lt", at, axis.n)) for at, axis in zip(index, s.axes, strict=True)]
    place = [call("minimum", call("maximum", at, 0), axis.n - 1) for at, axis in zip(index, s.axes, strict=True)]
    share = call("where", terms(inside, "and"), grad_output[(n, c, *out)] * s.weight(points, taps), 0.0)
    over = Scatter("sum", tuple(a.name for a in (n, c, *out, *taps)), (n, c, *place), Const(0.0))
    to_input = k.round(k.define(input.dtype.compute, k.axes_like(input), share, over), input.dtype)
    parts = []
    for i in range(s.rank):
        n, c, *out = k.axes(grad_output.shape)
        taps, points = s.taps(), (n, *out)
        value = grad_output[(n, c, *out)] * input.at((n, c, *s.index(points, taps)), 0.0)
        value = value * s.weight(points, taps, slope=i)
        parts.append(k.define(grid.dtype.compute, points, value, k.sum(c, *taps)))
    axes = k.axes_like(grid)
    result: Expr = Const(0.0)
    for i, (part, axis) in enumerate(zip(parts, s.axes, strict=True)):
        assert axis.slope is not None
        own = part[axes[:-1]] * axis.slope[axes[:-1]]
        result = call("where", call("eq", axes[-1], s.rank - 1 - i), own, result)
    return to_input, k.define(grid.dtype, axes, result)


def _register(rank: int) -> None:
    spatial, out = (5, 6, 4)[:rank], (3, 4, 2)[:rank]
    x, grid, grad = t(2, 3, *spatial), t(2, *out, rank), t(2, 3, *out)
    modes = (_LINEAR, _NEAREST, *((_CUBIC,) if rank == 2 else ()))
    cases = [(m, p, c) for m in modes for p in (_ZEROS, _BORDER, _REFLECTION) for c in (False, True)]
    op(
        f"grid_sampler_{rank}d.default",
        name=f"grid_sampler_{rank}d",
        samples=tuple(sample(x, grid, *case) for case in cases),
    )(_sample)
    op(
        f"grid_sampler_{rank}d_backward.default",
        name=f"grid_sampler_{rank}d_backward",
        samples=tuple(sample(grad, x, grid, *case, (True, True)) for case in cases),
    )(_gradients)


for _rank in (2, 3):
    _register(_rank)

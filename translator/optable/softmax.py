"""Softmax and its kin: shifted by the row's maximum, in the compute type, rounded once, as eager's kernels do."""

from __future__ import annotations

from collections.abc import Sequence

from kvc.builder import Builder, Tensor
from kvc.dtypes import DType
from kvc.kernel import Axis, call
from kvc.ops import op
from kvc.optable._common import dim_of, dims_of, float_dtype, keep, reduced, sample, t

Dims = int | Sequence[int] | None


def shifted_exp(k: Builder, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(max, exp(x - max), sum of those) over `dims`, in the compute type. The first of a softmax's statements."""
    compute = float_dtype(x.dtype).compute
    top, _ = reduced(k, x, dims, "max", compute)
    axes = k.axes_like(x)
    kept = tuple(a for i, a in enumerate(axes) if i not in dims)
    e = k.define(compute, axes, call("exp", x[axes] - top[kept]))
    total, _ = reduced(k, e, dims, "sum", compute)
    return top, e, total


def _without(axes: Sequence[Axis], dims: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(a for i, a in enumerate(axes) if i not in dims)


_SOFT = (sample(t(3, 5), 1), sample(t(2, 3, 5), -2), sample(t(3, 7, dtype="bf16"), -1), sample(t(4), 0))


def _input(k: Builder, x: Tensor, dtype: DType | None) -> tuple[Tensor, DType]:
    result = dtype or x.dtype
    return (x if dtype is None else k.round(x, dtype)), result


@op(
    "softmax.int",
    "_softmax.default",
    "_safe_softmax.default",
    samples=(*_SOFT, sample(t(3, 5, dtype="bf16"), -1, "f32"), sample(t(2, 3), -1, dtype="f16")),
)
def softmax(
    k: Builder, self: Tensor, dim: int, dtype: DType | bool | None = None, half_to_float: bool = False
) -> Tensor:
    """exp(x - max) / sum, in the compute type, rounded once (`dtype` converts the input first)."""
    x, result = _input(k, self, dtype if isinstance(dtype, DType) else None)
    if self.rank == 0:
        return k.define(result, (), 1.0)
    d = dim_of(self, dim)
    _, e, total = shifted_exp(k, x, (d,))
    axes = k.axes_like(x)
    return k.define(result, axes, e[axes] / total[_without(axes, (d,))])


@op("log_softmax.int", "_log_softmax.default", samples=(*_SOFT, sample(t(2, 3, dtype="bf16"), -1, dtype="f32")))
def log_softmax(
    k: Builder, self: Tensor, dim: int, dtype: DType | bool | None = None, half_to_float: bool = False
) -> Tensor:
    """x - max - log(sum exp(x - max))."""
    x, result = _input(k, self, dtype if isinstance(dtype, DType) else None)
    if self.rank == 0:
        return k.define(result, (), 0.0)
    d = dim_of(self, dim)
    top, _, total = shifted_exp(k, x, (d,))
    axes = k.axes_like(x)
    rest = _without(axes, (d,))
    return k.define(result, axes, x[axes] - top[rest] - call("log", total[rest]))


@op(
    "logsumexp.default",
    samples=(sample(t(3, 5), (1,)), sample(t(2, 3, 5), (0, -1), True), sample(t(3, 5, dtype="bf16"), (1,))),
)
def logsumexp(k: Builder, self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """max + log(sum exp(x - max)); infinite maxima are not subtracted, so that rows of -inf give -inf."""
    dims = dims_of(self, dim)
    compute = float_dtype(self.dtype).compute
    raw, _ = reduced(k, self, dims, "max", compute)
    axes = k.axes_like(raw)
    top = k.define(compute, axes, call("where", call("isinf", raw[axes]), 0.0, raw[axes]))
    axes = k.axes_like(self)
    kept = _without(axes, dims)
    inner = [axes[i] for i in dims]
    e = k.define(compute, axes, call("exp", self[axes] - top[kept]))
    total = k.define(compute, kept, e[axes], k.sum(*inner)) if inner else e
    o = k.axes_like(total)
    result = k.define(float_dtype(self.dtype), o, top[o] + call("log", total[o]))
    return keep(k, result, dims) if keepdim else result

"""Scans and orders: cumulative sums and products, sort, top-k."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL, I64, DType
from kvc.kernel import Axis, Cast, Expr, Order, Scan, call
from kvc.ops import op
from kvc.optable._common import bools, dim_of, ints, sample, t


def _scan(k: Builder, x: Tensor, dim: int, op_: str, dtype: DType | None) -> Tensor:
    result = dtype or (x.dtype if x.dtype.is_float else I64)
    if x.rank == 0:
        return k.round(x, result)
    axes = k.axes_like(x)
    value: Expr = x[axes]
    if x.dtype.compute is not result.compute:
        value = Cast(result.compute, value)
    total = k.define(result.compute, axes, value, Scan(op_, axes[dim_of(x, dim)].name))
    return k.round(total, result)


_SCANS = (
    sample(t(3, 5), 1),
    sample(t(2, 3, 5), -2),
    sample(ints(4), 0),
    sample(bools(4), 0),
    sample(t(3, 7, dtype="bf16"), 1),
    sample(t(3), 0, dtype="f16"),
)


@op("cumsum.default", samples=_SCANS)
def cumsum(k: Builder, self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return _scan(k, self, dim, "sum", dtype)


@op("cumprod.default", samples=_SCANS)
def cumprod(k: Builder, self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return _scan(k, self, dim, "prod", dtype)


@op("logcumsumexp.default", samples=(sample(t(3, 5), 1), sample(t(2, 3, 5), -2)))
def logcumsumexp(k: Builder, self: Tensor, dim: int) -> Tensor:
    """log of the running sum of exp, shifted by the maximum of the whole row (one pass of a plain scan)."""
    d = dim_of(self, dim)
    axes = k.axes_like(self)
    kept = tuple(a for i, a in enumerate(axes) if i != d)
    compute = self.dtype.compute
    top = k.define(compute, kept, self[axes], k.reduce("max", axes[d]))
    axes = k.axes_like(self)
    rest = tuple(a for i, a in enumerate(axes) if i != d)
    total = k.define(compute, axes, call("exp", self[axes] - top[rest]), Scan("sum", axes[d].name))
    axes = k.axes_like(total)
    rest = tuple(a for i, a in enumerate(axes) if i != d)
    return k.define(self.dtype, axes, top[rest] + call("log", total[axes]))


def _order(k: Builder, x: Tensor, dim: int, descending: bool, kind: str) -> Tensor:
    axes = k.axes_like(x)
    over = Order(kind, axes[dim].name, descending)
    return k.define(I64 if kind == "argsort" else x.dtype, axes, x[axes], over)


def _picked(k: Builder, x: Tensor, order: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` values and positions of an order along `dim`."""
    shape = tuple(count if i == dim else n for i, n in enumerate(x.shape))
    axes = k.axes(shape)
    where = order if shape == order.shape else k.define(I64, axes, order[axes])
    axes = k.axes(shape)
    index: Sequence[Expr | Axis] = [where[axes] if i == dim else a for i, a in enumerate(axes)]
    return k.define(x.dtype, axes, x[tuple(index)]), where


@op("sort.default", samples=(sample(t(3, 5)), sample(t(3, 5), 0, True), sample(t(7), -1)))
def sort(k: Builder, self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """(values, positions), stable."""
    if self.rank == 0:
        return self, k.define(I64, (), 0)
    d = dim_of(self, dim)
    return _picked(k, self, _order(k, self, d, descending, "argsort"), d, self.shape[d])


@op("sort.stable", samples=(sample(ints(3, 7), stable=True), sample(t(3, 5), stable=True, dim=0, descending=True)))
def sort_stable(
    k: Builder, self: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return sort(k, self, dim, descending)


@op("argsort.default", samples=(sample(t(3, 5)), sample(t(3, 5), 0, True)))
def argsort(k: Builder, self: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return sort(k, self, dim, descending)[1]


@op("argsort.stable", samples=(sample(ints(3, 7), stable=True),))
def argsort_stable(k: Builder, self: Tensor, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return sort(k, self, dim, descending)[1]


@op("topk.default", samples=(sample(t(3, 9), 4), sample(t(9, 3), 2, 0), sample(t(9), 3, -1, False)))
def topk(
    k: Builder, self: Tensor, k_: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) values in order, and their positions; among equals the first one."""
    d = dim_of(self, dim)
    return _picked(k, self, _order(k, self, d, largest, "argsort"), d, k_)


@op("kthvalue.default", samples=(sample(t(3, 9), 4), sample(t(9, 3), 2, 0)))
def kthvalue(k: Builder, self: Tensor, k_: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest value (counted from 1) and its position."""
    from kvc.optable.views import select, sliced

    d = dim_of(self, dim)
    values, where = _picked(k, self, _order(k, self, d, False, "argsort"), d, self.shape[d])
    if keepdim:
        return sliced(k, values, d, k_ - 1, 1), sliced(k, where, d, k_ - 1, 1)
    return select(k, values, d, k_ - 1), select(k, where, d, k_ - 1)


@op("median.dim", samples=(sample(t(3, 9), 1), sample(t(4, 2), 0, True), sample(t(7), -1)))
def median_dim(k: Builder, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of the middle values and its position; NaN, and where it first stands, where there is one."""
    d = dim_of(self, dim)
    values, where = kthvalue(k, self, (self.shape[d] + 1) // 2, dim, keepdim)
    if not self.dtype.is_float:
        return values, where
    axes = k.axes_like(self)
    kept = tuple(a for i, a in enumerate(axes) if i != d)
    spoilt = k.define(BOOL, kept, call("isnan", self[axes]), k.reduce("any", axes[d]))
    axes = k.axes_like(self)
    kept = tuple(a for i, a in enumerate(axes) if i != d)
    first = k.define(I64, kept, self[axes], k.reduce("argmax", axes[d]))
    out = k.axes_like(values)
    at_ = tuple(a for i, a in enumerate(out) if not (keepdim and i == d))
    value = k.define(self.dtype, out, call("where", spoilt[at_], nan, values[out]))
    out = k.axes_like(values)
    at_ = tuple(a for i, a in enumerate(out) if not (keepdim and i == d))
    return value, k.define(I64, out, call("where", spoilt[at_], first[at_], where[out]))


@op("median.default", samples=(sample(t(3, 4)), sample(ints(7, below=50))))
def median(k: Builder, self: Tensor) -> Tensor:
    from kvc.optable.views import reshaped

    return median_dim(k, reshaped(k, self, (prod(self.shape),)), 0)[0]


def _running(name: str, combine: str) -> None:
    def meaning(k: Builder, self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """(running extreme, the last position that holds it)."""
        d = dim_of(self, dim)
        axes = k.axes_like(self)
        best = k.define(self.dtype, axes, self[axes], Scan(combine, axes[d].name))
        axes = k.axes_like(self)
        here = call("where", call("eq", self[axes], best[axes]), axes[d], 0)
        return best, k.define(I64, axes, here, Scan("max", axes[d].name))

    op(f"{name}.default", name=name, samples=(sample(t(3, 5), 1), sample(t(4, 2), 0)))(meaning)


_running("cummax", "max")
_running("cummin", "min")

"""Reductions. They accumulate in the compute type; the mean of the variance is subtracted first (two passes)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL, I64, DType
from kvc.kernel import Cast, Expr, call
from kvc.ops import op
from kvc.optable._common import (
    bools,
    dim_of,
    dims_of,
    finish,
    float_dtype,
    ints,
    keep,
    reduced,
    sample,
    t,
)
from kvc.optable.views import reshaped

Dims = int | Sequence[int] | None

_DIMS = (
    sample(t(3, 5)),
    sample(t(3, 5), 1),
    sample(t(2, 3, 5), (0, 2)),
    sample(t(2, 3, 5), (-1,), True),
    sample(t(2, 3, dtype="bf16"), -1),
)


def _totals(self: Tensor, dtype: DType | None) -> DType:
    """The dtype of a sum or product: integers and bools count in i64."""
    return dtype or (self.dtype if self.dtype.is_float else I64)


@op(
    "sum.dim_IntList",
    "sum.default",
    samples=(
        *_DIMS,
        sample(ints(3, 4)),
        sample(bools(3, 4), 0),
        sample(t(4), dtype="bf16"),
        sample(t()),
        sample(t(3, 4), ()),
    ),
)
def sum_(k: Builder, self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    result = _totals(self, dtype)
    dims = dims_of(self, dim)
    total, _ = reduced(k, self, dims, "sum", result.compute, _as(self, result))
    return finish(k, total, dims, keepdim, result)


def _as(x: Tensor, result: DType) -> Callable[[Expr], Expr]:
    """Values are converted before they are added, where the result is of another kind."""
    same = x.dtype.compute is result.compute
    return (lambda e: e) if same else (lambda e: Cast(result.compute, e))


@op("mean.dim", "mean.default", samples=(*_DIMS, sample(t(3, 4), dtype="bf16"), sample(t()), sample(t(5))))
def mean(k: Builder, self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    result = dtype or self.dtype
    dims = dims_of(self, dim)
    average = mean_over(k, self, dims)
    return finish(k, average, dims, keepdim, result)


def mean_over(k: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    """The mean over `dims`, in the compute type; the dims are gone."""
    total, _ = reduced(k, x, dims, "sum", float_dtype(x.dtype).compute)
    count = prod(x.shape[d] for d in dims)
    axes = k.axes_like(total)
    return k.define(total.dtype, axes, total[axes] / float(count))


def centred(k: Builder, x: Tensor, dims: Sequence[int], mean: Tensor) -> Tensor:
    """x minus its mean over `dims`."""
    axes = k.axes_like(x)
    kept = tuple(a for i, a in enumerate(axes) if i not in dims)
    return k.define(mean.dtype, axes, x[axes] - mean[kept])


def variance(k: Builder, x: Tensor, dims: Sequence[int], correction: float = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(variance, mean, x - mean) in the compute type; two passes, so that nothing cancels."""
    average = mean_over(k, x, dims)
    rest = centred(k, x, dims, average)
    total, _ = reduced(k, rest, dims, "sum", rest.dtype, lambda e: e * e)
    count = prod(x.shape[d] for d in dims)
    axes = k.axes_like(total)
    return k.define(total.dtype, axes, total[axes] / float(max(count - correction, 0))), average, rest


def _correction(unbiased: bool | None, correction: float | None) -> float:
    if correction is not None:
        return correction
    return 1 if unbiased is None or unbiased else 0


_VARS = (
    sample(t(3, 5)),
    sample(t(3, 5), (1,)),
    sample(t(2, 3, 5), (0, 2), correction=0),
    sample(t(2, 3, 5), (-1,), correction=1, keepdim=True),
    sample(t(4, 6, dtype="bf16"), (-1,)),
)


def _spread(
    k: Builder, x: Tensor, dim: Dims | bool, unbiased: bool | None, correction: float | None, keepdim: bool, root: bool
) -> tuple[Tensor, Tensor]:
    if isinstance(dim, bool):
        # var(x, unbiased) passes its flag in the place of dim.
        dim, unbiased = None, dim
    dims = dims_of(x, dim)
    var_, average, _ = variance(k, x, dims, _correction(unbiased, correction))
    if root:
        axes = k.axes_like(var_)
        var_ = k.define(var_.dtype, axes, call("sqrt", var_[axes]))
    return finish(k, var_, dims, keepdim, x.dtype), finish(k, average, dims, keepdim, x.dtype)


def _register_spread(name: str, root: bool, with_mean: bool) -> None:
    def meaning(
        k: Builder,
        self: Tensor,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        correction: float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        spread, average = _spread(k, self, dim, unbiased, correction, keepdim, root)
        return (spread, average) if with_mean else spread

    op(f"{name}.correction", f"{name}.dim", f"{name}.default", name=name, samples=_VARS)(meaning)


for _name, _root, _with_mean in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    _register_spread(_name, _root, _with_mean)


def _extreme(name: str, combine: str) -> None:
    def meaning(k: Builder, self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
        dims = dims_of(self, dim)
        best, _ = reduced(k, self, dims, combine, self.dtype)
        return finish(k, best, dims, keepdim, self.dtype)

    op(f"{name}.default", name=name, samples=(*_DIMS, sample(ints(3, 4), 0), sample(t())))(meaning)


def _extreme_all(name: str) -> None:
    def meaning(k: Builder, self: Tensor) -> Tensor:
        return reduced(k, self, range(self.rank), name, self.dtype)[0]

    op(f"{name}.default", name=name, samples=(sample(t(3, 5)), sample(ints(4))))(meaning)


def _extreme_dim(name: str) -> None:
    def meaning(k: Builder, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        d = dim_of(self, dim)
        dims = (d,) if self.rank else ()
        best, _ = reduced(k, self, dims, name, self.dtype)
        where = arg_over(k, self, d, f"arg{name}")
        return finish(k, best, dims, keepdim, self.dtype), finish(k, where, dims, keepdim, I64)

    samples = (sample(t(3, 5), 1), sample(t(2, 3, 5), -2, True), sample(t(4), 0), sample(t(2, 7, dtype="bf16"), 1))
    op(f"{name}.dim", name=f"{name}_dim", samples=samples)(meaning)


def arg_over(k: Builder, x: Tensor, dim: int, op_name: str) -> Tensor:
    """Position of the extreme value along one dim."""
    if x.rank == 0:
        return k.define(I64, (), 0)
    return reduced(k, x, (dim,), op_name, I64)[0]


def _arg(name: str) -> None:
    def meaning(k: Builder, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            flat = self if self.rank == 1 else reshaped(k, self, (prod(self.shape),))
            position = arg_over(k, flat, 0, name)
            return keep(k, position, range(self.rank)) if keepdim else position
        d = dim_of(self, dim)
        return finish(k, arg_over(k, self, d, name), (d,) if self.rank else (), keepdim, I64)

    samples = (sample(t(3, 5), 1), sample(t(2, 3, 5), -2, True), sample(t(3, 5)), sample(t(4), 0))
    op(f"{name}.default", name=name, samples=samples)(meaning)


for _name, _combine in (("amax", "max"), ("amin", "min")):
    _extreme(_name, _combine)
    _extreme_all(_combine)
    _extreme_dim(_combine)
    _arg(f"arg{_combine}")


@op("aminmax.default", samples=(sample(t(3, 5)), sample(t(3, 5), dim=1), sample(t(3, 5), dim=-1, keepdim=True)))
def aminmax(k: Builder, self: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = dims_of(self, dim)
    low, high = (reduced(k, self, dims, fn, self.dtype)[0] for fn in ("min", "max"))
    return finish(k, low, dims, keepdim, self.dtype), finish(k, high, dims, keepdim, self.dtype)


@op(
    "prod.dim_int",
    "prod.default",
    samples=(sample(t(3, 5)), sample(t(3, 5), 1), sample(t(2, 3, 5), -2, True), sample(ints(4))),
)
def prod_(
    k: Builder, self: Tensor, dim: int | None = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    result = _totals(self, dtype)
    dims = dims_of(self, dim)
    total, _ = reduced(k, self, dims, "prod", result.compute, _as(self, result))
    return finish(k, total, dims, keepdim, result)


def _logical(name: str) -> None:
    def meaning(k: Builder, self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        dims = dims_of(self, dim)
        found, _ = reduced(k, self, dims, name, BOOL, lambda e: e if self.dtype is BOOL else call("ne", e, 0))
        return finish(k, found, dims, keepdim, BOOL)

    samples = (sample(bools(3, 5)), sample(bools(3, 5), 1), sample(ints(2, 3, 5), (0, -1), True), sample(t(4)))
    op(f"{name}.dim", f"{name}.dims", f"{name}.default", name=name, samples=samples)(meaning)


_logical("any")
_logical("all")


@op("count_nonzero.dim_IntList", "count_nonzero.default", samples=(sample(ints(3, 5), (1,)), sample(t(4))))
def count_nonzero(k: Builder, self: Tensor, dim: Dims = None) -> Tensor:
    dims = dims_of(self, dim)
    return reduced(k, self, dims, "sum", I64, lambda e: call("where", call("ne", e, 0), 1, 0))[0]


@op(
    "linalg_vector_norm.default",
    samples=(
        sample(t(3, 5)),
        sample(t(3, 5), 2, (1,)),
        sample(t(3, 5), 1, (0,), True),
        sample(t(3, 5), inf, (-1,)),
        sample(t(3, 5), -inf),
        sample(t(3, 5), 0, (1,)),
        sample(t(3, 5), 3.5, (1,)),
        sample(t(2, 4, dtype="bf16"), 2, (1,)),
    ),
)
def linalg_vector_norm(
    k: Builder, self: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    """(sum |x|^ord)^(1/ord); inf and -inf give the extreme |x|, 0 counts what is not zero."""
    result = dtype or self.dtype
    dims = dims_of(self, dim)
    if ord in (inf, -inf):
        best, _ = reduced(k, self, dims, "max" if ord > 0 else "min", result.compute, lambda e: call("abs", e))
        return finish(k, best, dims, keepdim, result)

    def power(e: Expr) -> Expr:
        if ord == 2:
            return e * e
        if ord == 0:
            return call("where", call("ne", e, 0), 1.0, 0.0)
        return call("abs", e) if ord == 1 else call("pow", call("abs", e), float(ord))

    total, _ = reduced(k, self, dims, "sum", result.compute, power)
    if ord not in (0, 1):
        axes = k.axes_like(total)
        value = total[axes]
        root = call("sqrt", value) if ord == 2 else call("pow", value, 1.0 / ord)
        total = k.define(total.dtype, axes, root)
    return finish(k, total, dims, keepdim, result)


@op(
    "norm.ScalarOpt_dim",
    "norm.Scalar",
    "norm.ScalarOpt_dim_dtype",
    "norm.ScalarOpt_dtype",
    samples=(sample(t(3, 5)), sample(t(3, 5), 2, (1,)), sample(t(3, 5), 1, (1,), True)),
)
def norm(
    k: Builder, self: Tensor, p: float | None = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return linalg_vector_norm(k, self, 2 if p is None else p, dim, keepdim, dtype)


@op("trace.default", samples=(sample(t(4, 4)), sample(t(3, 5))))
def trace(k: Builder, self: Tensor) -> Tensor:
    axis = k.axis(min(self.shape))
    result = _totals(self, None)
    return k.round(k.define(result.compute, (), self[(axis, axis)], k.sum(axis)), result)

"""Indirect accesses: embedding, gather, advanced indexing, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL, I64, DType
from kvc.kernel import Axis, Const, Expr, Scatter, call
from kvc.ops import op
from kvc.optable._common import Scalar, at, bools, broadcast, dim_of, ints, sample, t, unsupported, wrap
from kvc.optable.views import slice_bounds


@op(
    "embedding.default",
    samples=(
        sample(t(7, 4), ints(2, 3)),
        sample(t(7, 4), ints()),
        sample(t(7, 4, dtype="bf16"), ints(3, dtype="i32"), 0),
    ),
)
def embedding(
    k: Builder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """weight[indices[..], d]; padding_idx matters only for gradients."""
    rows, d = k.axes_like(indices, "m"), k.axis(weight.shape[1], "d")
    return k.define(weight.dtype, (*rows, d), weight[indices[rows], d])


@op(
    "gather.default",
    samples=(sample(t(5, 4), 0, ints(3, 2)), sample(t(5, 6), 1, ints(5, 3)), sample(t(2, 5, 3), -2, ints(2, 7, 3))),
)
def gather(k: Builder, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    d = dim_of(self, dim)
    if self.rank == 0:
        return self
    axes = k.axes_like(index)
    return k.define(self.dtype, axes, self[tuple(index[axes] if i == d else a for i, a in enumerate(axes))])


@op("index_select.default", samples=(sample(t(5, 4), 0, ints(3)), sample(t(3, 5), -1, ints(7))))
def index_select(k: Builder, self: Tensor, dim: int, index: Tensor) -> Tensor:
    d = dim_of(self, dim)
    count = index.shape[0] if index.rank else 1
    axes = k.axes(tuple(count if i == d else n for i, n in enumerate(self.shape)))
    picked = index[axes[d] if index.rank else ()]
    return k.define(self.dtype, axes, self[tuple(picked if i == d else a for i, a in enumerate(axes))])


def _placed(indices: Sequence[Tensor | None], rank: int) -> tuple[list[Tensor | None], tuple[int, ...], int]:
    """Indices padded to `rank` dims, the shape that they broadcast to, and where those dims go in the result:
    in the place of the first index if the indexed dims are adjacent, else in front."""
    full = [*indices, *[None] * (rank - len(indices))]
    used = [i for i, x in enumerate(full) if x is not None]
    if any(x is not None and x.dtype in (BOOL,) for x in full):
        raise unsupported("indexing with a mask: the result's shape depends on data")
    shape = broadcast(*(x.shape for x in full if x is not None))
    adjacent = used == list(range(used[0], used[-1] + 1))
    return full, shape, used[0] if adjacent else 0


def _advanced(
    k: Builder, x: Tensor, indices: Sequence[Tensor | None]
) -> tuple[list[Axis], list[Expr], tuple[int, ...]]:
    """(axes of x[indices], the index into x at each of them, its shape)."""
    full, shape, place = _placed(indices, x.rank)
    kept = [n for n, i in zip(x.shape, full, strict=True) if i is None]
    out = (*kept[:place], *shape, *kept[place:])
    axes = list(k.axes(out))
    inner = axes[place : place + len(shape)]
    rest = iter([*axes[:place], *axes[place + len(shape) :]])
    index: list[Expr] = []
    for i, extent in zip(full, x.shape, strict=True):
        index.append(next(rest) if i is None else wrap(at(i, inner, shape), extent))
    return axes, index, out


@op(
    "index.Tensor",
    "index.Tensor_hacked_twin",
    "_unsafe_index.Tensor",
    samples=(
        sample(t(5, 4), (ints(3),)),
        sample(t(5, 6, 3), (ints(2, 3), ints(3))),
        sample(t(3, 5), (None, ints(4))),
        sample(t(5, 2, 5), (ints(3), None, ints(3))),
        sample(t(2, 5, 6, 3), (None, ints(2, 1), ints(4))),
    ),
)
def index(k: Builder, self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """self[indices] with integer tensors and None (a whole dim); negative indices count from the end."""
    axes, at_, _ = _advanced(k, self, indices)
    return k.define(self.dtype, axes, self[tuple(at_)])


@op(
    "index_put.default",
    "index_put.hacked_twin",
    "_unsafe_index_put.default",
    "_index_put_impl.default",
    samples=(
        sample(t(5, 4), (ints(3),), t(3, 4)),
        sample(t(5, 6), (ints(4), ints(4)), t(4), True),
        sample(t(3, 5), (None, ints(2)), t(3, 1)),
        sample(t(5, 4), (ints(3),), t(), True),
        sample(t(5, 4), (bools(5, 4),), t()),
        sample(t(5, 4), (bools(5),), t(4)),
        sample(t(3, 5, 4), (None, bools(5)), t(1, 1, 4), True),
    ),
)
def index_put(
    k: Builder,
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    """self with self[indices] = values (or += values)."""
    if any(i is not None and i.dtype is BOOL for i in indices):
        return masked_put(k, self, indices, values, accumulate)
    axes, at_, shape = _advanced(k, self, indices)
    return _scatter(k, self, "sum" if accumulate else "set", axes, at_, at(values, axes, shape))


def _scatter(k: Builder, base: Tensor, op_: str, axes: Sequence[Axis], index: Sequence[Expr], value: Expr) -> Tensor:
    out = k.axes_like(base)
    over = Scatter(op_, tuple(a.name for a in axes), tuple(index), base[out])
    return k.define(base.dtype, out, value, over)


def _along(k: Builder, base: Tensor, dim: int, index: Tensor, src: Tensor | Scalar, op_: str) -> Tensor:
    """target[.., index[point], ..] op= src[point] for the points of `index`."""
    d = dim_of(base, dim)
    if base.rank == 0:
        raise unsupported("scatter into a 0-dim tensor")
    axes = k.axes_like(index)
    value: Expr = src[axes] if isinstance(src, Tensor) else Const(_same_kind(src, base))
    return _scatter(k, base, op_, axes, [index[axes] if i == d else a for i, a in enumerate(axes)], value)


def _same_kind(value: Scalar, like: Tensor) -> Scalar:
    return float(value) if like.dtype.is_float else int(value)


@op(
    "scatter.src",
    "scatter.value",
    samples=(sample(t(5, 4), 0, ints(1, 4), t(2, 4)), sample(t(3, 5), 1, ints(3, 1), 1.5)),
)
def scatter(k: Builder, self: Tensor, dim: int, index: Tensor, src: Tensor | Scalar = 0, value: Scalar = 0) -> Tensor:
    return _along(k, self, dim, index, src if isinstance(src, Tensor) else (src or value), "set")


@op("scatter_add.default", samples=(sample(t(5, 4), 0, ints(7, 4), t(7, 4)), sample(t(3, 5), -1, ints(3, 6), t(3, 6))))
def scatter_add(k: Builder, self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _along(k, self, dim, index, src, "sum")


_REDUCE = {
    "sum": "sum", "add": "sum", "mean": "sum", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min",
}  # fmt: skip
_REDUCTIONS = ("sum", "mean", "prod", "amax", "amin")


@op(
    "scatter_reduce.two",
    "scatter.reduce",
    "scatter.value_reduce",
    samples=(
        *(sample(t(5, 4), 0, ints(7, 4), t(7, 4), r) for r in _REDUCTIONS),
        *(sample(t(5, 4), 0, ints(7, 4), t(7, 4), r, include_self=False) for r in _REDUCTIONS),
        sample(ints(5, 4), 1, ints(5, 3, below=4), ints(5, 3), "mean"),
    ),
)
def scatter_reduce(
    k: Builder,
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Scalar = 0,
    reduce: str = "sum",
    include_self: bool = True,
    value: Scalar = 0,
) -> Tensor:
    d = dim_of(self, dim)
    if self.rank == 0:
        raise unsupported("scatter into a 0-dim tensor")
    axes = k.axes_like(index)
    source: Expr = src[axes] if isinstance(src, Tensor) else Const(_same_kind(src or value, self))
    where = [index[axes] if i == d else a for i, a in enumerate(axes)]
    return _reduced_scatter(k, self, axes, where, source, reduce, include_self)


@op(
    "index_reduce.default",
    samples=tuple(
        sample(t(5, 4), 0, ints(7), t(7, 4), r, include_self=s) for r in ("prod", "mean", "amax") for s in (True, False)
    ),
)
def index_reduce(
    k: Builder, self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    axes, where, value = _slab(k, self, dim, index, source)
    return _reduced_scatter(k, self, axes, where, value, reduce, include_self)


def _reduced_scatter(
    k: Builder, base: Tensor, axes: Sequence[Axis], index: Sequence[Expr], value: Expr, reduce: str, include_self: bool
) -> Tensor:
    """Values combined where they meet. Without `include_self` what is hit starts from the identity; a mean divides by
    how many values met."""
    combine, start = _REDUCE[reduce], base
    hits: Tensor | None = None
    if reduce == "mean" or not include_self:
        over = Scatter("sum", tuple(a.name for a in axes), tuple(index), Const(int(include_self)))
        hits = k.define(I64, k.axes_like(base), Const(1), over)
    if hits is not None and not include_self:
        out = k.axes_like(base)
        start = k.define(
            base.dtype, out, call("where", call("gt", hits[out], 0), identity(combine, base.dtype), base[out])
        )
    met = _scatter(k, start, combine, axes, index, value)
    if reduce != "mean":
        return met
    assert hits is not None
    out = k.axes_like(base)
    count = call("maximum", hits[out], 1)
    return k.define(base.dtype, out, met[out] / count if base.dtype.is_float else met[out] // count)


def _slab(k: Builder, base: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[list[Axis], list[Expr], Expr]:
    """Points of `source`, whose position along `dim` goes through the 1-d `index`."""
    d = dim_of(base, dim)
    axes = list(k.axes_like(source))
    where: list[Expr] = [index[a] if i == d else a for i, a in enumerate(axes)]
    return axes, where, source[tuple(axes)]


@op(
    "index_add.default", samples=(sample(t(5, 4), 0, ints(7), t(7, 4)), sample(t(3, 5), 1, ints(4), t(3, 4), alpha=0.5))
)
def index_add(k: Builder, self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Scalar = 1) -> Tensor:
    axes, where, value = _slab(k, self, dim, index, source)
    return _scatter(k, self, "sum", axes, where, value if alpha == 1 else value * alpha)


@op("index_copy.default", samples=(sample(t(5, 4), 0, ints(1), t(1, 4)),))
def index_copy(k: Builder, self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    axes, where, value = _slab(k, self, dim, index, source)
    return _scatter(k, self, "set", axes, where, value)


@op("index_fill.int_Scalar", samples=(sample(t(5, 4), 0, ints(3), 1.5),))
def index_fill(k: Builder, self: Tensor, dim: int, index: Tensor, value: Scalar) -> Tensor:
    d = dim_of(self, dim)
    axes = k.axes(tuple(index.shape[0] if i == d else n for i, n in enumerate(self.shape)))
    where = [index[a] if i == d else a for i, a in enumerate(axes)]
    return _scatter(k, self, "set", axes, where, Const(_same_kind(value, self)))


@op(
    "slice_scatter.default",
    samples=(sample(t(7, 5), t(3, 5), 0, 2, 5), sample(t(7, 5), t(7, 3), 1, 0, 5, 2), sample(t(4), t(4))),
)
def slice_scatter(
    k: Builder, self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """self, with a slice replaced by src."""
    d = dim_of(self, dim)
    first, length = slice_bounds(self.shape[d], start, end, step)
    axes = k.axes_like(self)
    at_ = axes[d] - first if first else axes[d]
    inside = [call("ge", axes[d], first), call("lt", axes[d], first + length * step)]
    if step != 1:
        inside.append(call("eq", at_ % step, 0))
    source = tuple((at_ // step if step != 1 else at_) if i == d else a for i, a in enumerate(axes))
    condition = inside[0]
    for c in inside[1:]:
        condition = call("and", condition, c)
    return k.define(self.dtype, axes, call("where", condition, src.at(source, other=0), self[axes]))


@op("select_scatter.default", samples=(sample(t(3, 5), t(5), 0, 1), sample(t(3, 5), t(3), -1, -2)))
def select_scatter(k: Builder, self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """self, with one position along a dim replaced by src."""
    d = dim_of(self, dim)
    at_ = index + self.shape[d] if index < 0 else index
    axes = k.axes_like(self)
    source = src[(*axes[:d], *axes[d + 1 :])]
    return k.define(self.dtype, axes, call("where", call("eq", axes[d], at_), source, self[axes]))


def masked_put(k: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """x[mask] = value, where one mask covers adjacent dims and the value is the same for all that it picks."""
    used = [(n, i) for n, i in enumerate(indices) if i is not None]
    place, mask = used[0]
    rest = x.rank - place - mask.rank
    if len(used) > 1 or (values.rank > rest and any(n != 1 for n in values.shape[: values.rank - rest])):
        raise unsupported("assigning other than one value, or a row of them, to what a mask picks")
    axes = k.axes_like(x)
    value: Expr = values[tuple(_right_aligned(values, axes))]
    picked = mask[axes[place : place + mask.rank]]
    return k.define(x.dtype, axes, call("where", picked, x[axes] + value if accumulate else value, x[axes]))


def _right_aligned(x: Tensor, axes: Sequence[Axis]) -> list[Expr]:
    offset = len(axes) - x.rank
    return [Const(0) if n == 1 else axes[i + offset] if i + offset >= 0 else Const(0) for i, n in enumerate(x.shape)]


def identity(combine: str, dtype: DType) -> Scalar:
    """What a combine function starts from, for values of a dtype."""
    if combine in ("sum", "prod"):
        return (float if dtype.is_float else int)(combine == "prod")
    if dtype.is_float:
        return -inf if combine == "max" else inf
    low, high = (
        (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    )
    return low if combine == "max" else high


@op("one_hot.default", samples=(sample(ints(2, 3), 5),))
def one_hot(k: Builder, self: Tensor, num_classes: int) -> Tensor:
    axes = k.axes((*self.shape, num_classes))
    return k.define(self.dtype, axes, call("where", call("eq", self[axes[:-1]], axes[-1]), 1, 0))


@op("take_along_dim.default", samples=(sample(t(5, 4), ints(5, 2, below=4), 1),))
def take_along_dim(k: Builder, self: Tensor, indices: Tensor, dim: int) -> Tensor:
    return gather(k, self, dim, indices)

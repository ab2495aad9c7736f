"""Products whose groups are data: experts' rows in one matrix, bags of embeddings; and trilinear forms."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from kvc.builder import Builder, Tensor
from kvc.dtypes import F16, F32, I64, DType
from kvc.kernel import Const, Expr, Scatter, call
from kvc.ops import op
from kvc.optable._common import clip, ints, offsets, sample, t, unsupported


def _groups(k: Builder, offs: Tensor, length: int) -> Tensor:
    """The group of each of `length` positions: how many groups end at or before it. Past the last group's end that is
    the number of groups."""
    row, g = k.axis(length, "m"), k.axis(offs.shape[0], "g")
    return k.define(I64, (row,), call("where", call("le", offs[g], row), 1, 0), k.sum(g))


@op(
    "transformers::grouped_mm_fallback.default",
    "_grouped_mm.default",
    name="grouped_mm",
    samples=(
        sample(t(7, 4), t(3, 4, 5), offsets(3, below=8, dtype="i32")),
        sample(t(6, 4), t(2, 4, 3), offsets(2, below=7)),
    ),
)
def grouped_mm(
    k: Builder,
    input: Tensor,
    weight: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Matrix products of groups that lie side by side in one matrix; `offs` are the groups' ends. Either the rows of
    `input` [m, k] meet their group's matrix of `weight` [g, k, n] (rows past the last end give zeros), or the columns
    of `weight` [k, n] their group's of `input` [g, m, k], or both are cut along k, which gives [g, m, n]."""
    result = out_dtype or input.dtype
    if bias is not None:
        raise unsupported("a grouped product with a bias")
    if offs is None:
        if input.rank != 3 or weight.rank != 3:
            raise unsupported("a grouped product without offsets")
        g, m = k.axis(input.shape[0], "g"), k.axis(input.shape[1], "m")
        n, kk = k.axis(weight.shape[2], "n"), k.axis(input.shape[2], "k")
        total = k.define(input.dtype.compute, (g, m, n), input[g, m, kk] * weight[g, kk, n], k.sum(kk))
        return k.round(total, result)
    m, n, kk = k.axis(input.shape[-2], "m"), k.axis(weight.shape[-1], "n"), k.axis(input.shape[-1], "k")
    if input.rank == 2 and weight.rank == 2:
        ends = _groups(k, offs, input.shape[1])
        g = k.axis(offs.shape[0], "g")
        inside = call("eq", ends[kk], g)
        total = k.define(input.dtype.compute, (g, m, n), input[m, kk] * weight[kk, n], k.sum(kk, where=inside))
        return k.round(total, result)
    if input.rank == 2:
        group = _groups(k, offs, input.shape[0])
        value = input[m, kk] * weight.at((group[m], kk, n), 0.0)
    else:
        group = _groups(k, offs, weight.shape[1])
        value = input.at((group[n], m, kk), 0.0) * weight[kk, n]
    return k.round(k.define(input.dtype.compute, (m, n), value, k.sum(kk)), result)


@op(
    "transformers::grouped_mm_fallback_backward.default",
    name="grouped_mm_backward",
    samples=(sample(t(7, 4), t(3, 4, 5), offsets(3, below=8, dtype="i32"), t(7, 5)),),
)
def grouped_mm_backward(
    k: Builder, input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows [m, k] and of the groups' matrices [g, k, n]."""
    group = _groups(k, offs, input.shape[0])
    m, kk, n = k.axis(input.shape[0], "m"), k.axis(input.shape[1], "k"), k.axis(weight.shape[2], "n")
    rows = k.define(input.dtype.compute, (m, kk), grad_output[m, n] * weight.at((group[m], kk, n), 0.0), k.sum(n))
    g, kk, n = k.axis(weight.shape[0], "g"), k.axis(input.shape[1], "k"), k.axis(weight.shape[2], "n")
    m = k.axis(input.shape[0], "m")
    inside = call("eq", group[m], g)
    matrices = k.define(weight.dtype.compute, (g, kk, n), input[m, kk] * grad_output[m, n], k.sum(m, where=inside))
    return k.round(rows, input.dtype), k.round(matrices, weight.dtype)


@op(
    "_trilinear.default",
    samples=(
        sample(t(2, 3), t(5, 3, 4), t(2, 4), (1, 3), (0,), (1, 2), (2, 3)),
        sample(t(2, 5), t(2, 3), t(2, 3, 4), (2, 3), (1, 3), (1,), (0,)),
    ),
)
def trilinear(
    k: Builder,
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """sum over `sumdim` of i1 * i2 * i3, each with unit dims put in at its `expand` positions."""
    rank = i1.rank + len(expand1)
    sources = []
    extents = [1] * rank
    for x, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        places = [p for p in range(rank) if p not in {e % rank for e in expand}]
        for p, n in zip(places, x.shape, strict=True):
            extents[p] = max(extents[p], n)
        sources.append((x, places))
    axes = k.axes(extents)
    factors = [
        x[tuple(axes[p] if n == extents[p] else Const(0) for p, n in zip(places, x.shape, strict=True))]
        for x, places in sources
    ]
    summed = {d % rank for d in sumdim}
    kept = [a for p, a in enumerate(axes) if p not in summed]
    over = k.sum(*(axes[p] for p in sorted(summed))) if summed else None
    total = k.define(i1.dtype.compute, kept, factors[0] * factors[1] * factors[2], over)
    return k.round(total, i1.dtype)


# ---------------------------------------------------------------- bags of embeddings

_SUM, _MEAN, _MAX = range(3)


@op(
    "_embedding_bag.default",
    "_embedding_bag_forward_only.default",
    name="embedding_bag",
    samples=(
        sample(t(7, 4), ints(9), offsets(4, below=9), False, 1),
        sample(t(7, 4), ints(9), offsets(4, below=9), False, 2),
        sample(t(7, 4), ints(9), offsets(4, below=9), False, 1, include_last_offset=True),
    ),
)
def embedding_bag(
    k: Builder,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(the sum, mean or maximum of each bag's rows, the bag of each index, how many rows each bag has, the rows that
    the maxima came from). Bag b holds indices[offsets[b]:offsets[b + 1]]; rows `padding_idx` count nowhere."""
    bags = offsets.shape[0] - include_last_offset
    owner = _owners(k, offsets, indices.shape[0], bags)
    n, d = k.axis(indices.shape[0], "n"), k.axis(weight.shape[1], "d")
    sizes = _sizes(k, owner, indices, bags, padding_idx)
    padding = call("eq", indices[n], padding_idx) if padding_idx >= 0 else None
    value: Expr = weight[indices[n], d]
    if per_sample_weights is not None:
        value = value * per_sample_weights[n]
    out, column = k.axis(bags, "b"), k.axis(weight.shape[1], "d")
    none = -inf if mode == _MAX else 0.0
    if padding is not None:
        value = call("where", padding, none, value)
    over = Scatter("max" if mode == _MAX else "sum", (n.name, d.name), (owner[n], d), Const(none))
    total = k.define(weight.dtype.compute, (out, column), value, over)
    out, column = k.axis(bags, "b"), k.axis(weight.shape[1], "d")
    result: Expr = total[out, column]
    if mode == _MEAN:
        result = result / call("maximum", sizes[out], 1)
    elif mode == _MAX:
        result = call("where", call("eq", sizes[out], 0), 0.0, result)
    pooled = k.define(weight.dtype, (out, column), result)
    if mode == _MAX:
        return pooled, owner, sizes, _rows_of_maxima(k, weight, indices, owner, total, padding_idx)
    if mode == _SUM and padding_idx < 0 and weight.dtype in (F32, F16):
        # The CPU adds these rows up without telling their bags (at::native::is_fast_path_index_select).
        owner = k.define(I64, (k.axis(0, "n"),), 0)
    return pooled, owner, sizes, sizes


def _owners(k: Builder, offsets: Tensor, count: int, bags: int) -> Tensor:
    """The bag of each of `count` indices: how many bags begin at or before it, less one."""
    n, b = k.axis(count, "n"), k.axis(offsets.shape[0], "b")
    begun = k.define(I64, (n,), call("where", call("le", offsets[b], n), 1, 0), k.sum(b))
    n = k.axis(count, "n")
    return k.define(I64, (n,), clip(begun[n] - 1, 0, bags - 1))


def _rows_of_maxima(
    k: Builder, weight: Tensor, indices: Tensor, owner: Tensor, best: Tensor, padding_idx: int
) -> Tensor:
    """The row that each maximum of a bag came from, the last one that holds it; 0 for an empty bag."""
    n, d = k.axis(indices.shape[0], "n"), k.axis(weight.shape[1], "d")
    holds = call("eq", weight[indices[n], d], best[owner[n], d])
    if padding_idx >= 0:
        holds = call("and", holds, call("ne", indices[n], padding_idx))
    over = Scatter("max", (n.name, d.name), (owner[n], d), Const(0))
    return k.define(I64, k.axes_like(best), call("where", holds, indices[n], 0), over)


_BAGS = offsets(4, below=9)


@op(
    "_embedding_bag_backward.default",
    name="embedding_bag_backward",
    samples=(
        sample(t(4, 3), ints(9), _BAGS, ints(0), ints(4), ints(4), 7, False, 0, False, None),
        sample(t(4, 3), ints(9), _BAGS, ints(0), ints(4), ints(4), 7, False, 0, False, t(9), 2),
    ),
)
def embedding_bag_backward(
    k: Builder,
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the weight [rows, d]. Bags and their sizes are worked out again: not every forward pass keeps
    them."""
    if scale_grad_by_freq:
        raise unsupported("gradients of an embedding scaled by frequency")
    bags, count = grad.shape[0], indices.shape[0]
    owner = _owners(k, offsets, count, bags)
    n, d = k.axis(count, "n"), k.axis(grad.shape[1], "d")
    value: Expr
    if mode == _MAX:
        b = k.axis(bags, "b")
        sizes = _sizes(k, owner, indices, bags, padding_idx)
        value = call("where", call("gt", sizes[b], 0), grad[b, d], 0.0)
        over = Scatter("sum", (b.name, d.name), (maximum_indices[b, d], d), Const(0.0))
    else:
        value = grad[owner[n], d]
        if mode == _MEAN:
            sizes = _sizes(k, owner, indices, bags, padding_idx)
            value = value / call("maximum", sizes[owner[n]], 1)
        if per_sample_weights is not None:
            value = value * per_sample_weights[n]
        if padding_idx >= 0:
            value = call("where", call("eq", indices[n], padding_idx), 0.0, value)
        over = Scatter("sum", (n.name, d.name), (indices[n], d), Const(0.0))
    rows = (k.axis(num_weights, "m"), k.axis(grad.shape[1], "d"))
    return k.round(k.define(grad.dtype.compute, rows, value, over), grad.dtype)


def _sizes(k: Builder, owner: Tensor, indices: Tensor, bags: int, padding_idx: int) -> Tensor:
    n = k.axis(indices.shape[0], "n")
    one: Expr = Const(1) if padding_idx < 0 else call("where", call("eq", indices[n], padding_idx), 0, 1)
    return k.define(I64, (k.axis(bags, "b"),), one, Scatter("sum", (n.name,), (owner[n],), Const(0)))

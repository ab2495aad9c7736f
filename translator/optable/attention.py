"""Scaled dot-product attention, stated so that the online form is one kernel."""

from __future__ import annotations

import math

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL
from kvc.kernel import Axis, Const, Expr, call
from kvc.ops import op
from kvc.optable._common import at, bools, broadcast, sample, t, unsupported

_Q = t(2, 3, 4, 5)


@op(
    "scaled_dot_product_attention.default",
    samples=(
        sample(_Q, t(2, 3, 6, 5), t(2, 3, 6, 7)),
        sample(_Q, _Q, _Q, is_causal=True),
        sample(_Q, t(2, 3, 6, 5), t(2, 3, 6, 5), t(4, 6)),
        sample(_Q, t(2, 3, 6, 5), t(2, 3, 6, 5), bools(2, 1, 4, 6)),
        sample(t(2, 6, 4, 5), t(2, 2, 7, 5), t(2, 2, 7, 5), is_causal=True, enable_gqa=True),
        sample(_Q, _Q, _Q, scale=0.3),
        sample(t(3, 4, 5), t(3, 6, 5), t(3, 6, 5)),
        sample(t(4, 5), t(6, 5), t(6, 2)),
        *(sample(t(1, 2, 3, 4, dtype="bf16"), t(1, 2, 5, 4, dtype="bf16"), t(1, 2, 5, 4, dtype="bf16")),),
    ),
)
def scaled_dot_product_attention(
    k: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale * q k^T + mask) v, with the softmax in the compute type.

    As in the fused kernels of eager, the numerators exp(s - max) are rounded to the dtype of v for the second product,
    and the division by their (unrounded) sum comes last. A row whose mask forbids everything gives zeros.
    """
    if dropout_p:
        raise unsupported("attention with dropout draws random numbers; capture the model in eval mode")
    compute = query.dtype.compute
    factor = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    batch_shape = broadcast(*(_lead(x, query, enable_gqa) for x in (query, key, value)))
    batch = k.axes(batch_shape, "b")
    m, n, d = k.axis(query.shape[-2], "m"), k.axis(key.shape[-2], "n"), k.axis(query.shape[-1], "d")
    dots = k.define(
        compute,
        (*batch, m, n),
        query[(*_batch(query, batch, batch_shape), m, d)] * key[(*_batch(key, batch, batch_shape), n, d)],
        k.sum(d),
    )
    score = _scores(k, dots, factor, attn_mask, is_causal)
    masked = attn_mask is not None
    return _weighted(k, score, value, query, masked)


def _lead(x: Tensor, query: Tensor, gqa: bool) -> tuple[int, ...]:
    """Leading dims; with grouped queries, the heads of key and value count as repeated."""
    lead = x.shape[:-2]
    return (*lead[:-1], query.shape[-3]) if gqa and lead else lead


def _batch(x: Tensor, batch: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Leading indices of an operand: broadcast, or a head shared by a group of query heads."""
    offset = len(batch) - (x.rank - 2)
    index: list[Expr] = []
    for i, extent in enumerate(x.shape[:-2]):
        axis, wide = batch[offset + i], shape[offset + i]
        if extent == wide:
            index.append(axis)
        else:
            index.append(Const(0) if extent == 1 else axis // (wide // extent))
    return tuple(index)


def _scores(k: Builder, dots: Tensor, factor: float, mask: Tensor | None, causal: bool) -> Tensor:
    axes = k.axes_like(dots)
    score: Expr = dots[axes] * factor
    if causal:
        score = call("where", call("le", axes[-1], axes[-2]), score, -math.inf)
    if mask is not None:
        value = at(mask, axes, dots.shape)
        score = call("where", value, score, -math.inf) if mask.dtype is BOOL else score + value
    return k.define(dots.dtype, axes, score)


def _weighted(k: Builder, score: Tensor, value: Tensor, query: Tensor, masked: bool) -> Tensor:
    """The softmax of `score` over its last dim, times `value`."""
    compute = score.dtype
    axes = k.axes_like(score)
    rows = axes[:-1]
    top = k.define(compute, rows, score[axes], k.reduce("max", axes[-1]))
    if masked:
        # exp(-inf - -inf) is NaN: rows without any key shift by zero instead, and their sum is 0.
        r = k.axes_like(top)
        top = k.define(compute, r, call("where", call("eq", top[r], -math.inf), 0.0, top[r]))
    axes = k.axes_like(score)
    e = k.define(compute, axes, call("exp", score[axes] - top[axes[:-1]]))
    axes = k.axes_like(e)
    total = k.define(compute, axes[:-1], e[axes], k.sum(axes[-1]))
    p = k.round(e, value.dtype)
    batch, shape = k.axes(score.shape[:-2], "b"), score.shape[:-2]
    m, n, d = k.axis(score.shape[-2], "m"), k.axis(score.shape[-1], "n"), k.axis(value.shape[-1], "d")
    weighted = k.define(
        compute, (*batch, m, d), p[(*batch, m, n)] * value[(*_batch(value, batch, shape), n, d)], k.sum(n)
    )
    axes = k.axes_like(weighted)
    result: Expr = weighted[axes] / total[axes[:-1]]
    if masked:
        result = call("where", call("eq", total[axes[:-1]], 0.0), 0.0, result)
    return k.define(query.dtype, axes, result)

"""Losses: a pointwise term, then none, mean or sum as the reduction."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Expr, call
from kvc.ops import op
from kvc.optable._common import (
    at,
    broadcast,
    float_dtype,
    ints,
    positive,
    reduced,
    result_dtype,
    sample,
    t,
    unsupported,
)
from kvc.optable.softmax import log_softmax

NONE, MEAN, SUM = 0, 1, 2  # ATen's codes

_PAIR = (
    sample(t(3, 5), t(3, 5)),
    sample(t(3, 5), t(3, 5), 2),
    sample(t(3, 5), t(3, 5), 0),
    sample(t(4, 5, dtype="bf16"), t(4, 5, dtype="bf16")),
)


def _loss(k: Builder, fn: Callable[..., Expr], reduction: int, *args: Tensor) -> Tensor:
    """fn of the broadcast arguments, reduced. A loss that is reduced rounds its terms first, as eager does, where it
    has a narrow dtype."""
    shape = broadcast(*(a.shape for a in args))
    axes = k.axes(shape)
    dtype = float_dtype(result_dtype(*args))
    term = k.define(dtype, axes, fn(*(at(a, axes, shape) for a in args)))
    return _reduce(k, term, reduction)


def _reduce(k: Builder, term: Tensor, reduction: int) -> Tensor:
    if reduction == NONE:
        return term
    total, _ = reduced(k, term, range(term.rank), "sum", term.dtype.compute)
    if reduction == SUM:
        return k.round(total, term.dtype)
    return k.define(term.dtype, (), total[()] / float(prod(term.shape)))


@op("mse_loss.default", samples=_PAIR)
def mse_loss(k: Builder, self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return _loss(k, lambda a, b: (a - b) * (a - b), reduction, self, target)


@op("l1_loss.default", samples=_PAIR)
def l1_loss(k: Builder, self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return _loss(k, lambda a, b: call("abs", a - b), reduction, self, target)


@op("smooth_l1_loss.default", samples=(*_PAIR, sample(t(3, 5), t(3, 5), 1, 0.3)))
def smooth_l1_loss(k: Builder, self: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    """0.5 d^2 / beta below beta, |d| - beta / 2 above."""
    if beta == 0:
        return l1_loss(k, self, target, reduction)

    def term(a: Expr, b: Expr) -> Expr:
        d = call("abs", a - b)
        return call("where", call("lt", d, beta), 0.5 * d * d / beta, d - 0.5 * beta)

    return _loss(k, term, reduction, self, target)


@op("huber_loss.default", samples=(*_PAIR, sample(t(3, 5), t(3, 5), 1, 0.3)))
def huber_loss(k: Builder, self: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """0.5 d^2 up to delta, delta (|d| - delta / 2) above."""

    def term(a: Expr, b: Expr) -> Expr:
        d = call("abs", a - b)
        return call("where", call("le", d, delta), 0.5 * d * d, delta * (d - 0.5 * delta))

    return _loss(k, term, reduction, self, target)


@op(
    "kl_div.default",
    samples=(
        sample(t(3, 5), positive(3, 5)),
        sample(t(3, 5), positive(3, 5), 2),
        sample(t(3, 5), positive(3, 5), 0),
        sample(t(3, 5), t(3, 5), log_target=True),
    ),
)
def kl_div(k: Builder, self: Tensor, target: Tensor, reduction: int = MEAN, log_target: bool = False) -> Tensor:
    """target (log target - self), 0 where target is 0."""

    def term(x: Expr, y: Expr) -> Expr:
        if log_target:
            return call("exp", y) * (y - x)
        return call("where", call("eq", y, 0.0), 0.0, y * call("log", y)) - y * x

    return _loss(k, term, reduction, self, target)


@op(
    "binary_cross_entropy.default",
    samples=(sample(positive(3, 5), positive(3, 5)), sample(positive(3, 5), positive(3, 5), positive(5), 2)),
)
def binary_cross_entropy(
    k: Builder, self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)) with logarithms of at least -100."""

    def term(x: Expr, y: Expr, *w: Expr) -> Expr:
        log_x = call("maximum", call("log", x), -100.0)
        log_rest = call("maximum", call("log1p", -x), -100.0)
        value = (y - 1.0) * log_rest - y * log_x
        return value * w[0] if w else value

    return _loss(k, term, reduction, self, target, *([weight] if weight is not None else []))


@op(
    "binary_cross_entropy_with_logits.default",
    samples=(
        sample(t(3, 5), positive(3, 5)),
        sample(t(3, 5), positive(3, 5), positive(5), positive(5), 2),
        sample(t(3, 5), positive(3, 5), None, positive(5), 0),
    ),
)
def binary_cross_entropy_with_logits(
    k: Builder,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """(1 - y) x + (1 + (p - 1) y) softplus(-x), times the weight."""
    extra = [w for w in (weight, pos_weight) if w is not None]

    def term(x: Expr, y: Expr, *w: Expr) -> Expr:
        soft: Expr = call("softplus", -x)
        if pos_weight is not None:
            soft = (1.0 + (w[-1] - 1.0) * y) * soft
        value = (1.0 - y) * x + soft
        return value * w[0] if weight is not None else value

    return _loss(k, term, reduction, self, target, *extra)


@op("soft_margin_loss.default", samples=_PAIR[:3])
def soft_margin_loss(k: Builder, self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return _loss(k, lambda x, y: call("softplus", -(x * y)), reduction, self, target)


@op("hinge_embedding_loss.default", samples=(sample(t(3, 5), t(3, 5)),))
def hinge_embedding_loss(
    k: Builder, self: Tensor, target: Tensor, margin: float = 1.0, reduction: int = MEAN
) -> Tensor:
    """max(0, margin - x) where y is not 1, plus x where y is not -1."""

    def term(x: Expr, y: Expr) -> Expr:
        far = call("where", call("eq", y, 1.0), 0.0, call("maximum", margin - x, 0.0))
        return far + call("where", call("eq", y, -1.0), 0.0, x)

    return _loss(k, term, reduction, self, target)


@op("margin_ranking_loss.default", samples=(sample(t(5), t(5), t(5)), sample(t(5), t(5), t(5), 0.3, 2)))
def margin_ranking_loss(
    k: Builder, input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    return _loss(k, lambda a, b, y: call("maximum", -y * (a - b) + margin, 0.0), reduction, input1, input2, target)


@op(
    "triplet_margin_loss.default",
    samples=(sample(t(4, 5), t(4, 5), t(4, 5)), sample(t(4, 5), t(4, 5), t(4, 5), 0.5, 2.0, 1e-6, True, 2)),
)
def triplet_margin_loss(
    k: Builder,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> Tensor:
    """max(0, margin + |a - pos + eps| - |a - neg + eps|) over the last dim; `swap` may use |pos - neg| instead."""
    if p != 2.0:
        raise unsupported(f"triplet_margin_loss with p = {p}")

    def distance(a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast(a.shape, b.shape)
        axes = k.axes(shape)
        gap = at(a, axes, shape) - at(b, axes, shape) + eps
        total = k.define(a.dtype.compute, axes[:-1], gap * gap, k.sum(axes[-1]))
        o = k.axes_like(total)
        return k.define(a.dtype, o, call("sqrt", total[o]))

    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        other = distance(positive, negative)
        axes = k.axes_like(far)
        far = k.define(far.dtype, axes, call("minimum", far[axes], other[axes]))
    return _loss(k, lambda n, f: call("maximum", margin + n - f, 0.0), reduction, near, far)


# ---------------------------------------------------------------- classification


def _class_index(x: Tensor, axes: tuple[Axis, ...], cls: Expr) -> tuple[Expr, ...]:
    """A point of the target's axes with the class put in: dim 0 of a 1-d input, else dim 1."""
    return (cls,) if x.rank == 1 else (axes[0], cls, *axes[1:])


def _nll(
    k: Builder, logp: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore: int
) -> tuple[Tensor, Tensor]:
    """(loss, total weight): -w[y] logp[y], nothing where y is ignored; the mean divides by the total weight."""
    axes = k.axes_like(target)
    kept = call("ne", target[axes], ignore)
    # An ignored class may lie outside the table, so it is read as class 0 and dropped.
    cls = call("where", kept, target[axes], 0)
    w: Expr | float = weight[cls] if weight is not None else 1.0
    weights = k.define(logp.dtype, axes, call("where", kept, w, 0.0))
    axes = k.axes_like(target)
    cls = call("where", call("ne", target[axes], ignore), target[axes], 0)
    term = k.define(logp.dtype, axes, -(logp[_class_index(logp, axes, cls)] * weights[axes]))
    total, _ = reduced(k, weights, range(weights.rank), "sum", logp.dtype.compute)
    if reduction == NONE:
        return term, k.round(total, logp.dtype)
    loss, _ = reduced(k, term, range(term.rank), "sum", logp.dtype.compute)
    if reduction == MEAN:
        loss = k.define(logp.dtype, (), loss[()] / total[()])
    return k.round(loss, logp.dtype), k.round(total, logp.dtype)


_NLL = (
    sample(t(4, 5), ints(4)),
    sample(t(4, 5), ints(4), positive(5), 2),
    sample(t(4, 5), ints(4), positive(5), 1, 2),
    sample(t(4, 5), ints(4), None, 0),
)


@op("nll_loss.default", "nll_loss2d.default", "nll_loss_nd.default", samples=_NLL)
def nll_loss(
    k: Builder,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Tensor:
    return _nll(k, self, target, weight, reduction, ignore_index)[0]


@op("nll_loss_forward.default", "nll_loss2d_forward.default", samples=(sample(t(4, 5), ints(4), positive(5), 1, -100),))
def nll_loss_forward(
    k: Builder, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    return _nll(k, self, target, weight, reduction, ignore_index)


@op(
    "cross_entropy_loss.default",
    samples=(
        *_NLL,
        sample(t(2, 5, 3), ints(2, 3)),
        sample(t(4, 5), positive(4, 5)),
        sample(t(4, 5), ints(4), label_smoothing=0.1),
        sample(t(5), ints()),
        sample(t(4, 5), ints(4), positive(5), label_smoothing=0.2),
        sample(t(4, 5), positive(4, 5), positive(5), 2, label_smoothing=0.1),
        sample(t(4, 7, dtype="bf16"), ints(4)),
    ),
)
def cross_entropy_loss(
    k: Builder,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """nll_loss of the log softmax over the class dim; the target is a class, or a distribution over classes."""
    class_dim = 0 if self.rank == 1 else 1
    logp = log_softmax(k, self, class_dim)
    if target.shape == self.shape and target.dtype.is_float:
        return _soft_targets(k, logp, target, weight, reduction, label_smoothing, class_dim)
    loss, total = _nll(k, logp, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return loss
    return _smoothed(k, logp, target, weight, reduction, ignore_index, label_smoothing, loss, total)


def _smoothed(
    k: Builder,
    logp: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore: int,
    smoothing: float,
    loss: Tensor,
    total: Tensor,
) -> Tensor:
    """(1 - s) loss + s / C * (-sum over classes of w logp), averaged like the loss."""
    axes = k.axes_like(target)
    c = k.axis(logp.shape[0 if logp.rank == 1 else 1], "c")
    value = logp[_class_index(logp, axes, c)]
    flat = k.define(logp.dtype.compute, axes, value if weight is None else value * weight[c], k.sum(c))
    axes = k.axes_like(flat)
    kept = call("ne", target[axes], ignore)
    smooth = k.define(logp.dtype, axes, call("where", kept, -flat[axes], 0.0))
    if reduction != NONE:
        summed, _ = reduced(k, smooth, range(smooth.rank), "sum", logp.dtype.compute)
        smooth = k.define(logp.dtype, (), summed[()] / total[()]) if reduction == MEAN else summed
    axes = k.axes_like(smooth)
    share = smoothing / logp.shape[0 if logp.rank == 1 else 1]
    return k.define(logp.dtype, axes, loss[axes] * (1.0 - smoothing) + smooth[axes] * share)


def _soft_targets(
    k: Builder, logp: Tensor, target: Tensor, weight: Tensor | None, reduction: int, smoothing: float, dim: int
) -> Tensor:
    """-sum over classes of target * w * logp; the mean is over everything but the class dim."""
    axes = k.axes_like(logp)
    classes = logp.shape[dim]
    share: Expr = target[axes]
    if smoothing:
        share = share * (1.0 - smoothing) + smoothing / classes
    value = logp[axes] * share
    if weight is not None:
        value = value * weight[axes[dim]]
    kept = [a for i, a in enumerate(axes) if i != dim]
    if reduction == NONE:
        term = k.define(logp.dtype.compute, kept, -value, k.sum(axes[dim]))
        return k.round(term, logp.dtype)
    total = k.define(logp.dtype.compute, (), -value, k.sum(*axes))
    count = prod(logp.shape) // classes if reduction == MEAN else 1
    return k.define(logp.dtype, (), total[()] / float(count))

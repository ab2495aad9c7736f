"""Gradients of distances between rows."""

from __future__ import annotations

from math import inf

from kvc.builder import Builder, Tensor
from kvc.kernel import Expr, call
from kvc.ops import op
from kvc.optable._common import positive, sample, t


def _slope(difference: Expr, distance: Expr, p: float) -> Expr:
    """The derivative of a p-norm by one of its components; where the norm does not change or has none, 0."""
    if p == 0.0:
        return difference * 0.0
    if p == 1.0:
        return call("sign", difference)
    if p == inf:
        return call("where", call("eq", call("abs", difference), distance), call("sign", difference), 0.0)
    if p == 2.0:
        ratio = difference / distance
    else:
        ratio = call("sign", difference) * call("pow", call("abs", difference) / distance, p - 1.0)
    nowhere = call("eq", distance, 0.0)
    if p < 1.0:
        nowhere = call("or", nowhere, call("eq", difference, 0.0))
    return call("where", nowhere, 0.0, ratio)


@op(
    "_cdist_backward.default",
    samples=tuple(
        sample(t(2, 4, 5), t(2, 4, 3), t(2, 5, 3), p, positive(2, 4, 5)) for p in (0.0, 1.0, 2.0, 3.0, 1.5, inf)
    ),
)
def cdist_backward(k: Builder, grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """The gradient of x1 [.., m, d]: sum over n of grad[.., m, n] times the slope of the distance of rows m and n."""
    *lead, m, d = k.axes_like(x1)
    n = k.axis(x2.shape[-2], "n")
    difference = x1[(*lead, m, d)] - x2[(*lead, n, d)]
    value = grad[(*lead, m, n)] * _slope(difference, cdist[(*lead, m, n)], p)
    return k.round(k.define(x1.dtype.compute, (*lead, m, d), value, k.sum(n)), x1.dtype)

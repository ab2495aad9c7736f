"""Activations: one statement each, computed in the compute type and rounded once, as eager's kernels do."""

from __future__ import annotations

from collections.abc import Callable

from kvc.builder import Builder, Tensor
from kvc.kernel import Expr, call
from kvc.ops import op
from kvc.optable._common import Scalar, dim_of, ints, sample, t, unsupported

_SAMPLES = (sample(t(3, 5)), sample(t(2, 1, 7, dtype="bf16")), sample(t()))

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017, as in ATen


def _map(k: Builder, x: Tensor, fn: Callable[[Expr], Expr]) -> Tensor:
    axes = k.axes_like(x)
    return k.define(x.dtype, axes, fn(x[axes]))


def _positive(x: Expr, then: Expr, otherwise: Expr) -> Expr:
    return call("where", call("gt", x, 0.0), then, otherwise)


def _simple(name: str) -> None:
    op(f"{name}.default", name=name, samples=_SAMPLES)(lambda k, self: _map(k, self, lambda x: call(name, x)))


for _name in ("silu", "mish", "hardsigmoid", "hardswish"):
    _simple(_name)


@op("relu.default", samples=(*_SAMPLES, sample(ints(4))))
def relu(k: Builder, self: Tensor) -> Tensor:
    zero = 0.0 if self.dtype.is_float else 0
    return _map(k, self, lambda x: call("relu", x) if self.dtype.is_float else call("maximum", x, zero))


@op("gelu.default", samples=(*_SAMPLES, sample(t(3, 5), approximate="tanh")))
def gelu(k: Builder, self: Tensor, approximate: str = "none") -> Tensor:
    return _map(k, self, lambda x: call("gelu" if approximate == "none" else "gelu_tanh", x))


@op("relu6.default", samples=_SAMPLES)
def relu6(k: Builder, self: Tensor) -> Tensor:
    return hardtanh(k, self, 0.0, 6.0)


@op("hardtanh.default", samples=(*_SAMPLES, sample(t(4), min_val=-0.5, max_val=2)))
def hardtanh(k: Builder, self: Tensor, min_val: Scalar = -1, max_val: Scalar = 1) -> Tensor:
    low, high = (float(min_val), float(max_val)) if self.dtype.is_float else (int(min_val), int(max_val))
    return _map(k, self, lambda x: call("minimum", call("maximum", x, low), high))


@op("leaky_relu.default", samples=(*_SAMPLES, sample(t(4), negative_slope=0.2)))
def leaky_relu(k: Builder, self: Tensor, negative_slope: Scalar = 0.01) -> Tensor:
    return _map(k, self, lambda x: _positive(x, x, x * float(negative_slope)))


@op("prelu.default", samples=(sample(t(2, 3, 5), t(3)), sample(t(2, 3), t(1)), sample(t(4), t(1))))
def prelu(k: Builder, self: Tensor, weight: Tensor) -> Tensor:
    """max(x, 0) + weight[c] * min(x, 0), the channel being dim 1."""
    axes = k.axes_like(self)
    slope = weight[axes[1] if weight.shape[0] > 1 else 0]
    x = self[axes]
    return k.define(self.dtype, axes, _positive(x, x, slope * x))


@op("elu.default", samples=(*_SAMPLES, sample(t(4), alpha=0.5, scale=1.2, input_scale=2.0)))
def elu(k: Builder, self: Tensor, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Tensor:
    a, s, i = float(alpha), float(scale), float(input_scale)
    return _map(k, self, lambda x: _positive(x, _times(x, s), _times(call("expm1", _times(x, i)), a * s)))


def _times(x: Expr, factor: float) -> Expr:
    return x if factor == 1.0 else x * factor


@op("selu.default", samples=_SAMPLES)
def selu(k: Builder, self: Tensor) -> Tensor:
    return elu(k, self, SELU_ALPHA, SELU_SCALE)


@op("celu.default", samples=(*_SAMPLES, sample(t(4), alpha=0.5)))
def celu(k: Builder, self: Tensor, alpha: Scalar = 1.0) -> Tensor:
    return elu(k, self, alpha, 1.0, 1.0 / float(alpha))


@op("softplus.default", samples=(*_SAMPLES, sample(t(4), beta=2, threshold=1)))
def softplus(k: Builder, self: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    b, limit = float(beta), float(threshold)

    def soft(x: Expr) -> Expr:
        value = call("softplus", _times(x, b))
        return call("where", call("gt", _times(x, b), limit), x, value if b == 1.0 else value / b)

    return _map(k, self, soft)


@op("log_sigmoid.default", samples=_SAMPLES)
def log_sigmoid(k: Builder, self: Tensor) -> Tensor:
    """min(x, 0) - log1p(exp(-|x|))."""
    return _map(k, self, lambda x: call("minimum", x, 0.0) - call("log1p", call("exp", -call("abs", x))))


@op("softshrink.default", samples=(*_SAMPLES, sample(t(9), lambd=0.3)))
def softshrink(k: Builder, self: Tensor, lambd: Scalar = 0.5) -> Tensor:
    m = float(lambd)

    def shrink(x: Expr) -> Expr:
        return call("where", call("gt", x, m), x - m, call("where", call("lt", x, -m), x + m, x * 0.0))

    return _map(k, self, shrink)


@op("hardshrink.default", samples=(*_SAMPLES, sample(t(9), lambd=0.3)))
def hardshrink(k: Builder, self: Tensor, lambd: Scalar = 0.5) -> Tensor:
    m = float(lambd)
    return _map(k, self, lambda x: call("where", call("and", call("ge", x, -m), call("le", x, m)), 0.0, x))


@op("threshold.default", samples=(sample(t(9), 0.1, 20.0),))
def threshold(k: Builder, self: Tensor, threshold: Scalar, value: Scalar) -> Tensor:
    return _map(k, self, lambda x: call("where", call("le", x, float(threshold)), float(value), x))


@op("glu.default", samples=(sample(t(3, 8)), sample(t(6, 5), dim=0), sample(t(2, 6, 3, dtype="bf16"), dim=1)))
def glu(k: Builder, self: Tensor, dim: int = -1) -> Tensor:
    """First half times the sigmoid of the second."""
    d = dim_of(self, dim)
    half = self.shape[d] // 2
    axes = k.axes(tuple(half if i == d else n for i, n in enumerate(self.shape)))
    gate = tuple(a + half if i == d else a for i, a in enumerate(axes))
    return k.define(self.dtype, axes, self[axes] * call("sigmoid", self[gate]))


def _dropout(name: str) -> None:
    """The input itself in evaluation; random dropping has no meaning in index notation."""

    def meaning(k: Builder, input: Tensor, p: float, train: bool) -> Tensor:
        if train and p:
            raise unsupported(_RANDOM)
        return input

    op(f"{name}.default", name=name, samples=(sample(t(3, 5), 0.5, False), sample(t(3, 5), 0.0, True)))(meaning)


_RANDOM = "dropout in training draws random numbers; capture the model in eval mode"
for _name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
    _dropout(_name)


@op("native_dropout.default", samples=(sample(t(3, 5), 0.5, False),))
def native_dropout(k: Builder, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if (train or train is None) and p:
        raise unsupported(_RANDOM)
    from kvc.dtypes import BOOL

    axes = k.axes_like(input)
    return input, k.define(BOOL, axes, True)

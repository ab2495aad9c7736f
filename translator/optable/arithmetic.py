"""Pointwise arithmetic and the functions of one real variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL
from kvc.kernel import Expr, call
from kvc.ops import op
from kvc.optable._common import Scalar, bools, float_dtype, ints, pointwise, result_dtype, sample, t

TS = Tensor | Scalar

_BINARY = (
    sample(t(3, 5), t(3, 5)),
    sample(t(2, 3, 5), t(3, 1)),
    sample(t(5), t(4, 1, 1)),
    sample(t(), t(3)),
    sample(t(3, dtype="bf16"), t(2, 3)),
    sample(t(7, dtype="f16"), t(7, dtype="bf16")),
    sample(t(7, dtype="bf16"), t()),
    sample(ints(4), t(4, dtype="f16")),
    sample(ints(4, dtype="i32"), ints(3, 4)),
    sample(ints(4), ints()),
    sample(t(3), 2),
    sample(ints(6), 2),
)
_MORE = (sample(ints(4), 1.5), sample(t(3, dtype="bf16"), 0.3), sample(bools(3), 2), sample(bools(3), 0.5))


def _scaled(x: Expr, alpha: Scalar) -> Expr:
    return x if alpha == 1 else x * alpha


def _both_bool(*args: TS) -> bool:
    return result_dtype(*args) is BOOL


@op(
    "add.Tensor", "add.Scalar", samples=(*_BINARY, *_MORE, sample(t(3, 5), t(5), alpha=0.5), sample(bools(3), bools(3)))
)
def add(k: Builder, self: TS, other: TS, alpha: Scalar = 1) -> Tensor:
    """self + alpha * other; on booleans, logical or."""
    if _both_bool(self, other):
        return pointwise(k, lambda a, b: call("or", a, b), self, other)
    return pointwise(k, lambda a, b: a + _scaled(b, alpha), self, other)


@op(
    "sub.Tensor",
    "sub.Scalar",
    "subtract.Tensor",
    "subtract.Scalar",
    samples=(*_BINARY, sample(ints(4), 1.5), sample(t(3, 5), t(5), alpha=2)),
)
def sub(k: Builder, self: TS, other: TS, alpha: Scalar = 1) -> Tensor:
    return pointwise(k, lambda a, b: a - _scaled(b, alpha), self, other)


@op("rsub.Tensor", "rsub.Scalar", samples=(*_BINARY, sample(t(3, 5), 1.0, alpha=2)))
def rsub(k: Builder, self: TS, other: TS, alpha: Scalar = 1) -> Tensor:
    """other - alpha * self."""
    return pointwise(k, lambda a, b: b - _scaled(a, alpha), self, other)


@op(
    "mul.Tensor",
    "mul.Scalar",
    "multiply.Tensor",
    "multiply.Scalar",
    samples=(*_BINARY, *_MORE, sample(bools(3), bools(3))),
)
def mul(k: Builder, self: TS, other: TS) -> Tensor:
    """Product; on booleans, logical and."""
    if _both_bool(self, other):
        return pointwise(k, lambda a, b: call("and", a, b), self, other)
    return pointwise(k, lambda a, b: a * b, self, other)


_DIVIDE = (
    sample(t(3, 5), t(3, 5)),
    sample(t(2, 3, 5), t(3, 1)),
    sample(t(5, dtype="bf16"), t(5, dtype="bf16")),
    sample(t(4), 3),
    sample(t(4), -2.5),
)


@op(
    "div.Tensor",
    "div.Scalar",
    "div.Tensor_mode",
    "div.Scalar_mode",
    "divide.Tensor",
    "true_divide.Tensor",
    samples=(
        *_DIVIDE,
        sample(ints(4), 3),
        sample(ints(4), 3, rounding_mode="floor"),
        sample(ints(3), 2.0),
        sample(t(4), 0.3, rounding_mode="floor"),
        sample(t(4), 0.3, rounding_mode="trunc"),
        sample(ints(4), 3, rounding_mode="trunc"),
    ),
)
def div(k: Builder, self: TS, other: TS, rounding_mode: str | None = None) -> Tensor:
    """Quotient; rounding_mode "floor" and "trunc" keep integers integers."""
    if rounding_mode is None:
        return pointwise(k, lambda a, b: a / b, self, other, floats=True)
    if rounding_mode == "floor":
        return floor_divide(k, self, other)
    if result_dtype(self, other).is_float:
        return pointwise(k, lambda a, b: call("trunc", a / b), self, other)

    def truncate(a: Expr, b: Expr) -> Expr:
        exact = (a - call("fmod", a, b)) // b
        return exact

    return pointwise(k, truncate, self, other)


@op("floor_divide.default", "floor_divide.Scalar", samples=(*_DIVIDE, sample(ints(6), 4), sample(ints(6, below=9), 4)))
def floor_divide(k: Builder, self: TS, other: TS) -> Tensor:
    return pointwise(k, lambda a, b: a // b, self, other)


@op(
    "remainder.Tensor",
    "remainder.Scalar",
    "remainder.Scalar_Tensor",
    samples=(*_DIVIDE, sample(ints(6, below=9), 4), sample(5, t(3))),
)
def remainder(k: Builder, self: TS, other: TS) -> Tensor:
    """Remainder with the sign of the divisor."""
    return pointwise(k, lambda a, b: call("mod", a, b), self, other)


@op("fmod.Tensor", "fmod.Scalar", samples=(*_DIVIDE, sample(ints(6, below=9), 4)))
def fmod(k: Builder, self: TS, other: TS) -> Tensor:
    """Remainder with the sign of the dividend."""
    return pointwise(k, lambda a, b: call("fmod", a, b), self, other)


def _power(base: Expr, exponent: Scalar, is_float: bool) -> Expr:
    """base ** exponent, with the multiplications that eager uses for small exponents."""
    if exponent == 2:
        return base * base
    if exponent == 3:
        return base * base * base
    if is_float:
        special: dict[float, Callable[[], Expr]] = {
            0.5: lambda: call("sqrt", base),
            -0.5: lambda: call("rsqrt", base),
            -1: lambda: 1.0 / base,
            -2: lambda: 1.0 / (base * base),
            1: lambda: base,
        }
        if exponent in special:
            return special[exponent]()
    return call("pow", base, exponent)


@op(
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    samples=(
        *(sample(t(3, 4), e) for e in (2, 3, 0.5, -0.5, -1, -2, 1, 2.5, 0, 4)),
        sample(ints(5), 2),
        sample(ints(5), 4),
        sample(t(3), t(4, 1)),
        sample(2.0, t(5)),
        sample(2, ints(5)),
        sample(t(3, dtype="bf16"), 2),
    ),
)
def pow_(k: Builder, self: TS, exponent: TS) -> Tensor:
    if isinstance(exponent, Tensor):
        return pointwise(k, lambda a, b: call("pow", a, b), self, exponent)
    is_float = result_dtype(self, exponent).is_float
    return pointwise(k, lambda a, _: _power(a, exponent, is_float), self, exponent)


@op("minimum.default", "min.other", samples=_BINARY[:10])
def minimum(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    return pointwise(k, lambda a, b: call("minimum", a, b), self, other)


@op("maximum.default", "max.other", samples=_BINARY[:10])
def maximum(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    return pointwise(k, lambda a, b: call("maximum", a, b), self, other)


@op("fmax.default", samples=(sample(t(3, 5), t(5)),))
def fmax(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    """Maximum that ignores a NaN on one side."""
    return pointwise(k, lambda a, b: _ignore_nan("maximum", a, b), self, other)


@op("fmin.default", samples=(sample(t(3, 5), t(5)),))
def fmin(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    """Minimum that ignores a NaN on one side."""
    return pointwise(k, lambda a, b: _ignore_nan("minimum", a, b), self, other)


def _ignore_nan(fn: str, a: Expr, b: Expr) -> Expr:
    return call("where", call("isnan", a), b, call("where", call("isnan", b), a, call(fn, a, b)))


@op("atan2.default", samples=(sample(t(3, 5), t(5)), sample(t(3, dtype="bf16"), t(3, dtype="bf16"))))
def atan2(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    return pointwise(k, lambda a, b: call("atan2", a, b), self, other, floats=True)


@op("hypot.default", samples=(sample(t(3, 5), t(5)),))
def hypot(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    """sqrt(a^2 + b^2), scaled by the larger so that it does not overflow."""

    def length(a: Expr, b: Expr) -> Expr:
        big = call("maximum", call("abs", a), call("abs", b))
        small = call("minimum", call("abs", a), call("abs", b))
        ratio = call("where", call("eq", big, 0.0), 0.0, small / big)
        return big * call("sqrt", 1.0 + ratio * ratio)

    return pointwise(k, length, self, other)


@op("addcmul.default", samples=(sample(t(3, 5), t(3, 5), t(5)), sample(t(3, 5), t(3, 5), t(5), value=0.5)))
def addcmul(k: Builder, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """self + value * tensor1 * tensor2."""
    return pointwise(k, lambda s, a, b: s + _scaled(a, value) * b, self, tensor1, tensor2)


@op("addcdiv.default", samples=(sample(t(3, 5), t(3, 5), t(5)), sample(t(3, 5), t(3, 5), t(5), value=0.5)))
def addcdiv(k: Builder, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = 1) -> Tensor:
    """self + value * tensor1 / tensor2."""
    return pointwise(k, lambda s, a, b: s + _scaled(a, value) / b, self, tensor1, tensor2)


@op(
    "lerp.Scalar",
    "lerp.Tensor",
    samples=(sample(t(3, 5), t(3, 5), 0.3), sample(t(3, 5), t(3, 5), 0.8), sample(t(3, 5), t(5), t(3, 1))),
)
def lerp(k: Builder, self: Tensor, end: Tensor, weight: TS) -> Tensor:
    """Linear interpolation; from the nearer end, as ATen does for accuracy."""

    def mix(a: Expr, b: Expr, w: Expr) -> Expr:
        return call("where", call("lt", call("abs", w), 0.5), a + w * (b - a), b - (b - a) * (1.0 - w))

    return pointwise(k, mix, self, end, weight)


def unary(name: str, *, floats: bool, aten: str = "", body: Callable[[Expr], Any] | None = None) -> None:
    """Register a function of one variable: `floats` says that integers give floats."""
    samples = [sample(t(3, 5)), sample(t()), sample(t(2, 3, 1, dtype="bf16")), sample(t(7, dtype="f16"))]
    if floats or name in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc"):
        samples.append(sample(ints(2, 3)))

    def meaning(k: Builder, self: Tensor) -> Tensor:
        dtype = float_dtype(self.dtype) if floats else self.dtype
        axes = k.axes_like(self)
        value = self[axes]
        return k.define(dtype, axes, body(value) if body else call(name, value))

    op(f"{aten or name}.default", name=name, samples=samples)(meaning)


for _name in [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "reciprocal",
    "sigmoid",
]:
    unary(_name, floats=True)
for _name in ("neg", "abs", "sign", "floor", "ceil", "trunc"):
    unary(_name, floats=False)
unary("neg_view", floats=False, aten="_neg_view", body=lambda x: -x)  # eager negates when it is read
unary("square", floats=False, body=lambda x: x * x)
unary("frac", floats=False, body=lambda x: x - call("trunc", x))
unary("deg2rad", floats=True, body=lambda x: x * (math.pi / 180.0))
unary("rad2deg", floats=True, body=lambda x: x * (180.0 / math.pi))
unary(
    "sinc", floats=True, body=lambda x: call("where", call("eq", x, 0.0), 1.0, call("sin", x * math.pi) / (x * math.pi))
)


@op("round.default", "round.decimals", samples=(sample(t(3, 5)), sample(t(9, dtype="bf16")), sample(t(6), decimals=1)))
def round_(k: Builder, self: Tensor, decimals: int = 0) -> Tensor:
    """Round half to even, to a number of decimals."""
    axes = k.axes_like(self)
    value = self[axes]
    scale = 10.0 ** abs(decimals)
    if decimals == 0:
        expr: Expr = call("round", value)
    elif decimals > 0:
        expr = call("round", value * scale) / scale
    else:
        expr = call("round", value / scale) * scale
    return k.define(self.dtype, axes, expr)


@op("logit.default", samples=(sample(t(3, 5)), sample(t(3, 5), 0.1)))
def logit(k: Builder, self: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x first kept within [eps, 1 - eps]."""

    def value(x: Expr) -> Expr:
        inside = x if eps is None else call("minimum", call("maximum", x, eps), 1.0 - eps)
        return call("log", inside / (1.0 - inside))

    return pointwise(k, value, self, floats=True)


@op("xlogy.Tensor", "special_xlogy.default", samples=(sample(t(3, 5), t(3, 5)),))
def xlogy(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    """x * log(y), and 0 where x is 0 (NaN where y is NaN)."""

    def value(x: Expr, y: Expr) -> Expr:
        product = call("where", call("eq", x, 0.0), 0.0, x * call("log", y))
        return call("where", call("isnan", y), y, product)

    return pointwise(k, value, self, other, floats=True)


@op(
    "copysign.Tensor",
    "copysign.Scalar",
    samples=(sample(t(3, 4), t(4)), sample(t(5), -2.0), sample(t(3), t(3, dtype="bf16"))),
)
def copysign(k: Builder, self: Tensor, other: Tensor | Scalar) -> Tensor:
    """The magnitude of self with the sign of other; that of a zero is the sign of its reciprocal."""

    def signed(x: Expr, y: Expr) -> Expr:
        magnitude = call("abs", x)
        negative = call("or", call("lt", y, 0), call("lt", call("div", 1.0, y), 0.0))
        return call("where", negative, -magnitude, magnitude)

    return pointwise(k, signed, self, other, floats=True)

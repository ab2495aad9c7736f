"""Comparisons, logic, bit operations, selection, clamping and predicates."""

from __future__ import annotations

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL
from kvc.kernel import Expr, call
from kvc.ops import op
from kvc.optable._common import Scalar, bools, broadcast, ints, pointwise, read, result_dtype, sample, t, unsupported

TS = Tensor | Scalar


def _compare(name: str) -> None:
    samples = (
        sample(t(3, 5), t(3, 5)),
        sample(t(2, 3, 5), t(3, 1)),
        sample(ints(3, 4), ints(4)),
        sample(ints(7), 2),
        sample(ints(7), 1.5),
        sample(t(7), 0),
        sample(bools(5), bools(5)),
        sample(t(5, dtype="bf16"), t(5)),
    )

    def meaning(k: Builder, self: TS, other: TS) -> Tensor:
        return pointwise(k, lambda a, b: call(name, a, b), self, other, dtype=BOOL)

    op(f"{name}.Tensor", f"{name}.Scalar", name=name, samples=samples)(meaning)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare(_name)


def _truth(x: Expr, dtype_is_bool: bool) -> Expr:
    return x if dtype_is_bool else call("ne", x, 0)


def _logical(name: str, fn: str) -> None:
    samples = (sample(bools(3, 5), bools(5)), sample(ints(6), ints(6)), sample(t(3, 1), bools(4)))

    def meaning(k: Builder, self: Tensor, other: Tensor) -> Tensor:
        def value(a: Expr, b: Expr) -> Expr:
            return call(fn, _truth(a, self.dtype is BOOL), _truth(b, other.dtype is BOOL))

        return pointwise(k, value, self, other, dtype=BOOL)

    op(f"{name}.default", name=name, samples=samples)(meaning)


for _name, _fn in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "ne")):
    _logical(_name, _fn)


@op("logical_not.default", samples=(sample(bools(3, 5)), sample(ints(6)), sample(t(4))))
def logical_not(k: Builder, self: Tensor) -> Tensor:
    return pointwise(k, lambda a: call("not", _truth(a, self.dtype is BOOL)), self, dtype=BOOL)


def _bitwise(name: str, fn: str, on_bool: str, *aten: str) -> None:
    samples = (
        sample(ints(3, 5, below=100), ints(5, below=100)),
        sample(ints(6, below=50, dtype="i32"), 12),
        sample(bools(3, 5), bools(5)),
        sample(bools(4), True),
    )

    def meaning(k: Builder, self: TS, other: TS) -> Tensor:
        which = on_bool if result_dtype(self, other) is BOOL else fn
        return pointwise(k, lambda a, b: call(which, a, b), self, other)

    op(*aten, name=name, samples=samples)(meaning)


_bitwise("bitwise_and", "bitand", "and", "bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", "__and__.Scalar")
_bitwise("bitwise_or", "bitor", "or", "bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", "__or__.Scalar")
_bitwise("bitwise_xor", "bitxor", "ne", "bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor", "__xor__.Scalar")


@op("bitwise_not.default", samples=(sample(bools(3, 5)), sample(ints(6, below=100))))
def bitwise_not(k: Builder, self: Tensor) -> Tensor:
    return pointwise(k, lambda a: call("not" if self.dtype is BOOL else "bitnot", a), self)


@op(
    "bitwise_left_shift.Tensor",
    "bitwise_left_shift.Tensor_Scalar",
    "__lshift__.Scalar",
    "__lshift__.Tensor",
    samples=(sample(ints(6, below=100), ints(6)), sample(ints(6, dtype="i32"), 3)),
)
def bitwise_left_shift(k: Builder, self: TS, other: TS) -> Tensor:
    return pointwise(k, lambda a, b: call("shl", a, b), self, other)


@op(
    "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar",
    "__rshift__.Scalar",
    "__rshift__.Tensor",
    samples=(sample(ints(6, below=100), ints(6)), sample(ints(6, below=90, dtype="i32"), 3)),
)
def bitwise_right_shift(k: Builder, self: TS, other: TS) -> Tensor:
    return pointwise(k, lambda a, b: call("shr", a, b), self, other)


@op("isnan.default", samples=(sample(t(3, 5)), sample(ints(4))))
def isnan(k: Builder, self: Tensor) -> Tensor:
    return pointwise(k, lambda a: call("isnan", a) if self.dtype.is_float else call("ne", a, a), self, dtype=BOOL)


@op("isinf.default", samples=(sample(t(3, 5)),))
def isinf(k: Builder, self: Tensor) -> Tensor:
    return pointwise(k, lambda a: call("isinf", a) if self.dtype.is_float else call("ne", a, a), self, dtype=BOOL)


@op("isfinite.default", samples=(sample(t(3, 5)),))
def isfinite(k: Builder, self: Tensor) -> Tensor:
    def finite(a: Expr) -> Expr:
        if not self.dtype.is_float:
            return call("eq", a, a)
        return call("not", call("or", call("isnan", a), call("isinf", a)))

    return pointwise(k, finite, self, dtype=BOOL)


@op(
    "where.self",
    "where.ScalarOther",
    "where.ScalarSelf",
    "where.Scalar",
    samples=(
        sample(bools(3, 5), t(3, 5), t(5)),
        sample(bools(3, 1), t(1, 5), 0.0),
        sample(bools(4), 1.0, t(4)),
        sample(bools(4), 1, 0),
        sample(bools(4), ints(4), t(4)),
        sample(bools(2, 3), t(3, dtype="bf16"), t()),
        sample(bools(4), t(4, dtype="bf16"), float("-inf")),
    ),
)
def where(k: Builder, condition: Tensor, self: TS, other: TS) -> Tensor:
    return _select(k, condition, self, other)


def _select(k: Builder, condition: Tensor, yes: TS, no: TS) -> Tensor:
    common = result_dtype(yes, no)
    values = [v for v in (condition, yes, no) if isinstance(v, Tensor)]
    shape = broadcast(*(v.shape for v in values))
    axes = k.axes(shape)
    picked = call(
        "where",
        _truth(read(condition, axes, shape, None), condition.dtype is BOOL),
        read(yes, axes, shape, common),
        read(no, axes, shape, common),
    )
    return k.define(common, axes, picked)


@op(
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    samples=(
        sample(t(3, 5), bools(3, 5), float("-inf")),
        sample(t(2, 3, 5), bools(3, 1), 0),
        sample(t(3), bools(3), t()),
        sample(ints(4), bools(4), 7),
        sample(t(3, 5, dtype="bf16"), bools(5), -1e9),
    ),
)
def masked_fill(k: Builder, self: Tensor, mask: Tensor, value: TS) -> Tensor:
    """self, with `value` where the mask is true; keeps the dtype of self."""
    shape = broadcast(self.shape, mask.shape)
    axes = k.axes(shape)
    fill = read(value, axes, shape, self.dtype)
    expr = call("where", read(mask, axes, shape, None), fill, read(self, axes, shape, None))
    return k.define(self.dtype, axes, expr)


@op(
    "clamp.default",
    "clamp.Tensor",
    samples=(
        sample(t(3, 5), -0.5, 0.5),
        sample(t(3, 5), min=0.1),
        sample(t(3, 5), max=0),
        sample(ints(6), 1, 3),
        sample(t(3, 5), t(5), t(3, 1)),
        sample(t(2, 3, dtype="bf16"), 0.0),
        sample(ints(4), 0.5),
    ),
)
def clamp(k: Builder, self: Tensor, min: TS | None = None, max: TS | None = None) -> Tensor:
    """minimum(maximum(self, min), max); NaN stays."""
    if min is None and max is None:
        raise unsupported("clamp without bounds")
    result = self if min is None else _bound(k, "maximum", self, min)
    return result if max is None else _bound(k, "minimum", result, max)


def _bound(k: Builder, fn: str, x: Tensor, limit: TS) -> Tensor:
    if not isinstance(limit, Tensor) and x.dtype.is_float:
        limit = float(limit)
    return pointwise(k, lambda a, b: call(fn, a, b), x, limit)


@op("clamp_min.default", "clamp_min.Tensor", samples=(sample(t(3, 5), 0.1), sample(t(3, 5), t(5)), sample(ints(4), 2)))
def clamp_min(k: Builder, self: Tensor, min: TS) -> Tensor:
    return clamp(k, self, min, None)


@op("clamp_max.default", "clamp_max.Tensor", samples=(sample(t(3, 5), 0.1), sample(t(3, 5), t(5)), sample(ints(4), 2)))
def clamp_max(k: Builder, self: Tensor, max: TS) -> Tensor:
    return clamp(k, self, None, max)


@op("heaviside.default", samples=(sample(t(5), t(5)),))
def heaviside(k: Builder, self: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, `values` at zero."""

    def step(x: Expr, v: Expr) -> Expr:
        return call("where", call("eq", x, 0.0), v, call("where", call("lt", x, 0.0), 0.0, 1.0))

    return pointwise(k, step, self, values)

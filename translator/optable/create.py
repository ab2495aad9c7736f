"""Tensors made from nothing, and casts. Shapes are static, so each is one statement over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL, F32, I64, DType
from kvc.kernel import Axis, Cast, Expr, call, lift
from kvc.ops import op
from kvc.optable._common import Scalar, at, ints, sample, t

DROPPED = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "generator", "implicit"}
)
"""ATen arguments that say where or how a tensor is stored, not what its values are."""


def _default(value: Scalar) -> DType:
    if isinstance(value, bool):
        return BOOL
    return I64 if isinstance(value, int) else F32


def _literal(value: Scalar, dtype: DType) -> Scalar:
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype is BOOL else int(value)


def _fill(k: Builder, shape: Sequence[int], value: Scalar, dtype: DType) -> Tensor:
    return k.define(dtype, k.axes(shape), _literal(value, dtype))


@op("full.default", samples=(sample((3, 5), 1.5), sample((), 2), sample((4,), True), sample((2, 1), -0.5)))
def full(k: Builder, size: Sequence[int], fill_value: Scalar, dtype: DType | None = None) -> Tensor:
    return _fill(k, size, fill_value, dtype or _default(fill_value))


@op("zeros.default", "empty.memory_format", samples=(sample((3, 5)), sample(())))
def zeros(k: Builder, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    """Zeros; also what an uninitialised tensor reads as."""
    return _fill(k, size, 0, dtype or F32)


@op("ones.default", samples=(sample((3, 5)), sample(())))
def ones(k: Builder, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _fill(k, size, 1, dtype or F32)


@op("scalar_tensor.default", samples=(sample(1.5), sample(2)))
def scalar_tensor(k: Builder, s: Scalar, dtype: DType | None = None) -> Tensor:
    return _fill(k, (), s, dtype or F32)


@op("full_like.default", samples=(sample(t(3, 5), 2), sample(ints(4), 2.5), sample(t(3, dtype="bf16"), 0.5)))
def full_like(k: Builder, self: Tensor, fill_value: Scalar, dtype: DType | None = None) -> Tensor:
    return _fill(k, self.shape, fill_value, dtype or self.dtype)


@op("zeros_like.default", "empty_like.default", samples=(sample(t(3, 5)), sample(ints(4))))
def zeros_like(k: Builder, self: Tensor, dtype: DType | None = None) -> Tensor:
    return _fill(k, self.shape, 0, dtype or self.dtype)


@op("ones_like.default", samples=(sample(t(3, 5)), sample(ints(4))))
def ones_like(k: Builder, self: Tensor, dtype: DType | None = None) -> Tensor:
    return _fill(k, self.shape, 1, dtype or self.dtype)


@op("new_full.default", samples=(sample(t(3), (2, 4), 1.5), sample(ints(3), (2,), 3)))
def new_full(k: Builder, self: Tensor, size: Sequence[int], fill_value: Scalar, dtype: DType | None = None) -> Tensor:
    return _fill(k, size, fill_value, dtype or self.dtype)


@op("new_zeros.default", "new_empty.default", samples=(sample(t(3), (2, 4)), sample(ints(3), (2,))))
def new_zeros(k: Builder, self: Tensor, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _fill(k, size, 0, dtype or self.dtype)


@op("new_ones.default", samples=(sample(t(3), (2, 4)), sample(ints(3), (2,))))
def new_ones(k: Builder, self: Tensor, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    return _fill(k, size, 1, dtype or self.dtype)


@op("arange.start_step", samples=(sample(0, 7, 1), sample(3, 10, 2), sample(5, -4, -3), sample(0.5, 3, 0.25)))
def arange(k: Builder, start: Scalar, end: Scalar, step: Scalar = 1, dtype: DType | None = None) -> Tensor:
    """start, start + step, ... below end."""
    is_int = all(isinstance(v, int) for v in (start, end, step))
    result = dtype or (I64 if is_int else F32)
    if not result.is_float:
        start, end, step = int(start), int(end), int(step)
    axis = k.axis(max(0, math.ceil((end - start) / step)))
    expr = lift(axis) if step == 1 else axis * step
    if start != 0:
        expr = expr + start
    return k.define(result, (axis,), expr)


@op("arange.default", name="arange_end", samples=(sample(7), sample(3.5)))
def arange_end(k: Builder, end: Scalar, dtype: DType | None = None) -> Tensor:
    return arange(k, 0, end, 1, dtype)


@op("arange.start", name="arange_start", samples=(sample(2, 7), sample(0.5, 3)))
def arange_start(k: Builder, start: Scalar, end: Scalar, dtype: DType | None = None) -> Tensor:
    return arange(k, start, end, 1, dtype)


@op("linspace.default", samples=(sample(0, 1, 7), sample(-2.0, 3.0, 4), sample(1, 5, 1)))
def linspace(k: Builder, start: Scalar, end: Scalar, steps: int, dtype: DType | None = None) -> Tensor:
    """`steps` evenly spaced points; each half counts from its own end, as ATen does, so that both ends are exact."""
    axis = k.axis(steps)
    step = (float(end) - float(start)) / max(steps - 1, 1)
    up = axis * step + float(start)
    down = float(end) - (axis * -1 + (steps - 1)) * step
    return k.define(dtype or F32, (axis,), call("where", call("lt", axis, max(steps // 2, 1)), up, down))


@op("eye.default", "eye.m", samples=(sample(4), sample(3, 5)))
def eye(k: Builder, n: int, m: int | None = None, dtype: DType | None = None) -> Tensor:
    result = dtype or F32
    i, j = k.axes((n, n if m is None else m))
    one, zero = _literal(1, result), _literal(0, result)
    return k.define(result, (i, j), call("where", call("eq", i, j), one, zero))


@op(
    "_to_copy.default",
    "to.dtype",
    "to.dtype_layout",
    samples=(
        sample(t(3, 5), dtype="f16"),
        sample(t(3, 5), dtype="i64"),
        sample(ints(4), dtype="f32"),
        sample(t(4), dtype="bool"),
        sample(t(4, dtype="bf16"), dtype="f32"),
        sample(ints(5), dtype="bool"),
        sample(t(2, 3)),
    ),
)
def to(k: Builder, self: Tensor, dtype: DType | None = None) -> Tensor:
    """The same values in another dtype (the tensor itself where it has it already)."""
    if dtype is None or dtype is self.dtype:
        return self
    axes = k.axes_like(self)
    return k.define(dtype, axes, _converted(self, axes, dtype))


def _converted(x: Tensor, axes: Sequence[Axis], dtype: DType) -> Expr:
    value = x[tuple(axes)]
    if dtype is BOOL:
        return call("ne", value, 0)
    return Cast(dtype, value) if x.dtype.is_float and not dtype.is_float else value


@op(
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
    "contiguous.default",
    "detach_copy.default",
    "alias_copy.default",
    samples=(sample(t(3, 5)),),
)
def identity(k: Builder, self: Tensor) -> Tensor:
    """The tensor itself: copies have no meaning where nothing is mutated."""
    return self


@op("type_as.default", samples=(sample(t(3), ints(2)), sample(ints(3), t(1, dtype="bf16"))))
def type_as(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    return to(k, self, other.dtype)


@op("copy.default", samples=(sample(t(3, 5), t(5)), sample(ints(3), t(3)), sample(t(2, 3, dtype="bf16"), t(1))))
def copy(k: Builder, self: Tensor, src: Tensor) -> Tensor:
    """src in the shape and dtype of self."""
    axes = k.axes_like(self)
    return to(k, k.define(src.dtype, axes, at(src, axes, self.shape)), self.dtype)


@op("fill.Scalar", "fill.Tensor", samples=(sample(t(3, 5), 1.5), sample(ints(3), 2), sample(t(3), t())))
def fill(k: Builder, self: Tensor, value: Tensor | Scalar) -> Tensor:
    """`value` everywhere."""
    if isinstance(value, Tensor):
        return copy(k, self, value)
    return _fill(k, self.shape, value, self.dtype)

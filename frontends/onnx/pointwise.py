"""Element by element: what the pointwise rows of the table mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from kvc.frontends.onnx.values import REAL, Call, Static

_E4M3FN_END = 464.0  # half-way between the largest value and the next one that the format would have

Op = Callable[[Call], "torch.Tensor | Static | tuple[object, ...] | None"]


def unary(fn: Callable[[torch.Tensor], torch.Tensor]) -> Op:
    return lambda c: fn(c.x())


def binary(fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Op:
    return lambda c: fn(c.x(0), c.x(1))


def variadic(fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Op:
    return lambda c: reduce(fn, c.xs())


def mean(c: Call) -> torch.Tensor:
    return reduce(torch.add, c.xs()) / len(c.inputs)


def div(c: Call) -> torch.Tensor:
    """Integers round towards zero."""
    a, b = c.x(0), c.x(1)
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def power(c: Call) -> torch.Tensor:
    """The result has the type of the base."""
    a, b = c.x(0), c.x(1)
    scalar = c.known(1)
    if scalar is not None and scalar.array.size == 1 and a.is_floating_point() and a.dim() >= len(scalar.shape):
        return torch.pow(a, scalar.array.item())
    if b.is_floating_point() and not a.is_floating_point():
        return torch.pow(a.to(b.dtype), b).to(a.dtype)
    return torch.pow(a, b).to(a.dtype)


def mod(c: Call) -> torch.Tensor:
    return torch.fmod(c.x(0), c.x(1)) if c.integer("fmod") else torch.remainder(c.x(0), c.x(1))


def bit_shift(c: Call) -> torch.Tensor:
    return c.x(0) << c.x(1) if c.text("direction") == "LEFT" else c.x(0) >> c.x(1)


def clip(c: Call) -> torch.Tensor:
    """Bounds that are known become literals."""
    bounds = [c.known(i) if c.has(i) else None for i in (1, 2)]
    if all(b is not None or not c.has(i) for i, b in zip((1, 2), bounds, strict=True)):
        lo, hi = (None if b is None else b.array.item() for b in bounds)
        if lo is None and hi is None:
            return c.x().clone()
        if lo is not None and hi is not None and lo > hi:
            return torch.full_like(c.x(), hi)
        return torch.clamp(c.x(), lo, hi)
    x = c.x()
    if c.has(1):
        x = torch.maximum(x, c.x(1))
    return torch.minimum(x, c.x(2)) if c.has(2) else x


def cast(c: Call) -> torch.Tensor:
    return convert(c.x(), c.dtype("to", 1), bool(c.integer("saturate", 1)))


def convert(x: torch.Tensor, to: torch.dtype, saturate: bool = True) -> torch.Tensor:
    """8-bit floats saturate unless `saturate` is 0."""
    if to.itemsize == 1 and to.is_floating_point and saturate:
        bound = torch.finfo(to).max
        return torch.clamp(x.float(), -bound, bound).to(to)
    if to == torch.float8_e4m3fn:  # has no infinity; torch saturates, ONNX wants NaN beyond the rounding of 448
        x = torch.where(x.abs() > _E4M3FN_END, torch.full_like(x, math.nan), x)
    return x.to(to)


def cast_like(c: Call) -> torch.Tensor:
    return convert(c.x(), c.x(1).dtype, bool(c.integer("saturate", 1)))


def is_inf(c: Call) -> torch.Tensor:
    x = c.x()
    hit = torch.zeros_like(x, dtype=torch.bool)
    if c.integer("detect_positive", 1):
        hit = hit | (x == math.inf)
    return hit | (x == -math.inf) if c.integer("detect_negative", 1) else hit


def elu(c: Call) -> torch.Tensor:
    return F.elu(c.x(), c.decimal("alpha", 1.0))


def celu(c: Call) -> torch.Tensor:
    return F.celu(c.x(), c.decimal("alpha", 1.0))


def selu(c: Call) -> torch.Tensor:
    x = c.x()
    alpha, gamma = c.decimal("alpha", 1.67326319217681884765625), c.decimal("gamma", 1.05070102214813232421875)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def leaky_relu(c: Call) -> torch.Tensor:
    return F.leaky_relu(c.x(), c.decimal("alpha", 0.01))


def thresholded_relu(c: Call) -> torch.Tensor:
    return F.threshold(c.x(), c.decimal("alpha", 1.0), 0.0)


def prelu(c: Call) -> torch.Tensor:
    x, slope = c.x(0), c.x(1)
    return torch.where(x >= 0, x, x * slope)


def hard_sigmoid(c: Call) -> torch.Tensor:
    return torch.clamp(c.x() * c.decimal("alpha", 0.2) + c.decimal("beta", 0.5), 0.0, 1.0)


def gelu(c: Call) -> torch.Tensor:
    return F.gelu(c.x(), approximate=c.text("approximate", "none"))


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp x) without overflow; torch's own switches to x above a threshold, which ONNX does not."""
    return torch.clamp_min(x, 0) + torch.log1p(torch.exp(-x.abs()))


def swish(c: Call) -> torch.Tensor:
    x, alpha = c.x(), c.decimal("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def shrink(c: Call) -> torch.Tensor:
    x, bias, bound = c.x(), c.decimal("bias"), c.decimal("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(x < -bound, x + bias, torch.where(x > bound, x - bias, zero)).to(x.dtype)


def where(c: Call) -> torch.Tensor:
    return torch.where(c.x(0), c.x(1), c.x(2))


def dropout(c: Call) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Inference keeps everything."""
    if c.has(2) and bool(c.static(2, "training_mode").any()):
        ratio = float(c.static(1, "ratio")) if c.has(1) else 0.5
        if ratio:
            raise c.fail("training_mode is set", "export the model for inference")
    x = c.x()
    return (x, torch.ones_like(x, dtype=torch.bool)) if c.outputs > 1 else x


# ---------------------------------------------------------------- quantisation


def _along(c: Call, i: int, x: torch.Tensor) -> torch.Tensor | None:
    """A scale or zero point, shaped for broadcast: one number, one for each index of `axis`, or blocks along it."""
    if not c.has(i):
        return None
    s = c.x(i)
    if s.dim() == 0 or (s.numel() == 1 and s.dim() <= 1):
        return s.reshape(())
    axis = c.axis(x.dim(), default=1)
    if s.dim() == 1:
        return s.reshape([-1 if d == axis else 1 for d in range(x.dim())])
    block = c.integer("block_size") or -(-x.shape[axis] // s.shape[axis])
    return s.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


def dequantize(c: Call) -> torch.Tensor:
    x, scale, zero = c.x(), _along(c, 1, c.x()), _along(c, 2, c.x())
    assert scale is not None
    wide = x.to(torch.int32) if not x.is_floating_point() else x.to(scale.dtype)
    if zero is not None:
        wide = wide - zero.to(wide.dtype)
    return wide.to(scale.dtype) * scale


def saturated(x: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """Round half to even and clamp into an integer type."""
    info = torch.iinfo(to)
    return torch.clamp(torch.round(x), info.min, info.max).to(to)


def quantize(c: Call) -> torch.Tensor:
    x, scale, zero = c.x(), _along(c, 1, c.x()), _along(c, 2, c.x())
    assert scale is not None
    to = zero.dtype if zero is not None else c.dtype("output_dtype", 2) if c.integer("output_dtype") else torch.uint8
    ratio = x.to(scale.dtype) / scale
    if to.is_floating_point:
        return convert(ratio if zero is None else ratio + zero.to(ratio.dtype), to)
    rounded = torch.round(ratio)
    return saturated(rounded if zero is None else rounded + zero.to(rounded.dtype), to)


# ---------------------------------------------------------------- made from nothing


def constant(c: Call) -> Static:
    """Attributes of Constant; tensors are decoded where attributes are read."""
    for name, kind in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32),
                       ("value_floats", np.float32)):  # fmt: skip
        if name in c.attrs:
            array = np.array(c.attrs[name], dtype=kind)
            return Static(array, torch.int64 if kind is np.int64 else torch.float32)
    value = c.attrs.get("value")
    if not isinstance(value, Static):
        raise c.fail("its value is no dense tensor of numbers")
    return value


def constant_of_shape(c: Call) -> torch.Tensor:
    value = c.attrs.get("value")
    fill = value if isinstance(value, Static) else Static(np.zeros(1, np.float32), torch.float32)
    to = c.real(fill.dtype) if fill.dtype in REAL else fill.dtype
    return torch.full(c.ints("shape", 0) or (), fill.array.item(), dtype=to)


def arange(c: Call) -> torch.Tensor:
    start, limit, step = (c.static(i, "the range").item() for i in range(3))
    first = c.known(0)
    assert first is not None
    count = max(math.ceil((limit - start) / step), 0)
    to = c.real(first.dtype)
    return (torch.arange(count, dtype=torch.float64 if to.is_floating_point else torch.int64) * step + start).to(to)


def eye_like(c: Call) -> torch.Tensor:
    x, k = c.x(), c.integer("k")
    to = c.dtype("dtype", 1) if "dtype" in c.attrs else x.dtype
    rows = torch.arange(x.shape[0]).unsqueeze(1)
    return (torch.arange(x.shape[1]) == rows + k).to(to)

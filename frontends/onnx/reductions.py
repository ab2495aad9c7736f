"""Reductions, contractions, norms and orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

import torch
import torch.nn.functional as F
from kvc.frontends.onnx.pointwise import Op, saturated
from kvc.frontends.onnx.values import Call

Reduction = Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]


def reduction(fn: Reduction) -> Op:
    """Axes are an attribute in old opsets and input 1 since; none means all, or nothing (`noop_with_empty_axes`)."""

    def run(c: Call) -> torch.Tensor:
        x = c.x()
        axes = c.ints("axes", 1) or ()
        if not axes:
            axes = () if c.integer("noop_with_empty_axes") else tuple(range(x.dim()))
        return fn(x, tuple(a % x.dim() for a in axes), bool(c.integer("keepdims", 1)))

    return run


def _sum(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
    return x.sum(axes, keep, dtype=x.dtype) if axes else x


def _each(fn: Callable[[torch.Tensor, int, bool], torch.Tensor]) -> Reduction:
    def run(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
        return reduce(lambda t, a: fn(t, a, keep), sorted(axes, reverse=True), x)

    return run


def _extreme(fn: Callable[..., torch.Tensor], any_of: Callable[..., torch.Tensor]) -> Reduction:
    def run(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
        if not axes:
            return x
        if x.dtype == torch.bool:
            return any_of(x, axes, keep)
        if prod(x.shape[a] for a in axes) == 0:
            shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
            low = fn is torch.amax
            info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
            lowest = float("-inf") if x.is_floating_point() else info.min
            highest = float("inf") if x.is_floating_point() else info.max
            return torch.full(shape, lowest if low else highest, dtype=x.dtype)
        return fn(x, axes, keep)

    return run


reduce_sum = reduction(_sum)
reduce_mean = reduction(lambda x, a, k: x.mean(a, k) if a else x)
reduce_max = reduction(_extreme(torch.amax, torch.any))
reduce_min = reduction(_extreme(torch.amin, torch.all))
reduce_prod = reduction(_each(lambda x, a, k: torch.prod(x, a, k, dtype=x.dtype)))
reduce_l1 = reduction(lambda x, a, k: _sum(x.abs(), a, k))
reduce_l2 = reduction(lambda x, a, k: torch.sqrt(_sum(x * x, a, k)) if a else x.abs())
reduce_log_sum = reduction(lambda x, a, k: torch.log(_sum(x, a, k)))
reduce_log_sum_exp = reduction(lambda x, a, k: torch.logsumexp(x, a, k) if a else x)
reduce_sum_square = reduction(lambda x, a, k: _sum(x * x, a, k))


def arg(fn: Callable[..., torch.Tensor]) -> Op:
    def run(c: Call) -> torch.Tensor:
        x, keep = c.x(), bool(c.integer("keepdims", 1))
        axis = c.axis(x.dim())
        if not c.integer("select_last_index"):
            return fn(x, axis, keep)
        return x.shape[axis] - 1 - fn(x.flip(axis), axis, keep)

    return run


def cumulative(fn: Callable[..., torch.Tensor], start: float) -> Op:
    """CumSum, CumProd: `exclusive` leaves each element itself out, `reverse` runs from the end."""

    def run(c: Call) -> torch.Tensor:
        x = c.x()
        axis = int(c.static(1, "axis").item()) % x.dim()
        if c.integer("reverse"):
            x = x.flip(axis)
        y = fn(x, axis, dtype=x.dtype)
        if c.integer("exclusive"):
            first = torch.full_like(y.narrow(axis, 0, 1), start)
            y = torch.cat([first, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
        return y.flip(axis) if c.integer("reverse") else y

    return run


def top_k(c: Call) -> tuple[torch.Tensor, torch.Tensor]:
    x = c.x()
    k = int(c.static(1, "k").item())
    values, indices = torch.sort(
        x, dim=c.axis(x.dim(), default=-1), descending=bool(c.integer("largest", 1)), stable=True
    )
    axis = c.axis(x.dim(), default=-1)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def hardmax(c: Call) -> torch.Tensor:
    x = c.x()
    axis = c.axis(x.dim(), default=-1)
    shape = [-1 if d == axis else 1 for d in range(x.dim())]
    return (torch.arange(x.shape[axis]).reshape(shape) == x.argmax(axis, True)).to(x.dtype)


def softmax(c: Call) -> torch.Tensor:
    return F.softmax(c.x(), c.axis(c.x().dim(), default=-1))


def log_softmax(c: Call) -> torch.Tensor:
    return F.log_softmax(c.x(), c.axis(c.x().dim(), default=-1))


# ---------------------------------------------------------------- contractions


def gemm(c: Call) -> torch.Tensor:
    a, b = c.x(0), c.x(1)
    a = a.t() if c.integer("transA") else a
    alpha, beta = c.decimal("alpha", 1.0), c.decimal("beta", 1.0)
    bias = c.opt(2) if beta else None
    plain = alpha == beta == 1.0 and (bias is None or bias.shape == b.shape[:1])
    if c.integer("transB") and plain:
        return F.linear(a, b, bias)
    y = torch.matmul(a, b.t() if c.integer("transB") else b)
    y = y if alpha == 1.0 else y * alpha
    return y if bias is None else y + (bias if beta == 1.0 else bias * beta)


def einsum(c: Call) -> torch.Tensor:
    return torch.einsum(c.text("equation").replace(" ", ""), *c.xs())


def _centred(x: torch.Tensor, zero: torch.Tensor | None, rows: bool = False) -> torch.Tensor:
    """A quantised tensor minus its zero point, as fp32, which holds such values exactly. With `rows` a vector of zero
    points belongs to the last dimension but one."""
    wide = x.to(torch.float32)
    if zero is None:
        return wide
    if rows and zero.dim() == 1 and zero.numel() > 1:
        zero = zero.unsqueeze(-1)
    return wide - zero.to(torch.float32)


def matmul_integer(c: Call) -> torch.Tensor:
    """Sums of products of 8-bit numbers; fp64 holds every partial sum exactly."""
    a, b = _centred(c.x(0), c.opt(2), rows=True), _centred(c.x(1), c.opt(3))
    return torch.matmul(a.double(), b.double()).to(torch.int32)


def qlinear_matmul(c: Call) -> torch.Tensor:
    """Inputs: a, its scale and zero point, b, its scale and zero point, y's scale and zero point."""
    a = _centred(c.x(0), c.x(2), rows=True)
    b = _centred(c.x(3), c.x(5))
    scale_a = c.x(1).unsqueeze(-1) if c.x(1).numel() > 1 else c.x(1)
    real = torch.matmul(a, b) * (scale_a * c.x(4)).to(torch.float32)
    zero = c.x(7)
    return saturated(torch.round(real / c.x(6).to(torch.float32)) + zero.to(torch.float32), zero.dtype)


# ---------------------------------------------------------------- norms


def batch_norm(c: Call) -> torch.Tensor:
    if c.integer("training_mode"):
        raise c.fail("training_mode is set", "export the model for inference")
    return F.batch_norm(c.x(0), c.x(3), c.x(4), c.x(1), c.x(2), False, 0.0, c.decimal("epsilon", 1e-5))


def instance_norm(c: Call) -> torch.Tensor:
    return F.instance_norm(c.x(0), weight=c.x(1), bias=c.x(2), eps=c.decimal("epsilon", 1e-5))


def layer_norm(c: Call) -> torch.Tensor | tuple[torch.Tensor, ...]:
    x = c.x()
    axis = c.axis(x.dim(), default=-1)
    shape, eps = tuple(x.shape[axis:]), c.decimal("epsilon", 1e-5)
    scale, bias = c.x(1), c.opt(2)
    if scale.shape == shape and (bias is None or bias.shape == shape):
        y = F.layer_norm(x, shape, scale, bias, eps)
    else:
        y = F.layer_norm(x, shape, None, None, eps) * scale
        y = y if bias is None else y + bias
    if c.outputs == 1:
        return y
    dims = tuple(range(axis, x.dim()))
    mean = x.mean(dims, True)
    var = ((x - mean) * (x - mean)).mean(dims, True)
    return (y, mean, torch.rsqrt(var + eps))[: c.outputs]


def group_norm(c: Call) -> torch.Tensor:
    """Until opset 20 scale and bias are one a group, since then one a channel."""
    x, scale, bias = c.x(0), c.x(1), c.x(2)
    groups, channels = c.integer("num_groups"), x.shape[1]
    if scale.shape[0] == groups and channels != groups:
        scale, bias = (t.repeat_interleave(channels // groups) for t in (scale, bias))
    return F.group_norm(x, groups, scale, bias, c.decimal("epsilon", 1e-5))


def rms_norm(c: Call) -> torch.Tensor:
    x, scale, eps = c.x(0), c.x(1), c.decimal("epsilon", 1e-5)
    axis = c.axis(x.dim(), default=-1)
    shape = tuple(x.shape[axis:])
    if scale.shape == shape:
        return F.rms_norm(x, shape, scale, eps)
    return F.rms_norm(x, shape, None, eps) * scale


def lp_norm(c: Call) -> torch.Tensor:
    """Rows of length zero stay zero."""
    x, p = c.x(), c.integer("p", 2)
    axis = c.axis(x.dim(), default=-1)
    length = x.abs().sum(axis, True) if p == 1 else torch.sqrt((x * x).sum(axis, True))
    return torch.where(length == 0, torch.zeros_like(x), x / length)


def lrn(c: Call) -> torch.Tensor:
    """x / (bias + alpha/size * sum of squares over `size` neighbouring channels)^beta."""
    x, size = c.x(), c.integer("size")
    pad = ((size - 1) // 2, size - 1 - (size - 1) // 2)
    squares = torch.constant_pad_nd(x * x, [0, 0] * (x.dim() - 2) + [*pad], 0.0)
    total = reduce(torch.add, [squares.narrow(1, k, x.shape[1]) for k in range(size)])
    base = c.decimal("bias", 1.0) + c.decimal("alpha", 1e-4) / size * total
    return x / torch.pow(base, c.decimal("beta", 0.75))


def attention(c: Call) -> torch.Tensor | None:
    """Scaled dot-product attention where torch's own has the same meaning; None where ONNX's definition decides."""
    windowed = any(name.endswith("window_size") and int(value) >= 0 for name, value in c.attrs.items())
    special = c.outputs > 1 or c.has(4) or c.has(5) or c.has(6) or c.decimal("softcap") or windowed
    if special or (c.integer("is_causal") and c.has(3)):
        return None
    q, k, v = c.x(0), c.x(1), c.x(2)
    flat = q.dim() == 3
    if flat:
        heads, kv_heads = c.integer("q_num_heads"), c.integer("kv_num_heads")
        q = q.reshape(*q.shape[:2], heads, -1).transpose(1, 2)
        k, v = (t.reshape(*t.shape[:2], kv_heads, -1).transpose(1, 2) for t in (k, v))
    if q.shape[1] != k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    mask = c.opt(3)
    if mask is not None and mask.shape[-1] != k.shape[-2]:
        return None
    scale = c.decimal("scale") if "scale" in c.attrs else None
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(c.integer("is_causal")), scale=scale)
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y

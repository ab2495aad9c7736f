"""Normalisations: mean and variance in two passes in the compute type, rounded once, as eager's kernels do."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Expr, call
from kvc.ops import op
from kvc.optable._common import float_dtype, keep, positive, reduced, sample, t
from kvc.optable.reduction import variance
from kvc.optable.views import reshaped


def _eps_of(x: Tensor, eps: float | None) -> float:
    """Without eps, rms_norm uses the machine epsilon of the dtype in which it computes."""
    return eps if eps is not None else float_dtype(x.dtype).compute.eps


def inverse_std(k: Builder, var: Tensor, eps: float) -> Tensor:
    axes = k.axes_like(var)
    return k.define(var.dtype, axes, call("rsqrt", var[axes] + eps))


def _scale_shift(value: Expr, weight: Tensor | None, bias: Tensor | None, at: Sequence[Axis]) -> Expr:
    if weight is not None:
        value = value * weight[tuple(at)]
    return value if bias is None else value + bias[tuple(at)]


def _without(axes: Sequence[Axis], dims: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(a for i, a in enumerate(axes) if i not in dims)


_LAYER = (
    sample(t(3, 5), (5,)),
    sample(t(2, 3, 5), (5,), t(5), t(5)),
    sample(t(2, 3, 5), (3, 5), t(3, 5), t(3, 5), 1e-3),
    sample(t(4, 7), (7,), t(7)),
    sample(t(4, 7), (7,), None, t(7)),
    sample(t(3, 9, dtype="bf16"), (9,), t(9, dtype="bf16"), t(9, dtype="bf16")),
)


@op("layer_norm.default", samples=_LAYER)
def layer_norm(
    k: Builder,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """(x - mean) * rsqrt(var + eps) * weight + bias over the last dims."""
    return _layer_norm(k, input, normalized_shape, weight, bias, eps)[0]


def _layer_norm(
    k: Builder, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(x.rank - len(shape), x.rank))
    var, average, rest = variance(k, x, dims)
    inverse = inverse_std(k, var, eps)
    axes = k.axes_like(x)
    value = rest[axes] * inverse[_without(axes, dims)]
    y = k.define(x.dtype, axes, _scale_shift(value, weight, bias, axes[dims[0] :]))
    return y, average, inverse


@op("native_layer_norm.default", samples=(sample(t(2, 3, 5), (5,), t(5), t(5), 1e-5),))
def native_layer_norm(
    k: Builder, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm, the mean and 1 / std (with the normalised dims kept as 1)."""
    y, average, inverse = _layer_norm(k, input, normalized_shape, weight, bias, eps)
    dims = tuple(range(input.rank - len(normalized_shape), input.rank))
    return y, keep(k, average, dims), keep(k, inverse, dims)


@op(
    "rms_norm.default",
    samples=(
        sample(t(3, 5), (5,), None, 1e-5),
        sample(t(2, 3, 5), (5,), t(5), 1e-6),
        sample(t(2, 3, 5), (3, 5), t(3, 5), 0.1),
        sample(t(3, 9, dtype="bf16"), (9,), t(9, dtype="bf16"), 1e-6),
    ),
)
def rms_norm(
    k: Builder, input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dims."""
    dims = tuple(range(input.rank - len(normalized_shape), input.rank))
    total, _ = reduced(k, input, dims, "sum", input.dtype.compute, lambda e: e * e)
    axes = k.axes_like(total)
    count = float(prod(normalized_shape))
    inverse = k.define(total.dtype, axes, call("rsqrt", total[axes] / count + _eps_of(input, eps)))
    axes = k.axes_like(input)
    value = input[axes] * inverse[_without(axes, dims)]
    return k.define(input.dtype, axes, _scale_shift(value, weight, None, axes[dims[0] :]))


@op(
    "group_norm.default",
    samples=(
        sample(t(2, 6, 5), 3),
        sample(t(2, 6, 3, 5), 2, t(6), t(6)),
        sample(t(3, 4), 2, t(4), t(4), 1e-3),
        sample(t(2, 4, 5, dtype="bf16"), 2, t(4, dtype="bf16"), t(4, dtype="bf16")),
        sample(t(2, 6, 5), 1),
        sample(t(2, 6, 5), 6),
    ),
)
def group_norm(
    k: Builder,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Layer norm over groups of channels and all positions; weight and bias are per channel."""
    return _group_norm(k, input, num_groups, weight, bias, eps)[0]


def _group_norm(
    k: Builder, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    b, c, *spatial = x.shape
    per = c // groups
    grouped = reshaped(k, x, (b, groups, per, *spatial))
    dims = tuple(range(2, grouped.rank))
    var, average, rest = variance(k, grouped, dims)
    inverse = inverse_std(k, var, eps)
    axes = k.axes_like(x)
    group = axes[1] // per if per > 1 else axes[1]
    member = axes[1] % per if per > 1 else 0
    value = rest[(axes[0], group, member, *axes[2:])] * inverse[axes[0], group]
    y = k.define(x.dtype, axes, _scale_shift(value, weight, bias, axes[1:2]))
    return y, average, inverse


@op("native_group_norm.default", samples=(sample(t(2, 6, 4), t(6), t(6), 2, 6, 4, 3, 1e-5),))
def native_group_norm(
    k: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _group_norm(k, input, group, weight, bias, eps)


# ---------------------------------------------------------------- batch norm


def _normalise(
    k: Builder, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """(x - mean[c]) * (inverse[c] * weight[c]) + bias[c]; the factor is one value per channel, worked out once."""
    scale = inverse
    if weight is not None:
        c = k.axes_like(inverse, "c")
        scale = k.define(inverse.dtype, c, inverse[c] * weight[c])
    axes = k.axes_like(x)
    channel = axes[1]
    value = (x[axes] - mean[channel]) * scale[channel]
    return k.define(x.dtype, axes, value if bias is None else value + bias[channel])


def _evaluation(
    k: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    c = k.axes_like(var, "c")
    inverse = k.define(x.dtype.compute, c, call("rsqrt", var[c] + eps))
    return _normalise(k, x, mean, inverse, weight, bias)


def _moved(k: Builder, old: Tensor, new: Tensor, momentum: float, factor: float = 1.0) -> Tensor:
    """(1 - momentum) * old + momentum * factor * new, in the buffer's dtype."""
    c = k.axes_like(old, "c")
    return k.define(old.dtype, c, old[c] * (1.0 - momentum) + new[c] * (momentum * factor))


def _training(
    k: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(y, batch mean, batch 1/std, new running mean, new running variance, which is the unbiased one)."""
    dims = tuple(i for i in range(x.rank) if i != 1)
    batch_var, batch_mean, _ = variance(k, x, dims)
    inverse = inverse_std(k, batch_var, eps)
    y = _normalise(k, x, batch_mean, inverse, weight, bias)
    count = prod(x.shape[d] for d in dims)
    new_mean = None if mean is None else _moved(k, mean, batch_mean, momentum)
    new_var = None if var is None else _moved(k, var, batch_var, momentum, count / max(count - 1, 1))
    return y, batch_mean, inverse, new_mean, new_var


_C = t(3)


@op(
    "batch_norm.default",
    samples=(
        sample(t(4, 3, 5), _C, _C, _C, positive(3), False, 0.1, 1e-5, True),
        sample(t(4, 3), None, None, _C, positive(3), False, 0.1, 1e-3, True),
        sample(t(4, 3, 2, 5), _C, _C, None, None, True, 0.1, 1e-5, True),
    ),
)
def batch_norm(
    k: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalisation per channel (dim 1) by the batch's statistics (training) or the running ones."""
    if training or running_mean is None or running_var is None:
        return _training(k, input, weight, bias, None, None, momentum, eps)[0]
    return _evaluation(k, input, weight, bias, running_mean, running_var, eps)


@op(
    "_native_batch_norm_legit_functional.default",
    samples=(
        sample(t(4, 3, 5), _C, _C, _C, positive(3), True, 0.1, 1e-5),
        sample(t(4, 3), None, None, _C, positive(3), True, 0.3, 1e-5),
    ),
)
def batch_norm_functional(
    k: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """(y, batch mean, batch 1/std, new running mean, new running variance)."""
    if not training:
        y = _evaluation(k, input, weight, bias, running_mean, running_var, eps)
        empty = k.define(input.dtype.compute, k.axes((0,)), 0.0)
        return y, empty, empty, running_mean, running_var
    y, mean, inverse, new_mean, new_var = _training(k, input, weight, bias, running_mean, running_var, momentum, eps)
    assert new_mean is not None and new_var is not None
    return y, mean, inverse, new_mean, new_var


@op("_native_batch_norm_legit_no_training.default", samples=(sample(t(4, 3, 5), _C, _C, _C, positive(3), 0.1, 1e-5),))
def batch_norm_inference(
    k: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """(y, and two empty tensors in the place of the batch's statistics)."""
    empty = k.define(input.dtype.compute, k.axes((0,)), 0.0)
    return _evaluation(k, input, weight, bias, running_mean, running_var, eps), empty, empty


@op("_native_batch_norm_legit.no_stats", samples=(sample(t(4, 3, 5), _C, _C, True, 0.1, 1e-5),))
def batch_norm_no_stats(
    k: Builder, input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """(y, batch mean, batch 1/std)."""
    return _training(k, input, weight, bias, None, None, momentum, eps)[:3]


@op(
    "instance_norm.default",
    samples=(
        sample(t(2, 3, 5), None, None, None, None, True, 0.1, 1e-5, True),
        sample(t(2, 3, 4, 5), _C, _C, None, None, True, 0.1, 1e-5, True),
        sample(t(2, 3, 4), _C, _C, _C, positive(3), False, 0.1, 1e-5, True),
    ),
)
def instance_norm(
    k: Builder,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalisation of each channel of each sample over its positions."""
    if not use_input_stats:
        assert running_mean is not None and running_var is not None
        return _evaluation(k, input, weight, bias, running_mean, running_var, eps)
    dims = tuple(range(2, input.rank))
    var, _, rest = variance(k, input, dims)
    inverse = inverse_std(k, var, eps)
    axes = k.axes_like(input)
    value = rest[axes] * inverse[axes[:2]]
    return k.define(input.dtype, axes, _scale_shift(value, weight, bias, axes[1:2]))

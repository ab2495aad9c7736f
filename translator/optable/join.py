"""Concatenation, stacking and padding: selections by position, with guards where a source ends."""

from __future__ import annotations

from collections.abc import Sequence

from kvc.builder import Builder, Tensor
from kvc.kernel import Expr, call
from kvc.ops import op
from kvc.optable._common import clip, dim_of, ints, result_dtype, sample, t, unsupported
from kvc.optable.views import reshaped


@op(
    "cat.default",
    "concat.default",
    "concatenate.default",
    samples=(
        sample((t(3, 5), t(2, 5))),
        sample((t(3, 5), t(3, 1), t(3, 4)), 1),
        sample((t(2, 3),), -1),
        sample((t(3), ints(2))),
        sample((t(0), t(2, 3)), 0),
        sample((t(2, 3, dtype="bf16"), t(2, 3)), -1),
    ),
)
def cat(k: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Pieces one after the other along a dim (empty 1-d tensors are skipped, as in torch)."""
    dtype = result_dtype(*tensors)
    parts = [x for x in tensors if x.shape != (0,)] or [tensors[0]]
    d = dim_of(parts[0], dim)
    total = sum(x.shape[d] for x in parts)
    axes = k.axes(tuple(total if i == d else n for i, n in enumerate(parts[0].shape)))
    stop = total
    expr: Expr | None = None
    for x in reversed(parts):
        start = stop - x.shape[d]
        index = tuple(a - start if i == d and start else a for i, a in enumerate(axes))
        whole = x.shape[d] == total
        value = x[index] if whole else x.at(index, other=0.0 if x.dtype.is_float else 0)
        expr = value if expr is None else call("where", call("lt", axes[d], stop), value, expr)
        stop = start
    assert expr is not None
    return k.define(dtype, axes, expr)


@op("stack.default", samples=(sample((t(3, 5), t(3, 5))), sample((t(3), t(3), t(3)), -1), sample((t(), t()))))
def stack(k: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = dim if dim >= 0 else dim + tensors[0].rank + 1
    shape = (*tensors[0].shape[:d], 1, *tensors[0].shape[d:])
    return cat(k, [reshaped(k, x, shape) for x in tensors], d)


@op("meshgrid.default", "meshgrid.indexing", samples=(sample((t(3), t(5))), sample((t(3), t(5)), indexing="xy")))
def meshgrid(k: Builder, tensors: Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    shape = [x.shape[0] if x.rank else 1 for x in tensors]
    order = list(range(len(shape)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    results = []
    for n, x in enumerate(tensors):
        axes = k.axes([shape[i] for i in order])
        results.append(k.define(x.dtype, axes, x[axes[order.index(n)]] if x.rank else x[()]))
    return tuple(results)


@op(
    "constant_pad_nd.default",
    samples=(sample(t(3, 5), (1, 2)), sample(t(2, 3, 5), (1, 0, 2, 1), 0.5), sample(t(4, 6), (-1, 2), 1)),
)
def constant_pad_nd(k: Builder, self: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """`pad` is (before, after) of the last dim, then of the one before it, and so on; negative crops."""
    before, shape = _padded(self, pad)
    axes = k.axes(shape)
    index = tuple(a - b if b else a for a, b in zip(axes, before, strict=True))
    other = float(value) if self.dtype.is_float else int(value)
    return k.define(self.dtype, axes, self.at(index, other=other))


def _padded(x: Tensor, pad: Sequence[int]) -> tuple[list[int], list[int]]:
    """Elements put before each dim, and the padded shape."""
    before, shape = [0] * x.rank, list(x.shape)
    for i in range(len(pad) // 2):
        before[-1 - i] = pad[2 * i]
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    return before, shape


def _mirror(k: Builder, x: Tensor, pad: Sequence[int], mode: str) -> Tensor:
    """Padding that reads the tensor itself: "reflect", "replicate" or "circular"."""
    before, shape = _padded(x, pad)
    axes = k.axes(shape)
    index: list[Expr] = []
    for axis, b, n, out in zip(axes, before, x.shape, shape, strict=True):
        at: Expr = axis - b if b else axis
        if mode == "circular":
            at = at % n if out != n else axis
        elif mode == "replicate":
            at = clip(at, 0, n - 1) if out != n or b else axis
        elif out != n or b:
            folded = call("where", call("lt", at, 0), -at, at)
            folded = call("where", call("ge", folded, n), 2 * (n - 1) - folded, folded)
            at = clip(folded, 0, n - 1)
        index.append(at)
    return k.define(x.dtype, axes, x[tuple(index)])


@op(
    "pad.default",
    samples=(
        sample(t(3, 5), (1, 2)),
        sample(t(3, 5), (1, 2), value=0.5),
        sample(t(2, 3, 5), (2, 1), "reflect"),
        sample(t(1, 2, 4, 5), (2, 1, 1, 3), "reflect"),
        sample(t(1, 2, 4, 5), (2, 1, 1, 3), "replicate"),
        sample(t(1, 2, 4, 5), (2, 1, 1, 3), "circular"),
    ),
)
def pad(k: Builder, self: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode == "constant":
        return constant_pad_nd(k, self, pad, value or 0)
    if mode not in ("reflect", "replicate", "circular"):
        raise unsupported(f"padding mode {mode!r}")
    return _mirror(k, self, pad, mode)


def _named_pad(name: str, mode: str, rank: int) -> None:
    spatial = (4, 5, 6)[:rank]
    samples = (sample(t(1, 2, *spatial), (2, 1) * rank), sample(t(2, *spatial), (1, 0) * rank))

    def meaning(k: Builder, self: Tensor, padding: Sequence[int]) -> Tensor:
        return _mirror(k, self, padding, mode)

    op(f"{name}.default", name=name, samples=samples)(meaning)


for _rank in (1, 2, 3):
    _named_pad(f"reflection_pad{_rank}d", "reflect", _rank)
    _named_pad(f"replication_pad{_rank}d", "replicate", _rank)

"""Views, selections, joins, scatters and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from kvc.frontends.onnx.values import Call, Static, Value


def shape(c: Call) -> Static:
    size = _shape_of(c)
    start, end = c.integer("start"), c.attrs.get("end")
    return Static.ints(size[start : None if end is None else int(end)])


def size(c: Call) -> Static:
    return Static.ints(int(np.prod(_shape_of(c), dtype=np.int64)))


def _shape_of(c: Call) -> tuple[int, ...]:
    value = c.inputs[0]
    if not isinstance(value, torch.Tensor | Static):
        raise c.fail("the shape of a sequence")
    return tuple(value.shape)


def reshape(c: Call) -> torch.Tensor:
    x, to = c.x(), c.ints("shape", 1) or ()
    if not c.integer("allowzero"):
        to = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(to))
    elif -1 not in to or 0 not in to:
        return x.reshape(to)
    return x.reshape(to)


def flatten(c: Call) -> torch.Tensor:
    x = c.x()
    axis = c.integer("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(rows, int(np.prod(x.shape[axis:], dtype=np.int64)))


def squeeze(c: Call) -> torch.Tensor:
    x, axes = c.x(), c.ints("axes", 1)
    chosen = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else [a % x.dim() for a in axes]
    return x.reshape([n for i, n in enumerate(x.shape) if i not in chosen])


def unsqueeze(c: Call) -> torch.Tensor:
    x, axes = c.x(), c.ints("axes", 1) or ()
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def transpose(c: Call) -> torch.Tensor:
    x = c.x()
    return x.permute(c.ints("perm") or tuple(reversed(range(x.dim()))))


def concat(c: Call) -> torch.Tensor:
    parts = c.xs()
    return torch.cat(parts, c.axis(parts[0].dim()))


def split(c: Call) -> tuple[torch.Tensor, ...]:
    """Even parts where no lengths are given, the last one shorter where they do not go out even."""
    x = c.x()
    axis, sizes = c.axis(x.dim()), c.ints("split", 1)
    if sizes is None:
        parts = c.integer("num_outputs", c.outputs)
        each = -(-x.shape[axis] // parts)
        sizes = tuple(min(each, x.shape[axis] - i * each) for i in range(parts))
    return tuple(torch.split(x, list(sizes), axis))


def slice_(c: Call) -> torch.Tensor:
    """Python's slices, on the axes that are named; negative steps flip first."""
    x = c.x()
    starts, ends = c.ints("starts", 1) or (), c.ints("ends", 2) or ()
    axes = c.ints("axes", 3) or tuple(range(len(starts)))
    steps = c.ints("steps", 4) or (1,) * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        n = x.shape[axis]
        taken = range(n)[max(start, -n) if step > 0 else start : end : step]
        if step < 0 and len(taken):
            low, high = taken[-1], taken[0]
            x = x.narrow(axis, low, high - low + 1).flip(axis)
            taken = range(0, high - low + 1, -step)
        elif not len(taken):
            taken = range(0)
        at: list[slice] = [slice(None)] * x.dim()
        at[axis] = slice(taken.start, taken.stop, taken.step)
        x = x[tuple(at)]
    return x


def _wrapped(indices: torch.Tensor, n: int) -> torch.Tensor:
    """Negative indices count from the end."""
    return torch.where(indices < 0, indices + n, indices)


def _indices(c: Call, i: int, n: int) -> torch.Tensor:
    """Input `i` as non-negative int64 indices; those that are known are wrapped now."""
    value = c.inputs[i]
    if isinstance(value, Static):
        array = value.array.astype(np.int64)
        return c.materialise(Static(np.where(array < 0, array + n, array), torch.int64))
    return _wrapped(c.x(i).to(torch.int64), n)


def gather(c: Call) -> torch.Tensor:
    x = c.x()
    axis = c.axis(x.dim())
    known = c.inputs[1]
    if isinstance(known, Static) and known.array.size == 1:
        at = int(known.array.item())
        picked = x.narrow(axis, at % x.shape[axis], 1)
        return picked.reshape((*x.shape[:axis], *known.shape, *x.shape[axis + 1 :]))
    indices = _indices(c, 1, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return torch.nn.functional.embedding(indices, x)
    picked = x.index_select(axis, indices.reshape(-1))
    return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def gather_elements(c: Call) -> torch.Tensor:
    x = c.x()
    axis = c.axis(x.dim())
    return torch.gather(x, axis, _indices(c, 1, x.shape[axis]))


def _nd_index(x: torch.Tensor, indices: torch.Tensor, batch: int = 0) -> tuple[torch.Tensor, ...]:
    """The index tensors of the leading dimensions that the last dimension of `indices` names."""
    rank = indices.dim() - 1
    lead = [torch.arange(x.shape[d]).reshape([-1 if i == d else 1 for i in range(rank)]) for d in range(batch)]
    named = [_wrapped(indices[..., d], x.shape[batch + d]) for d in range(indices.shape[-1])]
    return (*lead, *named)


def gather_nd(c: Call) -> torch.Tensor:
    x = c.x()
    return x[_nd_index(x, c.x(1).to(torch.int64), c.integer("batch_dims"))]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(c: Call) -> torch.Tensor:
    x = c.x()
    axis, how = c.axis(x.dim()), c.text("reduction", "none")
    indices = _indices(c, 1, x.shape[axis])
    if how == "none":
        return torch.scatter(x, axis, indices, c.x(2))
    return torch.scatter_reduce(x, axis, indices, c.x(2), _REDUCE[how])


def scatter_nd(c: Call) -> torch.Tensor:
    """As a scatter along one flattened dimension, so that every reduction is the same operator."""
    x, indices, updates = c.x(), c.x(1).to(torch.int64), c.x(2)
    how, depth = c.text("reduction", "none"), indices.shape[-1]
    index = _nd_index(x, indices)
    if how == "none":
        return torch.index_put(x, index, updates)
    if how == "add":
        return torch.index_put(x, index, updates, accumulate=True)
    flat = index[0]
    for d in range(1, depth):
        flat = flat * x.shape[d] + index[d]
    rows, inner = int(np.prod(x.shape[:depth])), int(np.prod(x.shape[depth:], dtype=np.int64))
    at = flat.reshape(-1, 1).expand(flat.numel(), inner)
    done = torch.scatter_reduce(x.reshape(rows, inner), 0, at, updates.reshape(flat.numel(), inner), _REDUCE[how])
    return done.reshape(x.shape)


def expand(c: Call) -> torch.Tensor:
    """Either side may be the one of extent 1."""
    x, to = c.x(), c.ints("shape", 1) or ()
    return x.expand(torch.broadcast_shapes(tuple(x.shape), to))


def tile(c: Call) -> torch.Tensor:
    return c.x().repeat(c.ints("repeats", 1) or ())


def trilu(c: Call) -> torch.Tensor:
    k = int(c.static(1, "k").item()) if c.has(1) else 0
    return torch.triu(c.x(), k) if c.integer("upper", 1) else torch.tril(c.x(), k)


def one_hot(c: Call) -> torch.Tensor:
    """Inputs: indices, depth, [off value, on value]. Indices outside of [-depth, depth) give off values."""
    indices, depth, values = c.x(0), int(c.static(1, "depth").item()), c.x(2)
    axis = c.axis(indices.dim() + 1, default=-1)
    shape = [-1 if d == axis else 1 for d in range(indices.dim() + 1)]
    hit = _wrapped(indices.to(torch.int64), depth).unsqueeze(axis) == torch.arange(depth).reshape(shape)
    return torch.where(hit, values[1], values[0])


def compress(c: Call) -> torch.Tensor:
    x = c.x()
    chosen = np.flatnonzero(c.static(1, "condition"))
    if "axis" not in c.attrs:
        x, axis = x.reshape(-1), 0
    else:
        axis = c.axis(x.dim())
    kept = chosen[chosen < x.shape[axis]]
    return x.index_select(axis, c.materialise(Static.ints(kept.tolist())))


def non_zero(c: Call) -> Static:
    return Static(np.array(np.nonzero(c.static(0, "the number of elements"))).astype(np.int64), torch.int64)


def reverse_sequence(c: Call) -> torch.Tensor:
    """Row b of the time axis reversed up to its own length: an index that counts down, then up."""
    x, lengths = c.x(), c.x(1).to(torch.int64)
    time, batch = c.integer("time_axis"), c.integer("batch_axis", 1)
    lengths = lengths.reshape([-1 if d == batch else 1 for d in range(x.dim())])
    step = torch.arange(x.shape[time]).reshape([-1 if d == time else 1 for d in range(x.dim())])
    at = torch.where(step < lengths, lengths - 1 - step, step)
    return torch.gather(x, time, at.expand(x.shape))


def pad(c: Call) -> torch.Tensor:
    """`pads` are all beginnings, then all ends; negative ones crop."""
    x = c.x()
    given, axes = c.ints("pads", 1) or (), c.ints("axes", 3)
    chosen = tuple(range(x.dim())) if axes is None else tuple(a % x.dim() for a in axes)
    before, after = [0] * x.dim(), [0] * x.dim()
    for n, axis in enumerate(chosen):
        before[axis], after[axis] = given[n], given[n + len(chosen)]
    how = c.text("mode", "constant")
    if how == "constant":
        flat = [v for d in reversed(range(x.dim())) for v in (before[d], after[d])]
        return _constant_pad(c, x, flat)
    for d in range(x.dim()):
        n, low, high = x.shape[d], before[d], after[d]
        if low == high == 0:
            continue
        at = np.arange(-low, n + high)
        if how == "edge":
            at = np.clip(at, 0, n - 1)
        elif how == "wrap":
            at = at % n
        else:
            period = max(2 * n - 2, 1)
            at = np.abs((at + n - 1) % period - (n - 1))
        x = x.index_select(d, c.materialise(Static.ints(at.tolist())))
    return x


def _constant_pad(c: Call, x: torch.Tensor, flat: list[int]) -> torch.Tensor:
    if not c.has(2):
        return torch.constant_pad_nd(x, flat, False if x.dtype == torch.bool else 0)
    known = c.known(2)
    if known is not None:
        return torch.constant_pad_nd(x, flat, known.array.item())
    inside = torch.constant_pad_nd(torch.ones_like(x, dtype=torch.bool), flat, False)
    return torch.where(inside, torch.constant_pad_nd(x, flat, 0), c.x(2).reshape(()))


def depth_to_space(c: Call) -> torch.Tensor:
    x, b = c.x(), c.integer("blocksize")
    n, ch, h, w = x.shape
    if c.text("mode", "DCR") == "CRD":
        return x.reshape(n, ch // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, -1, h * b, w * b)
    return x.reshape(n, b, b, ch // (b * b), h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, -1, h * b, w * b)


def space_to_depth(c: Call) -> torch.Tensor:
    x, b = c.x(), c.integer("blocksize")
    n, ch, h, w = x.shape
    order = (0, 1, 3, 5, 2, 4) if c.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return x.reshape(n, ch, h // b, b, w // b, b).permute(order).reshape(n, -1, h // b, w // b)


# ---------------------------------------------------------------- sequences: Python lists, gone when kernels are made


def _sequence(c: Call, i: int = 0) -> list[Any]:
    value = c.inputs[i]
    if not isinstance(value, list):
        raise c.fail(f"input {i} is no sequence whose length is known")
    return value


def _element(c: Call, i: int) -> Value:
    value = c.inputs[i]
    if value is None:
        raise c.fail(f"input {i} is missing")
    return value


def sequence_construct(c: Call) -> tuple[Any, ...]:
    return ([_element(c, i) for i in range(len(c.inputs))],)


def sequence_empty(c: Call) -> tuple[Any, ...]:
    return ([],)


def sequence_at(c: Call) -> tuple[Any, ...]:
    return (_sequence(c)[int(c.static(1, "position").item())],)


def sequence_length(c: Call) -> Static:
    return Static.ints(len(_sequence(c)))


def sequence_insert(c: Call) -> tuple[Any, ...]:
    made = list(_sequence(c))
    at = int(c.static(2, "position").item()) if c.has(2) else len(made)
    made.insert(at, _element(c, 1))
    return (made,)


def sequence_erase(c: Call) -> tuple[Any, ...]:
    made = list(_sequence(c))
    made.pop(int(c.static(1, "position").item()) if c.has(1) else -1)
    return (made,)


def _tensors(c: Call) -> list[torch.Tensor]:
    return [c.materialise(v) if isinstance(v, Static) else v for v in _sequence(c)]


def concat_from_sequence(c: Call) -> torch.Tensor:
    parts = _tensors(c)
    join: Callable[..., torch.Tensor] = torch.stack if c.integer("new_axis") else torch.cat
    return join(parts, c.integer("axis"))


def split_to_sequence(c: Call) -> tuple[Any, ...]:
    x = c.x()
    axis = c.axis(x.dim())
    if not c.has(1):
        parts = list(torch.split(x, 1, axis))
        return (parts if c.integer("keepdims", 1) else [p.squeeze(axis) for p in parts],)
    sizes = c.static(1, "split")
    each: Any = int(sizes.item()) if sizes.ndim == 0 else sizes.tolist()
    return (list(torch.split(x, each, axis)),)

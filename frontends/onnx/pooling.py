"""Pooling: over windows and over everything."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from kvc.frontends.onnx.spatial import Pads, flat_pads, spatial_rank, window
from kvc.frontends.onnx.values import Call, Static

_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True)
class Windows:
    """The windows of a pooling operator, axis by axis: extents in, kernel, stride, dilation, (before, after) pads, and
    extents out."""

    ins: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: Pads
    outs: list[int]

    @property
    def full(self) -> Pads:
        """The pads with which every window lies inside: what the last one needs, be it more (ceil_mode) or less."""
        rows = zip(self.ins, self.kernel, self.strides, self.dilations, self.outs, self.pads, strict=True)
        return [(low, max((o - 1) * s + (k - 1) * d + 1 - n - low, 0)) for n, k, s, d, o, (low, _) in rows]

    def torch_takes(self, pads: Pads) -> bool:
        """Whether torch's pooling has these pads."""
        return all(low == high and 2 * low <= k for (low, high), k in zip(pads, self.kernel, strict=True))

    def total(self, padded: torch.Tensor) -> torch.Tensor:
        """The sum over each window of a padded input, one strided view for each position of the kernel."""
        views = []
        for offset in itertools.product(*map(range, self.kernel)):
            at: list[slice] = [slice(None), slice(None)]
            for o, d, s, n in zip(offset, self.dilations, self.strides, self.outs, strict=True):
                at.append(slice(o * d, o * d + (n - 1) * s + 1, s))
            views.append(padded[tuple(at)])
        return reduce(torch.add, views)

    def counts(self, with_pads: bool) -> np.ndarray:
        """How many elements of each window count: those of the input, or of the input and its pads."""
        found = np.ones((), dtype=np.float32)
        rows = zip(self.ins, self.kernel, self.strides, self.dilations, self.outs, self.pads, strict=True)
        for n, k, s, d, o, (low, high) in rows:
            at = np.arange(o)[:, None] * s + np.arange(k)[None, :] * d
            start, end = (0, low + n + high) if with_pads else (low, low + n)
            found = np.multiply.outer(found, ((at >= start) & (at < end)).sum(1).astype(np.float32))
        return found


def windows(c: Call, x: torch.Tensor) -> Windows:
    """With `ceil_mode` a last window may hang over, but none starts behind the input and its leading pad."""
    spatial_rank(c, x)
    ins, kernel = list(x.shape[2:]), list(c.ints("kernel_shape") or ())
    strides, dilations, pads = window(c, tuple(ins), tuple(kernel))
    outs = []
    for n, k, s, d, (low, high) in zip(ins, kernel, strides, dilations, pads, strict=True):
        room = n + low + high - ((k - 1) * d + 1)
        out = (-(-room // s) if c.integer("ceil_mode") else room // s) + 1
        outs.append(out - 1 if c.integer("ceil_mode") and (out - 1) * s >= n + low else out)
    return Windows(ins, kernel, strides, dilations, pads, outs)


def _padded(x: torch.Tensor, pads: Pads, fill: float) -> torch.Tensor:
    return torch.constant_pad_nd(x, flat_pads(pads), fill) if any(p != (0, 0) for p in pads) else x


def max_pool(c: Call) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Integers are pooled as fp32, which holds 8 bits exactly."""
    x, as_is = c.x(), c.x().dtype
    w = windows(c, x)
    if not x.is_floating_point():
        x = x.to(torch.float32)
    run, full = _MAX_POOL[len(w.ins)], w.full
    if w.torch_takes(full) and not c.integer("ceil_mode") and c.outputs == 1:
        return run(x, w.kernel, w.strides, [low for low, _ in full], w.dilations).to(as_is)
    lowest = float("-inf") if as_is.is_floating_point else float(torch.iinfo(as_is).min)
    padded = _padded(x, full, lowest)
    if c.outputs == 1:
        return run(padded, w.kernel, w.strides, [0] * len(w.ins), w.dilations).to(as_is)
    y, at = run(padded, w.kernel, w.strides, [0] * len(w.ins), w.dilations, return_indices=True)
    return y.to(as_is), _positions(c, x, at, list(padded.shape[2:]), [low for low, _ in full])


def _positions(c: Call, x: torch.Tensor, at: torch.Tensor, padded: list[int], before: list[int]) -> torch.Tensor:
    """Positions within each padded plane -> positions in the whole input; column-major with `storage_order` 1."""
    coordinates = []
    for n, low in zip(reversed(padded), reversed(before), strict=True):
        coordinates.append(at % n - low)
        at = at // n
    pairs = list(zip(coordinates, reversed(x.shape[2:]), strict=True))
    position = torch.zeros_like(at)
    for coordinate, n in pairs if c.integer("storage_order") else reversed(pairs):
        position = position * n + coordinate
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *[1] * (x.dim() - 2))
    return position + planes * math.prod(x.shape[2:])


def average_pool(c: Call) -> torch.Tensor:
    x, counted = c.x(), bool(c.integer("count_include_pad"))
    w = windows(c, x)
    if set(w.dilations) == {1} and w.torch_takes(w.pads) and not c.integer("ceil_mode"):
        run = _AVG_POOL[len(w.ins)]
        return run(x, w.kernel, w.strides, [low for low, _ in w.pads], False, counted)
    return w.total(_padded(x, w.full, 0)) / c.materialise(Static(w.counts(counted), torch.float32))


def lp_pool(c: Call) -> torch.Tensor:
    """(sum over the window of |x|^p)^(1/p)."""
    x, p = c.x(), c.integer("p", 2)
    w = windows(c, x)
    return w.total(_padded(x.abs().pow(p), w.full, 0)).pow(1.0 / p)


def global_average_pool(c: Call) -> torch.Tensor:
    x = c.x()
    return x.mean(tuple(range(2, x.dim())), True)


def global_max_pool(c: Call) -> torch.Tensor:
    x = c.x()
    return x.amax(tuple(range(2, x.dim())), True)


def global_lp_pool(c: Call) -> torch.Tensor:
    x, p = c.x(), c.integer("p", 2)
    return x.abs().pow(p).sum(tuple(range(2, x.dim())), True).pow(1.0 / p)

"""Convolution, and what puts an image together or samples it."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from kvc.frontends.onnx.pointwise import saturated
from kvc.frontends.onnx.values import Call

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_T = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

Pads = list[tuple[int, int]]


def window(c: Call, extents: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[list[int], list[int], Pads]:
    """Strides, dilations and (before, after) pads of each spatial axis, `auto_pad` worked out."""
    rank = len(extents)
    strides = list(c.ints("strides") or (1,) * rank)
    dilations = list(c.ints("dilations") or (1,) * rank)
    auto = c.text("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = c.ints("pads") or (0,) * (2 * rank)
        return strides, dilations, [(pads[i], pads[i + rank]) for i in range(rank)]
    if auto == "VALID":
        return strides, dilations, [(0, 0)] * rank
    found = []
    for n, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        low, high = total // 2, total - total // 2
        found.append((high, low) if auto == "SAME_LOWER" else (low, high))
    return strides, dilations, found


def flat_pads(pads: Pads) -> list[int]:
    """torch's order: the last axis first."""
    return [v for low, high in reversed(pads) for v in (low, high)]


def spatial_rank(c: Call, x: torch.Tensor) -> int:
    rank = x.dim() - 2
    if rank not in _CONV:
        raise c.fail(f"{rank} spatial dimensions", "1, 2 and 3 are supported")
    return rank


def conv(c: Call) -> torch.Tensor:
    return _convolve(c, c.x(0), c.x(1), c.opt(2))


def _convolve(c: Call, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rank = spatial_rank(c, x)
    strides, dilations, pads = window(c, tuple(x.shape[2:]), tuple(w.shape[2:]))
    if any(low != high for low, high in pads):
        x = torch.constant_pad_nd(x, flat_pads(pads), 0)
        pads = [(0, 0)] * rank
    padding = [low for low, _ in pads]
    return _CONV[rank](x, w, bias, strides, padding, dilations, c.integer("group", 1))


def conv_transpose(c: Call) -> torch.Tensor:
    """Computed without padding; what `pads` take away is then cropped, and a wanted output shape sets the pads."""
    x, w, bias = c.x(0), c.x(1), c.opt(2)
    rank = spatial_rank(c, x)
    strides = list(c.ints("strides") or (1,) * rank)
    dilations = list(c.ints("dilations") or (1,) * rank)
    extra = list(c.ints("output_padding") or (0,) * rank)
    given, wanted = c.ints("pads") or (0,) * (2 * rank), c.ints("output_shape")
    auto = c.text("auto_pad", "NOTSET")
    pads = [(given[i], given[i + rank]) for i in range(rank)]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
    ]
    if wanted is None and auto.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
    if wanted is not None:
        totals = [f - n for f, n in zip(full, wanted[-rank:], strict=True)]
        halves = [(t // 2, t - t // 2) for t in totals]
        pads = [(high, low) for low, high in halves] if auto != "SAME_UPPER" else halves
    group = c.integer("group", 1)
    run = _CONV_T[rank]
    if all(low == high >= 0 for low, high in pads) and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations)):  # noqa: B905
        low = [p[0] for p in pads]
        return run(x, w, bias, strides, low, extra, group, dilations)
    y = run(x, w, bias, strides, [0] * rank, [0] * rank, group, dilations)
    # Rows that no product reaches hold the bias alone: they are made by padding before the bias is added.
    crop = [(-low, e - high) for (low, high), e in zip(pads, extra, strict=True)]
    if bias is None or all(high <= 0 for _, high in crop):
        return torch.constant_pad_nd(y, flat_pads(crop), 0)
    shaped = bias.reshape(-1, *[1] * rank)
    return torch.constant_pad_nd(y - shaped, flat_pads(crop), 0) + shaped


def conv_integer(c: Call) -> torch.Tensor:
    """8-bit products, summed exactly in fp64."""
    x = c.x(0).double() - (c.x(2).double() if c.has(2) else 0.0)
    w = c.x(1).double()
    if c.has(3):
        w = w - _per_channel(c.x(3).double(), w)
    return _convolve(c, x, w, None).to(torch.int32)


def _per_channel(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return s.reshape(-1, *[1] * (w.dim() - 1)) if s.numel() > 1 else s.reshape(())


def qlinear_conv(c: Call) -> torch.Tensor:
    """Inputs: x, its scale and zero point, w, its scale and zero point, y's scale and zero point, bias."""
    x = c.x(0).double() - c.x(2).double()
    w = c.x(3).double() - _per_channel(c.x(5).double(), c.x(3))
    y = _convolve(c, x, w, c.x(8).double() if c.has(8) else None)
    w_scale = c.x(4).double()
    scale = c.x(1).double() * (w_scale.reshape(1, -1, *[1] * (y.dim() - 2)) if w_scale.numel() > 1 else w_scale)
    zero = c.x(7)
    return saturated(torch.round(y * scale / c.x(6).double()) + zero.double(), zero.dtype)


def col2im(c: Call) -> torch.Tensor:
    """Columns added back into an image, one strided slice for each position of the block."""
    x = c.x()
    image, block = c.ints("image_shape", 1) or (), c.ints("block_shape", 2) or ()
    rank = len(image)
    strides, dilations = c.ints("strides") or (1,) * rank, c.ints("dilations") or (1,) * rank
    pads = c.ints("pads") or (0,) * (2 * rank)
    full = [n + pads[i] + pads[i + rank] for i, n in enumerate(image)]
    counts = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(full, block, dilations, strides, strict=True)]
    channels = x.shape[1] // math.prod(block)
    x = x.reshape(x.shape[0], channels, *block, *counts)
    total = torch.zeros(x.shape[0], channels, *full, dtype=x.dtype)
    grids = [torch.arange(n) for n in counts]
    for offset in itertools.product(*map(range, block)):
        at: list[slice | int] = [slice(None), slice(None), *offset]
        part = x[tuple(at)]
        for d, (o, grid) in enumerate(zip(offset, grids, strict=True)):
            wide = torch.zeros(*part.shape[: d + 2], full[d], *part.shape[d + 3 :], dtype=x.dtype)
            part = torch.index_add(wide, d + 2, grid * strides[d] + o * dilations[d], part)
        total = total + part
    inside = tuple(slice(pads[i], pads[i] + n) for i, n in enumerate(image))
    return total[(slice(None), slice(None), *inside)]


def grid_sample(c: Call) -> torch.Tensor:
    x = c.x()
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(c.text("mode", "linear"), c.text("mode", "linear"))
    if mode == "bicubic" and x.dim() != 4:
        raise c.fail("cubic sampling of more than two dimensions")
    padding, corners = c.text("padding_mode", "zeros"), bool(c.integer("align_corners"))
    return F.grid_sample(x, c.x(1), mode=mode, padding_mode=padding, align_corners=corners)

"""Resize: every axis that changes becomes a weighted sum of a few selected rows. Sizes are known, so rows and weights
are worked out here, from the definition of the operator, and the kernels only gather."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from kvc.frontends.onnx.values import Call, Static


@dataclass(frozen=True)
class Axis:
    """One axis: its extent, the new one, the scale between them and the region of interest (start, end)."""

    old: int
    new: int
    scale: float
    roi: tuple[float, float]


def resize(c: Call) -> torch.Tensor:
    x = c.x()
    chosen = [a % x.dim() for a in c.ints("axes") or range(x.dim())]
    axes = _axes(c, x, chosen)
    same = [a for a, row in axes.items() if row.old == row.new and row.scale == 1.0 and _is_local(c)]
    todo = {a: row for a, row in axes.items() if a not in same}
    fast = _torch_mode(c, x, todo)
    if fast is not None:
        return fast
    for axis, row in todo.items():
        rows, weights, outside = _taps(c, row)
        x = _weighted(c, x, axis, rows, weights, outside)
    return x


def _is_local(c: Call) -> bool:
    return c.text("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"


def _axes(c: Call, x: torch.Tensor, chosen: list[int]) -> dict[int, Axis]:
    """Sizes from `sizes` (input 3) or `scales` (input 2), `keep_aspect_ratio_policy` applied."""
    old = [x.shape[a] for a in chosen]
    roi = [0.0] * len(chosen) + [1.0] * len(chosen)
    if not _is_local(c) and c.has(1):
        roi = [float(v) for v in c.static(1, "roi").reshape(-1)]
    sizes = c.ints("sizes", 3)
    if sizes:
        scales = [n / o for n, o in zip(sizes, old, strict=True)]
        policy = c.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(scales) if policy == "not_larger" else max(scales)
            scales = [one] * len(old)
            sizes = tuple(math.floor(one * o + 0.5) for o in old)
    else:
        scales = [float(v) for v in c.static(2, "scales").reshape(-1)]
        spans = [roi[i + len(old)] - roi[i] for i in range(len(old))]
        sizes = tuple(math.floor(o * w * s) for o, s, w in zip(old, scales, spans, strict=True))
    return {a: Axis(old[i], sizes[i], scales[i], (roi[i], roi[i + len(old)])) for i, a in enumerate(chosen)}


def _torch_mode(c: Call, x: torch.Tensor, todo: dict[int, Axis]) -> torch.Tensor | None:
    """torch's own interpolation, where it is the same: it is one operator of the table instead of a gather an axis."""
    where, mode = c.text("coordinate_transformation_mode", "half_pixel"), c.text("mode", "nearest")
    rank = x.dim() - 2
    exact = all(math.isclose(row.new, row.old * row.scale) for row in todo.values())
    if c.integer("antialias") or rank not in (1, 2, 3) or not todo or min(todo) < 2 or not exact:
        return None
    size = [todo[a].new if a in todo else x.shape[a] for a in range(2, x.dim())]
    if mode == "nearest" and where == "asymmetric" and c.text("nearest_mode", "round_prefer_floor") == "floor":
        return F.interpolate(x, size, mode="nearest")
    if mode == "linear" and where in ("half_pixel", "align_corners"):
        name = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]
        return F.interpolate(x, size, mode=name, align_corners=where == "align_corners")
    return None


def _coordinates(c: Call, row: Axis) -> np.ndarray:
    """Where each new element lies among the old ones (the operator's coordinate_transformation_mode)."""
    x, where = np.arange(row.new, dtype=np.float64), c.text("coordinate_transformation_mode", "half_pixel")
    if where == "half_pixel":
        return (x + 0.5) / row.scale - 0.5
    if where == "half_pixel_symmetric":
        full = row.old * row.scale
        return row.old / 2 * (1 - row.new / full) + (x + 0.5) / row.scale - 0.5
    if where == "pytorch_half_pixel":
        return (x + 0.5) / row.scale - 0.5 if row.new > 1 else np.zeros(1)
    if where == "align_corners":
        full = row.old * row.scale  # before it was rounded down, as ONNX's reference has it
        return x * (row.old - 1) / (full - 1) if full > 1 else np.zeros(row.new)
    if where == "asymmetric":
        return x / row.scale
    if where == "tf_crop_and_resize":
        start, end = (v * (row.old - 1) for v in row.roi)
        return start + x * (end - start) / (row.new - 1) if row.new > 1 else np.full(row.new, (start + end) / 2)
    raise c.fail(f"coordinate_transformation_mode {where}")


def _nearest(c: Call, at: np.ndarray) -> np.ndarray:
    how = c.text("nearest_mode", "round_prefer_floor")
    rounded = {"round_prefer_floor": np.ceil(at - 0.5), "round_prefer_ceil": np.floor(at + 0.5), "floor": np.floor(at),
               "ceil": np.ceil(at)}  # fmt: skip
    return rounded[how]


def _taps(c: Call, row: Axis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each new element the old ones [new, taps], their weights, and whether it lies outside of the old range."""
    at = _coordinates(c, row)
    mode = c.text("mode", "nearest")
    outside = (at < 0) | (at > row.old - 1) if not _is_local(c) else np.zeros(row.new, bool)
    if mode == "nearest":
        rows, weights = _nearest(c, at)[:, None], np.ones((row.new, 1))
    else:
        stretch = max(1.0 / row.scale, 1.0) if c.integer("antialias") else 1.0
        radius = (1 if mode == "linear" else 2) * stretch
        first = np.floor(at - radius) + 1
        taps = math.ceil(2 * radius) + (1 if stretch > 1 else 0)
        rows = first[:, None] + np.arange(taps)
        distance = (rows - at[:, None]) / stretch
        cubic = c.decimal("cubic_coeff_a", -0.75)
        weights = np.maximum(1 - np.abs(distance), 0) if mode == "linear" else _cubic(distance, cubic)
        if c.integer("exclude_outside"):
            weights = np.where((rows < 0) | (rows >= row.old), 0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(rows, 0, row.old - 1).astype(np.int64), weights, outside


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel: R. Keys, Cubic convolution interpolation for digital image processing, 1981."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _weighted(
    c: Call, x: torch.Tensor, axis: int, rows: np.ndarray, weights: np.ndarray, outside: np.ndarray
) -> torch.Tensor:
    shape = [-1 if d == axis else 1 for d in range(x.dim())]
    total: torch.Tensor | None = None
    for tap in range(rows.shape[1]):
        if not weights[:, tap].any():
            continue
        picked = x.index_select(axis, c.materialise(Static.ints(rows[:, tap].tolist())))
        if not (weights[:, tap] == 1.0).all():
            w = c.materialise(Static(weights[:, tap].astype(np.float32), torch.float32))
            picked = picked * w.reshape(shape)
        total = picked if total is None else total + picked
    assert total is not None
    if outside.any():
        mask = c.materialise(Static(outside, torch.bool)).reshape(shape)
        total = torch.where(mask, torch.full((), c.decimal("extrapolation_value"), dtype=total.dtype), total)
    return total

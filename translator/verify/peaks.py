"""Rows whose maximum stands in each part of the row in turn, by more than the range of exp.

A row is reduced in parts: lanes, waves, steps of a loop. Where one part's maximum is lost, softmax and its kin are the
same for any shift that does not overflow, so that the fault shows only where exactly that part holds the maximum, and
by far. A random draw puts it there now and then; here the parts of the usual layouts take turns from row to row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kvc.kernel import Axis, KernelSpec, Load, Reduce, walk

if TYPE_CHECKING:
    import torch

#: Above the rest of a row: exp(-128) is 0 in single precision, and exp(128) infinite.
REACH = 128.0
#: Elements in a row that one load of a wave covers: 64 lanes, of 1, 2 or 4 elements each.
SEGMENT = 64
_MAX_ROWS = 4096


def reduced_by_maximum(spec: KernelSpec) -> dict[str, tuple[tuple[int, str], ...]]:
    """For each operand that a reduction by a maximum or minimum reads as it is, the (dim, op) that it runs over."""
    inputs = {operand.name for operand in spec.inputs}
    found: dict[str, dict[tuple[int, str], None]] = {}
    for stmt in spec.body:
        if not isinstance(stmt.over, Reduce) or stmt.over.op not in ("max", "min"):
            continue
        for node in (n for root in stmt.roots for n in walk(root) if isinstance(n, Load) and n.tensor in inputs):
            for dim, index in enumerate(node.index):
                if isinstance(index, Axis) and index.name in stmt.over.axes:
                    found.setdefault(node.tensor, {})[dim, stmt.over.op] = None
    return {name: tuple(rows) for name, rows in found.items()}


@lru_cache(maxsize=64)
def segment_order(segments: int) -> tuple[int, ...]:
    """All segments of a row, so ordered that the first of them differ in as many layouts as can be: by segments dealt
    to 2, 4, 8 or 16 waves, one, two or four in a piece."""
    used: dict[tuple[int, int, int], int] = {}
    left = list(range(segments))
    order: list[int] = []
    while left and len(order) < 64:
        best = min(left, key=lambda s: (sum(used.get(k, 0) for k in _places(s)), s))
        left.remove(best)
        order.append(best)
        for place in _places(best):
            used[place] = used.get(place, 0) + 1
    return (*order, *left)


def _places(segment: int) -> list[tuple[int, int, int]]:
    return [(piece, waves, segment // piece % waves) for piece in (1, 2, 4) for waves in (2, 4, 8, 16)]


def peaked(x: torch.Tensor, dim: int, op: str, turn: int, generator: torch.Generator) -> torch.Tensor:
    """`x` (float64) with one element of each row along `dim` moved REACH beyond the row's own extreme. Rows of one
    segment have their peak among lanes at random, and only in turn 0, so that one set leaves them as they are."""
    import torch

    extent = x.shape[dim]
    segments = -(-extent // SEGMENT)
    if not x.numel() or extent < 2 or (turn and segments < 2):
        return x
    rows = x.movedim(dim, -1).reshape(-1, extent).clone()
    count = rows.shape[0]
    order = segment_order(segments)
    which = torch.tensor([order[(turn * count + r) % segments] for r in range(min(count, _MAX_ROWS))])
    which = which.repeat(-(-count // len(which)))[:count]
    width = torch.clamp(extent - which * SEGMENT, max=SEGMENT)
    places = which * SEGMENT + (torch.rand(count, generator=generator) * width).long()
    extreme = rows.amax(1) + REACH if op == "max" else rows.amin(1) - REACH
    rows[torch.arange(count), places] = extreme
    moved = x.movedim(dim, -1)
    return rows.reshape(moved.shape).movedim(-1, dim)


__all__ = ["REACH", "peaked", "reduced_by_maximum", "segment_order"]

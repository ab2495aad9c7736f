"""Places intermediate tensors in one arena: each lives from the step that writes it to the last that reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvc.graph import TensorType
from kvc.plan import Fallback, Invoke, Plan

ALIGN = 256  # bytes; a cache line, and the alignment of a fresh allocation


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offsets of intermediates in an arena of `nbytes`. `lifetimes` gives the first and last step of each."""

    offsets: dict[str, int]
    nbytes: int
    lifetimes: dict[str, tuple[int, int]] = field(default_factory=dict)


def size_of(t: TensorType) -> int:
    """Bytes of a tensor in the arena, rounded up to its alignment."""
    return -(-t.numel * t.dtype.bytes // ALIGN) * ALIGN


def memory_plan(plan: Plan) -> MemoryPlan:
    """Offsets for all values that a kernel writes and that do not outlive the call; what a fallback node writes
    belongs to torch. Largest tensors first, each at the lowest place that is free through its life, in the gap that
    fits best: no tensor overlaps another whose life overlaps its own."""
    lifetimes = _lifetimes(plan)
    placed: list[tuple[int, int, int, int]] = []  # first step, last step, offset, end
    offsets: dict[str, int] = {}
    by_size = sorted(lifetimes, key=lambda v: (-size_of(plan.buffers[v]), lifetimes[v]))
    for value in by_size:
        first, last = lifetimes[value]
        size = size_of(plan.buffers[value])
        busy = sorted((offset, end) for f, l, offset, end in placed if f <= last and first <= l)
        offset = _best_gap(busy, size)
        offsets[value] = offset
        placed.append((first, last, offset, offset + size))
    order = [v for v in plan.buffers if v in offsets]
    return MemoryPlan({v: offsets[v] for v in order}, max((end for *_, end in placed), default=0), lifetimes)


def _lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    keep = plan.graph.live_out | {i.name for i in plan.graph.inputs}
    lifetimes: dict[str, tuple[int, int]] = {}
    for n, step in enumerate(plan.steps):
        if isinstance(step, Invoke):
            lifetimes.update({v: (n, n) for v in step.outputs if v not in keep})
        reads = step.node.refs if isinstance(step, Fallback) else step.inputs
        lifetimes.update({v: (lifetimes[v][0], n) for v in reads if v in lifetimes})
    return lifetimes


def _best_gap(busy: list[tuple[int, int]], size: int) -> int:
    """Start of the smallest gap between busy ranges that holds `size` bytes; the end of all where none does."""
    best: tuple[int, int] | None = None
    free = 0
    for start, end in busy:
        if start - free >= size and (best is None or start - free < best[0]):
            best = (start - free, free)
        free = max(free, end)
    return best[1] if best is not None else free


def live_peak(plan: Plan) -> int:
    """The most bytes of intermediates alive at one step: no arena can be smaller."""
    lifetimes = _lifetimes(plan)
    return max(
        (
            sum(size_of(plan.buffers[v]) for v, (first, last) in lifetimes.items() if first <= n <= last)
            for n in range(len(plan.steps))
        ),
        default=0,
    )

"""Places intermediate tensors in one arena: each lives from the step that writes it to the last that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvc.graph import Graph, TensorType
from kvc.kernel import KernelSpec, Load
from kvc.lower import Provenance, lower
from kvc.passes.inline import is_view
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
    belongs to torch, what the prologue writes to the module. No tensor overlaps another whose life overlaps its own.
    Packing is hard to do best, so several greedy orders are tried and the smallest arena wins."""
    lifetimes = _lifetimes(plan)
    sizes = {v: size_of(plan.buffers[v]) for v in lifetimes}

    def steps(v: str) -> int:
        return lifetimes[v][1] - lifetimes[v][0] + 1

    orders = (
        sorted(lifetimes, key=lambda v: (-sizes[v], lifetimes[v])),
        sorted(lifetimes, key=lambda v: (-steps(v), -sizes[v], lifetimes[v])),
        sorted(lifetimes, key=lambda v: (-steps(v) * sizes[v], lifetimes[v])),
        sorted(lifetimes, key=lambda v: (lifetimes[v][0], -sizes[v])),
    )
    arenas = [_pack(order, lifetimes, sizes, gap) for order in orders for gap in (_best_gap, _first_gap)]
    offsets = min(arenas, key=lambda a: _end(a, sizes))
    ordered = {v: offsets[v] for v in plan.buffers if v in offsets}
    return MemoryPlan(ordered, _end(offsets, sizes), lifetimes)


def _end(offsets: dict[str, int], sizes: dict[str, int]) -> int:
    return max((offset + sizes[v] for v, offset in offsets.items()), default=0)


def _pack(
    order: list[str],
    lifetimes: dict[str, tuple[int, int]],
    sizes: dict[str, int],
    gap: Callable[[list[tuple[int, int]], int], int],
) -> dict[str, int]:
    """Place values one after another, each in a gap between those that live at the same time."""
    offsets: dict[str, int] = {}
    for value in order:
        first, last = lifetimes[value]
        together = [v for v in offsets if lifetimes[v][0] <= last and first <= lifetimes[v][1]]
        busy = sorted((offsets[v], offsets[v] + sizes[v]) for v in together)
        offsets[value] = gap(busy, sizes[value])
    return offsets


def _lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    keep = plan.graph.live_out | {i.name for i in plan.graph.inputs}
    lifetimes: dict[str, tuple[int, int]] = {}
    for n, step in enumerate(plan.steps):
        if isinstance(step, Invoke) and n not in plan.prologue:
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


def _first_gap(busy: list[tuple[int, int]], size: int) -> int:
    """Start of the lowest gap between busy ranges that holds `size` bytes."""
    free = 0
    for start, end in busy:
        if start - free >= size:
            break
        free = max(free, end)
    return free


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


def eager_peak(graph: Graph) -> int:
    """The most bytes of intermediates alive at one node when torch runs the graph as it stands: every value that is no
    view of another has memory from the node that makes it to the last that reads it or a view of it."""
    whole, provenance = lower(graph)
    views = _view_sources(whole, provenance)
    root = {i.name: i.name for i in graph.inputs}
    life: dict[str, tuple[int, int]] = {}
    keep = graph.live_out | set(root)
    for n, node in enumerate(graph.nodes):
        for ref in node.refs:
            if root[ref] in life:
                life[root[ref]] = (life[root[ref]][0], n)
        for value in node.outputs:
            source = views.get(value)
            root[value] = root[source] if source in root and len(node.outputs) == 1 else value
            if root[value] == value and value not in keep:
                life[value] = (n, n)
    sizes = {v: size_of(graph.types[v]) for v in life}
    steps = range(len(graph.nodes))
    return max((sum(sizes[v] for v, (first, last) in life.items() if first <= n <= last) for n in steps), default=0)


def _view_sources(whole: KernelSpec, provenance: Provenance) -> dict[str, str]:
    """For each value that is a view, the value it looks at."""
    sources: dict[str, str] = {}
    for stmt in whole.body:
        if is_view(whole, stmt) and isinstance(stmt.expr, Load):
            own = provenance[stmt.target]
            inside = stmt.expr.tensor
            while inside in sources and provenance.get(inside) == own:
                inside = sources[inside]
            sources[stmt.target] = inside
    return sources

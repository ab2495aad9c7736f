"""Cuts the spec of a whole model into kernels, in an order in which they can run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvc.canonical import rename
from kvc.check import check_kernel
from kvc.emitter import Composite
from kvc.kernel import KernelSpec
from kvc.passes.extract import extract
from kvc.passes.forms import Form, Forms
from kvc.passes.fuse import Barrier, Fusion
from kvc.passes.inline import fold_views
from kvc.passes.layout import relayout
from kvc.passes.unit_axes import drop_unit_axes
from kvc.simplify import simplify_indices

# What brings a whole-model spec into the form that fusion starts from; each keeps its meaning.
PREPARE: tuple[Callable[[KernelSpec], KernelSpec], ...] = (simplify_indices, drop_unit_axes, fold_views)


@dataclass(frozen=True)
class Cut:
    """One kernel: its operands are named after tensors of the whole spec; `targets` are the statements it computes (a
    copy of a weight: the statement it is for)."""

    spec: KernelSpec
    targets: tuple[str, ...]


def partition(
    whole: KernelSpec,
    barriers: Sequence[Barrier] = (),
    name: Callable[[Sequence[str]], str] | None = None,
    composites: Sequence[Composite] = (),
    fixed: Collection[str] = (),
) -> list[Cut | Barrier]:
    """Kernels and barriers in an order in which each reads only what an earlier one wrote. Unit dims of outputs are
    gone and dims may be split: an operand's memory is that of the tensor, its dims need not be. `name` gives a kernel
    name for the statements it computes; `composites` are what the target writes as one kernel (kvc.emitter),
    `fixed` the inputs that are the same from call to call."""
    fusion = grouped(whole, barriers, composites, fixed)
    whole, copies = relayout(fusion.whole, fusion)
    cutter = _Cutter(whole)
    steps: list[Cut | Barrier] = []
    for group in _order(fusion):
        if group in fusion.barriers:
            steps.append(fusion.barriers[group])
            continue
        targets = fusion.groups[group]
        outputs = fusion.outputs(targets, (group,))
        origin = tuple(copies.get(t, t) for t in targets)
        named = (name(origin) if name else "kernel") + ("_weight" if origin != targets else "")
        steps.append(Cut(cutter.cut(targets, outputs, named), origin))
    return steps


class _Cutter:
    """Cuts kernels out of a whole spec; what differs only in the names of tensors is worked out once."""

    def __init__(self, whole: KernelSpec) -> None:
        self.whole = whole
        self.forms = Forms(whole)
        self.done: dict[Form, tuple[KernelSpec, tuple[str, ...]]] = {}

    def cut(self, targets: Sequence[str], outputs: Sequence[str], name: str) -> KernelSpec:
        found = self.forms.of(targets, outputs)
        if found is not None and found[0] in self.done:
            spec, theirs = self.done[found[0]]
            if spec.name == name and not set(found[1]) & set(spec.size):
                return rename(spec, dict(zip(theirs, found[1], strict=True)), {})
        spec = check_kernel(extract(self.whole, targets, outputs, name))
        if found is not None:
            self.done.setdefault(found[0], (spec, found[1]))
        return spec


def grouped(
    whole: KernelSpec,
    barriers: Sequence[Barrier] = (),
    composites: Sequence[Composite] = (),
    fixed: Collection[str] = (),
) -> Fusion:
    """The statements of a whole-model spec as groups, each to become a kernel."""
    for prepare in PREPARE:
        whole = check_kernel(prepare(whole))
    return Fusion(whole, barriers, composites, fixed).run()


def _order(fusion: Fusion) -> list[int]:
    """Groups by dependency; among those that are ready, the one that comes first in the model."""
    waiting = {g: fusion.producers(g) - {g} for g in (*fusion.groups, *fusion.barriers)}
    first = {g: min((fusion.position[t] for t in fusion.groups.get(g, ())), default=g) for g in waiting}
    users: dict[int, list[int]] = {g: [] for g in waiting}
    for group, producers in waiting.items():
        for producer in producers:
            users[producer].append(group)
    ready = [(first[g], g) for g, producers in waiting.items() if not producers]
    heapq.heapify(ready)
    order = []
    while ready:
        _, group = heapq.heappop(ready)
        order.append(group)
        for user in users[group]:
            waiting[user].discard(group)
            if not waiting[user]:
                heapq.heappush(ready, (first[user], user))
    assert len(order) == len(waiting), "kernels depend on each other in a circle"
    return order

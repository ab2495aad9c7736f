"""From a reference to the specs in it: capture, cut by the real partition, and what the vault keeps of each kernel."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.kernel import KernelSpec
from kvc.text import parse_kernel, print_kernel
from kvc.vault.functional import functional
from kvc.verify.judge import points

if TYPE_CHECKING:
    from kvc.emitter import Composite
    from kvc.frontends.fx.capture import Captured
    from kvc.plan import Plan

#: Specs with more points than this are left out: their simulation would take the time of fifty others.
MAX_POINTS = 1 << 21
#: Bytes of operands of a spec beyond which drawing, checking and comparing inputs dominates.
MAX_BYTES = 1 << 22


@dataclass(frozen=True)
class Reference:
    """A module as source text. `kind` is one of kvc.vault.record.SOURCE_KINDS, `dtype` what the model is cast to."""

    kind: str
    origin: str
    licence: str
    source: str
    dtype: str | None = None
    mode: str = "eval"


@dataclass(frozen=True)
class Item:
    """A spec to write kernels for, with the reference that it was cut from."""

    spec_text: str
    spec_hash: str
    kind: str
    origin: str
    licence: str
    reference: str
    functional: str

    @property
    def spec(self) -> KernelSpec:
        return parse_kernel(self.spec_text)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Item:
        return Item(**data)


def capture_reference(reference: Reference, seed: int = 0) -> Captured:
    """Load and capture a reference's source. KvcError where it does not load or cannot be captured."""
    from kvc.frontends.fx.capture import capture_loaded
    from kvc.frontends.fx.load import load

    with tempfile.TemporaryDirectory(prefix="kvc-vault-") as folder:
        path = Path(folder) / "model.py"
        path.write_text(reference.source, encoding="utf-8")
        return capture_loaded(load(str(path), seed), reference.mode, reference.dtype)


def harvest(reference: Reference, seed: int = 0) -> list[Item]:
    """The distinct specs of a reference, as every target's partition cuts it. Static ones within MAX_POINTS only."""
    from kvc.emitter import composites, targets
    from kvc.pipeline_graph import plan

    captured = capture_reference(reference, seed)
    cuts: list[tuple[Composite, ...]] = [()]
    cuts += [c for t in targets().values() if (c := tuple(composites(t))) and c not in cuts]
    items: dict[str, Item] = {}
    attends = any("attention" in n.op or "softmax" in n.op for n in captured.graph.nodes)
    for composite in cuts:
        if not composite or attends:  # a composite changes the cut of attention alone
            for item in _items(plan(captured.graph, composite), reference, seed):
                items.setdefault(item.spec_hash, item)
    return list(items.values())


def _items(plan: Plan, reference: Reference, seed: int) -> list[Item]:
    from kvc.plan import Invoke

    first: dict[int, Invoke] = {}
    for step in plan.steps:
        if isinstance(step, Invoke):
            first.setdefault(step.kernel, step)
    found = []
    for number, spec in enumerate(plan.kernels):
        if not fits(spec):
            continue
        text = functional(plan, first[number], seed)
        found.append(
            Item(
                print_kernel(spec), spec.hash, reference.kind, reference.origin, reference.licence, reference.source,
                text,
            )
        )  # fmt: skip
    return found


def fits(spec: KernelSpec) -> bool:
    """Whether a spec is one that the vault keeps: static, not empty, neither trivial nor dear to simulate."""
    if not spec.is_static or not spec.inputs or not spec.outputs:
        return False
    shapes = [(spec.shape_of(o.name), o.dtype.bytes) for o in (*spec.inputs, *spec.outputs)]
    if any(0 in shape for shape, _ in shapes):
        return False
    total = 0
    for shape, width in shapes:
        numel = width
        for extent in shape:
            numel *= extent
        total += numel
    return 0 < points(spec) <= MAX_POINTS and total <= MAX_BYTES

"""Contractions over packed operands: copies in scratch that a tile's loads read 16 bytes at a time, without guards
(kvc.packing). Convolutions get their channels last and their padding written out, matrices of odd length whole
packs."""

from __future__ import annotations

from collections.abc import Iterator

from kvc.emitter import Knob, Task
from kvc.kernel import Expr, KernelSpec, Load
from kvc.packing import Packing, copies_us, gather_us, lies_wide, pack
from kvc.patterns import Contraction, match_contraction

from .contraction import ContractionEmitter, Shape, Tile, product_type, storage_type
from .source import Knobs, SourceFile
from .split import copy_kernel

PACK_BYTES = 16
KINDS = ("f16", "bf16", "f32")


class PackedContractionEmitter(ContractionEmitter):
    """Knobs: those of the contraction, and SPLIT_BLOCK, elements that a program copies."""

    schedule = "contraction_packed"

    def refusal(self, task: Task) -> str:
        reason = "it has symbolic sizes" if not task.spec.is_static else super().refusal(task)
        if reason:
            return reason
        packing = packing_of(task)
        return packing if isinstance(packing, str) else ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        for setting in super().configurations(task):
            chosen: dict[str, Knob] = dict(setting)
            block = 8 * int(chosen["num_warps"]) * task.arch.wave_size
            yield (*setting, ("SPLIT_BLOCK", block))

    def write(self, file: SourceFile) -> None:
        packing = packing_of(file.task)
        assert isinstance(packing, Packing)
        for packed in packing.ahead:
            copy_kernel(file, packing.spec, packed, "pack")
        memory = {o.name for o in packing.spec.inputs} | {t for packed in packing.ahead for t in packed.targets}
        Tile(file, packing.pattern, packing.spec, frozenset(memory)).write()


def packing_of(task: Task) -> Packing | str:
    """The packing that promises to be faster than reading the operands as they lie, or why there is none."""
    spec = task.spec
    pattern = match_contraction(spec)
    if isinstance(pattern, str):
        return pattern
    kind = product_type(spec, pattern)
    if kind.name not in KINDS or any(storage_type(spec, e) is not kind for e in (pattern.a, pattern.b)):
        return "its products are of no type that packs hold"
    width = PACK_BYTES // kind.bytes
    narrow = _narrow(spec, pattern, width)
    if not narrow:
        return "its operands are read as they lie"
    packing = pack(spec, pattern, narrow, False, width)
    if len(narrow) == 1 and (isinstance(packing, str) or _narrow(packing.spec, packing.pattern, width)):
        packing = pack(spec, pattern, "ab", False, width)  # the order of the depth is another for both
    if isinstance(packing, str):
        return packing
    shape = Shape.of(spec, pattern)
    rows = {"a": (shape.m, shape.n), "b": (shape.n, shape.m)}
    saved = sum(gather_us(task.arch, shape.batch, rows[s][0], shape.k, rows[s][1]) for s in narrow)
    if copies_us(task.arch, packing) >= saved:
        return "copies cost more than they save"
    return packing


def _narrow(spec: KernelSpec, pattern: Contraction, width: int) -> str:
    """The operands that do not move in packs."""
    sides: tuple[tuple[str, Expr, tuple[str, ...]], ...] = (("a", pattern.a, pattern.m), ("b", pattern.b, pattern.n))
    return "".join(
        name for name, e, rows in sides if not (isinstance(e, Load) and lies_wide(spec, e, (pattern.k, rows), width))
    )


__all__ = ["PackedContractionEmitter"]

"""HIP for CDNA: rule emitters, device headers, hermetic toolchain, lint and resource checks."""

from __future__ import annotations

from collections.abc import Sequence

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic
from kvc.emitter import Candidate, CodeObject, Compiled, Composite, Emitter
from kvc.executor import LaunchPlan


class HipTarget:
    """The target "hip" (kvc.emitter.Target): one .hip file a kernel, device code alone, for CDNA GPUs."""

    name = "hip"
    suffix = ".hip"
    composites = (Composite("attention", frozenset({"f16", "bf16"}), 128, rounded=True),)

    def emitters(self) -> Sequence[Emitter]:
        """Specific schedules first; the last one writes any spec."""
        from kvc.backends.hip.attention import AttentionEmitter
        from kvc.backends.hip.contraction import ContractionEmitter
        from kvc.backends.hip.elementwise import PointwiseEmitter, WindowEmitter
        from kvc.backends.hip.generic import GenericEmitter
        from kvc.backends.hip.packed import PackedContractionEmitter
        from kvc.backends.hip.recurrence import RecurrenceEmitter
        from kvc.backends.hip.rows import RowsEmitter
        from kvc.backends.hip.scan import ScanEmitter
        from kvc.backends.hip.skinny import SkinnyEmitter
        from kvc.backends.hip.split_rows import SplitRowsEmitter

        return (
            PointwiseEmitter(), WindowEmitter(), SkinnyEmitter(), PackedContractionEmitter(), ContractionEmitter(),
            SplitRowsEmitter(), RowsEmitter(), ScanEmitter(), RecurrenceEmitter(), AttentionEmitter(),
            GenericEmitter(),
        )  # fmt: skip

    def lint(self, source: str, arch: ArchSpec) -> list[Diagnostic]:
        """KVC0403 for each rule that the source breaks."""
        from kvc.backends.hip.lint import lint

        # The compiler reads the source again right after; its own errors are not the lint's business.
        return lint(source, arch.name, syntax=False)

    def compile(self, candidate: Candidate) -> Compiled:
        """All launches of a candidate in one code object; KVC0502 where the source does not compile."""
        import time

        from kvc.backends.hip.resources import parse
        from kvc.backends.hip.toolchain import compile_hip

        start = time.perf_counter()
        built = compile_hip(candidate.source, candidate.task.arch.name, name=f"{candidate.task.spec.name}{self.suffix}")
        record = tuple((key, _text(value)) for key, value in built.toolchain.items())
        code = CodeObject(built.asm, built.binary, record, built.log)
        objects = {launch.kernel: code for launch in candidate.launches}
        return Compiled(objects, time.perf_counter() - start, dict(parse(built.asm)) if objects else {})

    def limits(self, candidate: Candidate, compiled: Compiled) -> list[Diagnostic]:
        """KVC0402 for each limit of the GPU that a launch of a compiled candidate exceeds."""
        from kvc.backends.hip.resources import check, parse

        found: list[Diagnostic] = []
        for launch in candidate.launches:
            code = compiled.objects[launch.kernel]
            plan = LaunchPlan(code.binary, code.asm, launch.kernel, launch.grid, launch.block, launch.dynamic_lds)
            found += check(parse(code.asm)[launch.kernel], candidate.task.arch, plan)
        return found

    def toolchain(self) -> dict[str, str]:
        """Name and version of the compiler, and what else decides its output. KVC0501 where there is none."""
        from kvc.backends.hip.toolchain import select

        return {key: _text(value) for key, value in select().record().items()}

    def warm(self, arch: ArchSpec) -> None:
        """Do in this process, before it is forked for each candidate, what needs doing once."""
        from kvc.backends.hip import lint as _lint  # noqa: F401 (imported for the forked processes)
        from kvc.backends.hip.toolchain import warm

        warm(arch.name)


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)

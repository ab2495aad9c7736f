"""Triton: rule emitters, ahead-of-time toolchain and lint."""

from __future__ import annotations

from collections.abc import Sequence

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic
from kvc.emitter import Candidate, Compiled, Composite, Emitter


class TritonTarget:
    """The target "triton" (kvc.emitter.Target): Python files with @triton.jit kernels, for CDNA and NVIDIA GPUs."""

    name = "triton"
    suffix = ".py"
    composites = (Composite("attention", frozenset({"f16", "bf16"}), 256),)

    def emitters(self) -> Sequence[Emitter]:
        """Specific schedules first; the last one writes any spec."""
        from .attention import AttentionEmitter
        from .contraction import ContractionEmitter
        from .generic import GenericEmitter
        from .packed import PackedContractionEmitter
        from .pointwise import PointwiseEmitter
        from .rows import RowsEmitter
        from .segments import SegmentedRowsEmitter
        from .shared_rows import SharedRowsEmitter
        from .split import SplitContractionEmitter
        from .window import WindowEmitter

        return (
            PointwiseEmitter(),
            WindowEmitter(),
            AttentionEmitter(),
            SplitContractionEmitter(),
            PackedContractionEmitter(),
            ContractionEmitter(),
            SharedRowsEmitter(),
            SegmentedRowsEmitter(),
            RowsEmitter(),
            GenericEmitter(),
        )

    def lint(self, source: str, arch: ArchSpec) -> list[Diagnostic]:
        """KVC0403 for each rule that the source breaks."""
        from .lint import lint

        return lint(source, arch)

    def compile(self, candidate: Candidate) -> Compiled:
        """One code object a kernel; KVC0502 where the source does not compile."""
        from .toolchain import compile_candidate

        return compile_candidate(candidate)

    def toolchain(self) -> dict[str, str]:
        """Name and version of the compiler."""
        from .toolchain import toolchain

        return toolchain()

    def warm(self, arch: ArchSpec) -> None:
        """Do in this process, before it is forked for each candidate, what needs doing once."""
        from .toolchain import warm

        warm(arch)

    def confirm(self, candidate: Candidate, compiled: Compiled) -> list[Diagnostic]:
        """KVC0502 where a binary is not what its assembly text says."""
        from .toolchain import confirm

        return confirm(candidate, compiled)

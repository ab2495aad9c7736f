"""A target whose candidates are plain Python that is imported to be compiled, with no lint before it: what is left of
the defence when a candidate has got past the lint of Triton. Test suites register it for workers (hostile.py)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, CodeObject, Compiled, Emitter


class HostileTarget:
    name = "hostile"
    suffix = ".py"

    def emitters(self) -> Sequence[Emitter]:
        return ()

    def lint(self, source: str, arch: ArchSpec) -> list[Diagnostic]:
        return []

    def toolchain(self) -> dict[str, str]:
        return {"name": "hostile"}

    def compile(self, candidate: Candidate) -> Compiled:
        """Run the source as Triton's toolchain would; its global `asm` is the result."""
        with tempfile.TemporaryDirectory(prefix="kvc-hostile-") as folder:
            path = Path(folder) / "kernel.py"
            path.write_text(candidate.source)
            space: dict[str, Any] = {"__name__": "kvc_kernel"}
            try:
                exec(compile(candidate.source, str(path), "exec"), space)
            except (NameError, ImportError, ValueError) as error:
                raise KvcError("KVC0502", f"{type(error).__name__}: {error}") from error
        text = str(space.get("asm", f"pid {os.getpid()}"))
        code = CodeObject(text, b"\x7fELF", ())
        return Compiled({launch.kernel: code for launch in candidate.launches})

"""References from folders of the user: KernelBench-style files (Model, get_inputs, get_init_inputs)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError


def jobs(root: Path, licence: str = "unknown") -> Iterator[dict[str, Any]]:
    """A harvest task for each Python file below `root` that defines a class Model, in order of path. KVC0101 where
    there is none."""
    found = False
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "class Model" in text and "def get_inputs" in text:
            found = True
            origin = path.relative_to(root).as_posix()
            reference = {"kind": "user", "origin": origin, "licence": licence, "source": text}
            yield {"do": "harvest", "reference": reference}
    if not found:
        raise KvcError("KVC0101", f"{root} holds no references", hint="files with class Model and get_inputs()")

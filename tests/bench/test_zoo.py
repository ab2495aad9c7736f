"""The model zoo: rows are named once, and a run plans a model in a process of its own and goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvc.bench.zoo import Request, asked, run
from kvc.bench.zoo_models import ENTRIES
from kvc.diagnostics import KvcError


def test_rows_are_named_once() -> None:
    assert len({e.name.lower() for e in ENTRIES}) == len(ENTRIES) >= 40


def test_unknown_models_and_libraries(tmp_path: Path) -> None:
    for wrong in ({"models": frozenset({"NoSuchModel"})}, {"libraries": frozenset({"nolib"})}):
        with pytest.raises(KvcError, match="KVC0106"):
            asked(Request(tmp_path, "hip", "gfx942", **wrong))  # type: ignore[arg-type]


def test_a_model_is_planned_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    request = Request(tmp_path, "hip", "gfx942", models=frozenset({"vitforimageclassification"}), jobs=1)
    first = run(request, lambda line: None, False)
    assert first["all"]["passed"] == 1 and first["all"]["fallbacks"] == 0 and first["all"]["kernels"] > 0
    said: list[str] = []
    run(request, said.append, False)
    assert "1 of 1 models" in said[0]
    assert "| library |" in (tmp_path / "table.md").read_text()

"""Small models through torch.compile: the rows, what counts as right, and a run that goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kvc.bench.dynamo import TABLE, Request, _compare, run
from kvc.bench.dynamo_models import ROWS, rows
from kvc.bench.stages import Work
from kvc.diagnostics import KvcError


def test_rows_are_named_once_and_many_are_trained() -> None:
    assert len({row.name.lower() for row in ROWS}) == len(ROWS) >= 25
    assert sum(row.train for row in ROWS) >= 10
    assert [row.name for row in rows(frozenset({"MLP", "lstm"}))] == ["mlp", "lstm"]
    with pytest.raises(KvcError, match="KVC0106"):
        rows(frozenset({"nothing"}))


def test_an_error_counts_by_magnitude_and_by_what_eager_mode_is_off(tmp_path: Path) -> None:
    work = Work({}, {}, tmp_path)
    oracle = {"loss": torch.tensor([100.0]), "null": torch.zeros(3)}
    near = {"loss": torch.tensor([100.001]), "null": torch.full((3,), 1e-6)}
    _compare(work, oracle, oracle, near)
    assert 0 < work.record["error"] < 1e-4
    with pytest.raises(KvcError, match="loss"):
        _compare(work, oracle, oracle, {**near, "loss": torch.tensor([100.1])})
    _compare(work, oracle, {**near, "loss": torch.tensor([100.06])}, {**near, "loss": torch.tensor([100.1])})
    with pytest.raises(KvcError, match="loss"):
        _compare(work, oracle, oracle, {**near, "loss": torch.tensor([float("nan")])})


def test_a_model_is_run_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_CACHE_DIR", str(tmp_path / "cache"))
    request = Request(tmp_path / "out", "hip", "gfx942", models=frozenset({"mlp"}), mode="eval", jobs=1)
    summary = run(request, lambda line: None, False)
    assert summary["all"]["passed"] == 1 and summary["all"]["kernels"] == 2 and summary["all"]["fallbacks"] == 0
    assert "| mlp | eval | passed | 1 | 2 | 0 |" in (tmp_path / "out" / TABLE).read_text()
    said: list[str] = []
    run(request, said.append, False)
    assert "1 of 1 models" in said[0]


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(KvcError, match="KVC0601"):
        run(Request(tmp_path, "triton", "gfx942", device="cuda"), lambda line: None, False)

"""The whole of it on a small reference: build, resume, validate, improve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvc.vault.build import Request, Settings, build, improve
from kvc.vault.shards import finished, records, rows, shards, write_shard
from kvc.vault.sources import folder
from kvc.vault.validate import validate

from tests.vault.samples import REFERENCE


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vault")
    (root / "references").mkdir()
    (root / "references" / "model.py").write_text(REFERENCE)
    (root / "references" / "broken.py").write_text("class Model:\n    pass\n\n\ndef get_inputs():\n    return []\n")
    _build(root)
    return root


def _build(root: Path, **more: Any) -> Any:
    settings = Settings("hip", "gfx942", variants=2, **more)
    return build(Request(settings, root / "out", folder.jobs(root / "references"), specs=10, jobs=1))


def test_verified_records_come_with_evidence(vault: Path) -> None:
    found = list(records(vault / "out"))
    assert {r.emitter for r in found} == {"hip.pointwise", "hip.generic"}
    assert all(r.is_verified and r.estimate_us and r.functional and "normal" in r.evidence for r in found)


def test_references_that_cannot_be_captured_are_listed(vault: Path) -> None:
    (problem,) = (json.loads(line) for line in (vault / "out" / "problems.jsonl").read_text().splitlines())
    assert "KVC010" in problem["capture"]


def test_a_second_run_finds_nothing_to_do(vault: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in shards(vault / "out")}
    assert _build(vault).records == 0
    assert {p.name: p.stat().st_mtime_ns for p in shards(vault / "out")} == before


def test_the_files_alone_verify_again_and_a_forged_one_does_not(vault: Path, tmp_path: Path) -> None:
    assert validate(vault / "out", 1, seed=0, jobs=1).ok
    forged = next(rows(vault / "out"))
    forged["source"] = forged["source"].replace("0.5f", "0.25f")
    write_shard(tmp_path / "hip-00001.parquet", [forged], finished(vault / "out"))
    result = validate(tmp_path, 1, seed=0, jobs=1)
    assert not result.ok
    assert "columns that do not fit" in result.findings[0].problem


def test_improvements_are_verified_and_estimated_lower(vault: Path, tmp_path: Path) -> None:
    progress = improve(Settings("hip2hip", "gfx942", variants=2), vault / "out", tmp_path, specs=1, jobs=1)
    assert progress.specs == 1
    for record in records(tmp_path) if progress.records else ():
        assert record.is_verified
        assert record.baseline_us is not None and record.estimate_us is not None
        assert record.estimate_us < record.baseline_us
        assert record.parent

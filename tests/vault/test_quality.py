"""Near-duplicates, contamination, strata."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvc.vault.quality import Suites, clean, near_duplicates, stratified
from kvc.vault.shards import ShardWriter, rows

from tests.vault.samples import REFERENCE, candidates, row

pytest.importorskip("datasketch")


def test_texts_that_differ_in_constants_are_duplicates_and_other_schedules_are_not() -> None:
    made = [row(c) for c in candidates()]
    twice = near_duplicates(made, 0.9)
    kept = [r for r in made if r["id"] not in twice]
    assert twice
    assert {"hip.pointwise", "hip.generic"} <= {r["emitter"] for r in kept}


def test_duplicates_are_looked_for_within_a_spec_alone() -> None:
    one = row(candidates()[0])
    assert not near_duplicates([one, {**one, "id": "other", "spec_hash": "another"}], 0.9)


def test_a_renamed_reference_is_found_and_another_model_is_not(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(REFERENCE)
    suites = Suites([tmp_path])
    copied = REFERENCE.replace("x", "input").replace("0.5", "0.25").replace("3, 37", "8, 64")
    assert suites.match(copied).endswith("suite.py")
    assert not suites.match(REFERENCE.replace("torch.relu(x * 0.5 + b)", "torch.tanh(x).sum(dim=-1) - b.mean()"))


def test_cleaning_reports_what_it_left_out(tmp_path: Path) -> None:
    made = [row(c) for c in candidates()]
    with ShardWriter(tmp_path / "in", "hip") as writer:
        writer.add("a", made)
    (tmp_path / "suite").mkdir()
    report = clean([tmp_path / "in"], tmp_path / "out")
    assert report["before"]["verified"] == len(made)
    assert report["after"]["verified"] == len(made) - report["near_duplicates"]
    assert len(list(rows(tmp_path / "out"))) == report["after"]["verified"]
    (tmp_path / "suite" / "suite.py").write_text(REFERENCE)
    assert clean([tmp_path / "in"], tmp_path / "none", [tmp_path / "suite"])["after"] == {}


def test_strata_take_turns() -> None:
    some = [
        {"id": f"{k}{i}", "op_class": k, "dtype": "f32", "source_kind": "nn", "target": "hip", "spec_hash": f"{k}{i}"}
        for k, count in (("common", 50), ("rare", 2))
        for i in range(count)
    ]
    chosen = stratified(some, 4)
    assert [c.rstrip("0123456789") for c in chosen] == ["common", "rare", "common", "rare"]

"""A release: grown until it reaches its goal, published as shards that are only ever added to, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvc.diagnostics import KvcError
from kvc.vault import release as module
from kvc.vault.build import Progress, Request
from kvc.vault.release import Goal, release, settings_for
from kvc.vault.shards import ShardWriter, finished, rows, shards
from kvc.vault.validate import Finding, Result

from tests.vault.samples import ROWS, SPEC, candidates, row

AVAILABLE = 6  # specs that the sources have


def texts() -> list[str]:
    """Specs that differ in a size."""
    return [text.replace("m=5", f"m={size}") for size in range(2, 5) for text in (SPEC, ROWS)]


def build_stub(request: Request, listen: Any) -> Progress:
    """Two judged candidates a spec, as a build would write them."""
    wanted = min(request.specs, AVAILABLE)
    done = finished(request.out)
    with ShardWriter(request.out, request.settings.pipeline) as writer:
        for text in texts()[:wanted]:
            if text not in done:
                made = candidates(text, request.settings.pipeline)
                writer.add(text, [row(made[0]), row(made[-1], rejected="wrong")])
    return Progress(specs=wanted, wall_s=1.0)


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Finding]]:
    findings: list[Finding] = []
    monkeypatch.setattr(module, "build", build_stub)
    monkeypatch.setattr(module, "STEP", 2)
    monkeypatch.setattr("kvc.vault.validate.validate", lambda *a: Result(3, list(findings)))
    yield findings


def run(folder: Path, verified: int, specs: int = 1, **options: Any) -> module.Published:
    return release(folder, Goal(verified, specs), list, list(settings_for(["hip"], "gfx942", 2, 0)), 1, **options)


@pytest.mark.usefixtures("stubbed")
def test_it_grows_until_there_are_enough(tmp_path: Path) -> None:
    counts = run(tmp_path, 4).counts
    assert 4 <= counts["hip"]["verified"] < AVAILABLE
    assert counts["hip"]["records"] == 2 * counts["hip"]["verified"]


@pytest.mark.usefixtures("stubbed")
def test_it_ends_where_the_sources_do(tmp_path: Path) -> None:
    assert run(tmp_path, 100).counts["hip"]["verified"] == AVAILABLE


@pytest.mark.usefixtures("stubbed")
def test_what_is_published_is_added_to_and_never_rewritten(tmp_path: Path) -> None:
    run(tmp_path, 2)
    before = {p.name: p.read_bytes() for p in shards(tmp_path / "corpus")}
    run(tmp_path, AVAILABLE)
    after = {p.name: p.read_bytes() for p in shards(tmp_path / "corpus")}
    assert before.items() < after.items()
    found = list(rows(tmp_path / "corpus"))
    assert len({r["id"] for r in found}) == len(found) == AVAILABLE
    assert {r["status"] for r in found} == {"verified"}
    assert (tmp_path / "corpus" / "README.md").is_file()


@pytest.mark.usefixtures("stubbed")
def test_a_limit_counts_what_is_there(tmp_path: Path) -> None:
    run(tmp_path, 2, limit=3)
    assert run(tmp_path, AVAILABLE, limit=3).counts["corpus"]["after"] == {"verified": 3}


def test_a_record_that_does_not_hold_is_named(tmp_path: Path, stubbed: list[Finding]) -> None:
    stubbed.append(Finding("abc", "KVC0701"))
    assert run(tmp_path, 1).findings == ("abc: KVC0701",)


def test_pipelines_that_start_from_kernels_are_refused() -> None:
    with pytest.raises(KvcError, match="hip2hip"):
        list(settings_for(["hip2hip"], "gfx942", 2, 0))

"""A corpus from nothing: both pipelines over one set of captures, cleaned, described and checked.

    DIR/captures.jsonl   captured references, shared by the pipelines
    DIR/hip, DIR/triton  everything judged, in shards
    DIR/corpus           what is published: verified records without near-duplicates, and the card
    DIR/release.json     counts of each stage

Every stage goes on where it was: a killed release is started again with the same command. `corpus` only ever gains
shards; records that it holds stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.build import Progress, Request, build
from kvc.vault.judging import Settings
from kvc.vault.shards import rows, shards

PIPELINES = ("hip", "triton")
STEP = 500  # specs that a pipeline takes up, at most, between two looks at what it has
_ROUNDS_WITHOUT_GAIN = 3


@dataclass(frozen=True)
class Goal:
    """What a release should hold for each pipeline, at least: verified records and distinct specs."""

    verified: int
    specs: int


@dataclass(frozen=True)
class Published:
    """Where a release ends: counts by stage, and the records that did not hold when they were verified again."""

    counts: dict[str, Any]
    findings: tuple[str, ...]


def release(
    folder: Path,
    goal: Goal,
    references: Callable[[], Iterable[dict[str, Any]]],
    settings: Sequence[Settings],
    jobs: int,
    *,
    against: Sequence[Path] = (),
    limit: int | None = None,
    check: int = 500,
    listen: Callable[[str], None] = lambda text: None,
) -> Published:
    """Build until each pipeline reaches the goal or the references end, publish, and verify `check` records again.

    `references` begins a fresh run over the sources; `settings` of each pipeline; `against`: suites whose problems
    must not be in it; `limit`: records to publish, spread evenly over classes, where not all fit."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, Any] = {}
    for chosen in settings:
        counts[chosen.pipeline] = _grow(folder, goal, references, chosen, jobs, listen)
        _note(folder, counts)
    listen("publishing")
    counts["corpus"] = publish(folder, [s.pipeline for s in settings], against, limit)
    _note(folder, counts)
    from kvc.vault.validate import validate

    result = validate(folder / "corpus", check, 0, jobs, lambda done: listen(f"{done} verified again"))
    counts["validated"] = {"checked": result.checked, "failed": len(result.findings)}
    _note(folder, counts)
    return Published(counts, tuple(f"{f.id}: {f.problem}" for f in result.findings))


def _grow(
    folder: Path,
    goal: Goal,
    references: Callable[[], Iterable[dict[str, Any]]],
    settings: Settings,
    jobs: int,
    listen: Callable[[str], None],
) -> dict[str, Any]:
    """Take up specs, some at a time, until there are enough records or no more specs."""
    out = folder / settings.pipeline
    wanted, stage_s, wall_s, last, idle = goal.specs, dict[str, float](), 0.0, -1, 0
    while True:
        request = Request(settings, out, references(), wanted, jobs, folder / "captures.jsonl")
        done = build(request, partial(_heard, settings.pipeline, wanted, listen))
        for stage, seconds in done.stage_s.items():
            stage_s[stage] = round(stage_s.get(stage, 0.0) + seconds, 1)
        wall_s += done.wall_s
        have = verified(out)
        idle = idle + 1 if have == last else 0
        last = have
        if have >= goal.verified or done.specs < wanted or done.stopped or idle >= _ROUNDS_WITHOUT_GAIN:
            break
        wanted += min(STEP, wanted * (goal.verified - have) // max(have, 1) + 1)
    total = sum(1 for _ in rows(out, ["id"]))
    return {"specs": done.specs, "records": total, "verified": have, "wall_s": round(wall_s, 1), "stage_s": stage_s}


def _heard(pipeline: str, wanted: int, listen: Callable[[str], None], progress: Progress) -> None:
    listen(f"{pipeline}: {progress.specs:,} of {wanted:,} specs, {progress.verified:,} verified in this run")


def verified(folder: Path) -> int:
    """Verified records of a vault."""
    return sum(row["status"] == "verified" for row in rows(folder, ["status"]))


def publish(folder: Path, pipelines: Sequence[str], against: Sequence[Path], limit: int | None) -> dict[str, Any]:
    """Add to DIR/corpus what the pipelines judged and it does not hold, and write its card."""
    from kvc.vault.card import card
    from kvc.vault.quality import clean
    from kvc.vault.stats import statistics

    out = folder / "corpus"
    report = clean([folder / p for p in pipelines], out, against, keep_rejected=False, limit=limit)
    found = statistics(out)
    (out / "README.md").write_text(card(found), encoding="utf-8")
    size = sum(path.stat().st_size for path in shards(out))
    wanted = ("verified", "specs", "specs_from_libraries", "distinct_structures", "by_op_class", "by_dtype")
    return {**report, **{key: found[key] for key in wanted}, "bytes": size}


def _note(folder: Path, counts: dict[str, Any]) -> None:
    (folder / "release.json").write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def settings_for(pipelines: Iterable[str], arch: str, variants: int, seed: int) -> Iterator[Settings]:
    """Settings of each pipeline. KVC0106 for one that starts from nothing else."""
    for name in pipelines:
        if name not in PIPELINES:
            raise KvcError("KVC0106", f"pipeline {name!r}", hint=f"one of: {', '.join(PIPELINES)}")
        yield Settings(name, arch, variants=variants, seed=seed)

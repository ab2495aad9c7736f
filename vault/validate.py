"""Verifies records again from the files alone: parse, rebuild the candidate, take it through every gate."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.record import Record, columns_of
from kvc.vault.shards import rows
from kvc.vault.workers import Workers


@dataclass(frozen=True)
class Finding:
    """A record that does not hold: its id and what is wrong."""

    id: str
    problem: str


@dataclass(frozen=True)
class Result:
    checked: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def sample(folder: Path, count: int, seed: int, status: str = "verified") -> list[dict[str, Any]]:
    """`count` rows of that status at random, or all where there are fewer. Reads the ids first, the rest for those."""
    ids = sorted(row["id"] for row in rows(folder, ["id", "status"]) if row["status"] == status)
    if not ids:
        raise KvcError("KVC0101", f"{folder} holds no {status} records")
    chosen = set(random.Random(seed).sample(ids, min(count, len(ids))))
    found = {row["id"]: row for row in rows(folder) if row["id"] in chosen and row["status"] == status}
    return [found[i] for i in sorted(found)]


def validate(
    folder: Path, count: int, seed: int, jobs: int, listen: Callable[[int], None] = lambda done: None
) -> Result:
    """Judge a random sample of the verified records again; each must be verified again with the same executor and
    seed, and its digests must be those of its text."""
    todo = sample(folder, count, seed)
    queue = iter(enumerate(todo))

    def next_task() -> tuple[int, dict[str, Any]] | None:
        item = next(queue, None)
        return None if item is None else (item[0], {"row": item[1]})

    findings: list[Finding] = []
    done = 0
    with Workers(jobs, start, {}) as workers:
        for answer in workers.run(next_task):
            done += 1
            problem = answer.failure if answer.answer is None else answer.answer["problem"]
            if problem:
                findings.append(Finding(todo[answer.number]["id"], problem))
            listen(done)
    return Result(done, tuple(findings))


class Checker:
    """The handler of a worker process: {"row"} -> {"problem"}, empty where the record holds."""

    def __init__(self) -> None:
        from kvc.verify.pool import WorkerPool

        self.pool = WorkerPool(1)

    def close(self) -> None:
        self.pool.close()

    def __call__(self, task: dict[str, Any]) -> dict[str, Any]:
        return {"problem": self.check(Record.from_row(task["row"]))}

    def check(self, record: Record) -> str:
        import json

        from kvc.verify.judge import Bench, judge
        from kvc.verify.verdict import Rejected

        try:
            candidate = record.candidate()
        except (KvcError, LookupError, TypeError, ValueError) as error:
            return f"cannot be rebuilt: {error}"
        wrong = [name for name, value in columns_of(candidate).items() if value != getattr(record, name)]
        if wrong:
            return f"columns that do not fit the candidate: {', '.join(wrong)}"
        executor = json.loads(record.evidence).get("executor", "sim")
        verdict = judge(candidate, Bench(self.pool, executor, record.seed))
        if isinstance(verdict, Rejected):
            return f"rejected at {verdict.stage}: {verdict.diagnostic}"
        return ""


def start(options: dict[str, Any]) -> Checker:
    import torch

    torch.set_num_threads(1)
    return Checker()


def merge(folders: Sequence[Path], out: Path) -> tuple[int, int]:
    """All records of `folders` as new shards of `out`, each id once; records
    that `out` holds already stay. (records added, duplicates left out)."""
    from kvc.vault.shards import ShardWriter, finished

    seen: dict[str, str] = {}
    if out.is_dir():
        seen = {row["id"]: row["status"] for row in rows(out, ["id", "status"])}
    added = left_out = 0
    done = finished(out)
    for folder in folders:
        tasks = finished(folder) - done
        by_label: dict[str, list[dict[str, Any]]] = {}
        for row in rows(folder):
            if row["id"] in seen:
                left_out += 1
                continue
            seen[row["id"]] = row["status"]
            by_label.setdefault(row["target"], []).append(row)
            added += 1
        for label, found in sorted(by_label.items()):
            mine = {t for t in tasks if t.startswith(f"{label}/")}
            with ShardWriter(out, label) as writer:
                for start_ in range(0, len(found), writer.rows_per_shard):
                    writer.add(f"merge/{folder.name}/{label}/{start_}", found[start_ : start_ + writer.rows_per_shard])
                for task in sorted(mine):
                    writer.add(task, [])
    return added, left_out

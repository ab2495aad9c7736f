"""Worker processes: a task that kills its worker is tried again, and every task is answered once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kvc.vault.workers import Done, Workers


class Handler:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, task: dict[str, Any]) -> dict[str, Any]:
        if task["do"] == "die always":
            os._exit(9)
        if task["do"] == "die once" and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os._exit(9)
        return {"twice": 2 * task["number"]}


def start(options: dict[str, Any]) -> Handler:
    return Handler(options["folder"])


def _run(folder: Path, kinds: list[str]) -> list[Done]:
    queue = iter([(n, {"do": kind, "number": n}) for n, kind in enumerate(kinds)])
    with Workers(2, start, {"folder": str(folder)}) as workers:
        return sorted(workers.run(lambda: next(queue, None)), key=lambda done: done.number)


def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    done = _run(tmp_path, ["work", "die once", "work", "work"])
    assert [d.answer for d in done] == [{"twice": 2 * n} for n in range(4)]


def test_a_task_that_always_kills_its_worker_is_given_up(tmp_path: Path) -> None:
    done = _run(tmp_path, ["work", "die always", "work"])
    assert [d.answer is None for d in done] == [False, True, False]
    assert "died" in done[1].failure

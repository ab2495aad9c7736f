"""Builds a vault: references -> specs -> candidates -> verdicts -> shards, over a pool of processes, resumable.

The parent hands out tasks and writes shards; all work happens in the workers (kvc.vault.judging). Results of captures
are taken up in the order of the sources, so that which reference a spec is credited to does not depend on timing. What
is finished stands in the footers of the shards (kvc.vault.shards); captures are kept beside them in harvest.jsonl.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from kvc.diagnostics import KvcError
from kvc.vault.cluster import RayWorkers
from kvc.vault.harvest import Item
from kvc.vault.judging import Settings, start
from kvc.vault.shards import ShardWriter, finished, records
from kvc.vault.workers import Done, Workers

PIPELINES = ("hip", "triton", "hip2hip")
FLUSH_S = 300.0  # finished work is on disk after so long at the latest
MAX_UNANSWERED = 3  # specs in a row that a service left without an answer before a build ends
_AHEAD = 4  # specs waiting for each worker before captures pause

#: Called every so often with the progress so far.
Listener = Callable[["Progress"], None]


@dataclass
class Progress:
    """Counts of a build. `unread`: answers of a model that were no kernel; `stopped`: why the build ended early;
    `stage_s`: seconds by stage, summed over the workers."""

    specs: int = 0
    records: int = 0
    verified: int = 0
    references: int = 0
    uncaptured: int = 0
    crashes: int = 0
    failures: int = 0
    unread: int = 0
    stopped: str = ""
    wall_s: float = 0.0
    stage_s: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "stage_s": {k: round(v, 2) for k, v in sorted(self.stage_s.items())}}


class Harvests:
    """Captured references by task, kept in a file, so that a second pipeline or a resumed build need not capture again.
    A line that a crash cut short is dropped."""

    def __init__(self, path: Path) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        end = 0
        if path.is_file():
            with path.open("rb") as stream:
                for line in stream:
                    if not line.endswith(b"\n"):
                        break
                    end += len(line)
                    entry = json.loads(line)
                    self.known[entry["task"]] = {"items": entry["items"], "problem": entry["problem"], "seconds": {}}
        self._stream: IO[bytes] = path.open("ab")
        self._stream.truncate(end)

    def add(self, task: dict[str, Any], answer: dict[str, Any]) -> None:
        key = key_of(task)
        if key not in self.known:
            line = json.dumps({"task": key, "items": answer["items"], "problem": answer["problem"]})
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def key_of(task: dict[str, Any]) -> str:
    """Identity of a harvest task."""
    from kvc.vault.record import compact, digest

    return digest(compact(task))


@dataclass(frozen=True)
class Request:
    """What to build. `references`: harvest tasks in order, possibly without end; `specs`: distinct specs to take up."""

    settings: Settings
    out: Path
    references: Iterable[dict[str, Any]]
    specs: int
    jobs: int = 2
    shared: Path | None = None  # harvest.jsonl of another build to read and add to
    ray: str = ""  # address of a cluster, "" for processes of this machine


class _Build:
    """The state of the parent: captures in order, specs that wait, what was given out."""

    def __init__(self, request: Request, writer: ShardWriter, harvests: Harvests, problems: IO[str]) -> None:
        self.request, self.writer, self.harvests, self.problems = request, writer, harvests, problems
        self.progress = Progress()
        self.done = finished(request.out)
        self.seen: set[str] = set()
        self.waiting: deque[Item] = deque()
        self.references = iter(request.references)
        self.tasks: dict[int, dict[str, Any]] = {}
        self.arrived: dict[int, dict[str, Any]] = {}  # captures that came before an earlier one
        self.order: deque[int] = deque()  # captures in the order of the sources
        self.count = 0
        self.exhausted = False
        self.unanswered = 0
        self.flushed = time.monotonic()

    def next_task(self) -> tuple[int, dict[str, Any]] | None:
        """The next build task, or a capture when few specs wait; None when there is nothing to do for now."""
        if self.progress.stopped:
            return None
        while not self.waiting or (len(self.waiting) < self.request.jobs * _AHEAD and not self.exhausted):
            task = self._next_capture()
            if task is None:
                break
            known = self.harvests.known.get(key_of(task))
            number = self._number(task)
            self.order.append(number)
            if known is None:
                return number, task
            self._captured(number, known)
        if not self.waiting:
            return None
        item = self.waiting.popleft()
        task = {"do": "build", "item": item.to_json()}
        return self._number(task), task

    def _number(self, task: dict[str, Any]) -> int:
        self.count += 1
        self.tasks[self.count] = task
        return self.count

    def _next_capture(self) -> dict[str, Any] | None:
        if self.exhausted or self.progress.specs >= self.request.specs:
            self.exhausted = True
            return None
        task = next(self.references, None)
        if task is None:
            self.exhausted = True
        return task

    def finish(self, done: Done) -> None:
        task = self.tasks.get(done.number, {})
        if done.answer is None:
            self.progress.failures += 1
            self._report({"task": task, "failure": done.failure})
            if task["do"] == "harvest":
                self._captured(done.number, {"items": [], "problem": done.failure, "seconds": {}})
            return
        self.progress.stage_s.update(done.answer["seconds"])
        if task["do"] == "harvest":
            self.harvests.add(task, done.answer)
            self._captured(done.number, done.answer)
            return
        self._built(done.number, task, done.answer)

    def _captured(self, number: int, answer: dict[str, Any]) -> None:
        self.arrived[number] = answer
        while self.order and self.order[0] in self.arrived:
            number = self.order.popleft()
            answer = self.arrived.pop(number)
            self.tasks.pop(number)
            self.progress.references += 1
            if answer["problem"]:
                self.progress.uncaptured += 1
                self._report({"capture": answer["problem"]})
            for data in answer["items"]:
                self._take(Item.from_json(data))

    def _take(self, item: Item) -> None:
        if item.spec_hash in self.seen or self.progress.specs >= self.request.specs:
            return
        self.seen.add(item.spec_hash)
        self.progress.specs += 1
        if self.request.settings.task_id(item.spec_hash) not in self.done:
            self.waiting.append(item)

    def _built(self, number: int, task: dict[str, Any], answer: dict[str, Any]) -> None:
        self.tasks.pop(number)
        self.progress.unread += answer["unread"]
        if answer["stop"]:
            self._stop(answer["stop"])
            return
        self.unanswered = 0
        rows = answer["rows"]
        self.progress.records += len(rows)
        self.progress.verified += sum(row["status"] == "verified" for row in rows)
        for spec_text, emitter, setting, message in answer["crashes"]:
            self.progress.crashes += 1
            self._report({"crash": emitter, "setting": setting, "message": message, "spec": spec_text})
        self.writer.add(self.request.settings.task_id(task["item"]["spec_hash"]), rows)
        if time.monotonic() - self.flushed > FLUSH_S:
            self.writer.flush()
            self.flushed = time.monotonic()

    def _stop(self, stop: dict[str, Any]) -> None:
        """A service gave no answer. Its task is left open; nothing more is handed out where others would fare alike."""
        self._report({"service": stop["message"]})
        self.unanswered += 1
        self.progress.failures += 1
        if stop["lasting"] or self.unanswered >= MAX_UNANSWERED:
            self.progress.stopped = stop["message"]

    def _report(self, problem: dict[str, Any]) -> None:
        self.problems.write(json.dumps(problem) + "\n")
        self.problems.flush()


def build(request: Request, listen: Listener = lambda progress: None) -> Progress:
    """Build, or go on building, the vault in `request.out`. Emitters that fail and references that cannot be captured
    are listed in problems.jsonl there."""
    request.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    harvests = Harvests(request.shared or request.out / "harvest.jsonl")
    with (
        (request.out / "problems.jsonl").open("a", encoding="utf-8") as problems,
        ShardWriter(request.out, request.settings.pipeline) as writer,
        _workers(request.settings, request.jobs, request.ray) as workers,
    ):
        state = _Build(request, writer, harvests, problems)
        try:
            for done in workers.run(state.next_task):
                state.finish(done)
                state.progress.wall_s = time.monotonic() - started
                listen(state.progress)
        finally:
            harvests.close()
    return state.progress


def _workers(settings: Settings, jobs: int, ray: str) -> Workers | RayWorkers:
    if not ray:
        return Workers(jobs, start, asdict(settings))
    return RayWorkers(ray, jobs, start, asdict(settings), gpus=settings.executor != "sim")


# ---------------------------------------------------------------- HIP to faster HIP


def improve(
    settings: Settings,
    source: Path,
    out: Path,
    specs: int,
    jobs: int,
    listen: Listener = lambda progress: None,
    ray: str = "",
) -> Progress:
    """For each spec of the HIP records in `source`: judge other settings than those known there, and keep in `out` what
    is verified and has a lower estimate than the verified record to start from (the one that estimates highest)."""
    out.mkdir(parents=True, exist_ok=True)
    started, progress, done = time.monotonic(), Progress(), finished(out)
    tasks: dict[int, str] = {}
    queue = _parents(source, settings, done, specs)

    def next_task() -> tuple[int, dict[str, Any]] | None:
        task = next(queue, None)
        if task is None:
            return None
        tasks[len(tasks)] = settings.task_id(task["item"]["spec_hash"])
        return len(tasks) - 1, task

    with (
        ShardWriter(out, settings.pipeline) as writer,
        _workers(settings, jobs, ray) as workers,
    ):
        for answer in workers.run(next_task):
            progress.wall_s = time.monotonic() - started
            if answer.answer is None:
                progress.failures += 1
                continue
            progress.specs += 1
            rows = answer.answer["rows"]
            progress.records += len(rows)
            progress.verified += len(rows)
            progress.stage_s.update(answer.answer["seconds"])
            writer.add(tasks[answer.number], rows)
            listen(progress)
    return progress


def _parents(source: Path, settings: Settings, done: set[str], specs: int) -> Iterator[dict[str, Any]]:
    """An "improve" task for each spec that has a verified HIP record with an estimate."""
    by_spec: dict[str, list[Any]] = {}
    for record in records(source):
        if record.target == "hip" and record.arch == settings.arch and record.numerics == settings.numerics:
            by_spec.setdefault(record.spec_hash, []).append(record)
    if not by_spec:
        raise KvcError("KVC0101", f"{source} holds no HIP records for {settings.arch}")
    count = 0
    for spec_hash, known in by_spec.items():
        starts = [r for r in known if r.is_verified and r.estimate_us is not None]
        if not starts or settings.task_id(spec_hash) in done or count >= specs:
            continue
        count += 1
        parent = max(starts, key=lambda r: r.estimate_us)
        item = Item(
            parent.spec_text, spec_hash, parent.source_kind, parent.origin, parent.licence, parent.reference,
            parent.functional,
        )  # fmt: skip
        yield {
            "do": "improve",
            "item": item.to_json(),
            "parent": {"id": parent.id, "estimate_us": parent.estimate_us},
            "known": [r.id for r in known],
        }

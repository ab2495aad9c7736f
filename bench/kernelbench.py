"""`kvc bench kernelbench`: the suite's problems through kvc, each in a process of its own, journalled and resumable."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvc.arch import arch as arch_row
from kvc.bench.isolate import run_isolated
from kvc.bench.journal import Journal, Record
from kvc.bench.problems import Problem, find
from kvc.bench.reduce import Budget
from kvc.bench.stages import STAGES, digest
from kvc.bench.table import markdown, summarise
from kvc.diagnostics import KvcError
from kvc.emitter import target as find_target
from kvc.executors import choose
from kvc.store import build_id


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench kernelbench`. `every` takes each so-many-th problem of a level; `retry` runs again
    what did not pass, and keeps what passed whatever kvc's sources were then."""

    root: Path
    levels: tuple[int, ...]
    out: Path
    target: str
    arch: str
    stage: str = "verify"
    executor: str = "auto"
    numbers: frozenset[int] | None = None
    every: int = 1
    limit: int | None = None
    full_size: bool = False
    seed: int = 0
    jobs: int = 2
    timeout_s: float = 600.0
    trials: int = 5
    retry: bool = False
    budget: Budget = field(default_factory=Budget)


def run(request: Request, say: Any, show_progress: bool) -> dict[str, Any]:
    """Run what is not in the journal yet; writes results.jsonl, table.json and table.md to `request.out`, and gives
    the table. `say` prints a line."""
    executor = _checked(request)
    problems = chosen(request)
    journal = Journal(request.out)
    settings = _settings(request, executor)
    build = build_id()
    done = {}
    for key, record in journal.latest(settings).items():
        current = record["build"] == build if not request.retry else record["status"] == "passed"
        if current:
            done[key] = record
    by_key = {p.key: p for p in problems}
    done = {k: r for k, r in done.items() if k in by_key and r["digest"] == digest(by_key[k].path)}
    left = [p for p in problems if p.key not in done]
    if done:
        say(f"{len(done)} of {len(problems)} problems are in {journal.path} already")
    jobs = [_job(p, request, executor) for p in left]
    on_device = request.stage == "time"
    parallel = 1 if on_device else request.jobs  # one problem at a time where times are taken
    with _progress(show_progress, len(jobs)) as tick:
        for job, result in run_isolated("kvc.bench.stages:run", jobs, parallel, request.timeout_s, fork=not on_device):
            record = _record(by_key[job["problem"]], result, settings, build)
            journal.append(record)
            done[record["problem"]] = record
            tick(_line(record))
    records = [done[p.key] for p in problems if p.key in done]
    return _written(request, records, len(problems))


def _checked(request: Request) -> str:
    """The executor; KVC0105 and KVC0106 for what does not exist."""
    find_target(request.target)
    row = arch_row(request.arch)
    if request.stage not in STAGES:
        raise KvcError("KVC0106", f"stage {request.stage!r}", hint=f"one of: {', '.join(STAGES)}")
    return choose(request.executor, row) if request.stage == "verify" else request.executor


def chosen(request: Request) -> list[Problem]:
    """The problems of a request, in order."""
    found = find(request.root, request.levels, request.numbers)
    if request.every > 1:
        found = [p for p in found if p.number % request.every == 0]
    return found[: request.limit]


def _settings(request: Request, executor: str) -> Record:
    """What a result depends on, apart from the problem and kvc's own sources."""
    return {
        "stage": request.stage,
        "target": request.target,
        "arch": request.arch,
        "executor": executor,
        "full_size": request.full_size or request.stage == "time",
        "seed": request.seed,
        "trials": request.trials,
        "budget": asdict(request.budget),
    }


def _job(problem: Problem, request: Request, executor: str) -> dict[str, Any]:
    return {
        **_settings(request, executor),
        "problem": problem.key,
        "file": str(problem.path),
        "timeout_s": request.timeout_s,
    }


def _record(problem: Problem, result: dict[str, Any], settings: Record, build: str) -> Record:
    if "crash" in result:
        last = result["crash"].strip().splitlines()[-1] if result["crash"].strip() else ""
        result = {"status": "failed", "crash": result["crash"], "failure": {"code": "crash", "message": last}}
    elif "timeout" in result:
        failure = {"code": "KVC0604", "message": f"not done after {result['timeout']:.0f} s"}
        result = {"status": "failed", "seconds": {"timeout": result["timeout"]}, "failure": failure}
    return {
        **result,
        "problem": problem.key,
        "level": problem.level,
        "name": problem.name,
        "digest": digest(problem.path),
        "run": settings,
        "build": build,
    }


def _line(record: Record) -> str:
    seconds = sum(record.get("seconds", {}).values())
    kernels = f", {record['kernels']} kernels" if "kernels" in record else ""
    line = f"{record['problem']:>6} {record['name'][:44]:<44} {record['status']}{kernels}, {seconds:.1f} s"
    if record["status"] == "failed":
        failure = record.get("failure", {})
        line += f"\n       {failure.get('code', '')}: {failure.get('message', '')[:200]}"
    elif record["status"] == "reference":
        line += f": {record.get('reference', {}).get('degenerate', '')}"
    return line


def _written(request: Request, records: list[Record], total: int) -> dict[str, Any]:
    summary = summarise(records, total)
    title = f"KernelBench, {request.target} for {request.arch}, stage {request.stage}"
    table = {"title": title, **summary, "records": [{k: v for k, v in r.items() if k != "run"} for r in records]}
    try:
        (request.out / "table.json").write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        (request.out / "table.md").write_text(markdown(summary, records, title), encoding="utf-8")
    except OSError as error:
        raise KvcError("KVC0801", f"{request.out}: {error.strerror}", hint="choose another folder with --out") from None
    return {**summary, "title": title, "out": str(request.out)}


@contextmanager
def _progress(show: bool, total: int) -> Iterator[Any]:
    """A callback that prints a problem's line: under a progress bar with the time left on a terminal, else plain."""
    if not show or not total:
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if not sys.stderr.isatty():
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    columns = (TextColumn("problems"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=3600) as progress:
        task = progress.add_task("problems", total=total)

        def tick(line: str) -> None:
            progress.console.print(line, highlight=False, markup=False)
            progress.advance(task)

        yield tick

"""`kvc bench kernelbench`: the suite's problems through kvc, each in a process of its own, journalled and resumable."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvc.arch import arch as arch_row
from kvc.bench.journal import Record
from kvc.bench.problems import Problem, find
from kvc.bench.reduce import Budget
from kvc.bench.runner import Item, Runner, written
from kvc.bench.stages import STAGES, digest
from kvc.bench.timing import BASELINES
from kvc.diagnostics import KvcError
from kvc.emitter import target as find_target
from kvc.executors import choose


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench kernelbench`. `every` takes each so-many-th problem of a level, `part` (i, n) the i-th
    of n slices of what is left, dealt out one by one; `baselines` of the time stage; `retry` runs again what did not
    pass, and keeps what passed whatever kvc's sources were then."""

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
    part: tuple[int, int] = (1, 1)
    baselines: tuple[str, ...] = BASELINES
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
    settings = _settings(request, executor)
    items = [
        Item(p.key, p.level, p.name, digest(p.path), {"file": str(p.path), "timeout_s": request.timeout_s})
        for p in problems
    ]
    on_device = request.stage == "time"
    runner = Runner("kvc.bench.stages:run", settings, request.out, request.timeout_s, fork=not on_device)
    records = runner.run(items, request.jobs, request.retry, say, show_progress)
    title = f"KernelBench, {request.target} for {request.arch}, stage {request.stage}"
    return written(request.out, title, records, len(problems))


def _checked(request: Request) -> str:
    """The executor; KVC0105 and KVC0106 for what does not exist."""
    find_target(request.target)
    row = arch_row(request.arch)
    if request.stage not in STAGES:
        raise KvcError("KVC0106", f"stage {request.stage!r}", hint=f"one of: {', '.join(STAGES)}")
    for name in request.baselines:
        if name not in BASELINES:
            raise KvcError("KVC0106", f"baseline {name!r}", hint=f"one of: {', '.join(BASELINES)}")
    return choose(request.executor, row) if request.stage == "verify" else request.executor


def chosen(request: Request) -> list[Problem]:
    """The problems of a request, in order."""
    found = find(request.root, request.levels, request.numbers)
    if request.every > 1:
        found = [p for p in found if p.number % request.every == 0]
    part, parts = request.part
    return found[part - 1 :: parts][: request.limit]


def slice_of(text: str) -> tuple[int, int]:
    """(i, n) of "i/n". KVC0106 for anything else."""
    part, slash, parts = text.partition("/")
    if not (slash and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise KvcError("KVC0106", f"--slice {text!r}", hint="a slice and how many there are, such as 1/4")
    return int(part), int(parts)


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
    } | ({"baselines": list(request.baselines)} if request.stage == "time" else {})

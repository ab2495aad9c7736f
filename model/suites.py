"""Public suites in PyTorch, from the user's checkout, with a model (or the rules) as the author of every kernel.

A problem passes at k when every one of its kernels was verified within k tries of the author, nobody else wrote any,
the assembled module equals the original, and the suite's own trials pass. It runs as `kvc bench` runs it: sizes that
fit the simulator, a process of its own, a journal that resumes. First the original is held against itself: a task that
fails there, or that a constant passes, cannot tell right from wrong, and is listed, never counted as passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvc.arch import DEFAULT_ARCH
from kvc.diagnostics import KvcError

RULES = "rules"  # the author that proves an adapter: the target's own emitters

#: Makes a torch2hip file one that kvc loads: inputs come from a generator of cases, the constructor's arguments as
#: [positional, keywords].
_SHIM = """

_cases, _init = get_inputs, get_init_inputs


def get_inputs():
    import itertools

    made = _cases()
    if isinstance(made, (list, tuple)):
        return list(made)
    return list(next(itertools.islice(made, {case}, None)))


class Model({name}):
    def __init__(self):
        given = _init()
        if len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
            super().__init__(*given[0], **given[1])
        else:
            super().__init__(*given)


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Task:
    """A problem of a suite: `file` is what kvc loads, `level` the row of the table in which it counts."""

    key: str
    name: str
    level: int | str
    file: Path


def kernelbench(root: Path, work: Path, levels: Sequence[int]) -> list[Task]:
    """Problems of a checkout of ScalingIntelligence/KernelBench. KVC0101 where it has none."""
    from kvc.bench.problems import find

    return [Task(p.key, p.name, p.level, p.path) for p in find(root, levels)]


def torch2hip(root: Path, work: Path, levels: Sequence[int], case: int = 0) -> list[Task]:
    """The torch2hip tasks of a checkout of AMD-AGI/AgentKernelArena, with the first of each task's cases. What kvc
    loads, the tasks' own files with a few lines behind them, is written to `work`."""
    folders = sorted(p.parent for p in (root / "tasks" / "torch2hip").rglob("config.yaml"))
    if not folders:
        raise KvcError("KVC0101", f"{root} has no tasks/torch2hip", hint="a checkout of AMD-AGI/AgentKernelArena")
    work.mkdir(parents=True, exist_ok=True)
    tasks = []
    for folder in folders:
        (file,) = (folder / "pytorch_code_module").glob("*.py")
        source = file.read_text(encoding="utf-8")
        made = work / f"{file.stem}.py"
        made.write_text(source + _SHIM.format(case=case, name=module_class(source, folder.name)), encoding="utf-8")
        group = folder.relative_to(root / "tasks" / "torch2hip").parts
        tasks.append(Task(folder.name, folder.name, "/".join(group[:-1]), made))
    return tasks


def module_class(source: str, folder: str) -> str:
    """The class that a task asks for: the one its folder names, else the last that the file defines."""
    import ast

    names = [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
    if not names:
        raise KvcError("KVC0103", f"{folder}: the file defines no class")
    wanted = folder.partition("_")[2]
    return wanted if wanted in names else names[-1]


SUITES: dict[str, Callable[[Path, Path, Sequence[int]], list[Task]]] = {
    "kernelbench": kernelbench,
    "torch2hip": torch2hip,
}


@dataclass(frozen=True)
class Request:
    """What `kvc model suite` is asked. `every` takes each so-many-th task, `only` those whose key or name is given."""

    suite: str
    root: Path
    out: Path
    author: str = RULES
    target: str = "hip"
    arch: str = DEFAULT_ARCH
    executor: str = "sim"
    levels: tuple[int, ...] = (1, 2)
    every: int = 1
    limit: int | None = None
    only: frozenset[str] = frozenset()
    full_size: bool = False
    seed: int = 0
    jobs: int = 2
    timeout_s: float = 600.0
    trials: int = 5


def run(request: Request, say: Callable[[str], None], show_progress: bool = False) -> dict[str, Any]:
    """Run what the journal does not hold yet; OUT gets results.jsonl, table.json and table.md. Gives the report."""
    from kvc.bench.reduce import Budget
    from kvc.bench.runner import Item, Runner, written
    from kvc.bench.stages import digest

    if request.suite not in SUITES:
        raise KvcError("KVC0106", f"suite {request.suite!r}", hint=f"one of: {', '.join(SUITES)}")
    tasks = SUITES[request.suite](request.root, request.out / "tasks", request.levels)
    if request.only:
        tasks = [t for t in tasks if t.key in request.only or t.name in request.only]
    tasks = tasks[:: request.every][: request.limit]
    settings = {
        "stage": "verify", "target": request.target, "arch": request.arch, "executor": request.executor,
        "full_size": request.full_size, "seed": request.seed, "trials": request.trials, "budget": asdict(Budget()),
        "author": request.author, "emitters": [] if request.author == RULES else [request.author],
        "cache": request.author == RULES,
    }  # fmt: skip
    items = [
        Item(t.key, t.level, t.name, digest(t.file), {"file": str(t.file), "timeout_s": request.timeout_s})
        for t in tasks
    ]
    runner = Runner("kvc.model.suites:one", settings, request.out, request.timeout_s)
    records = runner.run(items, request.jobs, False, say, show_progress)
    written(request.out, f"{request.suite}, kernels by {request.author}", records, len(tasks), "group")
    return report(records, len(tasks)).to_json()


def one(job: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a task, as kvc.bench.stages makes it, with the author's tries; a task whose kernels somebody else
    wrote has failed."""
    from kvc.bench.stages import run as run_stages

    record = run_stages(job)
    tries = [tries_of(kernel, job["author"]) for kernel in record.get("tries", [])]
    record["author_tries"] = tries
    others = sum(t is None for t in tries)
    if record["status"] == "passed" and others:
        record["status"] = "failed"
        record["failure"] = {"code": "KVC0401", "message": f"{others} of {len(tries)} kernels are not by the author"}
    return record


def tries_of(kernel: Sequence[Sequence[str]], author: str) -> int | None:
    """At which try of the author a kernel was verified (1 the first); None where none was."""
    mine = [stage for name, stage in kernel if author in (name, RULES)]
    return mine.index("verified") + 1 if "verified" in mine else None


@dataclass
class Report:
    """Figures of a suite. `pass_at`: by k, [share of all tasks, low, high] of the 95 % interval; `blind`: tasks that
    cannot tell right from wrong, with the reason; `failures`: what the others fell short of."""

    tasks: int
    done: int
    passed: int
    kernels: int
    first_try: int
    pass_at: dict[int, list[float]] = field(default_factory=dict)
    blind: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        lines = [f"{self.passed} of {self.tasks} tasks passed; {self.first_try} of {self.kernels} kernels at first try"]
        lines += [
            f"  Pass@{k} {100 * v[0]:.1f} % ({100 * v[1]:.1f} to {100 * v[2]:.1f})" for k, v in self.pass_at.items()
        ]
        lines += [f"  {key}: proves nothing, {why}" for key, why in self.blind.items()]
        lines += [f"  {key}: {why}" for key, why in self.failures.items()]
        return "\n".join(lines)


def report(records: Sequence[Mapping[str, Any]], total: int) -> Report:
    """Pass@k over tries that see the verdicts of those before (Corr@k of the published work, but in turn)."""
    from kvc.model.evaluate import wilson

    passed = [r for r in records if r["status"] == "passed"]
    tries = [t for r in records for t in r.get("author_tries", [])]
    made = Report(total, len(records), len(passed), len(tries), sum(t == 1 for t in tries))
    needed = [max(r["author_tries"], default=1) for r in passed]
    for k in sorted({1, *needed}):
        within = sum(n <= k for n in needed)
        made.pass_at[k] = [round(v, 4) for v in (within / max(total, 1), *wilson(within, total))]
    for r in records:
        if r["status"] == "reference":
            made.blind[r["problem"]] = r.get("reference", {}).get("degenerate", "")
        elif r["status"] != "passed":
            failure = r.get("failure", {})
            made.failures[r["problem"]] = f"{failure.get('code', '')} {failure.get('message', '')[:160]}"
    return made

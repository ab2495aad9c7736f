"""`kvc bench zoo`: architectures of public model libraries through kvc, each in a process of its own.

    plan      capture, lower, cut into kernels: passes where no operator runs eagerly
    verify    and write, verify and assemble the kernels, and compare the written module with the original

The libraries are whatever is importable; a row whose library is missing is not asked for.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import arch as arch_row
from kvc.bench import zoo_models
from kvc.bench.runner import Item, Runner, written
from kvc.bench.stages import Work, described, fallback_error, recorded
from kvc.bench.zoo_models import Entry, entries
from kvc.diagnostics import KvcError
from kvc.emitter import composites
from kvc.emitter import target as find_target
from kvc.executors import choose

if TYPE_CHECKING:
    from kvc.frontends.fx.capture import Captured
    from kvc.plan import Plan

STAGES = ("plan", "verify")
LIBRARIES = ("transformers", "timm", "torchvision")


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench zoo`. `models` and `libraries` empty: all that are importable."""

    out: Path
    target: str
    arch: str
    stage: str = "plan"
    executor: str = "auto"
    models: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    mode: str = "eval"
    seed: int = 0
    jobs: int = 2
    timeout_s: float = 900.0
    retry: bool = False


def run(request: Request, say: Any, show_progress: bool) -> dict[str, Any]:
    """Run what is not in the journal yet; writes results.jsonl, table.json and table.md to `request.out`, and gives
    the table. KVC0106 where nothing is left to run."""
    find_target(request.target)
    row = arch_row(request.arch)
    if request.stage not in STAGES:
        raise KvcError("KVC0106", f"stage {request.stage!r}", hint=f"one of: {', '.join(STAGES)}")
    executor = choose(request.executor, row) if request.stage == "verify" else request.executor
    chosen = asked(request)
    settings = {
        "stage": request.stage,
        "target": request.target,
        "arch": request.arch,
        "executor": executor,
        "mode": request.mode,
        "seed": request.seed,
    }
    items = [Item(e.name, e.library, e.kind, digest(e), {"timeout_s": request.timeout_s}) for e in chosen]
    runner = Runner("kvc.bench.zoo:one", settings, request.out, request.timeout_s, noun="models")
    records = runner.run(items, request.jobs, request.retry, say, show_progress)
    title = f"Model zoo, {request.target} for {request.arch}, {request.mode} mode, stage {request.stage}"
    return written(request.out, title, records, len(chosen), group="library")


def asked(request: Request) -> list[Entry]:
    """The rows of a request whose library can be imported here."""
    for name in request.libraries:
        if name not in LIBRARIES:
            raise KvcError("KVC0106", f"library {name!r}", hint=f"one of: {', '.join(LIBRARIES)}")
    wanted = request.libraries or frozenset(LIBRARIES)
    here = frozenset(name for name in wanted if find_spec(name) is not None)
    missing = ", ".join(sorted(wanted - here))
    found = entries(request.models, here)
    if not found:
        raise KvcError("KVC0106", "no model to run", hint=f"not importable here: {missing}" if missing else "")
    return found


def digest(entry: Entry) -> str:
    """Identity of a row: its library's version and the text of the table."""
    from importlib.metadata import version

    text = f"{entry.name} {version(entry.library)} {inspect.getsource(zoo_models)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---------------------------------------------------------------- one model, in its process


def one(job: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a model. The job: "problem", "stage", "target", "arch", "executor", "mode", "seed", "timeout_s"."""
    return recorded(job, _one)


def _one(work: Work) -> None:
    captured = _captured(work)
    with work.timed("plan"):
        from kvc.pipeline_graph import plan as plan_graph

        plan = plan_graph(captured.graph, composites(find_target(work.job["target"])))
        work.record |= described(plan)
    if plan.fallbacks:
        raise fallback_error(plan)
    if work.job["stage"] == "verify":
        _verify(work, captured, plan)
    work.record["status"] = "passed"


def _captured(work: Work) -> Captured:
    import torch
    from kvc.frontends.fx.capture import capture

    name = work.job["problem"]
    entry = next(e for e in zoo_models.ENTRIES if e.name == name)
    with work.timed("load"):
        torch.manual_seed(work.job["seed"])
        module = entry.build()
        kwargs = entry.inputs(module)
        args = kwargs.pop("", ())
    with work.timed("capture"):
        captured = capture(module, args, kwargs, mode=work.job["mode"], name=name.rpartition("/")[2])
        work.record["nodes"] = len(captured.graph.nodes)
    return captured


def _verify(work: Work, captured: Captured, plan: Plan) -> None:
    from kvc.bench.verifying import assembled, kernels_of
    from kvc.verify.judge import Bench
    from kvc.verify.pool import WorkerPool

    with WorkerPool(1, work.job["timeout_s"]) as pool:
        bench = Bench(pool, work.job["executor"], work.job["seed"])
        translated = kernels_of(work, captured, plan, bench)
        assembled(work, translated, captured.graph.name, None, bench)

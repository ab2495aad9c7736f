"""A written translation as something to tune: read back, tuned kernel by kernel, verified as a whole, written again.

Nothing in the folder is believed. Kernels are proposed again with the knobs of the lock, or taken from their source
where that gives other text; each is verified (the store usually has its verdict) before it may be written once more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import arch
from kvc.autotune.budget import NOTHING, Account, Budget
from kvc.autotune.tuner import Settings, Tuned, clock_of, tune_kernel, weight
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Emitter, Origin, Scratch, Task, composites
from kvc.emitter import target as find_target
from kvc.executors import choose
from kvc.folder import read_folder
from kvc.interface import interface_from_json
from kvc.kernel import KernelSpec
from kvc.library import LibraryChoice
from kvc.library_forms import library_form
from kvc.module_source import Interface
from kvc.package import kernel_files, write
from kvc.pipeline import Listener, NotVerified, Options, Translation, emitters_for, silent, verdict_of
from kvc.plan import Invoke
from kvc.records import launch_from_json
from kvc.store import Store
from kvc.text import parse_graph
from kvc.verify.judge import Bench
from kvc.verify.oracle import Examiner
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Artifact, Rejected

if TYPE_CHECKING:
    import torch

MOST_OF_THE_TIME = 0.8  # of the estimated time, that the kernels have which are tuned when none is named
_AGAIN = "translate again with this kvc"


@dataclass(frozen=True)
class Request:
    """The options of `kvc tune`. `kernels` empty: all with `every`, else those that take most of the time."""

    out: Path
    kernels: tuple[str, ...] = ()
    every: bool = False
    budget: Budget = NOTHING
    executor: str = "auto"
    jobs: int = 2
    storage: str = ""
    study: str = ""
    seed: int = 0
    model: str | None = None
    timeout_s: float = 300.0
    use_cache: bool = True


@dataclass(frozen=True)
class Opened:
    """A folder read back: the translation, how module.py is called, and its constants."""

    translation: Translation
    interface: Interface
    constants: Mapping[str, torch.Tensor]


def opened(folder: Path, bench: Bench, store: Store | None, jobs: int) -> Opened:
    """Read a translation back, every kernel verified. KVC0802 where it is none or was written by a kvc that cut the
    model otherwise; NotVerified where a kernel no longer passes."""
    from kvc.pipeline_graph import plan as plan_graph

    read = read_folder(str(folder))
    lock = read.lock
    if "interface" not in lock["model"]:
        raise KvcError("KVC0802", f"{folder} does not say how its module is called", hint=_AGAIN)
    wrong = read.altered()
    if wrong:
        file, what = next(iter(wrong.items()))
        raise KvcError("KVC0804", f"{folder}/{file} {what}", hint="translate again, or see `kvc check`")
    target, row = find_target(lock["target"]), arch(lock["arch"])
    plan = plan_graph(parse_graph(read.text("graph.kir"), "graph.kir"), composites(target))
    records = {record["spec_hash"]: record for record in lock["kernels"]}
    if any(spec.hash not in records for spec in plan.kernels) or len(plan.steps) != len(lock["steps"]):
        raise KvcError("KVC0802", f"{folder} was cut into other kernels than this kvc makes", hint=_AGAIN)

    def artifact(spec: Any) -> Artifact:
        record = records[spec.hash]
        candidate = _candidate(Task(spec, row, record["numerics"]), record, read.text(record["file"]), bench.seed)
        verdict, _ = verdict_of(candidate, target, bench, store, Examiner(spec, bench.seed))
        if isinstance(verdict, Rejected):
            found = verdict.diagnostic
            raise NotVerified(found.code, f"{record['name']}: {found.message}", hint=found.hint)
        return Artifact(candidate, verdict)

    with ThreadPoolExecutor(jobs) as threads:
        artifacts = tuple(threads.map(artifact, plan.kernels))
    options = Options(
        bench.executor, lock["numerics"], bench.seed, jobs=jobs, library=lock.get("library") == "allowed"
    )  # fmt: skip
    interface = interface_from_json(lock["model"]["interface"], lock["model"]["call"])
    constants = _constants(folder) if "constants.safetensors" in read.files else {}
    library = tuple(_choice(spec, records[spec.hash]) for spec in plan.kernels) if options.library else ()
    done = Translation(
        None, _with_origins(plan, lock["steps"]), target, row, options, artifacts, library=library
    )  # fmt: skip
    return Opened(done, interface, constants)


def _choice(spec: KernelSpec, record: Mapping[str, Any]) -> LibraryChoice:
    """The library call that a record of the lock declares."""
    if "library" not in record:
        return LibraryChoice(None, "it was not chosen")
    form = library_form(spec, f"_library_{record['name']}", record["numerics"])
    if isinstance(form, str):
        raise KvcError("KVC0804", f"{record['name']} has no library call: {form}", hint=_AGAIN)
    return LibraryChoice.from_record(form, record["library"])


def _with_origins(plan: Any, steps: Sequence[Mapping[str, Any]]) -> Any:
    """The plan with the origins that the lock has: the graph's text need not say where in the model a node stands."""
    from kvc.diagnostics import Location

    def located(text: str) -> Location:
        file, _, line = text.rpartition(":")
        return Location(file, int(line)) if file and line.isdigit() else Location(text)

    made = [
        replace(step, origin=tuple(map(located, record["origin"])))
        if isinstance(step, Invoke) and not step.origin and "origin" in record
        else step
        for step, record in zip(plan.steps, steps, strict=True)
    ]
    return replace(plan, steps=tuple(made))


def _candidate(task: Task, record: Mapping[str, Any], source: str, seed: int) -> Candidate:
    """The candidate that a record of the lock stands for: proposed again where that gives the same text."""
    target = find_target(record["target"])
    knobs = tuple(record["knobs"].items())
    emitter: Emitter | None = next((e for e in target.emitters() if e.name == record["emitter"]["emitter"]), None)
    if emitter is not None and emitter.version == record["emitter"]["version"] and emitter.supports(task).ok:
        for setting in emitter.space(task).configurations:
            if dict(setting) == dict(knobs):
                again = next(iter(emitter.propose(task, setting, [], seed)))
                if source.startswith(again.source.rstrip("\n")):
                    return again
    return Candidate(
        task,
        record["target"],
        record["schedule"],
        source,
        tuple(launch_from_json(launch) for launch in record["launches"]),
        tuple(Scratch(**scratch) for scratch in record["workspace"]),
        knobs,
        Origin(**record["emitter"]),
    )


def _constants(folder: Path) -> dict[str, torch.Tensor]:
    """constants.safetensors as the written module reads it."""
    from kvc.verify.model import written_module

    with written_module(folder) as written:
        found: dict[str, torch.Tensor] = written._constants()
    return found


# ---------------------------------------------------------------- tuning


def tune_translation(
    done: Translation, settings: Settings, names: Sequence[str] = (), every: bool = False
) -> tuple[Translation, dict[str, Tuned]]:
    """The translation with tuned kernels, and what was tried, by kernel name. Kernels are chosen as in `Request`.
    KVC0105 for a name that the translation has not."""
    files = kernel_files(done)
    known = {file.name: n for n, file in enumerate(files)}
    for name in names:
        if name not in known:
            raise KvcError("KVC0105", f"no kernel {name!r}", hint=f"one of: {', '.join(known)}")
    uses = [sum(isinstance(s, Invoke) and s.kernel == n for s in done.plan.steps) for n in range(len(files))]
    weights = {name: weight(done.artifacts[n], uses[n]) for name, n in known.items()}
    chosen = list(names) or (list(known) if every else heaviest(weights))
    chosen.sort(key=lambda name: -weights[name])
    emitters = emitters_for(done.target, done.options.emitters)
    account = Account(settings.budget, {name: weights[name] for name in chosen})
    artifacts, results = list(done.artifacts), {}
    library = list(done.library)
    settings.listen("stage", {"name": "tune", "total": len(chosen)})
    for name in chosen:
        given = artifacts[known[name]]
        found = tune_kernel(given.candidate.task, given, done.target, emitters, settings, account.share(name))
        account.spent(sum(e.state != "" for e in found.history))
        artifacts[known[name]] = found.artifact
        results[name] = found
        if found.changed and known[name] in done.library_calls:
            # The call was faster than another kernel than this one: only a new comparison could keep it.
            library[known[name]] = LibraryChoice(None, "its kernel was tuned since")
            settings.listen("note", {"text": f"{name}: back to the kernel; translate with --library to compare again"})
        settings.listen("tuned", {"kernel": name, "result": found})
    tuning = {name: found.to_json() for name, found in results.items()}
    tuned = replace(done, artifacts=tuple(artifacts), tuning={**done.tuning, **tuning}, library=tuple(library))
    return tuned, results


def heaviest(weights: Mapping[str, float]) -> list[str]:
    """The kernels that together take MOST_OF_THE_TIME, heaviest first."""
    total, so_far = sum(weights.values()), 0.0
    found: list[str] = []
    for name in sorted(weights, key=lambda n: -weights[n]):
        if found and so_far >= MOST_OF_THE_TIME * total:
            break
        found.append(name)
        so_far += weights[name]
    return found


def tune_within(
    done: Translation, budget: Budget, bench: Bench, store: Store | None, jobs: int, listen: Listener = silent
) -> Translation:
    """The translation with its heaviest kernels tuned within `budget`: the best found so far."""
    if budget.is_nothing:
        return done
    started = time.monotonic()
    request = Request(Path(), budget=budget, jobs=jobs)
    with settings_for(request, bench, done.arch.name, store, listen) as settings:
        tuned, _ = tune_translation(done, settings)
    return replace(tuned, seconds={**tuned.seconds, "tune": time.monotonic() - started})


@contextmanager
def settings_for(
    request: Request, bench: Bench, row_name: str, store: Store | None, listen: Listener
) -> Iterator[Settings]:
    """The settings of a run; its timing process ends with the block."""
    clock = clock_of(bench.executor, row_name)
    try:
        yield Settings(
            bench, request.budget, store, request.storage, request.study, request.jobs, clock, listen
        )  # fmt: skip
    finally:
        if clock is not None:
            clock.close()


def tune_folder(request: Request, listen: Listener) -> dict[str, Any]:
    """Tune a written folder and write it again where a kernel got faster; gives the summary that `--json` prints."""
    lock = read_folder(str(request.out)).lock
    row = arch(lock["arch"])
    store = Store() if request.use_cache else None
    with WorkerPool(request.jobs, request.timeout_s) as pool:
        bench = Bench(pool, choose(request.executor, row), request.seed)
        listen("stage", {"name": "open"})
        before = opened(request.out, bench, store, request.jobs)
        earlier = read_folder(str(request.out)).measurements["kernels"]
        kept = {name: m["tuning"] for name, m in earlier.items() if "tuning" in m}
        before = replace(before, translation=replace(before.translation, tuning=kept))
        with settings_for(request, bench, row.name, store, listen) as settings:
            done, results = tune_translation(before.translation, settings, request.kernels, request.every)
        changed = [name for name, found in results.items() if found.changed]
        if results:
            references = references_of(request, before, bench)
            write(request.out, done, before.interface, before.constants, references, bench, listen)
    return {
        "out": str(request.out),
        "kind": next((found.kind for found in results.values()), "estimate"),
        "executor": bench.executor,
        "changed": changed,
        "kernels": {name: found.to_json() for name, found in results.items()},
    }


def references_of(request: Request, before: Opened, bench: Bench) -> list[Any]:
    """What the rewritten module is compared with: the graph on random weights, and the original where it is given."""
    from kvc.reverify import _graph_reference, _original_reference

    lock = json.loads((request.out / "kvc.lock").read_text(encoding="utf-8"))
    found = [_graph_reference(request.out, before.translation.plan.graph, lock, bench.seed)]
    if request.model is not None:
        found.append(_original_reference(request.model, lock, bench.seed))
    return found


__all__ = ["Request", "heaviest", "opened", "settings_for", "tune_folder", "tune_translation"]

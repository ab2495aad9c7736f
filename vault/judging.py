"""Judges candidates of a spec and writes their records: the work of one build task."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import kvc
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Emitter, Target, Task, target
from kvc.kernel import KernelSpec
from kvc.vault.candidates import CRASHES, propose
from kvc.vault.harvest import Item, Reference, harvest
from kvc.vault.normalize import op_class, op_names, split_of, structure
from kvc.vault.record import columns_of, compact
from kvc.verify.judge import Bench, judge
from kvc.verify.oracle import Examiner
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Rejected, Verdict, Verified


@dataclass(frozen=True)
class Settings:
    """Of a build, the same for every task. `variants`: candidates judged for each spec. `emitters`: names of those to
    ask (kvc.pipeline.emitters_for), all rules where there are none; `more`: go on asking a model for a faster kernel
    when one is verified, up to `variants`."""

    pipeline: str
    arch: str
    numerics: str = "strict"
    variants: int = 4
    seed: int = 0
    executor: str = "sim"
    same_text: bool = False
    timeout_s: float = 120.0
    emitters: tuple[str, ...] = ()
    more: bool = False

    @property
    def target(self) -> str:
        return "hip" if self.pipeline == "hip2hip" else self.pipeline

    def task_id(self, spec_hash: str) -> str:
        """Identity of the work on one spec: what makes a resumed build skip it."""
        # What an address says after its "?" (prices, limits) changes no work.
        asked = "".join(f"/{name.partition('?')[0]}" for name in self.emitters)
        return f"{self.pipeline}/{self.arch}/{self.numerics}/{spec_hash}{asked}"


def spec_columns(spec: KernelSpec, item: Item) -> dict[str, Any]:
    """The columns that all candidates of a spec share."""
    ops = op_names(spec)
    floats = [o.dtype.name for o in spec.outputs if o.dtype.is_float]
    return {
        "structure": structure(spec),
        "op_class": op_class(spec),
        "ops": " ".join(ops),
        "dtype": floats[0] if floats else spec.outputs[0].dtype.name,
        "split": split_of(ops),
        "source_kind": item.kind,
        "origin": item.origin,
        "licence": item.licence,
        "reference": item.reference,
        "functional": item.functional,
    }


def verdict_columns(candidate: Candidate, verdict: Verdict) -> dict[str, Any]:
    """The columns that say what became of a candidate."""
    from kvc.estimate import estimate

    if isinstance(verdict, Rejected):
        found = verdict.diagnostic
        text = {"status": "rejected", "stage": verdict.stage, "code": found.code, "message": found.message}
        return {**text, "resources": "{}", "evidence": "{}", "estimate_us": None, "toolchain": "{}"}
    from kvc.records import compiled_to_json

    evidence = verdict.evidence
    estimated = estimate(candidate.task.spec, candidate.task.arch, evidence.counters)
    objects = list(verdict.compiled.objects.values())
    data = evidence.to_json()
    resources = compiled_to_json(verdict.compiled)[0]["resources"]
    return {
        "status": "verified",
        "stage": "",
        "code": "",
        "message": "",
        "resources": compact(resources),
        "evidence": compact({**data, "resources": {}, "counters": brief(data["counters"])}),
        "estimate_us": estimated.get("counted_us"),
        "toolchain": compact(dict(objects[0].toolchain)) if objects else "{}",
    }


def brief(counters: dict[str, Any]) -> dict[str, Any]:
    """The counters of each launch that are not zero, flattened, and the tier that counted them."""
    launches = []
    for launch in counters.get("launches", ()):
        counted = {k: v for k, v in launch["counters"].items() if v}
        launches.append({"kernel": launch["kernel"], "tier": launch["tier"], "counters": counted})
    return {"launches": launches} if launches else {}


@dataclass
class Worker:
    """The handler of a worker process: answers {"do": "harvest" | "build" | "improve"}."""

    settings: Settings
    pool: WorkerPool = field(init=False)
    rules: tuple[Emitter, ...] = field(init=False)
    models: tuple[Emitter, ...] = field(init=False)  # they see their verdicts, and are asked before the rules

    def __post_init__(self) -> None:
        self.pool = WorkerPool(1, self.settings.timeout_s)
        self.rules, self.models = asked_emitters(self.settings)

    def close(self) -> None:
        self.pool.close()

    def __call__(self, task: dict[str, Any]) -> dict[str, Any]:
        started, cpu = time.perf_counter(), time.process_time()
        answer = {"harvest": self.harvest, "build": self.build, "improve": self.improve}[task["do"]](task)
        answer["seconds"]["total"] = time.perf_counter() - started
        answer["seconds"]["own_cpu"] = time.process_time() - cpu
        return answer

    def harvest(self, task: dict[str, Any]) -> dict[str, Any]:
        """{"reference"} or {"program"} -> {"items"}; a reference that cannot be captured gives its diagnostic."""
        started = time.perf_counter()
        try:
            items = [item.to_json() for item in harvest(reference_of(task, self.settings.seed), self.settings.seed)]
            problem = ""
        except KvcError as error:
            items, problem = [], str(error)
        except (*CRASHES, RuntimeError, OSError, ImportError) as error:
            # A library's model may fail in any way; that is worth a line in the report, not a new process.
            items, problem = [], f"{type(error).__name__}: {str(error)[:500]}"
        return {"items": items, "problem": problem, "seconds": {"harvest": time.perf_counter() - started}}

    def build(self, task: dict[str, Any]) -> dict[str, Any]:
        """{"item"} -> {"rows", "crashes"}: candidates judged, with one examiner for all of them."""
        item = Item.from_json(task["item"])
        work = Task(item.spec, arch_row(self.settings.arch), self.settings.numerics)
        seconds: dict[str, float] = defaultdict(float)
        started = time.perf_counter()
        offered = propose(
            work, self.rules, self.settings.variants, self.settings.seed, same_text=self.settings.same_text
        )
        seconds["propose"] = time.perf_counter() - started
        examiner = self._examiner(work.spec, seconds)
        rows, unread, stop = [], 0, None
        try:
            for emitter in self.models:
                found, bad = self._converse(emitter, work, item, examiner, seconds)
                rows += found
                unread += bad
        except KvcError as error:
            if error.code not in ("KVC0503", "KVC0504"):
                raise
            # No verdict on the spec: the task stays open, so that a later run takes it up.
            stop = {"message": str(error), "lasting": error.diagnostic.details.get("scope") != "passing"}
        rows += self._judge_all(offered.candidates, item, examiner, seconds)
        crashes = [[item.spec_text, *crash] for crash in offered.crashes]
        return {"rows": rows, "crashes": crashes, "seconds": dict(seconds), "unread": unread, "stop": stop}

    def _converse(
        self, emitter: Emitter, work: Task, item: Item, examiner: Examiner, seconds: dict[str, float]
    ) -> tuple[list[dict[str, Any]], int]:
        """Rows of an emitter that reads its verdicts, each with the feedback on the attempts before it, and the count
        of answers that were no kernel. Ends at the first verified one, unless `more`."""
        if not emitter.supports(work).ok:
            return [], 0
        history: list[tuple[Candidate, Verdict]] = []
        feedback: list[dict[str, str]] = []
        rows: list[dict[str, Any]] = []
        unread = 0
        started = time.perf_counter()
        for made in emitter.propose(work, emitter.space(work).default, history, self.settings.seed):
            seconds["ask"] += time.perf_counter() - started
            if isinstance(made, Rejected):
                unread += 1
                feedback.append(_feedback(made))
            else:
                (row,) = self._judge_all([made], item, examiner, seconds, history)
                row.update(attempts=len(feedback) + 1, feedback=compact(feedback))
                rows.append(row)
                verdict = history[-1][1]
                feedback.append(_feedback(verdict))
                if len(rows) >= self.settings.variants or (isinstance(verdict, Verified) and not self.settings.more):
                    break
            started = time.perf_counter()
        return rows, unread

    def improve(self, task: dict[str, Any]) -> dict[str, Any]:
        """hip2hip: {"item", "parent", "known"} -> {"rows"}: other settings than those known whose estimate is lower
        than the parent's; what is verified and no better is left out."""
        item = Item.from_json(task["item"])
        work = Task(item.spec, arch_row(self.settings.arch), self.settings.numerics)
        seconds: dict[str, float] = defaultdict(float)
        parent, known = task["parent"], set(task["known"])
        offered = propose(work, target("hip").emitters(), 1 << 30, self.settings.seed, same_text=True)
        fresh = [c for c in offered.candidates if columns_of(c)["id"] not in known][: self.settings.variants]
        examiner = self._examiner(work.spec, seconds)
        rows = self._judge_all(fresh, item, examiner, seconds)
        start = parent["estimate_us"]
        kept = [r for r in rows if r["estimate_us"] is not None and start is not None and r["estimate_us"] < start]
        for row in kept:
            row.update(parent=parent["id"], baseline_us=start)
        return {"rows": kept, "crashes": [[item.spec_text, *c] for c in offered.crashes], "seconds": dict(seconds)}

    def judged(self, candidates: list[Candidate], item: Item, seconds: dict[str, float]) -> list[dict[str, Any]]:
        """Rows of candidates for one spec that came from elsewhere."""
        return self._judge_all(candidates, item, self._examiner(candidates[0].task.spec, seconds), seconds)

    def _examiner(self, spec: KernelSpec, seconds: dict[str, float]) -> Examiner:
        started = time.perf_counter()
        examiner = Examiner(spec, self.settings.seed)
        for name in examiner.input_sets:
            examiner.reference(name)
        seconds["oracle"] += time.perf_counter() - started
        return examiner

    def _judge_all(
        self,
        candidates: list[Candidate],
        item: Item,
        examiner: Examiner,
        seconds: dict[str, float],
        history: list[tuple[Candidate, Verdict]] | None = None,
    ) -> list[dict[str, Any]]:
        bench = Bench(Timed(self.pool, seconds), self.settings.executor, self.settings.seed)
        shared = spec_columns(examiner.spec, item) if candidates else {}
        attempts: dict[str, int] = defaultdict(int)
        rows = []
        for candidate in candidates:
            started = time.perf_counter()
            verdict = judge(candidate, bench, examiner)
            seconds["judge"] += time.perf_counter() - started
            if history is not None:
                history.append((candidate, verdict))
            attempts[candidate.origin.emitter] += 1
            rows.append(
                {
                    **columns_of(candidate),
                    **shared,
                    **verdict_columns(candidate, verdict),
                    "attempts": attempts[candidate.origin.emitter],
                    "feedback": "[]",
                    "measured_us": None,
                    "measured_on": "",
                    "baseline_us": None,
                    "parent": "",
                    "seed": self.settings.seed,
                    "kvc_version": kvc.__version__,
                }
            )
        return rows


def asked_emitters(settings: Settings) -> tuple[tuple[Emitter, ...], tuple[Emitter, ...]]:
    """(rules, models) that a build asks: the named ones, all rules where none is named. KVC0105 for an unknown name."""
    from kvc.pipeline import emitters_for

    language = target(settings.target)
    rules = {e.name: e for e in language.emitters()}
    if not settings.emitters:
        return tuple(rules.values()), ()
    models = [e for e in emitters_for(language, settings.emitters) if e.name not in rules]
    return tuple(e for e in rules.values() if e.name in settings.emitters), tuple(models)


def _feedback(verdict: Verdict) -> dict[str, str]:
    if isinstance(verdict, Rejected):
        found = verdict.diagnostic
        return {"stage": verdict.stage, "code": found.code, "message": found.message[:2000]}
    return {"stage": "", "code": "", "message": "verified"}


class Timed(WorkerPool):
    """A pool's calls with their time by stage: "prepare" (lint, compile, resources) and "execute"."""

    def __init__(self, pool: WorkerPool, seconds: dict[str, float]) -> None:
        self._pool, self._seconds, self.timeout = pool, seconds, pool.timeout

    def prepare(self, candidate: Candidate) -> Any:
        started = time.perf_counter()
        try:
            return self._pool.prepare(candidate)
        finally:
            self._seconds["prepare"] += time.perf_counter() - started

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return self._pool.execute(*args, **kwargs)
        finally:
            self._seconds["execute"] += time.perf_counter() - started


def reference_of(task: dict[str, Any], seed: int) -> Reference:
    """The reference that a harvest task names."""
    if "program" in task:
        from kvc.vault.sources.generate import program

        number = int(task["program"])
        return Reference("random", f"program {number} of seed {seed}", "Apache-2.0", program(number, seed))
    if "library" in task:
        from kvc.vault.sources import library

        return library.reference(task)
    return Reference(**task["reference"])


def start(options: dict[str, Any]) -> Worker:
    """Makes the handler in a new process. One thread each: there are as many processes as cores."""
    import gc

    import torch

    torch.set_num_threads(1)
    gc.set_threshold(50_000, 20, 50)  # specs are many small objects: the default collects all of torch's heap for them
    return Worker(Settings(**{**options, "emitters": tuple(options.get("emitters", ()))}))


def verified(rows: list[dict[str, Any]]) -> int:
    return sum(row["status"] == "verified" for row in rows)


__all__ = ["Settings", "Target", "Verified", "Worker", "reference_of", "spec_columns", "start", "verified"]

"""The verify stage: every kernel through kvc's gates, the assembled module through kvc's whole-model check, and then
the suite's own five trials against the original, kernels running on the executor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import arch as arch_row
from kvc.bench.stages import Work, check_reference, conclude
from kvc.diagnostics import KvcError
from kvc.emitter import target as find_target
from kvc.pipeline import NotVerified, Options, Translation, translate_kernels
from kvc.store import Store
from kvc.verify.judge import Bench
from kvc.verify.launches import executed, follow
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Artifact, Rejected

if TYPE_CHECKING:
    from kvc.frontends.fx.capture import Captured
    from kvc.frontends.fx.load import Loaded
    from kvc.plan import Plan


class _Log:
    """A listener that keeps what became of every kernel."""

    def __init__(self) -> None:
        self.rejected: list[dict[str, Any]] = []
        self.schedules: dict[str, int] = {}
        self.slowest: tuple[float, str] = (0.0, "")
        self.tries: dict[int, list[tuple[str, str]]] = {}  # by kernel: emitter and stage of every judged candidate

    def __call__(self, event: str, details: dict[str, Any]) -> None:
        if event != "kernel" or details["state"] == "start":
            return
        self.slowest = max(self.slowest, (round(details["seconds"], 2), details["name"]))
        attempts = details["attempts"]
        judged = [a for a in attempts if a.verdict is not None]
        self.tries[details["index"]] = [(a.emitter, getattr(a.verdict, "stage", "verified")) for a in judged]
        if details["state"] == "verified":
            schedule = attempts[-1].schedule
            self.schedules[schedule] = self.schedules.get(schedule, 0) + 1
            self._attempts(details, attempts[:-1], final=False)
        else:
            self._attempts(details, attempts, final=True)

    def _attempts(self, details: dict[str, Any], attempts: list[Any], final: bool) -> None:
        for attempt in attempts:
            if isinstance(attempt.verdict, Rejected):
                found = attempt.verdict.diagnostic
                self.rejected.append(
                    {"kernel": details["name"], "index": details["index"], "schedule": attempt.schedule,
                     "stage": attempt.verdict.stage, "code": found.code, "message": found.message[:400],
                     "final": final}
                )  # fmt: skip


def verify(work: Work, captured: Captured, loaded: Loaded, plan: Plan) -> None:
    """Raises KvcError for the first thing that does not verify; the record says the rest."""
    from kvc.package import compiled_by_file

    job = work.job
    usable = check_reference(work, loaded)
    with WorkerPool(1, job["timeout_s"]) as pool:
        bench = Bench(pool, job["executor"], job["seed"])
        done = kernels_of(work, captured, plan, bench)
        try:
            out, done = assembled(work, done, loaded.name, loaded.init, bench)
        except NotVerified as error:
            if usable and not _amplifies(work, done, error, bench):
                raise
            work.record["status"] = "reference"
            return
        with work.timed("criterion"):
            conclude(work, loaded, _translated(out, compiled_by_file(done), captured, bench, done.arch.name), usable)
    if plan.fallbacks:
        work.record["status"] = "failed"
        raise KvcError("KVC0203", f"{len(plan.fallbacks)} eager fallbacks")


def kernels_of(work: Work, captured: Captured, plan: Plan, bench: Bench) -> Translation:
    """Every kernel of a plan written and verified; the record says by which schedules."""
    job, log = work.job, _Log()
    target, row = find_target(job["target"]), arch_row(job["arch"])
    emitters = tuple(job.get("emitters", ()))
    options = Options(
        job["executor"], seed=job["seed"], emitters=emitters, jobs=1, timeout_s=job["timeout_s"]
    )  # fmt: skip
    try:
        with work.timed("kernels"):
            artifacts, attempts = translate_kernels(plan, target, row, options, bench, _store(job), log)
    finally:
        work.record |= {"schedules": log.schedules, "rejected": log.rejected, "slowest_kernel": list(log.slowest),
                        "tries": [log.tries.get(n, []) for n in range(len(plan.kernels))]}  # fmt: skip
    work.record["library_calls"] = library_calls(plan, artifacts)
    return Translation(captured, plan, target, row, options, artifacts, attempts)


def assembled(work: Work, done: Translation, name: str, init: Any, bench: Bench) -> tuple[Path, Translation]:
    """The translation as a folder, compared with the original as a whole. NotVerified where it differs."""
    from kvc.interface import interface_of, stored_constants
    from kvc.package import write
    from kvc.whole import model_reference

    captured, out = done.captured, work.folder / "out"
    assert captured is not None
    with work.timed("model"):
        interface = interface_of(captured, name, "", init)
        references = [model_reference(captured, done.plan, work.job["seed"])]
        done = write(out, done, interface, stored_constants(captured), references, bench)
        work.record["launches"] = done.evidence[0].launches
        work.record["model_errors"] = [e.to_json() for e in done.evidence[0].errors][:4]
    return out, done


def _amplifies(work: Work, done: Translation, error: NotVerified, bench: Bench) -> bool:
    """Whether the model is at fault for the whole's difference: followed launch by launch, every kernel agrees with
    float64 on what it is given. The record says so."""
    if error.code != "KVC0709" or done.captured is None or done.plan.fallbacks:
        return False
    with work.timed("launches"):
        followed = follow(done.plan, done.captured.feed(), executed(done.artifacts, bench), bench.seed)
    if followed.diagnostic is not None:
        work.record["launch"] = {"kernel": followed.kernel, "message": followed.diagnostic.message}
        return False
    reason = f"it amplifies rounding: all {followed.launches} launches agree with float64 on what they are given"
    work.record["reference"]["degenerate"] = f"{reason}, yet {error.diagnostic.message}"
    return True


def library_calls(plan: Plan, artifacts: tuple[Artifact, ...]) -> int:
    """Launches of kernels that a vendor's library does instead of generated code."""
    library = {n for n, a in enumerate(artifacts) if a.candidate.schedule == "library"}
    return sum(s.kernel in library for s in plan.launches)


def _store(job: Any) -> Store | None:
    return Store() if job.get("cache", True) else None


def _translated(out: Any, compiled: Any, captured: Captured, bench: Bench, arch: str) -> Any:
    """Runs the written module on the original's weights."""
    from kvc.verify.model import ModelReference, run_written

    state = {name: t.detach().clone() for name, t in captured.module.state_dict().items()}

    def run(inputs: Any) -> Any:
        reference = ModelReference(tuple(inputs), {}, state, {}, {}, {}, "the suite's criterion")
        outputs, _ = run_written(out, compiled, reference, bench, arch)
        return outputs["out0"]

    return run

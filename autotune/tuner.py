"""Tunes one kernel: proposes choices, has them verified, times what is verified, and verifies the winner again.

With a device, microseconds are measured, each candidate in turns with the incumbent. Without one they are the model's
estimate from the code and the simulator's counters, and everything that shows them says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from kvc.autotune.budget import Budget, Meter
from kvc.autotune.features import estimated_us
from kvc.autotune.space import Choice, choices, label_of
from kvc.autotune.study import ESTIMATE, GRID, MEASURED, Result, Study, default_storage, open_storage
from kvc.autotune.timer import Clock, Contest, DeviceClock
from kvc.diagnostics import KvcError
from kvc.emitter import Emitter, Target, Task
from kvc.estimate import estimate
from kvc.kernel import KernelSpec
from kvc.pipeline import Listener, silent, verdict_of
from kvc.store import Store
from kvc.verify.buffers import bind, launch_plans
from kvc.verify.judge import Bench
from kvc.verify.oracle import Examiner, Reference
from kvc.verify.verdict import Artifact, Rejected, Verified

if TYPE_CHECKING:
    import optuna

HOPELESS_ESTIMATE = 3.0  # times the incumbent's estimate: not worth verifying, let alone timing
BETTER = 0.99  # of the incumbent's time: less of a gain than this changes nothing


@dataclass(frozen=True)
class Settings:
    """What all kernels of a run share. `storage` "" is the journal in the cache folder; `study` a prefix of the names,
    to keep runs apart or together; `jobs` candidates that are compiled and verified at once."""

    bench: Bench
    budget: Budget
    store: Store | None = None
    storage: str = ""
    study: str = ""
    jobs: int = 2
    clock: Clock | None = None
    listen: Listener = silent

    @property
    def kind(self) -> str:
        return ESTIMATE if self.clock is None else MEASURED


@dataclass(frozen=True)
class Entry:
    """One trial of the history: what was tried, what came of it, and the best until then (microseconds)."""

    choice: str
    us: float | None
    best_us: float | None
    state: str  # "verified", "pruned", "failed"
    reason: str = ""


@dataclass(frozen=True)
class Tuned:
    """The outcome for one kernel. `artifact` is the one to write: the winner, or the given one where nothing is better.
    `floor_us` is the roofline of the spec."""

    artifact: Artifact
    kind: str
    study: str
    space: int
    given_us: float | None
    best_us: float | None
    floor_us: float
    history: tuple[Entry, ...] = ()
    seed_again: int | None = None

    @property
    def changed(self) -> bool:
        return self.seed_again is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "study": self.study,
            "space": self.space,
            "given_us": _rounded(self.given_us),
            "best_us": _rounded(self.best_us),
            "floor_us": _rounded(self.floor_us),
            "changed": self.changed,
            "verified_again_with_seed": self.seed_again,
            "history": [
                {"choice": e.choice, "us": _rounded(e.us), "best_us": _rounded(e.best_us), "state": e.state}
                | ({"reason": e.reason} if e.reason else {})
                for e in self.history
            ],
        }


def _rounded(us: float | None) -> float | None:
    return None if us is None else round(us, 4)


@dataclass
class _Judged:
    """A claimed choice and what its compilation and verification came to."""

    trial: optuna.trial.Trial
    choice: Choice
    artifact: Artifact | None = None
    reason: str = ""
    screened_us: float | None = None  # set when the estimate alone ruled it out


@dataclass
class _Run:
    """One kernel's tuning while it goes on."""

    task: Task
    target: Target
    settings: Settings
    given: Artifact
    study: Study
    examiner: Examiner
    floor_us: float
    meter: Meter
    history: list[Entry] = field(default_factory=list)
    incumbent: tuple[Artifact, float] | None = None
    incumbent_estimate: float | None = None
    given_us: float | None = None  # where the given kernel is not in the space

    # ------------------------------------------------------------ judging (several at once)
    def judged(self, trial: optuna.trial.Trial, choice: Choice) -> _Judged:
        """Write, compile, screen by estimate, verify."""
        bench, done = self.settings.bench, _Judged(trial, choice)
        candidate = choice.candidate(self.task, bench.seed)
        given = self.given.candidate
        if candidate.source == given.source and candidate.launches == given.launches:
            done.artifact = self.given
            return done
        try:
            prepared = bench.pool.prepare(candidate)
            if isinstance(prepared, Rejected):
                done.reason = f"{prepared.stage}: {prepared.diagnostic.code}: {prepared.diagnostic.message}"
                return done
            screened = estimated_us(candidate, prepared)
            if self.incumbent_estimate and screened > HOPELESS_ESTIMATE * self.incumbent_estimate:
                done.screened_us = screened
                return done
            verdict, _ = verdict_of(candidate, self.target, bench, self.settings.store, self.examiner)
        except KvcError as error:
            if error.code != "KVC0604":
                raise
            done.reason = f"crash: {error.diagnostic.message}"
            return done
        if isinstance(verdict, Verified):
            done.artifact = Artifact(candidate, verdict)
        else:
            done.reason = f"{verdict.stage}: {verdict.diagnostic.code}: {verdict.diagnostic.message}"
        return done

    # ------------------------------------------------------------ timing (one at a time)
    def finish(self, judged: _Judged) -> None:
        """Time a judged choice, tell the study, and note the new best."""
        label, study = judged.choice.label, self.study
        if judged.screened_us is not None:
            study.prune(judged.trial, judged.screened_us, "estimate far above the incumbent's")
            return self._note(Entry(label, judged.screened_us, self._best(), "pruned", "by estimate"))
        if judged.artifact is None:
            study.fail(judged.trial, judged.reason)
            return self._note(Entry(label, None, self._best(), "failed", judged.reason))
        try:
            us, given_up = self.timed(judged.artifact)
        except KvcError as error:
            if not error.code.startswith(("KVC06", "KVC0704")) or error.code in ("KVC0601", "KVC0602"):
                raise
            study.fail(judged.trial, f"crash: {error.diagnostic.message}")
            return self._note(Entry(label, None, self._best(), "failed", error.diagnostic.message))
        if given_up:
            study.prune(judged.trial, us, "far behind the incumbent in the first rounds")
            return self._note(Entry(label, us, self._best(), "pruned", "by the first rounds"))
        if self.incumbent is None or us < self.incumbent[1]:
            # Everything after is given up by comparison with the incumbent, so that one must be beyond doubt.
            objection = self._objection(judged.artifact)
            if objection:
                study.fail(judged.trial, objection)
                return self._note(Entry(label, us, self._best(), "failed", objection))
            self.incumbent = (judged.artifact, us)
            self.incumbent_estimate = self._static(judged.artifact)
        study.complete(judged.trial, us)
        return self._note(Entry(label, us, self._best(), "verified"))

    def _objection(self, artifact: Artifact) -> str:
        """What another seed has against a verified candidate; "" when it passes again, or is the given one."""
        if artifact is self.given:
            return ""
        bench = replace(self.settings.bench, seed=self.settings.bench.seed + 1)
        examiner = Examiner(self.task.spec, bench.seed)
        verdict, _ = verdict_of(artifact.candidate, self.target, bench, self.settings.store, examiner)
        if isinstance(verdict, Verified):
            return ""
        return f"second verification: {verdict.stage}: {verdict.diagnostic.code}: {verdict.diagnostic.message}"

    def timed(self, artifact: Artifact) -> tuple[float, bool]:
        """Microseconds of a verified candidate, and whether it was given up early."""
        clock = self.settings.clock
        if clock is None:
            return estimated_us(
                artifact.candidate, artifact.verified.compiled, artifact.verified.evidence.counters
            ), False
        inputs = self.examiner.reference(self.examiner.input_sets[0]).inputs
        buffers, fresh = bind(artifact.candidate, inputs)
        plans = launch_plans(artifact.candidate, artifact.verified.compiled)
        if self.incumbent is None:
            contest: Contest = clock.contest(plans, None, buffers, fresh)
            return 1e3 * float(np.median(contest.challenger)), False
        other, us = self.incumbent
        theirs, empty = bind(other.candidate, inputs)
        # Scratch buffers of the same name: the larger one serves both.
        buffers = {**theirs, **buffers} | {
            n: max(b, theirs[n], key=lambda a: a.nbytes) for n, b in buffers.items() if n in theirs
        }
        contest = clock.contest(plans, launch_plans(other.candidate, other.verified.compiled), buffers, fresh | empty)
        return us * contest.ratio, contest.given_up

    def _static(self, artifact: Artifact) -> float:
        return estimated_us(artifact.candidate, artifact.verified.compiled)

    def _best(self) -> float | None:
        return self.incumbent[1] if self.incumbent else None

    def _note(self, entry: Entry) -> None:
        entry = replace(entry, best_us=self._best())
        self.history.append(entry)
        self.settings.listen(
            "trial",
            {
                "kernel": self.task.spec.name, "done": self.meter.trials, "state": entry.state, "choice": entry.choice,
                "us": entry.us, "best_us": entry.best_us, "floor_us": self.floor_us, "kind": self.settings.kind,
                "reason": entry.reason,
            },
        )  # fmt: skip

    # ------------------------------------------------------------ the loop
    def batches(self) -> Iterator[list[_Judged]]:
        """Claimed choices, judged `jobs` at a time, until the budget or the space is used up."""
        jobs = self.settings.jobs
        with ThreadPoolExecutor(jobs) as threads:
            while (left := self.meter.left()) != 0:
                claimed = []
                # The first trial stands alone: what follows is screened and timed against it.
                for _ in range(1 if self.incumbent is None else min(jobs, left or jobs)):
                    asked = self.study.ask()
                    if asked is None:
                        break
                    claimed.append(asked)
                if not claimed:
                    return
                self.meter.trials += len(claimed)
                yield list(threads.map(lambda pair: self.judged(*pair), claimed))

    def go(self) -> None:
        for batch in self.batches():
            for judged in batch:
                self.finish(judged)

    # ------------------------------------------------------------ the winner
    def outcome(self, space: int) -> Tuned:
        """The best choice of the study that verifies again with another seed."""
        again = self.settings.bench.seed + 1
        given_label = label_of(self.given.candidate.origin.emitter, self.given.candidate.knobs)
        ranked = self.study.ranked()
        given_us = next((r.us for r in ranked if r.choice == given_label), self.given_us)
        best = next(self._winners(ranked, given_label, given_us, again), None)
        common: dict[str, Any] = {
            "kind": self.settings.kind, "study": self.study.name, "space": space, "given_us": given_us,
            "floor_us": self.floor_us, "history": tuple(self.history),
        }  # fmt: skip
        if best is None:
            return Tuned(self.given, best_us=given_us, **common)
        artifact, us = best
        return Tuned(artifact, best_us=us, seed_again=again, **common)

    def _winners(
        self, ranked: Sequence[Result], given: str, given_us: float | None, seed: int
    ) -> Iterator[tuple[Artifact, float]]:
        """Choices that beat the given one and pass under both seeds, best first."""
        bench = self.settings.bench
        for result in ranked:
            if result.choice == given or given_us is None or result.us > BETTER * given_us:
                return
            candidate = self.study.choices[result.choice].candidate(self.task, bench.seed)
            other = replace(bench, seed=seed)
            first, _ = verdict_of(candidate, self.target, bench, self.settings.store, self.examiner)
            second, _ = verdict_of(candidate, self.target, other, self.settings.store, Examiner(self.task.spec, seed))
            if isinstance(first, Verified) and isinstance(second, Verified):
                yield Artifact(candidate, first), result.us
                continue
            bad = first if isinstance(first, Rejected) else second
            assert isinstance(bad, Rejected)
            self.study.condemn(result.choice, f"second verification: {bad.stage}: {bad.diagnostic.message}")


def tune_kernel(
    task: Task, given: Artifact, target: Target, emitters: Sequence[Emitter], settings: Settings, budget: Budget
) -> Tuned:
    """Tune one kernel from the artifact it has. Stops early when interrupted (KeyboardInterrupt), with the best so far.

    KvcError for what is no fault of a candidate: a missing toolchain or device, a storage that cannot be used.
    """
    found = choices(task, emitters)
    bench = settings.bench
    storage = open_storage(settings.storage or default_storage(task))
    study = Study(storage, task, target, bench.executor, found, settings.kind, bench.seed, settings.study)
    floor = float(estimate(task.spec, task.arch)["floor_us"])
    run = _Run(task, target, settings, given, study, _SharedExaminer(task.spec, bench.seed), floor, Meter(budget))
    run.incumbent = _known_best(run)
    given_label = label_of(given.candidate.origin.emitter, given.candidate.knobs)
    if not budget.is_nothing:
        if given_label not in study.choices:
            run.given_us, _ = run.timed(given)
            if run.incumbent is None or run.given_us < run.incumbent[1]:
                run.incumbent = (given, run.given_us)
        defaults = {c.name: c.label for c in reversed(found)}
        first = [given_label, *study.similar(), *reversed(defaults.values())]
        small = len(found) <= max(GRID, budget.trials)
        study.enqueue([*first, *(c.label for c in found)] if small else first)
        with _interruptible(settings.listen):
            run.go()
    return run.outcome(len(found))


class _SharedExaminer(Examiner):
    """References that several threads ask for are worked out once."""

    def __init__(self, spec: KernelSpec, seed: int = 0) -> None:
        super().__init__(spec, seed)
        self._lock = threading.RLock()

    def reference(self, name: str) -> Reference:
        with self._lock:
            return super().reference(name)


def _known_best(run: _Run) -> tuple[Artifact, float] | None:
    """The incumbent that earlier runs or other processes have left: verified again from the store, not believed."""
    for result in run.study.ranked()[:1]:
        candidate = run.study.choices[result.choice].candidate(run.task, run.settings.bench.seed)
        verdict, _ = verdict_of(candidate, run.target, run.settings.bench, run.settings.store, run.examiner)
        if isinstance(verdict, Verified):
            artifact = Artifact(candidate, verdict)
            run.incumbent_estimate = run._static(artifact)
            return artifact, result.us
    return None


@contextmanager
def _interruptible(listen: Listener) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        listen("note", {"text": "interrupted: going on with the best so far"})


def clock_of(executor: str, arch: str) -> Clock | None:
    """What times kernels on this machine; None where there is no device, and estimates have to do."""
    return None if executor == "sim" else DeviceClock(executor, arch)


def weight(artifact: Artifact, uses: int) -> float:
    """How much of a model's time a kernel is likely to take: the estimate of its launches, times its uses."""
    verified = artifact.verified
    return uses * estimated_us(artifact.candidate, verified.compiled, verified.evidence.counters)


__all__ = ["Budget", "Entry", "Settings", "Tuned", "clock_of", "tune_kernel", "weight"]

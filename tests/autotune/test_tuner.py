"""The tuner on a small world: it finds the best, trusts nothing unverified, forgets nothing, and shares its study."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvc.autotune import tuner
from kvc.autotune.budget import Budget
from kvc.autotune.space import choices
from kvc.autotune.study import Study, open_storage
from kvc.autotune.timer import Contest
from kvc.autotune.tuner import Settings, Tuned, tune_kernel
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate
from kvc.executor import LaunchPlan
from kvc.verify.judge import Bench
from kvc.verify.verdict import Artifact, Evidence, Rejected, Verified

from tests.autotune.conftest import FakeEmitter, FakeTarget, compiled, task_of

WRONG = {"A": 2, "B": 2}  # gives wrong results
DEADLY = {"A": 8, "B": 1}  # kills its worker
FLAKY = {"A": 4, "B": 1}  # the fastest, but fails under another seed


def true_ms(knobs: Mapping[str, Any]) -> float:
    """The time of a setting: best at A=4, B=2, but for FLAKY."""
    if dict(knobs) == FLAKY:
        return 0.5
    return 1.0 + abs(knobs["A"] - 4) + 0.3 * abs(knobs["B"] - 2)


class FakePool:
    def __init__(self) -> None:
        self.prepared: list[dict[str, Any]] = []

    def prepare(self, candidate: Candidate) -> Any:
        self.prepared.append(dict(candidate.knobs))
        if dict(candidate.knobs) == DEADLY:
            raise KvcError("KVC0604", "the worker died")
        return compiled()


def verdict(candidate: Candidate, seed: int) -> Any:
    knobs = dict(candidate.knobs)
    if knobs == WRONG or (knobs == FLAKY and seed != 0):
        return Rejected("compare", Diagnostic("KVC0701", "wrong"))
    return Verified(Evidence("fake", "gfx942", seed, (), (), ()), compiled())


class FakeClock:
    """Knows the time of a candidate by its launch plans; everything is twice as slow after the tenth contest."""

    def __init__(self) -> None:
        self.timed: list[dict[str, Any]] = []

    def contest(
        self,
        challenger: Sequence[LaunchPlan],
        incumbent: Sequence[LaunchPlan] | None,
        buffers: Mapping[str, Any],
        outputs: Collection[str],
    ) -> Contest:
        drift = 2.0 if len(self.timed) >= 10 else 1.0
        mine = challenger[0].knobs  # type: ignore[attr-defined]
        self.timed.append(dict(mine))
        ms = true_ms(mine) * drift
        if incumbent is None:
            return Contest((ms,), ())
        theirs = true_ms(incumbent[0].knobs) * drift  # type: ignore[attr-defined]
        return Contest((ms,), (theirs,), ms > 1.5 * theirs)

    def close(self) -> None:
        return


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The tuner's surroundings replaced: verdicts, estimates, and launch plans that carry their knobs."""
    judged: list[tuple[dict[str, Any], int]] = []

    def verdict_of(candidate: Candidate, target: Any, bench: Bench, store: Any, examiner: Any) -> Any:
        judged.append((dict(candidate.knobs), bench.seed))
        return verdict(candidate, bench.seed), False

    def estimated(candidate: Candidate, code: Any, counters: Any = None) -> float:
        return 1000 * true_ms(dict(candidate.knobs))

    def plans(candidate: Candidate, code: Any) -> list[Any]:
        return [SimpleNamespace(knobs=dict(candidate.knobs))]

    monkeypatch.setattr(tuner, "verdict_of", verdict_of)
    monkeypatch.setattr(tuner, "estimated_us", estimated)
    monkeypatch.setattr(tuner, "launch_plans", plans)
    return SimpleNamespace(judged=judged, pool=FakePool(), clock=FakeClock())


def given_of(n: int = 64, knobs: tuple[tuple[str, int], ...] = (("A", 1), ("B", 1))) -> Artifact:
    task = task_of(n)
    candidate = next(FakeEmitter().propose(task, knobs, [], 0))
    return Artifact(candidate, verdict(candidate, 0))


def tune(world: SimpleNamespace, storage: Path, budget: str, n: int = 64, **other: Any) -> Tuned:
    target: Any = FakeTarget()
    given = given_of(n)
    options: dict[str, Any] = {"clock": world.clock, "jobs": 1, **other}
    settings = Settings(Bench(world.pool, "fake", 0), Budget.parse(budget), None, str(storage), **options)
    return tune_kernel(given.candidate.task, given, target, target.emitters(), settings, settings.budget)


def knobs(found: Tuned) -> dict[str, Any]:
    return dict(found.artifact.candidate.knobs)


def test_the_best_that_verifies_twice_wins(world: SimpleNamespace, tmp_path: Path) -> None:
    found = tune(world, tmp_path / "a.journal", "40t")
    assert knobs(found) == {"A": 4, "B": 2} and found.changed and found.kind == "measured"
    assert found.given_us == pytest.approx(4300) and found.best_us == pytest.approx(1000)
    assert len(found.history) == 20  # the whole space, once each
    best = [e.best_us for e in found.history if e.best_us is not None]
    assert best == sorted(best, reverse=True)
    assert FLAKY in world.clock.timed and (FLAKY, 1) in world.judged  # it was the fastest until verified again


def test_only_verified_candidates_are_timed(world: SimpleNamespace, tmp_path: Path) -> None:
    found = tune(world, tmp_path / "a.journal", "40t")
    assert WRONG not in world.clock.timed and DEADLY not in world.clock.timed
    failed = {e.choice: e.reason for e in found.history if e.state == "failed"}
    assert "KVC0701" in failed["fake.rule A=2 B=2"] and "died" in failed["fake.rule A=8 B=1"]


def test_what_crashed_is_never_tried_again_and_nothing_twice(world: SimpleNamespace, tmp_path: Path) -> None:
    first = tune(world, tmp_path / "a.journal", "12t")
    again = tune(world, tmp_path / "a.journal", "40t")
    tried = [e.choice for e in (*first.history, *again.history)]
    assert len(tried) == len(set(tried)) == 20
    assert world.pool.prepared.count(DEADLY) == 1


def test_a_far_estimate_spares_the_verification(world: SimpleNamespace, tmp_path: Path) -> None:
    found = tune(world, tmp_path / "a.journal", "40t")
    screened = [e for e in found.history if e.reason == "by estimate"]
    assert screened and not any(e.choice.startswith("fake.rule A=4") for e in screened)
    judged = {tuple(k.items()) for k, _ in world.judged}
    assert all(tuple(choice_knobs(e.choice).items()) not in judged for e in screened)


def choice_knobs(label: str) -> dict[str, int]:
    return {k: int(v) for k, v in (p.split("=") for p in label.split(" ")[1:])}


def test_nothing_is_tried_without_a_budget_but_the_best_is_known(world: SimpleNamespace, tmp_path: Path) -> None:
    assert not tune(world, tmp_path / "a.journal", "0").changed
    tune(world, tmp_path / "a.journal", "40t")
    timed = len(world.clock.timed)
    found = tune(world, tmp_path / "a.journal", "0")
    assert knobs(found) == {"A": 4, "B": 2} and found.changed and len(world.clock.timed) == timed


def test_a_similar_spec_starts_from_what_was_best(world: SimpleNamespace, tmp_path: Path) -> None:
    tune(world, tmp_path / "a.journal", "40t", n=64)
    second = tune(world, tmp_path / "a.journal", "3t", n=4096)
    assert second.history[0].choice == "fake.rule A=1 B=1"
    assert second.history[1].choice in ("fake.rule A=4 B=2", "fake.rule A=4 B=1")


def test_estimates_say_so(world: SimpleNamespace, tmp_path: Path) -> None:
    found = tune(world, tmp_path / "a.journal", "40t", clock=None)
    assert found.kind == "estimate" and found.to_json()["kind"] == "estimate"
    assert knobs(found) == {"A": 4, "B": 2}


def test_the_same_seed_gives_the_same_history(world: SimpleNamespace, tmp_path: Path) -> None:
    histories = []
    for name in ("a", "b"):
        world.clock.timed.clear()
        histories.append([e.choice for e in tune(world, tmp_path / f"{name}.journal", "9t").history])
    assert histories[0] == histories[1]


def test_an_interruption_keeps_the_best_so_far(world: SimpleNamespace, tmp_path: Path) -> None:
    def listen(event: str, details: dict[str, Any]) -> None:
        if event == "trial" and details["best_us"] is not None and details["best_us"] < 2000 and details["done"] > 4:
            raise KeyboardInterrupt

    found = tune(world, tmp_path / "a.journal", "40t", listen=listen)
    assert found.changed and len(found.history) < 20


# ---------------------------------------------------------------- the shared study


def study_in(storage: str, prefix: str = "") -> Study:
    task = task_of()
    target: Any = FakeTarget()
    found = choices(task, [FakeEmitter()])
    return Study(open_storage(storage), task, target, "fake", found, "measured", 0, prefix)


def _worker(storage: str, done: Any) -> None:
    study = study_in(storage)
    mine = []
    while (asked := study.ask()) is not None:
        trial, choice = asked
        study.complete(trial, true_ms(dict(choice.knobs)))
        mine.append(choice.label)
    done.put(mine)


@pytest.mark.parametrize("kind", ["journal", pytest.param("sqlite", marks=pytest.mark.long)])
def test_two_processes_share_a_study_and_repeat_nothing(tmp_path: Path, kind: str) -> None:
    storage = str(tmp_path / "s.journal") if kind == "journal" else f"sqlite:///{tmp_path / 's.db'}"
    study_in(storage)
    context = multiprocessing.get_context("spawn")
    done: Any = context.Queue()
    workers = [context.Process(target=_worker, args=(storage, done)) for _ in range(2)]
    for w in workers:
        w.start()
    tried = [done.get(timeout=300) for _ in workers]
    for w in workers:
        w.join(30)
    assert sorted(tried[0] + tried[1]) == sorted(set(tried[0] + tried[1]))
    assert len(tried[0]) + len(tried[1]) == 20
    assert study_in(storage).ranked()[0].choice == "fake.rule A=4 B=1"


def _dies(storage: str) -> None:
    study_in(storage).ask()
    os._exit(9)


def test_a_killed_process_costs_one_try_and_two_condemn(tmp_path: Path) -> None:
    storage = str(tmp_path / "s.journal")
    study = study_in(storage)
    study.enqueue(["fake.rule A=16 B=8"])
    context = multiprocessing.get_context("spawn")
    for expected in ("tried again", "condemned"):
        killed = context.Process(target=_dies, args=(storage,))
        killed.start()
        killed.join(60)
        resumed = study_in(storage)
        resumed.enqueue(["fake.rule A=16 B=8"])
        if expected == "tried again":
            assert not resumed.quarantine()
    assert list(study_in(storage).quarantine()) == ["fake.rule A=16 B=8"]


def test_names_keep_studies_apart(tmp_path: Path) -> None:
    storage = str(tmp_path / "s.journal")
    one, other = study_in(storage, "one"), study_in(storage, "other")
    trial, _ = one.ask() or (None, None)
    assert trial is not None
    one.complete(trial, 1.0)
    assert one.name != other.name and len(one.results()) == 1 and not other.results()


@pytest.mark.parametrize(("url", "code"), [("ftp://x/y", "KVC0106"), ("/proc/nothing/here.journal", "KVC0803")])
def test_a_storage_that_is_none(url: str, code: str) -> None:
    with pytest.raises(KvcError) as caught:
        open_storage(url)
    assert caught.value.code == code


def test_who_begins_later_waits_for_the_choice_of_who_began_before(tmp_path: Path, monkeypatch) -> None:
    """Between its number and its choice a trial of another process cannot be compared with."""
    from optuna.trial import TrialState

    study = study_in(str(tmp_path / "s.journal"))
    other = study._study.ask()  # begun, and no choice yet
    monkeypatch.setattr("kvc.autotune.study.CHOOSING_S", 0.2)
    trial, choice = study.ask() or (None, None)
    assert trial is not None and choice is not None
    assert study._study.get_trials()[other.number].state == TrialState.FAIL  # it never chose


def test_an_enqueued_choice_that_another_began_meanwhile_is_not_tried_again(tmp_path: Path) -> None:
    study = study_in(str(tmp_path / "s.journal"))
    first, choice = study.ask() or (None, None)
    assert first is not None and choice is not None
    study._study.enqueue_trial({"choice": choice.label})  # as by a process that did not see it yet
    second, another = study.ask() or (None, None)
    assert second is not None and another is not None and another.label != choice.label

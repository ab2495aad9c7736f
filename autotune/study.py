"""One kernel's study in Optuna's storage: claims, results and failures that several processes and later runs share.

Every trial has one parameter, the label of a choice. A trial is COMPLETE with microseconds, PRUNED when it was
hopeless, FAIL with a `reason` when the choice does not work: such a choice is in quarantine and never tried again. A
trial that a killed process left behind says nothing against its choice the first time, and everything the second.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.autotune.space import Choice, choices, digest, nearest, structure
from kvc.diagnostics import KvcError
from kvc.emitter import Target, Task
from kvc.settings import settings

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

PARAMETER = "choice"
MEASURED, ESTIMATE = "measured", "estimate"
GRID = 24  # a space of at most so many choices is gone through in its own order
CHOOSING_S = 20.0  # that a process may take to choose, once it has begun a trial
DEATHS = 2  # a choice that was being tried when so many processes died is not tried again
STARTUP = 8  # trials before the sampler models anything
SIMILAR = 3  # best choices that are taken over from each study of a similar spec
_URL_HINT = "a file (tune.journal), sqlite:///FILE, postgresql://..., mysql://..., redis://... or grpc://HOST:PORT"


@dataclass(frozen=True)
class Result:
    """A finished choice: microseconds, and whether it was stopped early (then `us` is only what was seen)."""

    choice: str
    us: float
    pruned: bool = False


def _label(trial: optuna.trial.FrozenTrial) -> str | None:
    """The choice of a trial, that of an enqueued one before anybody has begun it too; None while it has none."""
    found = trial.params.get(PARAMETER, trial.system_attrs.get("fixed_params", {}).get(PARAMETER))
    return None if found is None else str(found)


def default_storage(task: Task) -> str:
    """The journal for specs of this structure, in the cache folder."""
    return str(settings().cache_dir / "tune" / f"{structure(task.spec)}.journal")


def open_storage(where: str) -> BaseStorage:
    """An Optuna storage by path or URL. KVC0106 for an unknown scheme, KVC0501 where a package is missing, KVC0803
    where it cannot be used."""
    from optuna import storages
    from optuna.storages import journal

    scheme, found, rest = where.partition("://")
    try:
        if not found or scheme == "journal":
            path = Path(rest if found else where).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            backend: Any = journal.JournalFileBackend(str(path))
            return storages.JournalStorage(backend)
        if scheme == "redis":
            return storages.JournalStorage(journal.JournalRedisBackend(where))
        if scheme == "grpc":
            host, _, port = rest.rstrip("/").partition(":")
            return storages.GrpcStorageProxy(host=host, port=int(port or 13000))
        if scheme.partition("+")[0] in ("sqlite", "postgresql", "mysql"):
            return storages.RDBStorage(where)
    except ImportError as error:
        raise KvcError("KVC0501", f"{where}: {error}", hint="install what this kind of storage needs") from None
    except (OSError, ValueError) as error:
        raise KvcError("KVC0803", f"{where}: {error}", hint=_URL_HINT) from None
    raise KvcError("KVC0106", f"storage {where!r}", hint=_URL_HINT)


def study_name(task: Task, target: Target, executor: str, found: Sequence[Choice], prefix: str = "") -> str:
    """Everything that makes results comparable: the spec, the GPU, the numerics, the language, what measured, and the
    space. The structure comes first, so that studies of similar specs can be told by their names."""
    shape = hashlib.sha256(task.key.encode()).hexdigest()[:12]
    own = f"{structure(task.spec)}/{task.arch.name}-{target.name}-{executor}/{shape}-{digest(found)}"
    return f"{prefix}:{own}" if prefix else own


class Study:
    """The study of one kernel. `kind` says what its values are: "measured" or "estimate"."""

    def __init__(
        self, storage: BaseStorage, task: Task, target: Target, executor: str, found: Sequence[Choice],
        kind: str, seed: int, prefix: str = "",
    ) -> None:  # fmt: skip
        import optuna
        from kvc.autotune.sampler import SpaceSampler

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.choices = {c.label: c for c in found}
        self.name = study_name(task, target, executor, found, prefix)
        self._task = task
        self._storage = storage
        self._study = optuna.create_study(
            study_name=self.name, storage=storage, direction="minimize", load_if_exists=True
        )
        self._space: dict[str, Any] = {PARAMETER: optuna.distributions.CategoricalDistribution(tuple(self.choices))}
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._study.set_user_attr("kind", kind)
        self._study.set_user_attr("spec", task.spec.name)
        self._bury()
        # Another seed in each process and each resumed run, or all would propose the same.
        self._study.sampler = SpaceSampler(self.choices, PARAMETER, STARTUP, seed + len(self._trials()))

    # ------------------------------------------------------------ what is known
    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def results(self) -> list[Result]:
        """Finished choices, in the order of their trials."""
        from optuna.trial import TrialState

        found = []
        for trial in self._trials():
            if trial.user_attrs.get("repeat") or PARAMETER not in trial.params:
                continue
            if trial.state == TrialState.COMPLETE and trial.value is not None:
                found.append(Result(trial.params[PARAMETER], trial.value))
            elif trial.state == TrialState.PRUNED and trial.intermediate_values:
                found.append(Result(trial.params[PARAMETER], min(trial.intermediate_values.values()), True))
        return found

    def ranked(self) -> list[Result]:
        """Choices that were finished properly, best first; those in quarantine are left out."""
        bad = self.quarantine()
        return sorted((r for r in self.results() if not r.pruned and r.choice not in bad), key=lambda r: r.us)

    def quarantine(self) -> dict[str, str]:
        """Choices that do not work, with the reason."""
        from optuna.trial import TrialState

        found: dict[str, str] = {}
        deaths: Counter[str] = Counter()
        for trial in self._trials():
            if trial.state != TrialState.FAIL or PARAMETER not in trial.params:
                continue
            label = trial.params[PARAMETER]
            if "reason" in trial.user_attrs:
                found[label] = str(trial.user_attrs["reason"])
            else:
                deaths[label] += 1
        died = {label: "the process died while it was tried" for label, n in deaths.items() if n >= DEATHS}
        return died | found

    def _taken(self) -> set[str]:
        """Choices that are finished, in quarantine, or being tried."""
        from optuna.trial import TrialState

        running = {t.params[PARAMETER] for t in self._trials() if t.state == TrialState.RUNNING and t.params}
        return running | {r.choice for r in self.results()} | set(self.quarantine())

    def _bury(self) -> None:
        """Fail the trials of processes of this machine that are no longer alive."""
        from optuna.trial import TrialState

        host, _, own = self._owner.rpartition(":")
        for trial in self._trials():
            owner, _, pid = str(trial.user_attrs.get("owner", "")).rpartition(":")
            if trial.state == TrialState.RUNNING and owner == host and pid != own and not _is_alive(int(pid)):
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    # ------------------------------------------------------------ asking and telling
    def enqueue(self, labels: Iterable[str]) -> None:
        """Choices to try first, in this order. Those that are known or wait already are left out."""
        from optuna.trial import TrialState

        taken = self._taken() | {_label(t) for t in self._trials() if t.state == TrialState.WAITING}
        for label in dict.fromkeys(labels):
            if label in self.choices and label not in taken:
                self._study.enqueue_trial({PARAMETER: label})

    def ask(self) -> tuple[optuna.trial.Trial, Choice] | None:
        """The next choice, claimed for this process; None when the whole space is done."""
        from optuna.trial import TrialState

        while True:
            trial = self._study.ask(self._space)
            trial.set_user_attr("owner", self._owner)
            label = str(trial.params[PARAMETER])
            before = self._chosen_before(trial.number)
            alike = [t for t in before if _label(t) == label and not t.user_attrs.get("repeat")]
            earlier = [t for t in alike if t.state != TrialState.FAIL]
            if not earlier and label not in self.quarantine():
                return trial, self.choices[label]
            self._repeat(trial, earlier)
            taken = self._taken()
            other = nearest(self.choices[label], (c for name, c in self.choices.items() if name not in taken))
            if other is None:
                return None
            self.enqueue([other.label])

    def _chosen_before(self, number: int) -> list[optuna.trial.FrozenTrial]:
        """The trials of lower numbers, once all that are begun have their choice. A trial gets its number before its
        choice: without the wait two processes may choose alike and neither see the other (Lamport's bakery, 1974).
        Who has not chosen after CHOOSING_S died meanwhile."""
        from optuna.trial import TrialState

        until = time.monotonic() + CHOOSING_S
        while True:
            trials = [t for t in self._trials() if t.number < number]
            choosing = [t for t in trials if t.state == TrialState.RUNNING and _label(t) is None]
            if not choosing:
                return trials
            if time.monotonic() > until:
                for trial in choosing:
                    self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            time.sleep(0.01)

    def _repeat(self, trial: optuna.trial.Trial, earlier: Sequence[optuna.trial.FrozenTrial]) -> None:
        """Answer a repeated question with what is known, so that the sampler learns nothing wrong."""
        from optuna.trial import TrialState

        trial.set_user_attr("repeat", True)
        known = next((t.value for t in earlier if t.state == TrialState.COMPLETE), None)
        if known is not None:
            self._study.tell(trial, known)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def complete(self, trial: optuna.trial.Trial, us: float) -> None:
        """A choice that works, and how long it takes."""
        self._study.tell(trial, us)

    def prune(self, trial: optuna.trial.Trial, us: float, why: str) -> None:
        """A choice that was given up; `us` is what was seen of it."""
        from optuna.trial import TrialState

        trial.set_user_attr("pruned", why)
        trial.report(us, 0)
        self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: optuna.trial.Trial, reason: str) -> None:
        """A choice that does not work: never tried again."""
        from optuna.trial import TrialState

        trial.set_user_attr("reason", reason[:500])
        self._study.tell(trial, state=TrialState.FAIL)

    def condemn(self, label: str, reason: str) -> None:
        """Put a choice into quarantine after the fact: the second verification turned it down."""
        self._study.enqueue_trial({PARAMETER: label})
        trial = self._study.ask(self._space)
        self.fail(trial, reason)

    # ------------------------------------------------------------ warm start
    def similar(self) -> list[str]:
        """The best choices of studies of the same structure and GPU at other sizes, as the nearest choices of this
        space, best first."""
        import optuna
        from optuna.trial import TrialState

        stem = self.name.rpartition("/")[0]
        found: list[tuple[int, str]] = []
        for name in optuna.study.get_all_study_names(self._storage):
            if name == self.name or name.rpartition("/")[0] != stem:
                continue
            other = optuna.load_study(study_name=name, storage=self._storage)
            done = [t for t in other.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if t.params]
            for rank, trial in enumerate(sorted(done, key=lambda t: t.value or 0.0)[:SIMILAR]):
                close = nearest_label(str(trial.params[PARAMETER]), self.choices)
                if close is not None:
                    found.append((rank, close))
        return list(dict.fromkeys(label for _, label in sorted(found)))


def nearest_label(label: str, among: dict[str, Choice]) -> str | None:
    """The choice of the same emitter whose knobs are closest to those of a label from elsewhere."""
    if label in among:
        return label
    name, knobs = parse_label(label)
    same = [c for c in among.values() if c.name == name]
    if not same:
        return None
    found = nearest(Choice(same[0].emitter, knobs, name), same)
    return found.label if found else None


def parse_label(label: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The emitter and the knobs of a label."""
    import json

    name, *pairs = label.split(" ")
    return name, tuple((key, json.loads(value)) for key, _, value in (pair.partition("=") for pair in pairs))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


__all__ = ["ESTIMATE", "GRID", "MEASURED", "Result", "Study", "choices", "default_storage", "open_storage"]

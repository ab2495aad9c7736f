"""What the rule emitters of this backend have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Knob, Origin, Space, Support, Task

from .source import Knobs, SourceFile

VERSION = "1"


class RuleEmitter(ABC):
    """Writes one schedule. A setting of the knobs gives one candidate; history and seed play no part."""

    schedule: ClassVar[str]
    version = VERSION

    @property
    def name(self) -> str:
        return f"triton.{self.schedule}"

    def supports(self, task: Task) -> Support:
        reason = self.refusal(task)
        return Support(not reason, reason)

    def space(self, task: Task) -> Space:
        """KVC0401 where the emitter does not support the task."""
        self._require(task)
        return Space(tuple(dict.fromkeys(self.configurations(task))))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        """One candidate for one setting (the space's default where `knobs` is empty). KVC0401 where unsupported."""
        self._require(task)
        settings = dict(self.space(task).default) | dict(knobs)
        file = SourceFile(task, tuple(settings.items()))
        self.write(file)
        yield file.candidate(self.schedule, Origin(self.name, self.version))

    def _require(self, task: Task) -> None:
        support = self.supports(task)
        if not support.ok:
            raise KvcError("KVC0401", f"{self.name} cannot write {task.spec.name}: {support.reason}")

    @abstractmethod
    def refusal(self, task: Task) -> str:
        """The reason why the emitter cannot write the task; "" when it can."""

    @abstractmethod
    def configurations(self, task: Task) -> Iterator[Knobs]:
        """Feasible settings, best guess first."""

    @abstractmethod
    def write(self, file: SourceFile) -> None:
        """Add the kernels of the task to a file."""


def grid_of(best: Mapping[str, Knob], choices: Mapping[str, Iterable[Knob]]) -> Iterator[Knobs]:
    """The best guess, then every combination of the choices (names that have none keep the best guess), those that
    change fewer knobs first."""
    yield tuple(best.items())
    names = list(choices)
    settings = [{**best, **dict(zip(names, values, strict=True))} for values in product(*choices.values())]
    settings.sort(key=lambda s: sum(s[n] != best[n] for n in names))
    yield from (tuple(s.items()) for s in settings)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (and at least 1)."""
    return 1 << max(n - 1, 0).bit_length()

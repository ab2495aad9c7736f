"""The search space of a kernel: every feasible setting of every emitter that can write it, enumerated."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvc.emitter import Candidate, Emitter, Knob, Task
from kvc.kernel import KernelSpec
from kvc.text import print_kernel

OTHER_EMITTER = 8.0  # the distance between settings of different emitters, in doublings of a knob


@dataclass(frozen=True)
class Choice:
    """One setting of one emitter. Its label is what a study records, so it says all there is to know."""

    emitter: Emitter = field(compare=False)
    knobs: tuple[tuple[str, Knob], ...]
    name: str  # of the emitter

    @property
    def label(self) -> str:
        return label_of(self.name, self.knobs)

    def candidate(self, task: Task, seed: int) -> Candidate:
        """The kernel that the emitter writes with this setting."""
        return next(iter(self.emitter.propose(task, self.knobs, [], seed)))


def label_of(emitter: str, knobs: Iterable[tuple[str, Knob]]) -> str:
    """The text of a setting."""
    return " ".join([emitter, *(f"{name}={json.dumps(value)}" for name, value in knobs)])


def choices(task: Task, emitters: Sequence[Emitter]) -> tuple[Choice, ...]:
    """All choices for a task; each emitter's best guess comes first among its own."""
    found: dict[str, Choice] = {}
    for emitter in emitters:
        if emitter.supports(task).ok:
            for knobs in emitter.space(task).configurations:
                choice = Choice(emitter, knobs, emitter.name)
                found.setdefault(choice.label, choice)
    return tuple(found.values())


def digest(found: Sequence[Choice]) -> str:
    """Identity of a space: a study over another one is another study."""
    versions = sorted({f"{c.name} {c.emitter.version}" for c in found})
    text = "\n".join([*versions, *(c.label for c in found)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def distance(a: Choice, b: Choice) -> float:
    """How different two settings are: doublings of sizes, one for each other knob that differs."""
    total = 0.0 if a.name == b.name else OTHER_EMITTER
    left, right = dict(a.knobs), dict(b.knobs)
    for name in left.keys() | right.keys():
        total += _knob_distance(left.get(name), right.get(name))
    return total


def _knob_distance(a: Knob | None, b: Knob | None) -> float:
    if a == b:
        return 0.0
    if type(a) is int and type(b) is int and a > 0 and b > 0:
        return abs(math.log2(a / b))
    return 1.0


def nearest(wanted: Choice, among: Iterable[Choice]) -> Choice | None:
    """The choice closest to `wanted`, the first of several; None among none."""
    return min(among, key=lambda c: distance(wanted, c), default=None)


_NUMBER = re.compile(r"(?<![\w.])\d[\w.]*(?:e-?\d+)?")
_NAME = re.compile(r"^kernel\s+\S+?\(")


def structure(spec: KernelSpec) -> str:
    """Identity of a spec without its name, sizes and constants: what specs have in common whose settings carry over."""
    text = _NUMBER.sub("#", _NAME.sub("kernel (", print_kernel(spec)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]

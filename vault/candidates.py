"""Candidates for a spec: every emitter that supports it, the settings of its knobs sampled, texts that differ first.

Two settings that change constants alone give one text with other numbers; later the vault counts them as near-
duplicates. So proposals, which cost milliseconds, are made in plenty, and those are judged first whose text without
constants and names is new. Verdicts cost a thousand times more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Emitter, Knob, Task
from kvc.vault.normalize import normalized

PROPOSALS = 48  # settings that are looked at for each emitter
#: What a fault in an emitter raises; it is reported with the spec, and costs the spec's other candidates nothing.
CRASHES = (
    KvcError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
    NotImplementedError,
)  # fmt: skip


@dataclass
class Proposals:
    """What emitters offered for one spec, in the order in which it is worth judging. `crashes`: (emitter, setting,
    message) of emitters that failed."""

    candidates: list[Candidate] = field(default_factory=list)
    crashes: list[tuple[str, str, str]] = field(default_factory=list)


def propose(task: Task, emitters: Sequence[Emitter], count: int, seed: int, *, same_text: bool = False) -> Proposals:
    """At most `count` candidates, each emitter in turn, its default setting first. Texts that differ in constants alone
    are left out unless `same_text`, and then come last."""
    found = Proposals()
    queues: list[list[Candidate]] = []
    for emitter in emitters:
        queue = _of_emitter(emitter, task, seed, found.crashes)
        if queue:
            queues.append(queue)
    fresh, alike = _in_turn(queues)
    found.candidates = (fresh + (alike if same_text else []))[:count]
    return found


def _of_emitter(emitter: Emitter, task: Task, seed: int, crashes: list[tuple[str, str, str]]) -> list[Candidate]:
    setting: Sequence[tuple[str, Knob]] = ()
    made: list[Candidate] = []
    try:
        if not emitter.supports(task).ok:
            return []
        for setting in _settings(emitter, task, seed):
            made += emitter.propose(task, tuple(setting), [], seed)
    except CRASHES as error:
        crashes.append((emitter.name, repr(dict(setting)), f"{type(error).__name__}: {error}"))
    return made


def _settings(emitter: Emitter, task: Task, seed: int) -> Iterator[tuple[tuple[str, Knob], ...]]:
    every = emitter.space(task).configurations
    if not every:
        return
    yield every[0]
    rest = list(every[1:])
    random.Random(f"{seed}/{task.spec.hash}/{emitter.name}").shuffle(rest)
    yield from rest[: PROPOSALS - 1]


def _in_turn(queues: list[list[Candidate]]) -> tuple[list[Candidate], list[Candidate]]:
    """(texts that differ, the others): one of each emitter, then the next of each."""
    seen: set[tuple[str, ...]] = set()
    texts: set[str] = set()
    fresh: list[Candidate] = []
    alike: list[Candidate] = []
    for place in range(max(map(len, queues), default=0)):
        for queue in queues:
            if place >= len(queue):
                continue
            candidate = queue[place]
            identity = (candidate.source, repr(candidate.launches))
            if identity in seen:
                continue
            seen.add(identity)
            text = normalized(candidate.source, candidate.target)
            (alike if text in texts else fresh).append(candidate)
            texts.add(text)
    return fresh, alike

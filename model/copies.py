"""Whether a kernel is a near-copy of something a rule writes for the same spec."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from kvc.emitter import Candidate, Task

#: Settings of each rule that a kernel is compared with.
SETTINGS = 6
SHINGLE = 5
#: Jaccard similarity of shingles from which two texts count as near-copies.
NEAR = 0.8


def shingles(source: str, target: str) -> frozenset[tuple[str, ...]]:
    """Runs of SHINGLE tokens of a source without comments, constants and the choice of names."""
    from kvc.vault.normalize import normalized

    words = normalized(source, target).split(" ")
    return frozenset(tuple(words[n : n + SHINGLE]) for n in range(max(len(words) - SHINGLE + 1, 1)))


def similarity(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


def _variants(task: Task, target: str) -> Iterator[Candidate]:
    """What the rules write for a task: of each rule the default and settings evenly from its list."""
    from kvc.emitter import target as find
    from kvc.model.lift import emit
    from kvc.model.prompt import Asked

    asked = Asked(task)
    for rule in find(target).emitters():
        if not rule.supports(asked.canonical_task).ok:
            continue
        settings = rule.space(asked.canonical_task).configurations
        for knobs in settings[:: max(len(settings) // SETTINGS, 1)][:SETTINGS]:
            made = emit(asked, rule, knobs)
            if made is not None:
                yield made


@lru_cache(maxsize=256)
def _known(task: Task, target: str) -> tuple[frozenset[tuple[str, ...]], ...]:
    return tuple({shingles(c.source, target) for c in _variants(task, target)})


def nearest(candidate: Candidate) -> float:
    """Similarity, 0 to 1, to the nearest variant that a rule writes for the candidate's task."""
    mine = shingles(candidate.source, candidate.target)
    return max((similarity(mine, other) for other in _known(candidate.task, candidate.target)), default=0.0)


def is_near_copy(candidate: Candidate) -> bool:
    return nearest(candidate) >= NEAR

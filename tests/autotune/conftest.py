"""A small world to tune in: a spec, an emitter whose settings have known times, and a target that knows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kvc.arch import arch
from kvc.emitter import Candidate, CodeObject, Compiled, Launch, Origin, Space, Support, Task
from kvc.text import parse_kernel


@dataclass(frozen=True)
class FakeEmitter:
    """Settings A in {1..16} x B in {1..8}; the best is A=4, B=2."""

    name: str = "fake.rule"
    version: str = "1"

    def supports(self, task: Task) -> Support:
        return Support(True)

    def space(self, task: Task) -> Space:
        return Space(tuple((("A", a), ("B", b)) for a in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8)))

    def propose(self, task: Task, knobs: Any, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        source = f"kernel with {dict(knobs)}"
        launch = Launch("k", (1, 1, 1), (64, 1, 1), ("x", "y"))
        yield Candidate(task, "fake", "rule", source, (launch,), (), tuple(knobs), Origin(self.name, self.version))


class FakeTarget:
    name = "fake"
    suffix = ".fake"

    def emitters(self) -> Sequence[FakeEmitter]:
        return (FakeEmitter(),)


def task_of(n: int = 64) -> Task:
    return Task(parse_kernel(f"kernel twice(x: f32[n={n}]) -> (y: f32[n]) {{ y[n] = x[n] + x[n] }}"), arch("gfx942"))


def compiled() -> Compiled:
    return Compiled({"k": CodeObject("asm", b"binary", ())})


@pytest.fixture
def task() -> Task:
    return task_of()

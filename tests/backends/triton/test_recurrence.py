"""Loops as Triton kernels: golden text of an LSTM, and results on the simulator against the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvc.arch import arch
from kvc.emitter import Candidate, Task
from kvc.text import parse_kernel
from kvc.verify.oracle import Examiner

from tests.backends.triton.cases import first
from tests.backends.triton.conftest import problems
from tests.loops import LOOPS


def emitted(name: str) -> Candidate:
    task = Task(parse_kernel(LOOPS[name]), arch("gfx942"))
    return next(iter(first(task).propose(task, (), (), 0)))


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("triton/lstm.py", emitted("lstm").source)


@pytest.mark.parametrize("name", LOOPS)
def test_results(name: str) -> None:
    assert problems(emitted(name), Examiner(parse_kernel(LOOPS[name])), ("normal",)) == []

"""Loops as HIP kernels: golden text, and results on the simulator against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from kvc.arch import arch
from kvc.backends.hip.recurrence import RecurrenceEmitter
from kvc.emitter import Task
from kvc.text import parse_kernel

from tests.backends.hip.running import emit, verify
from tests.loops import LOOPS

NAME = "hip.recurrence"


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("hip/lstm.hip", emit(LOOPS["lstm"], NAME, "gfx942").source)


@pytest.mark.parametrize("name", [n for n in LOOPS if n != "around"])
def test_results(name: str) -> None:
    verify(emit(LOOPS[name], NAME, "gfx942"), LOOPS[name])


@pytest.mark.parametrize("name", ["around", "gru"])
def test_results_of_the_generic_emitter(name: str) -> None:
    verify(emit(LOOPS[name], "hip.generic", "gfx942"), LOOPS[name])


@pytest.mark.parametrize(("block", "share"), [(64, 64), (128, 4), (64, 1)])
def test_settings(block: int, share: int) -> None:
    verify(emit(LOOPS["gru"], NAME, "gfx942", (("BLOCK", block), ("SHARE", share))), LOOPS["gru"])


def test_what_lds_cannot_hold_lies_in_scratch() -> None:
    """A smaller LDS in the place of a larger state, which would take long to simulate."""
    spec = parse_kernel(LOOPS["lstm"])
    small = Task(spec, replace(arch("gfx942"), lds_bytes=500))
    candidate = next(iter(RecurrenceEmitter().propose(small, (), (), 0)))
    assert [s.name for s in candidate.workspace] == ["z_ring"] and "__shared__ float h_steps" in candidate.source
    verify(candidate, LOOPS["lstm"])


def test_support() -> None:
    def reason(text: str) -> str:
        return RecurrenceEmitter().supports(Task(parse_kernel(text), arch("gfx942"))).reason

    assert reason(LOOPS["around"]) == "it reduces outside its loop"
    assert reason("kernel k(x: f32[n=3]) -> (y: f32[n]) { y[n] = x[n] }") == "it has 0 loops"
    symbolic = "kernel k<n in 1..9>(x: f32[t=4,n]) -> (h: f32[t,n]) { loop t { h[t,n] = h[t-1,n | 0.0] + x[t,n] } }"
    assert reason(symbolic) == "sizes are symbolic"

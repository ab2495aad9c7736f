"""Few long rows, shared by many programs."""

from __future__ import annotations

import pytest
from kvc.arch import arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.segments import SegmentedRowsEmitter
from kvc.emitter import Candidate, Task
from kvc.text import parse_kernel
from kvc.verify.oracle import Examiner

from tests.backends.triton.conftest import problems

SPECS = {
    "channel_mean": """kernel channel_mean(x: f32[b=3,c=2,h=200,w=171]) -> (y: bf16[c]) {
  s: f32[c] = sum(b,h,w) x[b,c,h,w]
  y[c] = s[c] / 100.0
}""",
    "norm": """kernel norm(x: bf16[m=2,k=70001]) -> (y: bf16[m,k], mean: f32[m]) {
  s: f32[m] = sum(k) x[m,k]
  mean[m] = s[m] / 70001.0
  v: f32[m] = sum(k) (x[m,k] - mean[m]) * (x[m,k] - mean[m])
  y[m,k] = (x[m,k] - mean[m]) * rsqrt(v[m] / 70001.0 + 0.00001)
}""",
    "several": """kernel several(x: f32[k=70000], w: f32[k]) -> (s: f32[], t: f32[], n: i64[]) {
  s[] = max(k) x[k]
  t[] = sum(k where x[k] > 0.5) x[k] * w[k]
  n[] = sum(k where x[k] > 0.5) 1
}""",
}


def emit(name: str, **knobs: int) -> Candidate:
    task = Task(parse_kernel(SPECS[name]), arch("gfx942"))
    emitter = next(e for e in TritonTarget().emitters() if e.supports(task).ok)
    assert isinstance(emitter, SegmentedRowsEmitter)
    return next(emitter.propose(task, tuple(knobs.items()), (), 0))


@pytest.mark.parametrize("knobs", [{}, {"SEGMENTS": 5, "COLUMNS": 4096}])
@pytest.mark.parametrize("name", SPECS)
def test_result(name: str, knobs: dict[str, int]) -> None:
    candidate = emit(name, **knobs)
    assert TritonTarget().lint(candidate.source, candidate.task.arch) == []
    assert problems(candidate, Examiner(candidate.task.spec), ("normal",)) == []


def test_a_reduction_takes_two_launches() -> None:
    assert [launch.kernel for launch in emit("channel_mean").launches] == [
        "channel_mean_parts_0",
        "channel_mean_join_0",
    ]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [("m=2,k=4096", "its rows are short"), ("m=1000,k=70000", "it has rows enough for all compute units")],
)
def test_refusals(shape: str, reason: str) -> None:
    text = f"kernel k(x: f32[{shape}]) -> (y: f32[m]) {{ y[m] = sum(k) x[m,k] }}"
    assert SegmentedRowsEmitter().supports(Task(parse_kernel(text), arch("gfx942"))).reason == reason


def test_positions_are_left_to_whole_rows() -> None:
    text = "kernel k(x: f32[m=2,k=70000]) -> (y: i64[m]) { y[m] = argmax(k) x[m,k] }"
    assert "argmax" in SegmentedRowsEmitter().supports(Task(parse_kernel(text), arch("gfx942"))).reason

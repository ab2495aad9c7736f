"""Long rows that many programs hold at once: read once, written once."""

from __future__ import annotations

import pytest
from kvc.arch import CDNA, arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.shared_rows import SharedRowsEmitter
from kvc.backends.triton.toolchain import compile_candidate
from kvc.emitter import Candidate, Task
from kvc.text import parse_kernel
from kvc.verify.oracle import Examiner

from tests.backends.triton.conftest import problems

SPECS = {
    "softmax": """kernel softmax(x: f32[m=3,k=33001]) -> (y: f32[m,k]) {
  top: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - top[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}""",
    "norm": """kernel norm(x: bf16[b=2,c=2,h=160,w=210], g: f32[c]) -> (y: bf16[b,c,h,w]) {
  s: f32[b,c] = sum(h,w) x[b,c,h,w]
  mean: f32[b,c] = s[b,c] / 33600.0
  v: f32[b,c] = sum(h,w) (x[b,c,h,w] - mean[b,c]) * (x[b,c,h,w] - mean[b,c])
  y[b,c,h,w] = (x[b,c,h,w] - mean[b,c]) * rsqrt(v[b,c] / 33600.0 + 0.00001) * g[c]
}""",
    "one_row": """kernel one_row(x: f32[k=40000]) -> (y: f32[k]) {
  s: f32[] = sum(k) x[k] * x[k]
  y[k] = x[k] * rsqrt(s[])
}""",
}


def emit(name: str, chip: str = "gfx942", **knobs: int) -> Candidate:
    task = Task(parse_kernel(SPECS[name]), arch(chip))
    emitter = next(e for e in TritonTarget().emitters() if e.supports(task).ok)
    assert isinstance(emitter, SharedRowsEmitter)
    return next(emitter.propose(task, tuple(knobs.items()), (), 0))


@pytest.mark.parametrize("name", SPECS)
def test_result(name: str) -> None:
    candidate = emit(name)
    assert TritonTarget().lint(candidate.source, candidate.task.arch) == []
    assert problems(candidate, Examiner(candidate.task.spec), ("normal", "large")) == []


def test_memory_is_read_once_and_nothing_spills() -> None:
    for chip in (*CDNA, "sm_90"):
        candidate = emit("softmax", chip)
        assert candidate.source.count("tl.load(x_ptr") == 1
        assert [launch.kernel for launch in candidate.launches] == ["softmax_clear", "softmax"]
    compiled = compile_candidate(emit("softmax"))
    assert compiled.resources["softmax"].spills == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kernel k(x: f32[m=3,k=4096]) -> (y: f32[m,k]) { s: f32[m] = sum(k) x[m,k]\n y[m,k] = x[m,k] / s[m] }",
         "by itself"),
        ("kernel k(x: f32[m=3,k=70000]) -> (y: f32[m]) { y[m] = sum(k) x[m,k] }", "not along"),
        ("kernel k(x: f32[k=9000000]) -> (y: f32[k]) { s: f32[] = sum(k) x[k]\n y[k] = x[k] / s[] }", "segments"),
    ],
)  # fmt: skip
def test_refusals(text: str, reason: str) -> None:
    assert reason in SharedRowsEmitter().supports(Task(parse_kernel(text), arch("gfx942"))).reason

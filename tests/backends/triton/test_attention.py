"""Attention as one kernel: masks, shared heads, odd sizes, rows that see nothing."""

from __future__ import annotations

import pytest
import torch
from kvc.arch import CDNA, arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.attention import AttentionEmitter
from kvc.backends.triton.toolchain import compile_candidate
from kvc.emitter import Candidate, Task
from kvc.interpret import interpret
from kvc.text import parse_kernel
from kvc.verify.oracle import Examiner

from tests.backends.triton.conftest import problems, simulate


def attention(score: str, shape: str = "", extra: str = "", guard: bool = False, kv: str = "h") -> str:
    shape = shape or "b=1,h=2,m=37,d=16"
    keys = "n=90" if kv == "h" else "n=70"
    head = "h" if kv == "h" else "g=1"
    again = "h" if kv == "h" else "g"
    top = "where(top[b,h,m] == -inf, 0.0, top[b,h,m])" if guard else "top[b,h,m]"
    result = "where(l[b,h,m] == 0.0, 0.0, w[b,h,m,e] / l[b,h,m])" if guard else "w[b,h,m,e] / l[b,h,m]"
    return f"""kernel attend(q: bf16[{shape}], k: bf16[b,{head},{keys},d], v: bf16[b,{again},n,e=24]{extra})
    -> (o: bf16[b,h,m,e]) {{
  s: f32[b,h,m,n] = sum(d) q[b,h,m,d] * k[b,{kv},n,d]
  u: f32[b,h,m,n] = {score}
  top: f32[b,h,m] = max(n) u[b,h,m,n]
  c: f32[b,h,m,n] = exp(u[b,h,m,n] - {top})
  l: f32[b,h,m] = sum(n) c[b,h,m,n]
  p: bf16[b,h,m,n] = c[b,h,m,n]
  w: f32[b,h,m,e] = sum(n) p[b,h,m,n] * v[b,{kv},n,e]
  o[b,h,m,e] = {result}
}}"""


SCALED = "s[b,h,m,n] * 0.25"
SPECS = {
    "plain": attention(SCALED),
    "causal": attention(f"where(n <= m, {SCALED}, -inf)", "b=1,h=2,m=70,d=40"),
    "causal_offset": attention(f"where(m >= n - 20, {SCALED}, -inf)"),
    "shared_heads": attention(f"where(n <= m, {SCALED}, -inf)", "b=1,h=2,m=70,d=16", kv="h // 2"),
    "bias": attention(f"{SCALED} + t[h,m,n]", extra=", t: f32[h,m,n]", guard=True),
    "bool_mask": attention(f"where(t[m,n], {SCALED}, -inf)", extra=", t: bool[m,n]", guard=True),
    "window": attention(f"where(n <= m && n > m - 30, {SCALED}, -inf)"),
    "softmax_first": """kernel attend(q: f16[m=40,d=16], k: f16[n=50,d], v: f16[n,e=16]) -> (o: f16[m,e]) {
  s: f32[m,n] = sum(d) q[m,d] * k[n,d]
  a: f16[m,n] = s[m,n]
  u: f16[m,n] = a[m,n] * 0.25
  top: f32[m] = max(n) u[m,n]
  c: f32[m,n] = exp(u[m,n] - top[m])
  l: f32[m] = sum(n) c[m,n]
  p: f16[m,n] = c[m,n] / l[m]
  w: f32[m,e] = sum(n) p[m,n] * v[n,e]
  o[m,e] = w[m,e]
}""",
}


def emit(name: str, chip: str = "gfx942", **knobs: int) -> Candidate:
    task = Task(parse_kernel(SPECS[name]), arch(chip))
    emitter = next(e for e in TritonTarget().emitters() if e.supports(task).ok)
    assert isinstance(emitter, AttentionEmitter)
    return next(emitter.propose(task, tuple(knobs.items()), (), 0))


@pytest.mark.parametrize("name", SPECS)
def test_result(name: str) -> None:
    candidate = emit(name, BLOCK_M=32, BLOCK_N=32, num_warps=1)
    assert TritonTarget().lint(candidate.source, candidate.task.arch) == []
    assert problems(candidate, Examiner(candidate.task.spec), ("normal",)) == []


@pytest.mark.long
@pytest.mark.parametrize("chip", CDNA)
@pytest.mark.parametrize("name", SPECS)
def test_every_input_set(name: str, chip: str) -> None:
    examiner = Examiner(parse_kernel(SPECS[name]))
    assert problems(emit(name, chip), examiner, tuple(examiner.input_sets)) == []


@pytest.mark.parametrize("name", ["plain", "causal"])
def test_default_setting(name: str) -> None:
    candidate = emit(name)
    assert problems(candidate, Examiner(candidate.task.spec), ("normal", "large")) == []


def test_rows_that_see_nothing_are_zero() -> None:
    candidate = emit("bool_mask", BLOCK_M=32, BLOCK_N=32, num_warps=1)
    generator = torch.Generator().manual_seed(1)
    inputs = {
        o.name: torch.randn(candidate.task.spec.shape_of(o.name), generator=generator).to(torch.bfloat16)
        for o in candidate.task.spec.inputs
        if o.name != "t"
    }
    inputs["t"] = torch.rand(37, 90, generator=generator) < 0.3
    inputs["t"][3], inputs["t"][20, :64] = False, False
    got = simulate(candidate, inputs)["o"].float()
    want = interpret(candidate.task.spec, inputs)["o"]
    assert torch.equal(got[:, :, 3], torch.zeros(1, 2, 24))
    assert torch.allclose(got.double(), want, atol=2e-2)


def test_blocks_that_a_causal_mask_hides_are_not_visited() -> None:
    source = emit("causal").source
    assert "for start in range(0, full, BLOCK_N):" in source
    assert "range(full, end, BLOCK_N)" in source
    assert "tl.minimum" not in emit("bool_mask").source


@pytest.mark.parametrize("name", SPECS)
def test_compiles_for_nvidia(name: str) -> None:
    assert ".target sm_90" in compile_candidate(emit(name, "sm_90")).objects["attend"].asm


def test_fp32_attention_is_left_to_contractions() -> None:
    task = Task(parse_kernel(SPECS["plain"].replace("bf16", "f32")), arch("gfx942"))
    assert "f16" in AttentionEmitter().supports(task).reason

"""Attention as one HIP kernel: masks, shared heads, odd sizes, rows that see nothing, every chip."""

from __future__ import annotations

import pytest
import torch
from kvc.arch import CDNA, arch
from kvc.backends.hip import HipTarget
from kvc.emitter import Task
from kvc.interpret import interpret

from tests.backends.hip.running import emit, run, spec_of, verify
from tests.backends.triton.test_attention import SCALED, SPECS, attention

NAME = "hip.attention"
WHOLE = (
    attention(f"where(n <= m, {SCALED}, -inf)", "b=2,h=2,m=128,d=64").replace("n=90", "n=128").replace("e=24", "e=64")
)


@pytest.mark.parametrize("name", SPECS)
def test_result(name: str) -> None:
    verify(emit(SPECS[name], NAME, "gfx942"), SPECS[name])


@pytest.mark.parametrize("gfx", CDNA)
def test_whole_tiles_on_every_chip(gfx: str) -> None:
    candidate = emit(WHOLE, NAME, gfx)
    assert candidate.source.count("__builtin_amdgcn_mfma") == 2
    verify(candidate, WHOLE)


@pytest.mark.parametrize("knobs", [(("WAVES", 1), ("BLOCK_N", 32)), (("WAVES", 2), ("BLOCK_N", 64))])
def test_settings(knobs: tuple[tuple[str, int], ...]) -> None:
    verify(emit(SPECS["causal"], NAME, "gfx942", knobs), SPECS["causal"], "large")


def test_rows_that_see_nothing_are_zero() -> None:
    spec = spec_of(SPECS["bool_mask"])
    generator = torch.Generator().manual_seed(1)
    inputs = {
        o.name: torch.randn(spec.shape_of(o.name), generator=generator).to(torch.bfloat16)
        for o in spec.inputs
        if o.name != "t"
    }
    inputs["t"] = torch.rand(37, 90, generator=generator) < 0.3
    inputs["t"][3], inputs["t"][20, :64] = False, False
    got = run(emit(SPECS["bool_mask"], NAME, "gfx942"), inputs)["o"].float()
    assert torch.equal(got[:, :, 3], torch.zeros(1, 2, 24))
    assert torch.allclose(got.double(), interpret(spec, inputs)["o"], atol=2e-2)


def test_who_writes_it() -> None:
    def first(text: str) -> str:
        task = Task(spec_of(text), arch("gfx942"))
        return next(e.name for e in HipTarget().emitters() if e.supports(task).ok)

    assert first(SPECS["plain"]) == NAME
    assert first(SPECS["plain"].replace("bf16", "f32")) == "hip.generic"

"""Contractions over packed operands: results, and when copies are worth their launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvc.arch import CDNA, ArchSpec, arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.packed import PackedContractionEmitter
from kvc.emitter import Candidate, Task
from kvc.kernel import Load
from kvc.packing import lies_wide
from kvc.patterns import Contraction, match_contraction
from kvc.text import parse_kernel
from kvc.verify.oracle import Examiner

from tests.backends.hip.test_packed import SPECS
from tests.backends.triton.conftest import problems


def slow_loads(name: str) -> ArchSpec:
    """A chip like the named one on which even small operands are worth a launch."""
    return replace(arch(name), clock_ghz=1e-4)


def emit(name: str, chip: str = "gfx942") -> Candidate:
    task = Task(parse_kernel(SPECS[name]), slow_loads(chip))
    emitter = PackedContractionEmitter()
    assert emitter.supports(task).ok, emitter.supports(task).reason
    return next(emitter.propose(task, (), (), 0))


@pytest.mark.parametrize("name", ["conv", "odd", "grouped", "conv_f32"])
def test_result(name: str) -> None:
    candidate = emit(name)
    assert TritonTarget().lint(candidate.source, candidate.task.arch) == []
    assert problems(candidate, Examiner(candidate.task.spec), ("normal",)) == []


def test_the_main_loop_has_no_guards() -> None:
    source = emit("conv").source
    main = source[source.index("def conv(") :]
    loop = main[main.index("for start") : main.index("tl.store")]
    assert ">= 0" not in loop and "x_packed" in loop and "f_packed" in loop


@pytest.mark.parametrize("chip", [*CDNA, "sm_90"])
def test_copies_must_save_more_than_they_cost(chip: str) -> None:
    small = Task(parse_kernel(SPECS["conv"]), arch(chip))
    assert "cost more" in PackedContractionEmitter().supports(small).reason
    text = """kernel conv(x: f16[b=32,c=128,h=64,w=64], f: f16[o=256,c,r=3,s=3]) -> (y: f16[b,o,i=64,j=64]) {
  t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
  y[b,o,i,j] = t[b,o,i,j]
}"""
    assert PackedContractionEmitter().supports(Task(parse_kernel(text), arch(chip))).ok


@pytest.mark.parametrize(
    ("operand", "read", "wide"),
    [
        ("x: f16[m=64,k=96]", "x[m,k]", True),
        ("x: f16[k=96,m=64]", "x[k,m]", True),
        ("x: f16[m=64,k=96] strides(97,1)", "x[m,k]", False),
        ("x: f16[m=64,j=97]", "x[m,k+1]", False),
    ],
)
def test_what_moves_in_packs(operand: str, read: str, wide: bool) -> None:
    sizes = "" if "k=96" in operand else "=96"
    text = f"kernel k({operand}, w: f16[n=32,k{sizes}]) -> (y: f16[m,n]) {{ y[m,n] = sum(k) {read} * w[n,k] }}"
    spec = parse_kernel(text)
    pattern = match_contraction(spec)
    assert isinstance(pattern, Contraction)
    load = next(e for e in (pattern.a, pattern.b) if isinstance(e, Load) and e.tensor == "x")
    assert lies_wide(spec, load, (pattern.k, ("m",)), 8) == wide

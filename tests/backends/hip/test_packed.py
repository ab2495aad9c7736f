"""Contractions over packed operands: the rewritten specs mean the same, the code reads 16 bytes at a time, products of
fp32 by bf16 terms are as accurate as plain ones, and special values come out as the notation says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kvc.arch import CDNA, ArchSpec, arch
from kvc.backends.hip.contraction import ContractionEmitter
from kvc.backends.hip.packed import PackedContractionEmitter, ways
from kvc.check import check_kernel
from kvc.emitter import Candidate, Task
from kvc.interpret import interpret
from kvc.packing import Packing, pack
from kvc.patterns import Contraction, match_contraction
from kvc.text import parse_kernel
from kvc.verify.inputs import draw

from tests.backends.hip.running import TARGET, run, spec_of, verify

SPECS = {
    "conv": """kernel conv(x: f16[b=2,c=16,h=11,w=9], f: f16[o=32,c,r=3,s=3], g: f16[o]) -> (y: f16[b,o,i=6,j=9]) {
  t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i*2+r-1,j+s*2-2 | 0.0] * f[o,c,r,s]
  y[b,o,i,j] = relu(t[b,o,i,j] + g[o])
}""",
    "odd": """kernel odd(x: bf16[m=70,k=101], y: bf16[k,n=66]) -> (z: bf16[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * y[k,n]
  z[m,n] = t[m,n]
}""",
    "grouped": """kernel grouped(x: f16[b=1,g=2,c=24,h=7,w=7], f: f16[g,o=20,c,r=3,s=3]) -> (y: f16[b,g,o,i=5,j=5]) {
  y[b,g,o,i,j] = sum(c,r,s) x[b,g,c,i+r,j+s] * f[g,o,c,r,s]
}""",
    "matmul": """kernel matmul(x: f32[m=70,k=100], y: f32[k,n=90], b: f32[n]) -> (z: f32[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * y[k,n]
  z[m,n] = relu(t[m,n] + b[n])
}""",
    "square": """kernel square(x: f32[m=64,k=64]) -> (z: f32[m,n=64]) {
  z[m,n] = sum(k) x[m,k] * x[n,k]
}""",
    "mixed": """kernel mixed(x: bf16[m=65,k=70], y: f32[n=66,k]) -> (z: f32[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[n,k]
}""",
    "conv_f32": """kernel conv_f32(x: f32[b=1,c=32,h=9,w=8], f: f32[o=64,c,r=3,s=3], g: f32[o])
    -> (y: f32[b,o,i=9,j=8]) {
  t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
  y[b,o,i,j] = t[b,o,i,j] * g[o]
}""",
}  # fmt: skip
SPLIT = ("matmul", "square", "mixed", "conv_f32")


def eager(name: str) -> ArchSpec:
    """A chip like the named one on which even small operands are worth a launch: slow fp32, slow single loads."""
    row = arch(name)
    peaks = tuple((k, 1e-4 if k.startswith("f32") else v) for k, v in row.peak_tflops)
    return replace(row, peak_tflops=peaks, clock_ghz=1e-4)


def emit(name: str, gfx: str = "gfx942") -> Candidate:
    task = Task(spec_of(SPECS[name]), eager(gfx))
    made = PackedContractionEmitter()
    setting = made.space(task).default
    assert setting, made.supports(task).reason
    return next(made.propose(task, setting, (), 0))


def packing_of(name: str, sides: str, split: bool) -> Packing:
    spec = parse_kernel(SPECS[name])
    pattern = match_contraction(spec)
    assert isinstance(pattern, Contraction)
    found = pack(spec, pattern, sides, split, 8)
    assert isinstance(found, Packing), found
    return found


@pytest.mark.parametrize("name", SPECS)
def test_a_packed_spec_means_the_same(name: str) -> None:
    packing = packing_of(name, "ab", False)
    check_kernel(packing.spec)
    spec = parse_kernel(SPECS[name])
    inputs = draw(spec, "normal", 0)
    out = spec.outputs[0].name
    given, packed = (interpret(s, inputs)[out] for s in (spec, packing.spec))
    torch.testing.assert_close(packed, given)
    assert all(packing.spec.extent(p.axes[-1]) % 8 == 0 for p in packing.ahead)


def test_terms_add_up_to_the_number() -> None:
    packing = packing_of("matmul", "ab", True)
    inputs = draw(packing.spec, "normal", 0)
    x = inputs["x"].float()
    rest = x
    for _ in packing.ahead[0].targets:
        rest = rest - rest.bfloat16().float()
    assert len(packing.ahead[0].targets) == 3 and bool((rest.abs() <= x.abs() * 2.0**-23).all())


@pytest.mark.parametrize("name", SPECS)
def test_result(name: str) -> None:
    candidate = emit(name)
    assert (dict(candidate.knobs)["TERMS"] > 1) == (name in SPLIT)  # type: ignore[operator]
    verify(candidate, SPECS[name])


@pytest.mark.parametrize("gfx", CDNA)
def test_every_chip_compiles_it_without_spills(gfx: str) -> None:
    for name in ("conv", "conv_f32"):
        candidate = emit(name, gfx)
        compiled = TARGET.compile(candidate)
        main = compiled.resources[candidate.task.spec.name]
        assert main.spills == 0 and main.matrix_instructions
        loads = [line for line in candidate.source.splitlines() if "reinterpret_cast<const Pack<" in line]
        assert len(loads) >= 2


def test_special_values_come_out_as_plain_products_give_them() -> None:
    candidate = emit("square")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 64, generator=generator)
    x[1, 5], x[2, 7], x[3, 9] = float("inf"), float("nan"), -float("inf")
    x[4] = 0.0
    x[4, 0], x[5, 0] = 3.4e38, 0.5  # rounds to infinity in bf16
    got = run(candidate, {"x": x})["z"]
    want = interpret(candidate.task.spec, {"x": x}, mode="working")["z"]
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf()) and torch.equal(got.isneginf(), want.isneginf())
    assert got[4, 5] == want[4, 5] == x[4, 0] * 0.5


def test_no_more_error_than_fp32_sums() -> None:
    """Long sums of one sign, where an accumulator that truncates drifts."""
    text = "kernel sums(x: f32[m=64,k=1024], y: f32[n=64,k]) -> (z: f32[m,n]) { z[m,n] = sum(k) x[m,k] * y[n,k] }"
    task = Task(spec_of(text), eager("gfx942"))
    made = PackedContractionEmitter()
    candidate = next(made.propose(task, made.space(task).default, (), 0))
    generator = torch.Generator().manual_seed(0)
    inputs = {n: torch.rand(64, 1024, generator=generator) for n in ("x", "y")}
    got = run(candidate, inputs)["z"].double()
    exact = inputs["x"].double() @ inputs["y"].double().T
    eager_error = ((inputs["x"] @ inputs["y"].T).double() - exact).abs().max()
    assert (got - exact).abs().max() <= 2 * eager_error


def test_the_choice_goes_by_what_it_costs() -> None:
    small = Task(parse_kernel(SPECS["matmul"]), arch("gfx942"))
    assert not PackedContractionEmitter().supports(small).ok and ContractionEmitter().supports(small).ok
    text = "kernel big(x: f32[m=4096,k=4096], y: f32[k,n=4096]) -> (z: f32[m,n]) { z[m,n] = sum(k) x[m,k] * y[k,n] }"
    chosen = {gfx: [w.split for w in ways(Task(parse_kernel(text), arch(gfx)))] for gfx in CDNA}
    assert chosen == {"gfx90a": [], "gfx942": [True], "gfx950": [True]}
    fast = Task(parse_kernel(text), arch("gfx942"), "fast")
    assert not any(w.split for w in ways(fast))


@pytest.mark.parametrize("name", ["conv", "matmul"])
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"hip/packed_{name}.hip", emit(name).source)


# ---------------------------------------------------------------- two tiles in LDS, and loads straight into it

PLAIN = """kernel plain(x: bf16[m=100,k=256], w: bf16[n=96,k], b: bf16[n]) -> (z: bf16[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * w[n,k]
  z[m,n] = relu(t[m,n] + b[n])
}"""


def staged(gfx: str, stages: int, direct: int, split_k: int = 1) -> Candidate | None:
    task = Task(spec_of(PLAIN), arch(gfx))
    wanted = {"STAGES": stages, "DIRECT": direct, "SPLIT_K": split_k}
    found = (k for k in ContractionEmitter().space(task).configurations if wanted.items() <= dict(k).items())
    setting = next(found, None)
    return next(ContractionEmitter().propose(task, setting, (), 0)) if setting is not None else None


@pytest.mark.parametrize(("gfx", "direct"), [("gfx942", 0), ("gfx950", 0), ("gfx950", 1)])
def test_two_tiles_in_lds_give_the_same_result(gfx: str, direct: int) -> None:
    candidate = staged(gfx, 2, direct)
    assert candidate is not None
    verify(candidate, PLAIN)
    source = candidate.source
    assert ("load_to_lds(" in source) == bool(direct) and "a_tile_1" in source
    text = TARGET.compile(candidate).objects["plain"].asm
    assert ("global_load_lds_dwordx4" in text) == bool(direct)


def test_direct_loads_where_the_chip_has_them_wide() -> None:
    assert staged("gfx942", 2, 1) is None and staged("gfx90a", 2, 1) is None

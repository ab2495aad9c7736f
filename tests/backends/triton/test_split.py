"""fp32 products by three bf16 terms: as accurate as plain ones, and the same on special values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kvc.arch import arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.split import SplitContractionEmitter
from kvc.backends.triton.toolchain import compile_candidate
from kvc.emitter import Candidate, Task
from kvc.interpret import interpret
from kvc.packing import products
from kvc.text import parse_kernel
from kvc.verify.oracle import Examiner

from tests.backends.triton.conftest import problems, simulate

SPECS = {
    "matmul": """kernel matmul(x: f32[m=70,k=100], y: f32[k,n=90], b: f32[n]) -> (z: f32[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * y[k,n]
  z[m,n] = relu(t[m,n] + b[n])
}""",
    "square": """kernel square(x: f32[m=64,k=64]) -> (z: f32[m,n=64]) {
  z[m,n] = sum(k) x[m,k] * x[n,k]
}""",
    "batched": """kernel batched(x: f32[b=2,m=65,k=64], y: f32[b,n=66,k]) -> (z: f32[b,m,n]) {
  z[b,m,n] = sum(k) exp(x[b,m,k]) * y[b,n,k]
}""",
    "mixed": """kernel mixed(x: bf16[m=65,k=70], y: f32[n=66,k]) -> (z: f32[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[n,k]
}""",
    "half": """kernel half(x: f32[m=65,k=70], y: f16[n=66,k]) -> (z: f32[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[n,k]
}""",
    "convolution": """kernel convolution(x: f32[b=1,c=32,h=9,w=8], f: f32[o=64,c,r=3,s=3], g: f32[o])
    -> (y: f32[b,o,i=9,j=8]) {
  t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
  y[b,o,i,j] = t[b,o,i,j] * g[o]
}""",
}


def slow_fp32(name: str) -> Task:
    """A chip like the named one whose plain fp32 products are so slow that even small problems are worth a split."""
    row = arch(name)
    peaks = tuple((k, 0.01 if k == "f32" else v) for k, v in row.peak_tflops)
    return Task(parse_kernel(SPECS["matmul"]), replace(row, peak_tflops=peaks))


def emit(name: str, chip: str = "gfx942", **knobs: int | str) -> Candidate:
    task = replace(slow_fp32(chip), spec=parse_kernel(SPECS[name]))
    return next(SplitContractionEmitter().propose(task, tuple(knobs.items()), (), 0))


@pytest.mark.parametrize("split", ["ahead", "registers"])
@pytest.mark.parametrize("name", SPECS)
def test_result(name: str, split: str) -> None:
    candidate = emit(name, SPLIT=split)
    assert TritonTarget().lint(candidate.source, candidate.task.arch) == []
    assert problems(candidate, Examiner(candidate.task.spec), ("normal",)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_every_input_set(name: str) -> None:
    examiner = Examiner(parse_kernel(SPECS[name]))
    assert problems(emit(name, SPLIT="ahead"), examiner, tuple(examiner.input_sets)) == []


def test_special_values_come_out_as_plain_products_give_them() -> None:
    candidate = emit("square", SPLIT="ahead")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 64, generator=generator)
    x[1, 5], x[2, 7], x[3, 9] = float("inf"), float("nan"), -float("inf")
    x[4] = 0.0
    x[4, 0], x[5, 0] = 3.4e38, 0.5  # rounds to infinity in bf16
    got = simulate(candidate, {"x": x})["z"]
    want = interpret(candidate.task.spec, {"x": x}, mode="working")["z"]
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())
    assert torch.equal(got.isneginf(), want.isneginf())
    assert got[4, 5] == want[4, 5] == x[4, 0] * 0.5


def test_no_more_error_than_fp32_sums() -> None:
    """Long sums of one sign, where an accumulator that truncates drifts."""
    text = "kernel k(x: f32[m=64,k=1024], y: f32[k,n=64]) -> (z: f32[m,n]) { z[m,n] = sum(k) x[m,k] * y[k,n] }"
    task = replace(slow_fp32("gfx942"), spec=parse_kernel(text))
    candidate = next(SplitContractionEmitter().propose(task, (), (), 0))
    generator = torch.Generator().manual_seed(5)
    inputs = {"x": torch.rand(64, 1024, generator=generator), "y": torch.rand(1024, 64, generator=generator)}
    exact = inputs["x"].double() @ inputs["y"].double()
    got = simulate(candidate, inputs)["z"].double()
    assert float((got - exact).norm() / exact.norm()) < 2e-7


def test_a_convolution_gets_its_channels_last() -> None:
    candidate = emit("convolution", SPLIT="ahead")
    launches = [launch.kernel for launch in candidate.launches]
    assert launches == ["convolution_split_f", "convolution_split_x", "convolution"]
    assert "convolution_split_x" in candidate.source and "row * 32 + column" in candidate.source


def test_products_are_added_smallest_first() -> None:
    assert products(3, 3) == [(2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)]
    assert products(1, 3) == [(0, 2), (0, 1), (0, 0)]
    assert products(1, 1) == [(0, 0)]


@pytest.mark.parametrize("name", SPECS)
def test_compiles_for_nvidia(name: str) -> None:
    assert ".target sm_90" in compile_candidate(emit(name, "sm_90")).objects[name].asm


def matmul(size: int, chip: str, numerics: str = "strict", kind: str = "f32") -> Task:
    text = f"""kernel k(x: {kind}[m={size},k={size}], y: {kind}[k,n={size}]) -> (z: f32[m,n]) {{
  z[m,n] = sum(k) x[m,k] * y[k,n]
}}"""
    return Task(parse_kernel(text), arch(chip), numerics)


@pytest.mark.parametrize(
    ("task", "chosen"),
    [
        (matmul(4096, "gfx942"), True),
        (matmul(4096, "gfx950"), True),
        (matmul(4096, "sm_90"), True),
        (matmul(4096, "gfx90a"), False),  # bf16 is no more than four times as fast as fp32
        (matmul(4096, "gfx950", "fast"), False),
        (matmul(4096, "gfx950", kind="bf16"), False),
        (matmul(32, "gfx950"), False),
    ],
)
def test_choice(task: Task, chosen: bool) -> None:
    assert SplitContractionEmitter().supports(task).ok is chosen
    first = next(e for e in TritonTarget().emitters() if e.supports(task).ok)
    assert (first.name == "triton.contraction_split") is chosen


def test_every_setting_fits_the_chip() -> None:
    task = matmul(4096, "gfx942")
    space = SplitContractionEmitter().space(task)
    assert len(set(space.configurations)) == len(space.configurations)
    for setting in space.configurations:
        chosen = dict(setting)
        assert int(chosen["num_warps"]) * task.arch.wave_size <= task.arch.max_threads

"""Emitted kernels, compiled for real chips and run on the simulator, against the float64 oracle."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from kvc.arch import CDNA, arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.generic import GenericEmitter
from kvc.backends.triton.toolchain import compile_candidate
from kvc.emitter import Candidate, Task
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.text import parse_kernel
from kvc.verify.inputs import draw
from kvc.verify.oracle import Examiner

from tests.backends.triton.cases import SCHEDULE, SPECS, first, spec
from tests.backends.triton.conftest import problems, simulate

CHIP = "gfx942"


def emit(name: str, chip: str = CHIP, **knobs: int) -> Candidate:
    task = Task(spec(name), arch(chip))
    return next(first(task).propose(task, tuple(knobs.items()), (), 0))


@pytest.mark.parametrize("name", SPECS)
def test_preferred_schedule(name: str) -> None:
    assert emit(name).schedule == SCHEDULE[name]


@pytest.mark.parametrize("name", SPECS)
def test_result(name: str) -> None:
    assert problems(emit(name), Examiner(spec(name)), ("normal",)) == []


@pytest.mark.parametrize("name", ["gelu_add", "avg_pool", "layer_norm", "total", "arg_extrema", "linear_gelu"])
def test_generic_result(name: str) -> None:
    task = Task(spec(name), arch(CHIP))
    candidate = next(GenericEmitter().propose(task, (), (), 0))
    assert problems(candidate, Examiner(spec(name)), ("normal",)) == []


@pytest.mark.long
@pytest.mark.parametrize("chip", CDNA)
@pytest.mark.parametrize("name", SPECS)
def test_every_input_set_on_every_chip(name: str, chip: str) -> None:
    examiner = Examiner(spec(name))
    sets = tuple(s for s in examiner.input_sets if s != "special" or name != "casts")
    assert problems(emit(name, chip), examiner, sets) == []


@pytest.mark.parametrize("name", SPECS)
def test_compiles_for_nvidia(name: str) -> None:
    compiled = compile_candidate(emit(name, "sm_90"))
    assert all(".target sm_90" in o.asm for o in compiled.objects.values())


SETTINGS = [
    ("softmax", {"ROWS": 1, "COLUMNS": 64, "num_warps": 1}),  # passes over the row
    ("softmax", {"ROWS": 4, "COLUMNS": 128, "num_warps": 2}),
    ("softmax", {"ROWS": 4, "COLUMNS": 512, "num_warps": 4}),
    ("layer_norm", {"ROWS": 2, "COLUMNS": 64, "num_warps": 1}),
    ("layer_norm", {"ROWS": 8, "COLUMNS": 128, "num_warps": 2}),
    ("arg_extrema", {"ROWS": 2, "COLUMNS": 16, "num_warps": 1}),
    ("any_all", {"ROWS": 2, "COLUMNS": 16, "num_warps": 1}),
    ("total", {"ROWS": 1, "COLUMNS": 64, "num_warps": 1}),
    ("linear_gelu", {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 2}),
    ("linear_gelu", {"BLOCK_M": 64, "BLOCK_N": 16, "BLOCK_K": 128, "num_warps": 1, "matrix_instr_nonkdim": 16}),
    ("conv_bn_relu", {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 2, "num_warps": 1}),
    ("matmul_f32", {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "matrix_instr_nonkdim": 32}),
    ("gelu_add", {"BLOCK": 1024, "num_warps": 4}),
    ("scans", {"COLUMNS": 256, "num_warps": 2}),
]


@pytest.mark.parametrize(("name", "knobs"), SETTINGS)
def test_result_under_other_knobs(name: str, knobs: dict[str, int]) -> None:
    assert problems(emit(name, **knobs), Examiner(spec(name)), ("normal",)) == []


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("chip", ["gfx90a", "sm_90"])
def test_space_fits_the_chip(name: str, chip: str) -> None:
    row = arch(chip)
    task = Task(spec(name), row)
    space = first(task).space(task)
    assert space.default == space.configurations[0]
    assert len(set(space.configurations)) == len(space.configurations)
    for setting in space.configurations:
        assert int(dict(setting)["num_warps"]) * row.wave_size <= row.max_threads


def without_constants(source: str) -> str:
    """The source without its header and the values of its knob constants."""
    body = "\n".join(line for line in source.splitlines() if not line.startswith("#"))
    return re.sub(r"constexpr\(\d+\)", "constexpr(?)", body)


def test_knobs_of_one_structure_change_only_constants() -> None:
    a = emit("linear_gelu", BLOCK_M=16, BLOCK_N=32, BLOCK_K=32)
    b = emit("linear_gelu", BLOCK_M=32, BLOCK_N=64, BLOCK_K=16)
    assert a.source != b.source
    # 72 is a multiple of neither 32 nor 16, so both carry the same masks.
    assert without_constants(a.source) == without_constants(b.source)


def test_a_block_that_divides_needs_no_mask_and_says_so() -> None:
    text = "kernel k(x: f32[m=64,k=64]) -> (y: f32[m,k]) {\n  y[m,k] = x[m,k] + 1.0\n}"
    task = Task(parse_kernel(text), arch(CHIP))
    candidate = next(first(task).propose(task, (("BLOCK", 256),), (), 0))
    assert "mask" not in candidate.source
    assert "tl.static_assert(4096 // BLOCK * BLOCK == 4096)" in candidate.source
    broken = replace(candidate, source=candidate.source.replace("constexpr(256)", "constexpr(8192)"))
    with pytest.raises(Exception, match="KVC0502"):
        compile_candidate(broken)


def test_emission_is_deterministic() -> None:
    for name in SPECS:
        assert emit(name).source == emit(name).source


def test_launches_fit_what_the_source_says() -> None:
    target = TritonTarget()
    for name in SPECS:
        candidate = emit(name)
        assert target.lint(candidate.source, arch(CHIP)) == []
        for launch in candidate.launches:
            assert f"def {launch.kernel}(" in candidate.source
            assert launch.block[0] == int(dict(launch.options)["num_warps"]) * arch(CHIP).wave_size
        assert all(len(line) <= 120 for line in candidate.source.splitlines() if not line.startswith("#"))


def test_names_of_functions_are_left_to_helpers() -> None:
    text = "kernel gelu(x: f32[n=70]) -> (y: f32[n]) {\n  y[n] = gelu(x[n]) + maximum(x[n], 0.0)\n}"
    task = Task(parse_kernel(text), arch(CHIP))
    candidate = next(first(task).propose(task, (), (), 0))
    assert candidate.launches[0].kernel == "gelu_kernel"
    assert problems(candidate, Examiner(task.spec), ("normal",)) == []


def test_empty_tensors_are_left_alone() -> None:
    text = "kernel k(x: f32[m=0,n=5]) -> (y: f32[m,n], s: f32[n]) {\n  y[m,n] = x[m,n] + 1.0\n  s[n] = sum(m) x[m,n]\n}"
    task = Task(parse_kernel(text), arch(CHIP))
    got = simulate(next(first(task).propose(task, (), (), 0)), {"x": torch.zeros(0, 5)})
    assert got["y"].shape == (0, 5)
    assert torch.equal(got["s"], torch.zeros(5))


def test_long_names_give_wrapped_calls() -> None:
    x, y = "activation_of_the_third_block_of_the_encoder", "output_projection_of_the_third_block_of_the_encoder"
    text = f"kernel k({x}: bf16[m=37,k=50]) -> ({y}: bf16[m,k]) {{ {y}[m,k] = exp({x}[m,k]) }}"
    task = Task(parse_kernel(text), arch(CHIP))
    candidate = next(first(task).propose(task, (), (), 0))
    assert all(len(line) <= 120 for line in candidate.source.splitlines() if not line.startswith("#"))
    compile_candidate(candidate)


def test_names_longer_than_a_line_together_are_joined_as_they_are() -> None:
    a, b = "running_mean_" + "of_the_block_" * 5 + "a", "running_mean_" + "of_the_block_" * 5 + "b"
    text = f"kernel k({a}: f32[n=50], {b}: f32[n]) -> (y: f32[n]) {{ y[n] = maximum({a}[n], {b}[n]) * {a}[n] }}"
    task = Task(parse_kernel(text), arch(CHIP))
    candidate = next(first(task).propose(task, (), (), 0))
    assert problems(candidate, Examiner(task.spec), ("normal",)) == []


SYMBOLIC = """kernel symbolic<m in 1..100000 hint {m}, k in 1..5000 hint {k}>(x: f32[m,k], w: f32[k])
    -> (y: f32[m,k], z: f32[m], c: f32[m,k], i: i64[m]) {{
  s: f32[m] = sum(k) x[m,k] * w[k]
  y[m,k] = x[m,k] * s[m] + #k
  z[m] = s[m]
  c[m,k] = scan sum(k) x[m,k]
  i[m] = argmax(k) x[m,k]
}}"""


@pytest.mark.parametrize("size", [(13, 29), (1, 1), (70, 3), (3, 130)])
def test_symbolic_sizes_take_any_extent(size: tuple[int, int]) -> None:
    """One source, emitted for a hint of 13 x 29, launched as it is on other extents."""
    emitted = next(GenericEmitter().propose(Task(parse_kernel(SYMBOLIC.format(m=13, k=29)), arch(CHIP)), (), (), 0))
    actual: KernelSpec = parse_kernel(SYMBOLIC.format(m=size[0], k=size[1]))
    assert not emitted.workspace  # of what size?
    candidate = replace(emitted, task=Task(actual, arch(CHIP)))
    inputs = draw(actual, "normal", 0)
    got, want = simulate(candidate, inputs), interpret(actual, inputs)
    for name in ("y", "z", "c"):
        assert torch.allclose(got[name].double(), want[name], rtol=1e-5, atol=1e-4), name
    assert torch.equal(got["i"], want["i"])


def test_scratch_of_unknown_size_is_refused() -> None:
    head = "kernel k<n in 1..900 hint 9>(x: f32[n], w: f32[m=3,n]) -> (y: f32[n]) {"
    for body, known in (
        ("s: f32[n] = scan sum(n) x[n] y[n] = s[n] * 2.0", False),
        ("s: f32[m] = sum(n) w[m,n] y[n] = s[0] + x[n]", True),
        ("s: f32[n] = max(m) w[m,n] y[n] = s[n] + x[n]", True),
    ):
        text = f"{head}\n  {body.replace(' y[n]', chr(10) + '  y[n]')}\n}}"
        support = GenericEmitter().supports(Task(parse_kernel(text), arch(CHIP)))
        assert support.ok is known, body
        assert known or "symbolic" in support.reason


def test_large_offsets_are_64_bit() -> None:
    text = "kernel big(x: bf16[m=70000,k=40000], i: i64[n=4]) -> (y: bf16[n,k]) {\n  y[n,k] = x[i[n],k]\n}"
    task = Task(parse_kernel(text), arch(CHIP))
    assert "to(tl.int64)" in next(first(task).propose(task, (), (), 0)).source


def test_falling_indices_avoid_buffer_instructions() -> None:
    """A buffer instruction takes the negative part of such an offset for out of range."""
    compiled = compile_candidate(emit("flip"))
    assert "global_load" in compiled.objects["flip"].asm


ODD_ROWS = """kernel odd_rows(a: bf16[i=3,m=5,k=18], b: bf16[i,k,n=5]) -> (y: bf16[i,m,n]) {
  y[i,m,n] = sum(k) a[i,m,k] * b[i,k,n]
}"""


def test_neighbours_at_odd_offsets_are_not_loaded_at_once() -> None:
    """LLVM would merge loads of bf16 into a wider one that is not aligned to a word."""
    candidate = next(GenericEmitter().propose(Task(parse_kernel(ODD_ROWS), arch(CHIP)), (), (), 0))
    assert not problems(candidate, Examiner(candidate.task.spec), ("normal",))  # a misaligned access is a fault


def test_accuracy_of_f32_products_is_stated() -> None:
    assert 'input_precision="ieee"' in emit("matmul_f32").source
    fast = Task(spec("matmul_f32"), arch(CHIP), "fast")
    assert 'input_precision="bf16x3"' in next(first(fast).propose(fast, (), (), 0)).source


def test_a_softmax_in_passes_reads_its_row_twice() -> None:
    candidate = emit("softmax", ROWS=4, COLUMNS=64, num_warps=1)
    assert candidate.source.count("tl.load(x_ptr") == 2
    x = torch.randn(37, 301, generator=torch.Generator().manual_seed(2)) * 30
    x[1], x[2, :200], x[3, 7], x[4, 300] = float("-inf"), float("-inf"), float("nan"), float("inf")
    got = simulate(candidate, {"x": x})["y"]
    assert torch.allclose(got, x.softmax(-1), rtol=1e-5, atol=1e-9, equal_nan=True)

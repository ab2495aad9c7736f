"""Ahead-of-time compilation: determinism, errors, alignment, and nothing changed behind the user's back."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kvc.arch import CDNA, arch
from kvc.backends.triton.toolchain import compile_candidate, gpu_target, launch_options, toolchain
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Launch, Origin, Task
from kvc.text import parse_kernel

TEXT = "kernel twice(x: f32[n=1000]{attrs}) -> (y: f32[n]{attrs}) {{\n  y[n] = 2.0 * x[n]\n}}"
SOURCE = """import triton
import triton.language as tl

BLOCK: tl.constexpr = tl.constexpr(1024)


@triton.jit
def double(x):
    return x * 2.0


@triton.jit
def twice(x_ptr, y_ptr, UNUSED: tl.constexpr = 3):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + p, mask=p < 1000, other=0.0)
    tl.store(y_ptr + p, double(x), mask=p < 1000)
"""


def candidate(chip: str = "gfx942", source: str = SOURCE, attrs: str = "", numerics: str = "strict") -> Candidate:
    row = arch(chip)
    options = (("num_warps", 4), ("waves_per_eu", 2), ("matrix_instr_nonkdim", 16))
    launch = Launch("twice", (1, 1, 1), (4 * row.wave_size, 1, 1), ("x", "y"), 0, options)
    task = Task(parse_kernel(TEXT.format(attrs=attrs)), row, numerics)
    return Candidate(task, "triton", "pointwise", source, (launch,), (), (), Origin("test", "1"))


@pytest.mark.parametrize("chip", [*CDNA, "sm_90"])
def test_same_source_same_bytes(chip: str) -> None:
    one, two = (compile_candidate(candidate(chip)).objects["twice"] for _ in range(2))
    assert one == two
    assert one.binary.startswith(b"\x7fELF")
    assert one.extra_pointers == 2  # Triton's scratch and profiling buffers
    assert one.lds_bytes == 0


def test_no_path_enters_the_binary() -> None:
    compiled = compile_candidate(candidate()).objects["twice"]
    assert "kvc-triton" not in compiled.asm
    assert b"kvc-triton" not in compiled.binary


def test_the_environment_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "gfx90a")
    environment, modules = dict(os.environ), set(sys.modules)
    compiled = compile_candidate(candidate("gfx950"))
    assert dict(os.environ) == environment
    assert not (tmp_path / "cache").exists()
    assert "gfx950" in compiled.objects["twice"].asm
    assert "kvc_kernel" not in set(sys.modules) - modules


def test_alignment_decides_the_width_of_accesses() -> None:
    aligned = compile_candidate(candidate()).objects["twice"].asm
    loose = compile_candidate(candidate(attrs=" align(4)")).objects["twice"].asm
    assert "buffer_load_dwordx4" in aligned
    assert "buffer_load_dwordx4" not in loose


def test_fusion_is_always_stated() -> None:
    launch = candidate().launches[0]
    assert launch_options(launch, arch("gfx942"), "strict")["enable_fp_fusion"] is False
    assert launch_options(launch, arch("gfx942"), "fast")["enable_fp_fusion"] is True
    assert "waves_per_eu" not in launch_options(launch, arch("sm_90"), "strict")


def test_targets_follow_the_architecture_table() -> None:
    for chip in CDNA:
        assert (gpu_target(arch(chip)).backend, gpu_target(arch(chip)).arch) == ("hip", chip)
    assert gpu_target(arch("sm_90")).arch == 90


def test_toolchain_names_a_version() -> None:
    assert set(toolchain()) == {"name", "version"}


ERRORS = [
    ("tl.load(x_ptr + p, mask", "tl.load(x_ptr + q, mask", 15, "q is not defined"),
    ("return x * 2.0", "return tl.nothing(x)", 16, "nothing"),
    ("def twice(", "def twice)", 13, "syntax|unmatched"),
    ("BLOCK: tl.constexpr = tl.constexpr(1024)", "BLOCK = undefined", 4, "undefined"),
    ("tl.arange(0, BLOCK)", "tl.arange(0, 1000)", 14, "power of 2"),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), ERRORS)
def test_errors_have_a_line(old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(KvcError, match=message) as caught:
        compile_candidate(candidate(source=SOURCE.replace(old, new)))
    assert caught.value.code == "KVC0502"
    location = caught.value.diagnostic.location
    assert location is not None and (location.file, location.line) == ("kernel.py", line)


def test_a_missing_kernel_is_an_error() -> None:
    with pytest.raises(KvcError, match=r"no @triton\.jit function 'twice'"):
        compile_candidate(candidate(source=SOURCE.replace("def twice", "def thrice")))


def test_arguments_must_fit_the_parameters() -> None:
    base = candidate()
    for arguments in (("x",), ("x", "y", "x"), ("x", "nobody")):
        with pytest.raises(KvcError) as caught:
            compile_candidate(replace(base, launches=(replace(base.launches[0], args=arguments),)))
        assert caught.value.code == "KVC0603"

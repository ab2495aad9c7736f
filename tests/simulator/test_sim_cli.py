"""`kvc sim` as functions: arguments, summaries, what is printed."""

from pathlib import Path

import numpy as np
import pytest
from kvc.diagnostics import KvcError
from kvc.simulator import Memory
from kvc.simulator.cli import ArgSpec, build_arg, parse_arg, render, run_file

from tests.simulator.tinyasm import PROLOGUE, kernel_text

COPY = "\tglobal_load_dword v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n\tglobal_store_dword v1, v2, s[4:5]"


def test_arguments() -> None:
    assert parse_arg("f32[1024]:randn") == ArgSpec("f32", (1024,), "randn")
    assert parse_arg("f16[4,8]:out") == ArgSpec("f16", (4, 8), "out")
    assert parse_arg("i32=5") == ArgSpec("i32", None, "value", (5,))
    assert parse_arg("i32[4]=1,0x10") == ArgSpec("i32", (4,), "values", (1, 16))
    assert parse_arg("null").fill == "null"
    for wrong in ("f33[4]", "f32[4]:sometimes", "f32", "i32=x", "f32[0]:out", ""):
        with pytest.raises(KvcError) as caught:
            parse_arg(wrong)
        assert caught.value.code == "KVC0106"


def test_values() -> None:
    mem, rng = Memory("gfx942"), np.random.default_rng(0)
    assert build_arg(parse_arg("i32[5]=1,2"), mem, rng, "x").view(np.int32).tolist() == [1, 2, 1, 2, 1]
    assert build_arg(parse_arg("bf16[2]=1,-2"), mem, rng, "x").view(np.uint16).tolist() == [0x3F80, 0xC000]
    assert build_arg(parse_arg("f32=0.5"), mem, rng, "x") == np.float32(0.5)
    assert build_arg(parse_arg("null"), mem, rng, "x") is None


def test_run(tmp_path: Path) -> None:
    path = tmp_path / "k.s"
    path.write_text(kernel_text(PROLOGUE + COPY, args=2))
    report, outputs = run_file(path, "gfx942", ["f32[80]:out", "f32[64]:arange"], block=(64, 1, 1))
    (summary,) = outputs
    assert (summary.written, summary.elements, summary.nonfinite) == (64, 80, 0)
    assert (summary.low, summary.high) == (0, 63)
    text = render(report, outputs)
    assert "64 of 80 written" in text and "256 B written" in text


def test_missing_file_and_choice_of_kernel(tmp_path: Path) -> None:
    with pytest.raises(KvcError) as caught:
        run_file(tmp_path / "none.s", "gfx942", [])
    assert caught.value.code == "KVC0101"
    path = tmp_path / "k.s"
    path.write_text(kernel_text(PROLOGUE + COPY, args=2))
    with pytest.raises(KvcError) as caught:
        run_file(path, "gfx942", ["null"], kernel="other")
    assert caught.value.code == "KVC0603"

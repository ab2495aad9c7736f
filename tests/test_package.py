"""Staging, headers, templates' inputs and estimates: the parts of an output folder, one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Launch, Scratch
from kvc.estimate import estimate
from kvc.header import parse_launches, parse_workspace
from kvc.interface import rebuild
from kvc.module_source import identifier, safetensors
from kvc.package import LOCK, read_lock, staged
from kvc.report.build import decades
from kvc.text import parse_kernel


def fill(stage: Path) -> None:
    (stage / LOCK).write_text('{"format": 1}')


def test_a_staged_folder_appears_at_once(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with staged(out) as stage:
        fill(stage)
        assert not out.exists()
    assert (out / LOCK).is_file()
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with staged(out) as stage:
        fill(stage)
        (stage / "old").write_text("")
    with pytest.raises(RuntimeError), staged(out) as stage:
        fill(stage)
        raise RuntimeError
    assert (out / "old").is_file()
    with staged(out) as stage:
        fill(stage)
    assert not (out / "old").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_run_left_is_swept_up(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f".out.kvc-{dead.pid}-abc"
    mine = tmp_path / f".out.kvc-{os.getpid()}-abc"
    left.mkdir()
    mine.mkdir()
    with staged(tmp_path / "out") as stage:
        fill(stage)
    assert not left.exists() and mine.exists()


@pytest.mark.parametrize("text", ["", "[1]", '{"format": 99}', "{"])
def test_a_lock_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(KvcError) as caught:
        read_lock(tmp_path)
    assert caught.value.code == "KVC0802"


def test_launch_lines_of_both_targets() -> None:
    source = """// twice
// Launch: twice(x, y), grid 4 x 2 x 1, block 256 x 1 x 1, 1,024 bytes of LDS.
// Launch: sum(y, partial), grid 1, block 64.
// Scratch: partial, 74 elements of f32.
"""
    assert parse_launches(source, "k.hip") == (
        Launch("twice", (4, 2, 1), (256, 1, 1), ("x", "y"), 1024),
        Launch("sum", (1, 1, 1), (64, 1, 1), ("y", "partial")),
    )
    assert parse_workspace(source) == (Scratch("partial", "f32", 74),)
    triton = "# Launch: k(x_ptr) on 37 programs of 256 threads, num_warps=4, flag=True\n# Scratch: t bf16[12]\n"
    (launch,) = parse_launches(triton, "k.py")
    assert launch == Launch("k", (37, 1, 1), (256, 1, 1), ("x_ptr",), 0, (("num_warps", 4), ("flag", True)))
    assert parse_workspace(triton) == (Scratch("t", "bf16", 12),)


@pytest.mark.parametrize("text", ["// nothing here\n", "\n// Launch: k(x)\n"])
def test_a_source_that_does_not_say_how_it_is_launched(text: str) -> None:
    with pytest.raises(KvcError) as caught:
        parse_launches(text, "k.hip")
    assert caught.value.code == "KVC0106"
    assert "Launch: NAME(x, y)" in caught.value.diagnostic.hint


def test_safetensors_are_read_by_the_reference_reader(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    tensors = {
        "b": torch.arange(6.0).reshape(2, 3).bfloat16(),
        "a": torch.tensor(True),
        "t": torch.randn(3, 4).t(),
        "none": torch.empty(0, 3, dtype=torch.int64),
    }
    (tmp_path / "x").write_bytes(safetensors(tensors))
    back = load_file(tmp_path / "x")
    assert set(back) == set(tensors)
    assert all(torch.equal(back[k], v) and back[k].dtype == v.dtype for k, v in tensors.items())


def test_identifiers_are_valid_and_distinct() -> None:
    taken: set[str] = set()
    assert [identifier(n, taken) for n in ("a.b", "a_b", "class", "3x", "")] == [
        "a_b",
        "a_b_2",
        "v_class",
        "v_3x",
        "value",
    ]


def test_calls_are_rebuilt_from_the_lock() -> None:
    encoded = {"sequence": [{"input": "x"}, {"mapping": [["k", {"input": "y"}], ["n", {"value": 3}]]}]}
    x, y = torch.ones(1), torch.zeros(1)
    assert rebuild(json.loads(json.dumps(encoded)), {"x": x, "y": y}) == [x, {"k": y, "n": 3}]


def test_estimates_say_so_and_follow_the_roofline() -> None:
    copy = parse_kernel("kernel c(x: f32[m=1000000]) -> (y: f32[m]) {\n  y[m] = x[m] * 2.0\n}")
    row = arch("gfx942")
    found = estimate(copy, row)
    assert found["kind"] == "estimate" and found["bound"] == "memory"
    assert found["floor_us"] == pytest.approx(8e6 / (row.hbm_gbps * 1e9) * 1e6, rel=1e-3)
    counters = {"launches": [{"counters": {"global_read_bytes": 16_000_000, "global_write_bytes": 0}}]}
    assert estimate(copy, row, counters)["counted_us"] > 2 * found["floor_us"]


def test_error_bars_end_at_the_tolerance() -> None:
    assert decades(1e-4, 1e-4) == 100.0
    assert decades(1e-6, 1e-4) == pytest.approx(50.0)
    assert decades(1e-12, 1e-4) == 1.0
    assert decades(0.0, 1e-4) == decades(1.0, 0.0) == 0.0

"""The written folder: what it holds, that it is the same each time, and that `module.py` is a drop-in."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kvc.text import parse_graph, parse_kernels
from kvc.verify.model import written_module

from tests.cli.conftest import Run

NOT_COMPARED = {"measurements.json", "report.html"}


def contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in NOT_COMPARED)
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_the_folder_holds_what_the_lock_names(folder: Path) -> None:
    lock = json.loads((folder / "kvc.lock").read_text())
    assert (folder / "kvc.lock").read_text() == json.dumps(lock, indent=2, sort_keys=True) + "\n"
    assert lock["fallbacks"] == []
    assert {k["executor"] for k in lock["kernels"]} == {"sim"}
    for kernel in lock["kernels"]:
        assert (folder / kernel["file"]).is_file()
        assert all((folder / path).is_file() for path in kernel["code_objects"])
        assert kernel["resources"] and kernel["checks"] and kernel["input_sets"] and kernel["spec_hash"]
        assert kernel["origin"][0].startswith("tiny.py:")
        for error in kernel["errors"]:
            assert error["error"] <= max(error["tolerance"], error["allowed"])
    (run,) = lock["model"]["end_to_end"]
    assert [e["output"] for e in run["errors"]] == ["out0", "out1", "out2"]
    assert lock["toolchain"]["kvc"] and lock["toolchain"]["torch"]
    assert parse_graph((folder / "graph.kir").read_text()).outputs
    assert len(parse_kernels((folder / "kernels.kir").read_text())) == len(lock["kernels"])
    assert json.loads((folder / "measurements.json").read_text())["kernels"]
    assert "Whole model" in (folder / "report.html").read_text()


def test_no_path_of_this_machine_is_written(folder: Path, tiny: Path) -> None:
    for name, data in contents(folder).items():
        assert str(tiny.parent).encode() not in data, name
        assert str(Path.home()).encode() + b"/" not in data, name


def test_the_same_input_gives_the_same_bytes(kvc: Run, tiny: Path, folder: Path, tmp_path: Path) -> None:
    assert kvc("translate", tiny, "-o", tmp_path / "again", "-q", "--no-cache").code == 0
    assert contents(tmp_path / "again") == contents(folder)
    assert kvc("translate", tiny, "-o", tmp_path / "again", "-q").code == 0  # from the cache, over the old folder
    assert contents(tmp_path / "again") == contents(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["again"]


def test_the_module_needs_torch_alone(folder: Path) -> None:
    code = (
        "import sys; sys.modules['kvc'] = None; sys.path.insert(0, sys.argv[1]); sys.dont_write_bytecode = True\n"
        "import module; m = module.Model(5); print(sorted(m.state_dict()))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fc.weight" in done.stdout and "shift" not in done.stdout


def test_the_module_is_a_drop_in(folder: Path, tiny: Path) -> None:
    scope: dict = {}
    exec(tiny.read_text(), scope)
    original = scope["Model"](5)
    with written_module(folder) as module:
        model = module.Model(5)
        theirs, mine = original.state_dict(), model.state_dict()
        assert list(mine) == list(theirs)
        assert all(mine[n].shape == theirs[n].shape and mine[n].dtype == theirs[n].dtype for n in mine)
        assert model.fc.weight.isnan().all()  # nothing pretends to be trained
        assert torch.equal(model.shift, original.shift)
        copied = module.Model.from_original(original)
        assert torch.equal(copied.fc.weight, original.fc.weight)
        with pytest.raises(ValueError, match="translate again"):
            module.Model(6)
        with pytest.raises(ValueError, match="translate again"):
            copied(torch.zeros(8, 5))
        with pytest.raises(ValueError, match=r"torch\.float64"):
            copied(torch.zeros(9, 5, dtype=torch.float64))
        with pytest.raises(ValueError, match="mask"):
            copied(torch.zeros(9, 5), mask=torch.ones(9))
        with pytest.raises(TypeError):
            copied([1.0])
        with pytest.raises(RuntimeError, match="kvc verify"):
            copied(torch.zeros(9, 5))


def test_a_launch_hands_addresses_and_grid_to_hip(folder: Path) -> None:
    seen: list[tuple] = []

    def launch(function, *rest):
        *sizes, stream, params, extra = rest
        count = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t)).contents.value // 8
        values = list(ctypes.cast(extra[1], ctypes.POINTER(ctypes.c_uint64 * count)).contents)
        seen.append((function, sizes, stream, params, values, [extra[0], extra[2], extra[4]]))
        return 0

    with written_module(folder) as module:
        module._hip = lambda: SimpleNamespace(hipModuleLaunchKernel=launch)
        module._load = lambda kernel, device: module._prepare(kernel, device, "function")
        arena, x = torch.zeros(64, dtype=torch.uint8), torch.zeros(3)
        call = module._Call(torch.device("cuda", 0), 77, arena, arena.data_ptr())
        kernel = module._Kernel("f.co", "k", (4, 2, 1), (64, 1, 1), 256, "rsi", 1)
        for _ in range(2):
            module._launch(kernel, call, (x, module._Region(16, 8), 5))
    values = [x.data_ptr(), arena.data_ptr() + 16, 5, 0]
    assert seen == [("function", [4, 2, 1, 64, 1, 1, 256], 77, None, values, [1, 2, 3])] * 2


# ---------------------------------------------------------------- verifying again


def test_a_folder_verifies_again(kvc: Run, folder: Path, tiny: Path) -> None:
    before = contents(folder)
    ran = kvc("verify", folder, "--model", tiny, "--json")
    result = json.loads(ran.out)
    assert ran.code == 0 and result["ok"]
    assert [m["oracle"] for m in result["model"]] == ["graph in float64", "original module in float64"]
    assert contents(folder) == before


def damaged(folder: Path, tmp_path: Path, name: str, old: bytes, new: bytes) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    path = next(p for p in copy.rglob("*") if p.is_file() and p.match(name) and old in p.read_bytes())
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    return copy


def test_another_code_object_is_noticed(kvc: Run, folder: Path, tmp_path: Path) -> None:
    ran = kvc("verify", damaged(folder, tmp_path, "*.co", b"\x7fELF", b"\x7fELf"))
    assert ran.code == 1 and "KVC0804" in ran.out and "NOT verified" in ran.out


def test_a_changed_module_is_noticed(kvc: Run, folder: Path, tmp_path: Path) -> None:
    ran = kvc("verify", damaged(folder, tmp_path, "module.py", b"return {'y': ", b"return {'y': 2 * "))
    assert ran.code == 1 and "KVC0709" in ran.out


def test_a_changed_spec_is_noticed(kvc: Run, folder: Path, tmp_path: Path) -> None:
    ran = kvc("verify", damaged(folder, tmp_path, "kernels.kir", b"relu(", b"silu("))
    assert ran.code == 1 and "KVC0701" in ran.out


def test_what_is_no_translation_is_said_so(kvc: Run, tmp_path: Path) -> None:
    ran = kvc("verify", tmp_path)
    assert ran.code == 2 and "KVC0802" in ran.err


def test_a_kernel_written_by_hand_is_judged(kvc: Run, tmp_path: Path) -> None:
    (tmp_path / "s.kir").write_text("kernel twice(x: f32[m=100]) -> (y: f32[m]) {\n  y[m] = x[m] * 2.0\n}\n")
    source = """#include <hip/hip_runtime.h>
// Launch: twice(x, y), grid 2 x 1 x 1, block 64 x 1 x 1.
extern "C" __global__ void __launch_bounds__(64) twice(const float* x, float* y) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < 100) y[i] = x[i] * FACTOR;
}
"""
    for name, factor, code in (("good", "2.0f", 0), ("bad", "2.001f", 1)):
        (tmp_path / f"{name}.hip").write_text(source.replace("FACTOR", factor))
        ran = kvc("verify", "--spec", tmp_path / "s.kir", "--source", tmp_path / f"{name}.hip")
        assert ran.code == code, ran
    assert "rejected at compare" in ran.out and "KVC0701" in ran.out

"""The self-test for real hardware: every opcode has a kernel that LLVM assembles and that the simulator runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kvc.arch import CDNA
from kvc.simulator.isa import ALU
from kvc.simulator.isa.table import REGISTRY
from kvc.simulator.selftest import KERNEL, cases, compare, load_corrections, save_corrections, simulate


@pytest.mark.parametrize("arch", CDNA)
def test_every_case_assembles_and_runs(arch: str) -> None:
    every = cases(arch)
    names = {case.name for case in every}
    assert {name for name in ALU if REGISTRY[name].archs is None or arch in REGISTRY[name].archs} <= names
    bodies = [case.text.partition(f"{KERNEL}:\n")[2].partition("\t.section")[0] for case in every]
    command = [sys.executable, "-m", "ziglang", "clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-x",
               "assembler", "-c", "-", "-o", "/dev/null"]  # fmt: skip
    done = subprocess.run(command, input="\n".join(bodies), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    for case in every[:: 5 if arch == "gfx942" else 17]:
        assert simulate(case).shape == (case.results, 64)


def test_a_kernel_is_a_whole_file(tmp_path: Path) -> None:
    source = tmp_path / "k.s"
    source.write_text(cases("gfx942")[0].text)
    command = [sys.executable, "-m", "ziglang", "clang", "--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-c",
               str(source), "-o", str(tmp_path / "k.o")]  # fmt: skip
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_differences_become_corrections(tmp_path: Path) -> None:
    chosen = [case for case in cases("gfx942") if case.name in ("v_add_f32", "v_mul_lo_u32", "v_cmp_gt_i32")]
    measured = {case.name: simulate(case) for case in chosen}
    measured["v_mul_lo_u32"] = measured["v_mul_lo_u32"] ^ np.uint32(1)
    (difference,) = compare("gfx942", measured)
    assert (difference.name, difference.lanes, difference.lane) == ("v_mul_lo_u32", 64, 0)
    assert difference.simulated[0] == difference.measured[0] ^ 1
    path = tmp_path / "corrections.json"
    save_corrections(path, "gfx942", "MI300X", [difference])
    save_corrections(path, "gfx90a", "MI210", [])
    assert load_corrections(path, "gfx942") == {"v_mul_lo_u32"} and load_corrections(path, "gfx90a") == frozenset()

"""Help, bad input, exit codes. A failure is one diagnostic with a code and a way out: no traceback, nothing written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kvc.arch import ARCHS
from kvc.backends.device import driver
from kvc.diagnostics import CODES

from tests.cli.conftest import Run

COMMANDS = ("translate", "verify", "ir", "sim", "selftest", "arch", "doctor", "diff", "check", "explain", "report")
GOOD = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
INPUTS = "def get_inputs():\n    return [torch.ones(3)]\n"

#: What is wrong -> (the model file, further options, the code).
BAD: dict[str, tuple[str | None, tuple[str, ...], str]] = {
    "missing_file": (None, (), "KVC0101"),
    "syntax_error": ("import torch\ndef f(:\n", (), "KVC0102"),
    "failing_import": ("import torch\nraise RuntimeError('no luck')\n", (), "KVC0102"),
    "no_model": ("import torch\nclass Net(torch.nn.Module):\n    pass\n" + INPUTS, (), "KVC0103"),
    "no_inputs": (GOOD, (), "KVC0104"),
    "wrong_arity": (GOOD + INPUTS.replace("[torch.ones(3)]", "[torch.ones(3), torch.ones(3)]"), (), "KVC0104"),
    "data_dependent": (
        GOOD.replace("return x + 1", "return x + 1 if x.sum() > 0 else x - 1") + INPUTS, (), "KVC0202",
    ),
    "unknown_op_strict": (
        GOOD.replace("return x + 1", "return torch.linalg.eigvalsh(x.outer(x)) + 1") + INPUTS, ("--strict",), "KVC0203",
    ),
    "unknown_target": (GOOD + INPUTS, ("--target", "cobol"), "KVC0105"),
    "unknown_arch": (GOOD + INPUTS, ("--arch", "gfx000"), "KVC0105"),
    "unknown_executor": (GOOD + INPUTS, ("--executor", "abacus"), "KVC0105"),
    "unknown_emitter": (GOOD + INPUTS, ("--emitter", "monkey"), "KVC0105"),
    "unknown_dtype": (GOOD + INPUTS, ("--dtype", "f12"), "KVC0106"),
    "arch_that_is_no_target": (GOOD + INPUTS, ("--arch", "sm_90"), "KVC0105"),
    "no_gpu": (GOOD + INPUTS, ("--executor", "amdgpu"), "KVC0601"),
}  # fmt: skip


FOREIGN = ("syntax_error", "wrong_arity", "data_dependent")


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    name: str,
    kvc: Run,
    tmp_path: Path,
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, options, code = BAD[name]
    if name == "no_gpu":  # whatever is installed here
        monkeypatch.setattr(driver, "_load", lambda name: None)
    model = tmp_path / "model.py"
    if text is not None:
        model.write_text(text)
    ran = kvc("translate", model, "-o", tmp_path / "out", "-q", *options)
    assert ran.code == 2, ran
    assert ran.out == "" and "Traceback" not in ran.err
    assert re.search(rf"\b{code}\b", ran.err), ran.err
    assert {p.name for p in tmp_path.iterdir()} <= {"model.py", "__pycache__"}
    shown = ran.err.replace(str(tmp_path), "FOLDER")
    if name in FOREIGN:  # after the title stand words of Python or torch, which change with their versions
        shown = re.sub(rf"({re.escape(CODES[code])}: ).*", r"\1...", shown)
    if name == "unknown_emitter":  # the list grows with the backend
        shown = re.sub(r"one of: .*", "one of: ...", shown)
    golden(f"cli/{name}.txt", shown)


def test_an_operator_outside_the_set_falls_back_and_is_reported(kvc: Run, tmp_path: Path) -> None:
    text, _, _ = BAD["unknown_op_strict"]
    assert text is not None
    (tmp_path / "model.py").write_text(text)
    ran = kvc("translate", tmp_path / "model.py", "-o", tmp_path / "out", "--json")
    assert ran.code == 0, ran
    (fallback,) = json.loads(ran.out)["fallbacks"]
    assert "eigh" in fallback["op"] and fallback["at"] == "model.py:4"
    lock = json.loads((tmp_path / "out" / "kvc.lock").read_text())
    assert [f["op"] for f in lock["fallbacks"]] == [fallback["op"]]
    assert "runs eagerly" in (tmp_path / "out" / "report.html").read_text()


def test_other_files_are_never_overwritten(kvc: Run, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    ran = kvc("translate", tiny, "-o", tmp_path, "-q")
    assert ran.code == 2 and "KVC0802" in ran.err
    (tmp_path / "file").write_text("")
    ran = kvc("translate", tiny, "-o", tmp_path / "file", "-q")
    assert ran.code == 2 and "KVC0801" in ran.err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_unwritable_folder(kvc: Run, tiny: Path) -> None:
    ran = kvc("translate", tiny, "-o", "/proc/kvc/out", "-q")
    assert ran.code == 2 and "KVC0801" in ran.err


def test_a_missing_toolchain_names_the_command_that_brings_it(
    kvc: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvc.backends.hip import toolchain

    monkeypatch.setattr(toolchain, "discover", list)
    ran = kvc("translate", tiny, "-o", tmp_path / "out", "-q")
    assert ran.code == 2 and "KVC0501" in ran.err and "pip install" in ran.err


def test_diagnostics_as_json(kvc: Run, tmp_path: Path) -> None:
    ran = kvc("translate", tmp_path / "nowhere.py", "--json")
    found = json.loads(ran.out)
    assert ran.code == 2 and found["ok"] is False
    assert found["diagnostic"]["code"] == "KVC0101" and found["diagnostic"]["title"] == CODES["KVC0101"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, kvc: Run) -> None:
    ran = kvc(command, "--help")
    assert ran.code == 0
    assert "Usage: " in ran.out and len(ran.out.splitlines()) > 5


def test_the_command_list(kvc: Run, golden: Callable[[str, str], None]) -> None:
    ran = kvc("--help")
    assert all(f"  {command} " in ran.out for command in COMMANDS)
    assert "--install-completion" in ran.out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, kvc.cli\n"
        "print([m for m in ('torch', 'triton', 'numpy', 'clang', 'jinja2', 'rich', 'lark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_option_is_exit_code_2(kvc: Run) -> None:
    assert kvc("translate", "x.py", "--bogus").code == 2
    assert kvc("verify").code == 2


def test_arch_prints_the_table(kvc: Run) -> None:
    ran = kvc("arch")
    assert all(name in ran.out for name in ARCHS)
    one = json.loads(kvc("arch", "gfx950", "--json").out)
    assert one["lds_bytes"] == ARCHS["gfx950"].lds_bytes
    assert kvc("arch", "gfx000").code == 2


def test_doctor_says_what_is_here(kvc: Run) -> None:
    ran = kvc("doctor", "--json")
    found = {f["name"]: f for f in json.loads(ran.out)["findings"]}
    assert found["torch"]["ok"] and found["sim"]["ok"] and found["hip"]["ok"]
    assert not found["amdgpu"]["ok"] and found["amdgpu"]["fix"]
    assert "executors" in kvc("doctor").out


def test_sim_runs_a_kernel(kvc: Run, tmp_path: Path) -> None:
    from kvc.backends.hip.toolchain import compile_hip

    source = """#include <hip/hip_runtime.h>
extern "C" __global__ void __launch_bounds__(64) twice(const float* x, float* y) {
  int i = blockIdx.x * 64 + threadIdx.x;
  y[i] = x[i] * 2.0f;
}
"""
    (tmp_path / "k.s").write_text(compile_hip(source, "gfx942").asm)
    args = ("sim", tmp_path / "k.s", "--arg", "f32[128]:ones", "--arg", "f32[128]:out", "--grid", "2")
    ran = kvc(*args, "--json")
    assert ran.code == 0, ran
    (output,) = json.loads(ran.out)["outputs"]
    assert (output["low"], output["high"], output["written"]) == (2.0, 2.0, 128)
    assert "twice: 2 workgroups" in kvc(*args).out
    assert kvc(*args, "--grid", "zero").code == 2
    outside = kvc(*args[:-1], "3")
    assert outside.code == 2 and "KVC0903" in outside.err


def test_ir_prints_both_levels(kvc: Run, tiny: Path) -> None:
    graph, kernels = kvc("ir", tiny), kvc("ir", tiny, "--level", "kernel")
    assert graph.code == 0 and graph.out.startswith("graph ") and "# tiny.py:" in graph.out
    assert kernels.code == 0 and kernels.out.startswith("kernel ")


def test_a_bug_of_ours_is_no_verdict_and_no_traceback() -> None:
    code = "import kvc.commands as c; c.run_arch = lambda name: 1 / 0; from kvc.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "arch"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "internal error: ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr


def test_debug_lets_the_traceback_through(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from kvc.cli import main; main()", "translate", "nowhere.py"],
        env={**os.environ, "KVC_DEBUG": "1"}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" in done.stderr and "KVC0101" in done.stderr

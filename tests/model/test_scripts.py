"""Suites of scripts: gold against gold on the simulator, tasks that prove nothing, answers that are right or wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from kvc.diagnostics import KvcError
from kvc.model import scripts
from kvc.model.scripts import (
    SEPARATOR,
    Ran,
    Request,
    Script,
    code_of,
    emptied,
    report,
    rocmbench,
    run_script,
    tritonbench,
)

ADD = """
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x + tl.load(y_ptr + at, mask=at < n), mask=at < n)


def add(x, y):
    out = torch.zeros_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out
"""
TEST = """
def test_add():
    torch.manual_seed(0)
    x = torch.rand(100, device="cuda")
    return {"sum": add(x, x.flip(0)), "view": add(x[10:30], x[30:50])}


result_gold = test_add()
"""
PYTEST = """
import pytest
import torch
from geak_eval.perf.ROCm.performance_utils_pytest import PytestBenchmarker, do_bench_config


@pytest.mark.parametrize("n", [7, 130])
def test_add(n, device="cuda"):
    x = torch.arange(n, dtype=torch.float32, device=device)
    assert x.is_cuda
    torch.testing.assert_close(add(x, x), 2 * x)


def test_performance():
    raise AssertionError("not a test of correctness")
"""
WRONG = ADD.replace("x + tl.load", "x - tl.load")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a suite, as far as the adapters read it: three tasks, of which the second proves nothing."""
    folder = tmp_path / "data" / "TritonBench_G_v1"
    folder.mkdir(parents=True)
    silent = TEST.replace("result_gold = test_add()", "test_add()")
    broken = TEST.replace("test_add()", "missing()", 1).replace("def missing():", "def test_add():")
    rows = []
    for name, test in (("add", TEST), ("silent", silent), ("broken", broken + "\nmissing_name\n")):
        (folder / f"{name}.py").write_text(f"{ADD}\n{SEPARATOR}\n{test}")
        rows.append({"file": f"{name}.py", "comp_instru": f" Write {name}. ", "output": ADD})
    (tmp_path / "data" / "TritonBench_G_v1.json").write_text(json.dumps(rows))
    label = f"{ADD}\n{SEPARATOR}\n{PYTEST}"
    rocm = [{"file": "add.py", "target_kernel_name": "add_kernel", "instruction": "Complete it.", "label": label}]
    (tmp_path / "ROCm_eval_complex_instruct_v1.json").write_text(json.dumps(rocm))
    return tmp_path


def test_adapters_read_checkouts(checkout: Path, tmp_path: Path) -> None:
    tasks = tritonbench(checkout)
    assert [t.name for t in tasks] == ["add", "silent", "broken"] and tasks[0].instruction == "Write add."
    (rocm,) = rocmbench(checkout)
    assert rocm.kind == "pytest" and "def add(" in rocm.gold and "test_add" in rocm.test
    with pytest.raises(KvcError, match="KVC0101"):
        tritonbench(tmp_path / "data" / "TritonBench_G_v1")


def pretended(task: Script, code: str, place: str, timeout_s: float) -> Ran:
    """What `run_script` would say of the fixtures, without running them."""
    if task.name == "broken":
        return Ran("failed", reason="missing_name")
    if task.name == "slow":
        return Ran("timeout", reason="more than 300 s")
    total = {"tl.store": 1.0, " - tl.load": -1.0, "pass": 0.0}
    value = next(v for k, v in sorted(total.items(), key=lambda i: i[1]) if k in code)
    return Ran("ok", values={} if task.name == "silent" else {"result": np.array([value])})


@pytest.mark.long
def test_gold_is_run_first_on_the_simulator(checkout: Path, tmp_path: Path) -> None:
    made = scripts.run(Request("tritonbench-g", checkout, tmp_path / "out"), lambda text: None)
    assert (made["tasks"], made["ran"], made["tell"]) == (3, 2, 1)
    assert made["blind"]["silent"] == "blind: empty kernels pass" and "missing_name" in made["blind"]["broken"]


def test_gold_is_run_first_and_tells_which_tasks_prove_something(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "run_script", pretended)
    said: list[str] = []
    made = scripts.run(Request("tritonbench-g", checkout, tmp_path / "out"), said.append)
    assert (made["tasks"], made["ran"], made["tell"]) == (3, 2, 1)
    assert made["corr"][1][0] == 1.0 and made["published"][0] == 1.0
    assert made["blind"]["silent"] == "blind: empty kernels pass" and "missing_name" in made["blind"]["broken"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert not rows[0]["published"]  # nothing is printed: the suite's own criterion is blind here
    again = scripts.run(Request("tritonbench-g", checkout, tmp_path / "out"), said.append)  # from the journal
    assert again == made and len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 3


def test_a_wrong_answer_is_called_and_not_right(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "run_script", pretended)
    monkeypatch.setattr(scripts, "answers", lambda request, task: [WRONG, ADD])
    request = Request("tritonbench-g", checkout, tmp_path / "out", "model", samples=2, only=frozenset({"add"}))
    made = scripts.run(request, lambda text: None)
    assert made["call"][0] == 1.0 and made["published"][0] == 1.0 and made["corr"][1][0] == 0.5


def test_scripts_run_on_the_simulator_and_leave_values() -> None:
    ran = run_script(Script("add", "", ADD, TEST, "script"), ADD, "gfx942", 300)
    assert ran.status == "ok" and set(ran.values) == {"result_gold/sum", "result_gold/view"}
    np.testing.assert_array_equal(ran.values["result_gold/sum"], ran.values["result_gold/sum"][::-1])


def test_pytest_tasks_fail_without_the_suites_harness_and_in_confinement(checkout: Path) -> None:
    (task,) = rocmbench(checkout)
    wrong = WRONG + "\nopen('/etc/kvc-was-here', 'w').close()\n"
    assert run_script(task, wrong, "gfx942", 300).status == "failed" and not Path("/etc/kvc-was-here").exists()


@pytest.mark.long
def test_pytest_tasks_pass(checkout: Path) -> None:
    (task,) = rocmbench(checkout)
    assert run_script(task, task.gold, "gfx942", 300).status == "ok"


def test_a_script_that_does_not_end_is_ended() -> None:
    assert run_script(Script("t", "", "", "", "script"), "while True: pass", "gfx942", 3).status == "timeout"


def test_code_is_taken_out_of_an_answer() -> None:
    assert code_of("Sure:\n```python\nx = 1\n```\nand\n```python\nx = 2\n```\n") == "x = 2\n"
    assert code_of("<think>hm</think>\nx = 3\n") == "x = 3"
    assert "pass" in emptied(ADD) and "tl.store" not in emptied(ADD) and "add_kernel[" in emptied(ADD)


def test_report_of_tasks_that_did_not_run() -> None:
    row = {"task": "a", "gold": "not run", "published": False, "reason": "no GPU", "tries": []}
    made = report([row])
    assert made.not_run == {"a": "no GPU"} and "0 of 1 tasks ran" in made.text()

"""Runs over a checkout: isolation, the journal, the criterion and the table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kvc.bench.criterion import beyond_its_dtype, compare, degenerate, run_trials, self_test
from kvc.bench.isolate import run_isolated
from kvc.bench.journal import Journal
from kvc.bench.kernelbench import Request, run
from kvc.bench.table import markdown, summarise
from kvc.diagnostics import KvcError
from torch import nn

PROBLEM = """import torch
from torch import nn

rows = 1024 * 1024

class Model(nn.Module):
    def forward(self, x):
        return {body}

def get_inputs():
    return [torch.rand(rows, 37)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "suite" / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "1_ReLU.py").write_text(PROBLEM.format(body="torch.relu(x)"))
    (folder / "2_Exp.py").write_text(PROBLEM.format(body="torch.linalg.matrix_exp(x.T @ x)"))
    (folder / "3_Broken.py").write_text(PROBLEM.format(body="x @ x"))
    return tmp_path / "suite"


def request(checkout: Path, tmp_path: Path, **options: Any) -> Request:
    base = {"levels": (1,), "out": tmp_path / "out", "target": "hip", "arch": "gfx942", "stage": "plan"}
    return Request(root=checkout, **{**base, **options})


def test_plan_stage_says_what_is_captured_and_what_falls_back(checkout: Path, tmp_path: Path) -> None:
    summary = run(request(checkout, tmp_path), lambda line: None, False)
    records = {r["problem"]: r for r in json.loads((tmp_path / "out" / "table.json").read_text())["records"]}
    assert records["1/1"]["status"] == "passed" and records["1/1"]["kernels"] == 1
    assert records["1/1"]["sizes"]["inputs"][0][0] < 4096
    assert records["1/2"]["status"] == "failed" and records["1/2"]["fallbacks"]
    assert records["1/3"]["failure"]["code"] == "KVC0102"
    assert summary["all"]["passed"] == 1 and summary["all"]["failed"] == 2


def test_a_killed_run_goes_on_where_it_was(checkout: Path, tmp_path: Path) -> None:
    first = request(checkout, tmp_path, limit=1)
    run(first, lambda line: None, False)
    journal = tmp_path / "out" / "results.jsonl"
    with journal.open("a") as file:
        file.write('{"problem": "1/2", "sta')  # cut short by a kill
    said: list[str] = []
    summary = run(request(checkout, tmp_path, limit=1), said.append, False)
    assert "1 of 1 problems" in said[0] and summary["all"]["passed"] == 1
    assert journal.read_text().count('"status"') == 1


def test_other_settings_are_another_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append({"problem": "1/1", "run": {"target": "hip"}, "status": "passed"})
    journal.append({"problem": "1/1", "run": {"target": "hip"}, "status": "failed"})
    assert journal.latest({"target": "hip"})["1/1"]["status"] == "failed"
    assert journal.latest({"target": "triton"}) == {}


def test_unknown_stage_and_target(checkout: Path, tmp_path: Path) -> None:
    for wrong in ({"stage": "guess"}, {"target": "cobol"}, {"arch": "gfx1"}):
        with pytest.raises(KvcError, match=r"KVC010[56]"):
            run(request(checkout, tmp_path, **wrong), lambda line: None, False)


# ---------------------------------------------------------------- isolation


def job(work: dict[str, Any]) -> dict[str, Any]:
    """Runs in the job's process."""
    if work["do"] == "die":
        os._exit(3)
    if work["do"] == "hang":
        time.sleep(600)
    if work["do"] == "raise":
        raise RuntimeError("told to")
    return {"did": work["do"]}


def test_one_job_costs_only_itself() -> None:
    jobs = [{"do": do} for do in ("work", "die", "raise", "hang")]
    results = {j["do"]: r for j, r in run_isolated(f"{__name__}:job", jobs, 2, 20.0)}
    assert results["work"] == {"did": "work"}
    assert "exit code 3" in results["die"]["crash"]
    assert "told to" in results["raise"]["crash"]
    assert results["hang"] == {"timeout": 20.0}
    ((_, fresh),) = run_isolated(f"{__name__}:job", [{"do": "work"}], 1, 100.0, fork=False)
    assert fresh == {"did": "work"}


def test_times_need_a_cuda_device(checkout: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    run(request(checkout, tmp_path, stage="time", limit=1), lambda line: None, False)
    (record,) = json.loads((tmp_path / "out" / "table.json").read_text())["records"]
    assert record["failure"]["code"] == "KVC0601"


# ---------------------------------------------------------------- criterion


def inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 5)]


def test_the_criterion_compares_five_seeded_trials() -> None:
    trials, outputs = run_trials(lambda x: x[0] * 2, lambda x: x[0] + x[0], inputs)
    assert trials.ok and trials.total == 5
    assert not torch.equal(outputs[0], outputs[1])
    trials, _ = run_trials(lambda x: x[0], lambda x: x[0] + 1e-2, inputs)
    assert trials.passed == 0 and trials.worst == pytest.approx(1e-2, rel=1e-4)


def test_shapes_and_tolerances_of_the_criterion() -> None:
    assert "shape" in compare(torch.zeros(2), torch.zeros(2, 1))[1]
    assert compare(torch.zeros(2).half(), torch.full((2,), 5e-3).half())[1] == ""
    assert compare(torch.zeros(2), torch.full((2,), 5e-3))[1] != ""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda n: torch.zeros(4), "zeros pass"),
        (lambda n: torch.full((4,), 3.0 + n), "a constant passes"),
        (lambda n: torch.arange(4.0), "does not depend"),
        (lambda n: torch.arange(4.0) + n, ""),
        (lambda n: torch.tensor(1.0 + n), ""),
    ],
)
def test_degenerate_references(make: Any, reason: str) -> None:
    found = degenerate([make(n) for n in range(3)])
    assert found.startswith(reason) if reason.startswith(("zeros", "a constant")) else reason in found
    assert bool(found) == bool(reason)


def test_a_random_reference_fails_against_itself() -> None:
    trials, _ = self_test(nn.Dropout(0.5).train(), inputs)
    assert not trials.ok
    trials, reason = self_test(nn.Linear(5, 3).train(), inputs)
    assert trials.ok and reason == ""


class Cancelling(nn.Module):
    """Sums whose rounding errors are large beside the result."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.3e5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.factor - (x + 1.0) * self.factor


def test_a_reference_may_be_beyond_its_dtype() -> None:
    module = Cancelling()

    def ours(x: Any) -> Any:
        return module(*x) + 1e-3

    assert "times the tolerance" in beyond_its_dtype(lambda x: module(*x), ours, module, inputs)
    assert beyond_its_dtype(lambda x: module(*x), lambda x: module(*x) + 100.0, module, inputs) == ""
    plain = nn.Linear(5, 3)
    assert beyond_its_dtype(lambda x: plain(*x), lambda x: plain(*x) + 1.0, plain, inputs) == ""


# ---------------------------------------------------------------- the table


def record(problem: str, status: str, **more: Any) -> dict[str, Any]:
    return {"problem": problem, "level": int(problem[0]), "name": "x", "status": status, "seconds": {"a": 1.0}, **more}


def test_rates_count_every_problem_that_was_asked_for() -> None:
    times = {"kvc": {"median_ms": 1.0}, "eager": {"median_ms": 1.6}, "compile": {"median_ms": 0.9}}
    records = [
        record("1/1", "passed", times=times, kernels=2),
        record("1/2", "failed", failure={"code": "KVC0701", "message": "a | b"}, times=times),
        record("2/1", "reference", reference={"degenerate": "zeros pass"}),
    ]
    summary = summarise(records, 4)
    assert summary["all"]["pass_at_1"] == 0.25
    assert summary["all"]["timing"]["eager"]["fast_p"] == {
        "0.5": 0.25,
        "0.8": 0.25,
        "1.0": 0.25,
        "1.5": 0.25,
        "2.0": 0.0,
    }
    assert summary["all"]["timing"]["compile"]["fast_p"]["1.0"] == 0.0
    assert summary["levels"]["1"]["pass_at_1"] == 0.5
    thin = record("1/9", "passed", sizes={"coverage": 0.1, "inputs": [[1, 1]]})
    assert summarise([thin], 1)["all"]["passed_thin"] == 1
    assert "sizes that show little" in markdown(summarise([thin], 1), [thin], "Title")
    page = markdown(summary, records, "Title")
    assert "zeros pass" in page and "a \\| b" in page

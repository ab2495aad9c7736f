"""Suites from a user's checkout: tasks are found, files load, tries are counted for their author alone."""

from pathlib import Path

import pytest
from kvc.diagnostics import KvcError
from kvc.frontends.fx.load import load
from kvc.model.suites import Request, module_class, report, run, torch2hip, tries_of

SOURCE = """
import torch


class Helper(torch.nn.Module):
    pass


class Scale(torch.nn.Module):
    def __init__(self, factor, shift=0.0):
        super().__init__()
        self.factor, self.shift = factor, shift

    def forward(self, x, fn=None):
        return x * self.factor + self.shift


def get_inputs():
    for n in (4, 8):
        yield [torch.ones(n)]


def get_init_inputs():
    return [[3.0], {"shift": 1.0}]
"""


def checkout(root: Path) -> Path:
    folder = root / "tasks" / "torch2hip" / "some" / "12_Scale"
    (folder / "pytorch_code_module").mkdir(parents=True)
    (folder / "config.yaml").write_text("task_type: torch2hip\n")
    (folder / "pytorch_code_module" / "py_12_Scale.py").write_text(SOURCE)
    return root


def test_a_torch2hip_task_loads_with_its_arguments_and_first_case(tmp_path: Path) -> None:
    (task,) = torch2hip(checkout(tmp_path), tmp_path / "work", ())
    loaded = load(str(task.file))
    assert (task.key, task.level) == ("12_Scale", "some")
    assert loaded.module(*loaded.args).tolist() == [4.0] * 4
    assert module_class(SOURCE, "9_Other") == "Scale"


def test_unknown_suites_and_empty_checkouts_are_errors(tmp_path: Path) -> None:
    with pytest.raises(KvcError, match="KVC0106"):
        run(Request("nothing", tmp_path, tmp_path), print)
    with pytest.raises(KvcError, match="KVC0101"):
        torch2hip(tmp_path, tmp_path, ())


def test_tries_count_for_their_author_alone() -> None:
    kernel = [("model", "compile"), ("model", "verified")]
    assert tries_of(kernel, "model") == 2 and tries_of([("hip.rows", "verified")], "model") is None
    assert tries_of([("hip.rows", "verified")], "rules") == 1


def test_a_report_counts_blind_tasks_as_not_passed() -> None:
    records = [
        {"problem": "a", "status": "passed", "author_tries": [1, 1]},
        {"problem": "b", "status": "passed", "author_tries": [3]},
        {"problem": "c", "status": "reference", "reference": {"degenerate": "a constant passes"}},
        {"problem": "d", "status": "failed", "failure": {"code": "KVC0601", "message": "differs"}},
    ]
    made = report(records, 5)
    assert (made.passed, made.kernels, made.first_try) == (2, 3, 2)
    assert made.pass_at[1][0] == 0.2 and made.pass_at[3][0] == 0.4
    assert made.blind == {"c": "a constant passes"} and "KVC0601 differs" in made.text()

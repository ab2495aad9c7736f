"""The time stage from end to end without a GPU: a stand-in for the device has a clock of its own, torch.compile runs
its debugging backends, and the suite's own module stands for the written one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from kvc.bench import cuda_module, kernelbench, stages, timing
from kvc.bench.kernelbench import Request, chosen, slice_of
from kvc.bench.stages import digest
from kvc.bench.table import markdown, summarise
from kvc.bench.timing import BASELINES, launches, times
from kvc.diagnostics import KvcError

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.fc = nn.Linear(features, 6)
    def forward(self, x):
        return torch.relu(self.fc(x))

def get_inputs():
    return [torch.randn(4, 5)]

def get_init_inputs():
    return [5]
"""


@dataclass
class FakeDevice:
    """Each call takes as many milliseconds as `costs` says, in the order in which calls are first seen."""

    costs: tuple[float, ...] = (1.0, 2.0, 1.5, 1.25)
    seen: list[Any] = field(default_factory=list)

    def sample(self, call: Callable[[], Any]) -> float:
        call()
        if call not in self.seen:
            self.seen.append(call)
        return self.costs[self.seen.index(call)]

    def kernels(self, call: Callable[[], Any]) -> list[str]:
        return ["triton_poi_fused_relu_0", "sgemm_128x64", "mine"]


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setattr(timing, "MODES", {"compile": {"backend": "eager"}, "max_autotune": {"backend": "aot_eager"}})
    monkeypatch.setattr(timing, "device_of", lambda job: device)
    monkeypatch.setattr(timing, "plain_precision", lambda: {"device": "stand-in"})
    monkeypatch.setattr(stages, "where_it_runs", lambda job: torch.device("cpu"))
    for module in (cuda_module, timing):
        monkeypatch.setattr(module, "device_row", lambda: timing_row())

    @contextlib.contextmanager
    def module(folder: Path, done: Any, loaded: Any) -> Iterator[Any]:
        yield loaded.module

    monkeypatch.setattr(timing, "module_on_cuda", module)
    return device


def timing_row() -> Any:
    from kvc.arch import arch

    return arch("sm_90")


def job(file: Path) -> dict[str, Any]:
    return {
        "file": str(file), "stage": "time", "target": "triton", "arch": "gfx942", "executor": "auto", "seed": 0,
        "full_size": True, "budget": {}, "trials": 2, "timeout_s": 60.0, "baselines": list(BASELINES),
    }  # fmt: skip


def test_the_time_stage_from_end_to_end(tmp_path: Path, without_gpu: FakeDevice) -> None:
    file = tmp_path / "1_linear.py"
    file.write_text(PROBLEM)
    record = stages.run(job(file))
    assert record["status"] == "passed", record
    found = record["times"]
    assert {n: found[n]["median_ms"] for n in ("kvc", *BASELINES)} == {
        "kvc": 1.0, "eager": 2.0, "compile": 1.5, "max_autotune": 1.25,
    }  # fmt: skip
    assert found["compile"] | {"launches": 3, "generated": 1, "external": 2} == found["compile"]
    assert found["kvc"]["generated"] == 1 and found["again"] == "equal"
    whole = {**record, "problem": "1/1", "level": 1, "name": "linear", "digest": digest(file)}
    summary = summarise([whole], 1)
    assert summary["all"]["timing"]["max_autotune"]["geometric_mean"] == 1.25
    page = markdown(summary, [whole], "Title")
    assert "| 1 | max_autotune | 1 |" in page and "over max_autotune" in page


def test_a_baseline_that_does_not_compile_is_named() -> None:
    def broken(module: torch.nn.Module, name: str) -> Any:
        if name == "compile":
            return module

        def call(*inputs: Any) -> Any:
            raise RuntimeError("no such luck")

        return call

    x = torch.randn(2, 3)
    found = times(torch.nn.ReLU(), torch.relu, [x], FakeDevice(), compile_as=broken)
    assert found["not_compiled"] == {"max_autotune": "RuntimeError: no such luck"}
    assert set(found) == {"kvc", "eager", "compile", "not_compiled", "again"}


def test_launches_are_told_apart() -> None:
    assert launches(["triton_red_0", "cublas", "k"], {"k"}) == {"launches": 3, "generated": 2, "external": 1}


def test_slices_cover_the_suite_once(tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for n in range(1, 8):
        (folder / f"{n}_p.py").write_text(PROBLEM)
    base = {"root": tmp_path, "levels": (1,), "out": tmp_path / "out", "target": "triton", "arch": "gfx942"}
    parts = [[p.number for p in chosen(Request(**base, part=slice_of(f"{i}/3")))] for i in (1, 2, 3)]
    assert sorted(n for part in parts for n in part) == list(range(1, 8)) and parts[0] == [1, 4, 7]
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(KvcError):
            slice_of(wrong)
    with pytest.raises(KvcError):
        kernelbench._checked(Request(**base, stage="time", baselines=("tensorrt",)))

"""Graphs of torch.compile as recorded graphs: what is copied, what is handed out, and when there is no recording. The
device and the recording are stand-ins; that of written modules is tested with them (tests/autotune/test_module.py)."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import kvc.replay
import pytest
import torch
from kvc.dynamo_options import DynamoOptions
from kvc.replay import MAX_RECORDINGS, Replayed, obstacle, replayed
from torch import Tensor


class Recording:
    """What a written module's recording does: inputs and results have one place."""

    def __init__(self, model: Model, args: tuple[Tensor, ...], fixed: tuple[int, ...], pool: Any) -> None:
        self.given = [x if n in fixed else x.clone() for n, x in enumerate(args)]
        self.fixed = [(n, args[n].data_ptr()) for n in fixed]
        self.model, self.pool, self.busy = model, pool, False
        self.result = model(*self.given)

    def stays(self, leaves: tuple[Tensor, ...]) -> bool:
        return all(leaves[n].data_ptr() == address for n, address in self.fixed)

    def replay(self, leaves: tuple[Tensor, ...]) -> Any:
        assert not self.busy, "two replays at once"
        self.busy = True
        fixed = dict(self.fixed)
        for n, x in enumerate(leaves):
            if n not in fixed:
                self.given[n].copy_(x)
        for mine, new in zip(self.result, self.model.compute(*self.given), strict=True):
            if mine is not new:
                mine.copy_(new)
        self.busy = False
        return self.result


class Model:
    """x @ w, and both of its inputs."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses, self.calls = refuses, 0
        self.made: list[Recording] = []

    def compute(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (x @ w, x, w)

    def __call__(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        return self.compute(x, w)

    def record(self, args: tuple[Tensor, ...], kwargs: None, fixed: tuple[int, ...], pool: Any) -> Recording:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.made.append(Recording(self, args, fixed, pool))
        return self.made[-1]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU that tells which streams wait for which events; `stream` is the current one."""
    state: dict[str, Any] = {"stream": 1, "told": []}

    class Event:
        def record(self, stream: Any) -> None:
            self.on = stream.cuda_stream

    def current(_: Any = None) -> Any:
        stream = state["stream"]
        wait = lambda event: state["told"].append((stream, event.on))  # noqa: E731
        return SimpleNamespace(cuda_stream=stream, wait_event=wait)

    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.get("capturing", False))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(kvc.replay, "_devices", {})
    return state


def check(run: Replayed, w: Tensor) -> tuple[Tensor, ...]:
    x = torch.randn(3, 4)
    y, same, weight = run(x, w)
    assert torch.equal(y, x @ w) and same is x and weight is w
    return y, x


def test_the_second_call_records_and_results_are_ones_own() -> None:
    model, w = Model(), torch.randn(4, 5)
    run = Replayed(model, "forward", (1,))  # type: ignore[arg-type]
    check(run, w)
    assert not model.made
    first, x = check(run, w)
    assert run.recordings == 1 and model.made[0].pool == (0, 7) and model.calls == 2
    second, _ = check(run, w)
    assert torch.equal(first, x @ w) and first is not second and model.calls == 2
    w.add_(1)  # read where it lies
    check(run, w)
    assert model.made[0].given[1] is w


def test_a_replaced_parameter_is_recorded_again_but_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    run = Replayed(model, "forward", (1,))  # type: ignore[arg-type]
    kept = [torch.randn(4, 5) for _ in range(MAX_RECORDINGS + 2)]
    with caplog.at_level(logging.WARNING, "kvc.dynamo"):
        for w in kept:
            check(run, w)
            check(run, w)
    assert run.recordings == MAX_RECORDINGS == len(model.made) and "lay elsewhere" in run.reason
    assert caplog.text.count("is not recorded") == 1


def test_backward_knows_parameters_by_their_place() -> None:
    w, other = torch.randn(4, 5), torch.randn(4, 5)
    forward, model = Replayed(Model(), "forward", (1,)), Model()  # type: ignore[arg-type]
    check(forward, w)
    check(forward, w)
    backward = Replayed(model, "backward", ())  # type: ignore[arg-type]
    for _ in range(3):
        check(backward, w)
    assert backward.static == (1,)
    check(backward, other)  # it was none after all, and is copied from now on
    check(backward, w)
    assert backward.static == () and len(model.made) == 2


def test_what_cannot_be_recorded_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model, w = Model(refuses=True), torch.randn(4, 5)
    run = Replayed(model, "inference", (1,))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "kvc.dynamo"):
        for _ in range(4):
            check(run, w)
    assert model.calls == 4 and caplog.text.count("stream is capturing") == 1 and "more" not in run.reason


def test_in_a_recording_of_the_callers_it_does_not_record(device: dict[str, Any]) -> None:
    model, w = Model(), torch.randn(4, 5)
    run = Replayed(model, "inference", (1,))  # type: ignore[arg-type]
    device["capturing"] = True
    for _ in range(3):
        check(run, w)
    assert not model.made


def test_another_stream_waits_for_the_replay_before(device: dict[str, Any]) -> None:
    w = torch.randn(4, 5)
    runs = [Replayed(Model(), "inference", (1,)) for _ in range(2)]  # type: ignore[arg-type]
    for run in runs:
        check(run, w)
        check(run, w)
    assert not device["told"]
    device["stream"] = 2
    check(runs[0], w)
    assert device["told"] == [(2, 1)]
    check(runs[1], w)
    assert device["told"] == [(2, 1)]


def test_threads_take_turns() -> None:
    w, run = torch.randn(4, 5), Replayed(Model(), "inference", (1,))  # type: ignore[arg-type]

    def work(_: int) -> None:
        for _ in range(50):
            check(run, w)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))  # raises what a thread raised
    assert run.recordings == 1


def test_obstacles(caplog: pytest.LogCaptureFixture) -> None:
    gpu = SimpleNamespace(device=torch.device("cuda", 0))
    fake = torch.empty(2, device="meta")
    assert "on meta, not on a GPU" in obstacle([], [fake])
    assert "on no device" in obstacle([], [3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Tensor", SimpleNamespace)
        assert obstacle(["aten.lgamma.default"], [gpu]) == ""
        assert "random numbers" in obstacle(["aten.bernoulli.p"], [gpu])
        assert "waits for the device" in obstacle(["aten.nonzero.default"], [gpu])
        assert "changes its inputs" in obstacle(["aten.add_.Tensor"], [gpu])
    model = torch.nn.Identity()
    with caplog.at_level(logging.WARNING, "kvc.dynamo"):
        assert replayed(model, "inference", [], [torch.ones(2)], ()) is model
    assert "not on a GPU" in caplog.text


def test_the_option() -> None:
    assert DynamoOptions.of({"graphs": True}).graphs and not DynamoOptions.of({}).graphs

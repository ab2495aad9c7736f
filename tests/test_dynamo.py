"""`torch.compile(backend="kvc")` on the simulator: results, gradients, mutation, shapes, what runs eagerly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kvc import compiled_graph, dynamo
from kvc.diagnostics import KvcError
from kvc.dynamo import DynamoOptions
from torch import nn

SIM = {"executor": "sim", "strict": True}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def fresh(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KVC_CACHE_DIR", str(cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="kvc", options={**SIM, **options})


def test_forward_and_backward_are_those_of_eager(cache: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    x = torch.randn(3, 5, requires_grad=True)

    def step(run: Any) -> list[torch.Tensor]:
        model.zero_grad()
        x.grad = None
        y = run(x)
        y.square().sum().backward()
        assert x.grad is not None
        return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    expected, got = step(model), step(compiled(model))
    assert len(got) == 4
    torch.testing.assert_close(got, expected)
    locks = list((cache / "graphs").glob("*/kvc.lock"))
    assert len(locks) == 2  # a forward and a backward graph, each a translation that kvc can read


def test_a_second_process_finds_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2 + 1

    x = torch.randn(6)
    assert torch.equal(compiled(program)(x), program(x))
    torch._dynamo.reset()

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("translated again")

    monkeypatch.setattr(compiled_graph, "translate", forbidden)
    assert torch.equal(compiled(program)(x), program(x))


def test_mutation_and_aliases_are_respected() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x, x[1:], y.t()

    x, y = torch.arange(4.0), torch.randn(2, 3)
    mine = x.clone()
    first, tail, turned = compiled(program)(mine, y)
    assert torch.equal(mine, x + 1) and first is mine
    assert tail.data_ptr() == mine[1:].data_ptr() and turned.data_ptr() == y.data_ptr()


def test_other_sizes_are_translated_when_they_come() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) + 1

    run = compiled(program)
    for rows in (2, 3, 5):  # from the second size on Dynamo hands over symbols
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), program(x))


def test_what_has_no_kernel_runs_eagerly_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "kvc"):
        assert torch.equal(torch.compile(program, backend="kvc")(x), x + 1)  # no GPU here
    assert "runs eagerly" in caplog.text and "KVC0601" in caplog.text
    torch._dynamo.reset()
    with pytest.raises(Exception, match="KVC0601"):
        torch.compile(program, backend="kvc", options={"strict": True})(x)


def test_too_many_sizes_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "MAX_SHAPES", 0)
    run = torch.compile(lambda x: x * 3, backend="kvc", dynamic=True, options={"executor": "sim"})
    x = torch.randn(3)
    assert torch.equal(run(x), x * 3)


def test_threads_compile_one_after_the_other() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x - 5

    results: dict[int, torch.Tensor] = {}
    run = compiled(program)

    def work(n: int) -> None:
        results[n] = run(torch.full((3,), float(n)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {n: r[0].item() for n, r in results.items()} == {0: -5.0, 1: -4.0, 2: -3.0}


@pytest.mark.parametrize(
    ("options", "code"),
    [({"speed": 11}, "KVC0106"), ({"target": "cobol"}, "KVC0105"), ({"arch": "gfx000"}, "KVC0105")],
)
def test_unknown_options_are_errors(options: dict[str, Any], code: str) -> None:
    with pytest.raises(KvcError) as caught:
        DynamoOptions.of(options)
    assert caught.value.code == code
    assert DynamoOptions.of({"emitter": "hip.generic"}).emitter == ("hip.generic",)

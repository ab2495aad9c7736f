"""`torch.compile(backend="kvc")` on the simulator: results, gradients, mutation, shapes, what runs eagerly."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kvc import compiled_graph, dynamic_shapes, dynamo, pipeline
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


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("translated again")


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


def test_recorded_graphs_copy_all_but_parameters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Recording is replaced by a note of what it was given; where it runs, on a CPU, there is none."""
    from kvc import replay

    model, x = nn.Linear(5, 4), torch.randn(3, 5)
    with caplog.at_level(logging.WARNING, "kvc.dynamo"):
        torch.testing.assert_close(compiled(model, graphs=True)(x), model(x))
    assert caplog.text.count("is not recorded: its tensors are on cpu") == 1
    seen: list[tuple[str, list[tuple[int, ...]]]] = []

    def noted(made: Any, kind: str, ops: Any, inputs: Any, static: Any) -> Any:
        assert not ops
        seen.append((kind, [tuple(inputs[n].shape) for n in static]))
        return made

    monkeypatch.setattr(replay, "replayed", noted)
    torch._dynamo.reset()
    torch.compile(model, backend="kvc", options={**SIM, "graphs": True})(x).sum().backward()
    assert [kind for kind, _ in seen] == ["forward", "backward"]
    assert sorted(seen[0][1]) == [(4,), (4, 5)] and not seen[1][1]


def test_a_second_process_finds_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2 + 1

    x = torch.randn(6)
    assert torch.equal(compiled(program)(x), program(x))
    torch._dynamo.reset()

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


def test_one_kernel_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1)

    run = torch.compile(program, backend="kvc", options={**SIM})
    w = torch.randn(4, 3)

    def called(rows: int) -> None:
        x = torch.randn(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x, w), program(x, w))

    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    called(6)
    monkeypatch.setattr(pipeline, "judge", forbidden)  # from here on nothing may be compiled or verified
    for rows in (3, 9, 70):
        called(rows)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


def test_transposed_arguments_have_symbolic_sizes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = torch.compile(lambda x: x.exp() + 1, backend="kvc", dynamic=True, options={**SIM})
    x = torch.randn(5, 3).t()
    torch.testing.assert_close(run(x), x.exp() + 1)
    monkeypatch.setattr(pipeline, "judge", forbidden)
    x = torch.randn(9, 7).t()
    torch.testing.assert_close(run(x), x.exp() + 1)


def test_what_has_no_symbolic_kernel_gets_one_for_each_size_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    run = torch.compile(lambda x: x.cos() + 1, backend="kvc", dynamic=True, options={**SIM})
    with caplog.at_level(logging.INFO, "kvc"):
        for rows in (3, 5):
            x = torch.rand(rows, 2 * rows)[:, ::2]  # strides with gaps that depend on the size
            torch.testing.assert_close(run(x), x.cos() + 1)
    assert "the layout of" in caplog.text and "depends on the sizes" in caplog.text


def test_too_many_sizes_run_eagerly(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(dynamic_shapes, "MAX_SIZES", 0)
    run = torch.compile(lambda x: x * 3, backend="kvc", dynamic=True, options={"executor": "sim"})
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "kvc"):
        assert torch.equal(run(x), x * 3)
    assert "more than 0 sets of sizes" in caplog.text


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_trained(kind: str) -> None:
    torch.manual_seed(0)
    layer = getattr(nn, kind)(2, 2)
    x = torch.randn(2, 1, 2)

    def step(run: Any) -> list[torch.Tensor]:
        layer.zero_grad()
        run(x)[0].square().sum().backward()
        return [p.grad.clone() for p in layer.parameters() if p.grad is not None]

    expected, got = step(layer), step(compiled(layer))
    assert len(got) == 4
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("norm_first", [False, True])
def test_fused_operators_of_evaluation_have_kernels(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True, norm_first=norm_first, activation="gelu").eval()
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.randn(1, 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x), layer(x))
        torch.testing.assert_close(compiled(attention)(x, x, x), attention(x, x, x))


def test_a_budget_tunes_before_the_first_use(cache: Path) -> None:
    before = set((cache / "graphs").glob("*"))
    x = torch.randn(2, 600)
    torch.testing.assert_close(compiled(lambda x: x.sum(-1), budget="2t")(x), x.sum(-1))
    (folder,) = set((cache / "graphs").glob("*")) - before
    (kernel,) = json.loads((folder / "measurements.json").read_text())["kernels"].values()
    assert kernel["tuning"]["history"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_compiles_and_leaves_its_parent_the_workers() -> None:
    x = torch.randn(4)
    run = compiled(lambda x: x * 7)
    run(x)  # this process has workers
    with dynamo._lock:  # which no thread of the child will ever release
        child = os.fork()
        if child == 0:
            torch._dynamo.reset()
            fine = torch.equal(compiled(lambda x: x * 8)(x), x * 8)
            atexit._run_exitfuncs()
            os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    torch._dynamo.reset()
    assert torch.equal(compiled(lambda x: x * 9)(x), x * 9)


def test_graph_breaks_and_what_is_no_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2 if y.sum() > 0 else y

    x = torch.ones(3)
    assert torch.equal(compiled(program)(x), program(x))


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
    [
        ({"speed": 11}, "KVC0106"), ({"target": "cobol"}, "KVC0105"), ({"arch": "gfx000"}, "KVC0105"),
        ({"emitter": "hip.magic"}, "KVC0105"), ({"emitter": 3}, "KVC0106"), ({"numerics": "sloppy"}, "KVC0106"),
        ({"target": "hip", "emitter": "triton.generic"}, "KVC0105"), ({"budget": "a while"}, "KVC0106"),
        ({"budget": 30}, "KVC0106"), ({"library": "cublas"}, "KVC0106"), ({"strict": "yes"}, "KVC0106"),
        ({"executor": "cloud"}, "KVC0106"), ({"jobs": 0}, "KVC0106"), ({"jobs": True}, "KVC0106"),
    ],
)  # fmt: skip
def test_unknown_options_are_errors(options: dict[str, Any], code: str) -> None:
    with pytest.raises(KvcError) as caught:
        DynamoOptions.of(options)
    assert caught.value.code == code


def test_options_are_taken_as_they_are_meant() -> None:
    options = DynamoOptions.of({"emitter": "hip.generic", "budget": "200t", "library": True, "target": None})
    assert options == DynamoOptions(emitter=("hip.generic",), budget="200t", library=True)
    both = DynamoOptions.of({"target": "hip", "emitter": ["hip.rows", "hip.generic"]})
    assert both.emitter == ("hip.rows", "hip.generic")

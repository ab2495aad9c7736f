"""Recurrent layers are captured as one operator, with torch's shapes and without running their steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kvc.frontends.fx.capture import capture
from kvc.frontends.fx.recurrent import shapes_only


class Model(torch.nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.rnn = getattr(torch.nn, kind)(3, 5, **options)

    def forward(self, x: torch.Tensor) -> Any:
        return self.rnn(x)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("LSTM", {"proj_size": 2}),
        ("GRU", {"num_layers": 2}),
        ("RNN", {"bidirectional": True}),
        ("RNN", {"nonlinearity": "relu", "batch_first": True}),
    ],
)
def test_types_are_those_of_eager(kind: str, options: dict[str, Any]) -> None:
    model, x = Model(kind, **options), torch.randn(2, 7, 3)
    graph = capture(model, (x,)).graph
    output, state = model(x)
    expected = [output, *(state if isinstance(state, tuple) else (state,))]
    types = [graph.types[name] for name in graph.outputs]
    assert [t.shape for t in types] == [tuple(e.shape) for e in expected]
    assert [t.strides for t in types] == [e.stride() for e in expected]
    assert [n.op for n in graph.nodes if n.op != "zeros"] == [graph.producer[graph.outputs[0]].op]


def test_a_long_sequence_is_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import decompositions

    def step(*args: Any) -> None:
        raise AssertionError("the trace runs the layer's steps")

    monkeypatch.setattr(decompositions, "one_layer_rnn", step)
    monkeypatch.setattr(decompositions, "gru_cell", step)
    graph = capture(Model("GRU"), (torch.randn(5000, 2, 3),)).graph
    assert graph.types[graph.outputs[0]].shape == (5000, 2, 5)


def test_layers_that_run_are_left_alone() -> None:
    model, x = Model("LSTM"), torch.randn(4, 2, 3)
    before = dict(torch.ops.aten.lstm.input.py_kernels)
    expected = model(x)[0]
    with shapes_only():
        assert torch.equal(model(x)[0], expected)
    assert dict(torch.ops.aten.lstm.input.py_kernels) == before

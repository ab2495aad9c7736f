"""Random numbers: the published generator, the promised distributions, and streams that differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kvc.builder import Builder
from kvc.dtypes import BF16, F64, I64
from kvc.frontends.fx.capture import capture
from kvc.interpret import interpret
from kvc.lower import lower
from kvc.ops import op_table
from kvc.optable.random import BUFFER, random_words
from kvc.pipeline_graph import plan

# Philox4x32-10 with the counter and key of the first known-answer test of Random123: all zero.
ZERO_WORDS = (0x6627E8D5, 0xBC57AC4C)


def draw(name: str, *args: Any, state: tuple[int, int] = (0, 0), number: int = 0, **attrs: Any) -> torch.Tensor:
    """The (last) result of an op that draws, in its working dtype."""
    k = Builder()
    rng = k.operand("rng", I64, (2,))
    feed = {"rng": torch.tensor(state)}
    given = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            feed[f"x{len(feed)}"] = arg
            from kvc.dtypes import from_torch

            arg = k.operand(f"x{len(feed) - 1}", from_torch(arg.dtype), tuple(arg.shape))
        given.append(arg)
    result = op_table()[f"random_{name}"].meaning(k, rng, number, *given, **attrs)
    tensor = result[-1] if isinstance(result, tuple) else result
    spec = k.spec("draw", list(feed), [tensor.name])
    return interpret(spec, feed, "working")[tensor.name]


def test_known_answers() -> None:
    k = Builder()
    rng = k.operand("rng", I64, (2,))
    axes, first, second = random_words(k, rng, 0, (1,))
    outs = [k.define(I64, axes, word).name for word in (first, second)]
    got = interpret(k.spec("words", ["rng"], outs), {"rng": torch.zeros(2, dtype=torch.int64)})
    assert tuple(int(got[o]) for o in outs) == ZERO_WORDS


@pytest.mark.parametrize("dtype", [None, F64, BF16])
def test_uniform_moments(dtype: Any) -> None:
    u = draw("rand", size=(40, 500), dtype=dtype).double()
    assert u.min() >= 0 and u.max() < (1 if dtype is not BF16 else 1.01)
    assert abs(float(u.mean()) - 0.5) < 0.01
    assert abs(float(u.var()) - 1 / 12) < 0.005


@pytest.mark.parametrize("dtype", [None, F64])
def test_normal_moments(dtype: Any) -> None:
    x = draw("randn", size=(40, 500), dtype=dtype).double()
    assert abs(float(x.mean())) < 0.03 and abs(float(x.var()) - 1) < 0.05
    assert abs(float((x**4).mean()) - 3) < 0.3


def test_streams_differ_by_seed_pass_and_draw() -> None:
    rows = [
        draw("rand", size=(2000,), state=state, number=n)
        for state, n in (((0, 0), 0), ((1, 0), 0), ((1 << 32, 0), 0), ((0, 1), 0), ((0, 0), 1))
    ]
    correlation = torch.corrcoef(torch.stack(rows).double())
    assert (correlation - torch.eye(len(rows), dtype=torch.float64)).abs().max() < 0.1
    assert torch.equal(rows[0], draw("rand", size=(2000,)))


def test_dropout_keeps_the_mean_and_zeroes_the_share() -> None:
    x = torch.ones(50, 400)
    y = draw("dropout", x, p=0.25, train=True)
    kept = draw("native_dropout", x, p=0.25, train=True)
    assert abs(float((y == 0).double().mean()) - 0.25) < 0.01
    assert torch.equal(y != 0, kept)
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))


def test_discrete_distributions() -> None:
    coin = draw("bernoulli", torch.full((20000,), 0.3))
    assert set(coin.tolist()) == {0.0, 1.0} and abs(float(coin.mean()) - 0.3) < 0.02
    die = draw("randint", low=1, high=7, size=(12000,))
    counts = torch.bincount(die, minlength=7)
    assert counts[0] == 0 and bool(((counts[1:] - 2000).abs() < 250).all())
    assert sorted(draw("randperm", n=50).tolist()) == list(range(50))
    waits = draw("exponential", torch.zeros(20000), lambd=2.0)
    assert waits.min() >= 0 and abs(float(waits.mean()) - 0.5) < 0.02


class Dropping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)
        self.rnn = torch.nn.RNN(4, 3, 2, dropout=0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.drop(x) + self.drop(x), self.rnn(x)[0]


def test_a_model_in_training_counts_its_passes() -> None:
    x = torch.ones(2, 3, 4)
    captured = capture(Dropping(), (x,), mode="train")
    graph = captured.graph
    assert not plan(graph).fallbacks
    (update,) = graph.mutations
    assert captured.feed()[update[0]].tolist() == [0, 0] and captured.module.get_buffer(BUFFER).tolist() == [0, 0]
    spec, _ = lower(graph)
    got = interpret(spec, {o.name: captured.feed()[o.name] for o in spec.inputs})
    assert got[update[1]].tolist() == [0, 1]
    first = got[graph.outputs[0]]
    assert {0.0, 2.0, 4.0} == set(first.unique().tolist())  # two draws, not one twice


def test_nothing_is_drawn_in_evaluation() -> None:
    graph = capture(Dropping(), (torch.ones(2, 3, 4),)).graph
    assert not graph.mutations and not any(n.op.startswith("random") for n in graph.nodes)

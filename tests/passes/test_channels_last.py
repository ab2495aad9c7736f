"""Which intermediates are stored with the channels last, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvc.frontends.fx.capture import capture
from kvc.interpret import interpret
from kvc.passes import channels_last
from kvc.passes.channels_last import Choice
from kvc.pipeline_graph import plan
from kvc.plan import Plan
from kvc.plan_run import run_plan
from torch import Tensor, nn
from torch.nn import functional as F


def conv(i: int, o: int, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(i, o, size, padding=size // 2)


class Chain(nn.Module):
    """Three convolutions; the tensors between the second and the third are what `between` makes of them."""

    def __init__(self, channels: int = 8, between: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.first, self.second, self.third = conv(3, channels), conv(channels, channels), conv(channels, 5)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.between(self.second(torch.relu(self.first(x)))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.norm, self.last = conv(3, 8), conv(8, 8), nn.BatchNorm2d(8), conv(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = torch.relu(x + self.norm(self.same(x)))
        x = torch.relu(x + self.norm(self.same(x)))
        return self.last(x)


class Head(nn.Module):
    """What one convolution gives is read by another and flattened for a linear layer, or given back."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.kind = conv(3, 8), conv(8, 4), kind
        self.linear = nn.Linear(8 * 6 * 5, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.first(x))
        other = {"flat": lambda: self.linear(x.flatten(1)), "given": lambda: x, "sums": lambda: x.mean((2, 3))}
        return self.second(x), other[self.kind]()


def x() -> Tensor:
    return torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))


def made(model: nn.Module, mode: str = "eval") -> tuple[Plan, Tensor, Tensor]:
    """The plan, what it computes in float64 and what the model does."""
    captured = capture(model, (x(),), mode=mode)
    found = plan(captured.graph)
    feed = {n: t.double() if t.is_floating_point() else t for n, t in captured.feed().items()}
    values = run_plan(found, feed, interpret)
    name = captured.graph.outputs[0]
    expected = model.double()(x().double())
    first = expected if isinstance(expected, Tensor) else expected[0]
    return found, values[name].reshape(first.shape), first


def last(found: Plan) -> set[str]:
    """Values that are written with 8 channels in the last place, or where 6 x 5 pixels stood before."""
    return {n for n, t in found.buffers.items() if len(t.shape) > 2 and t.shape[-1] == 8}


def check(model: nn.Module, mode: str = "eval") -> Plan:
    found, got, want = made(model, mode)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    return found


def test_between_convolutions_channels_are_last() -> None:
    found = check(Chain())
    assert len(last(found)) == 2 + 2  # two tensors, the copies of two weights
    graph = found.graph
    assert found.buffers[graph.outputs[0]] == graph.types[graph.outputs[0]]


def test_weights_are_copied_once_and_not_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(Chain())
    monkeypatch.setattr(channels_last, "choose", lambda fusion: Choice())
    before = check(Chain())
    assert not last(before) and not before.prologue
    assert len(found.launches) == len(before.launches) == 3
    assert len(found.prologue) == 2


def test_a_residual_and_what_it_is_added_to_move_together() -> None:
    found = check(Residual())
    pixels = [t.shape for n, t in found.buffers.items() if n not in found.graph.outputs and len(t.shape) > 2]
    assert sum(shape[-1] == 8 for shape in pixels) == 4  # what the pool gives, both sums, the folded weight
    # The folded norm writes the weight in its new order itself, once for both uses.
    assert len(found.prologue) == 2


@pytest.mark.parametrize("kind", ["flat", "given"])
def test_the_order_of_pixels_stays_where_others_read_it(kind: str) -> None:
    assert not last(check(Head(kind)))


def test_sums_over_pixels_count_against_it() -> None:
    assert not last(check(Head("sums")))


def test_channels_that_are_no_multiple_of_an_access_stay() -> None:
    assert not last(check(Chain(channels=6)))


def test_rows_that_a_norm_writes_stay() -> None:
    model = Residual().train()
    captured = capture(model, (x(),), mode="train")
    assert not last(plan(captured.graph))


def test_a_view_between_convolutions_is_no_copy() -> None:
    def flipped(t: Tensor) -> Tensor:
        return torch.relu(t.transpose(2, 3))

    found = check(Chain(between=flipped))
    assert len(found.launches) == 3

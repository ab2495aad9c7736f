"""Max pools of max pools become one where that is no more work."""

from __future__ import annotations

import pytest
import torch
from kvc.frontends.fx.capture import capture
from kvc.pipeline_graph import plan
from kvc.plan_run import run_plan
from torch import nn

POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}


def pair(rank: int, first: dict, second: dict) -> nn.Module:
    return nn.Sequential(POOLS[rank](**first), POOLS[rank](**second))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("first", "second", "kernels"),
    [
        ({"kernel_size": 2}, {"kernel_size": 3}, 1),
        ({"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 2}, 1),
        ({"kernel_size": 3, "stride": 1}, {"kernel_size": 2, "stride": 3}, 1),
        ({"kernel_size": 2, "stride": 3}, {"kernel_size": 2}, 2),  # gaps between the first one's windows
        ({"kernel_size": 2}, {"kernel_size": 3, "stride": 1}, 2),  # windows looked at twice
        ({"kernel_size": 2}, {"kernel_size": 2, "padding": 1}, 2),
        ({"kernel_size": 2, "dilation": 2}, {"kernel_size": 2}, 2),
        ({"kernel_size": 2}, {"kernel_size": 2, "ceil_mode": True}, 2),
    ],
)  # fmt: skip
def test_a_pool_of_a_pool(rank: int, first: dict, second: dict, kernels: int) -> None:
    model, x = pair(rank, first, second), torch.randn(2, 3, *(23, 21, 19)[:rank])
    x.flatten()[5] = torch.nan
    captured = capture(model, (x,))
    made = plan(captured.graph)
    assert len(made.launches) == kernels
    (got,) = run_plan(made, captured.feed()).values()
    torch.testing.assert_close(got.to(x.dtype), model(x), rtol=0, atol=0, equal_nan=True)


def test_three_in_a_row_are_one() -> None:
    model, x = nn.Sequential(*(nn.MaxPool2d(2) for _ in range(3))), torch.randn(1, 2, 35, 33)
    assert len(plan(capture(model, (x,)).graph).launches) == 1


class Tapped(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.max_pool2d(x, 2)
        return y, nn.functional.max_pool2d(y, 2)


def test_a_pool_that_something_else_reads_stays() -> None:
    graph = plan(capture(Tapped(), (torch.randn(1, 2, 16, 16),)).graph).graph
    assert [n.attr("kernel_size") for n in graph.nodes] == [(2, 2), (2, 2)]


def test_windows_that_one_thread_cannot_walk_stay_apart() -> None:
    model, x = nn.Sequential(nn.MaxPool3d(5), nn.MaxPool3d(5)), torch.randn(1, 1, 50, 50, 50)
    assert len(plan(capture(model, (x,)).graph).launches) == 2

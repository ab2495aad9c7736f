"""Tensors without elements and tensors without dims, through the whole plan, for every kind of kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from kvc.frontends.fx.capture import capture
from kvc.pipeline_graph import plan
from kvc.plan_run import run_plan
from torch import Tensor

Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
none = torch.empty(0)

EMPTY: dict[str, Case] = {
    "pointwise": (lambda x: torch.relu(x + 1), (torch.empty(0, 5),)),
    "broadcast": (lambda x, y: x * y, (torch.empty(3, 0), torch.randn(3, 1))),
    "no terms of a sum": (lambda x: x.sum(1) + 1, (torch.empty(4, 0),)),
    "no rows of a sum": (lambda x: x.sum(1), (torch.empty(0, 4),)),
    "mean of nothing": (lambda x: x.mean(), (none,)),
    "product without k": (lambda x, y: x @ y + 2, (torch.empty(3, 0), torch.empty(0, 4))),
    "product without m": (lambda x, y: x @ y, (torch.empty(0, 3), torch.randn(3, 4))),
    "linear": (lambda x, w, b: F.linear(x, w, b), (torch.empty(2, 0), torch.empty(5, 0), torch.randn(5))),
    "softmax": (lambda x: x.softmax(-1), (torch.empty(0, 7),)),
    "layer norm": (lambda x: F.layer_norm(x, (6,)), (torch.empty(0, 6),)),
    "convolution": (lambda x, w: F.conv2d(x, w), (torch.empty(0, 3, 6, 6), torch.randn(4, 3, 3, 3))),
    "pooling": (lambda x: F.avg_pool1d(x, 2), (torch.empty(0, 3, 6),)),
    "join": (lambda x, y: torch.cat([x, y], 1), (torch.empty(3, 0), torch.randn(3, 4))),
    "lookup": (lambda x, i: F.embedding(i, x), (torch.randn(5, 3), torch.empty(0, dtype=torch.int64))),
    "scatter": (
        lambda x, i, y: x.scatter_add(0, i, y),
        (torch.randn(5), torch.empty(0, dtype=torch.int64), none),
    ),
    "scan": (lambda x: x.cumsum(0), (torch.empty(0, 3),)),
    "sort": (lambda x: x.sort(0).values, (torch.empty(0, 3),)),
    "slice": (lambda x: x[2:2] * 2, (torch.randn(4, 3),)),
}
SCALAR: dict[str, Case] = {
    "pointwise": (lambda x, y: torch.exp(x) * y, (torch.tensor(0.5), torch.tensor(3.0))),
    "mixed ranks": (lambda x, y: x + y, (torch.tensor(0.5), torch.randn(3, 4))),
    "sum of one": (lambda x: x.sum() + x.max(), (torch.tensor(0.5),)),
    "inner product": (lambda x, y: torch.dot(x, y), (torch.randn(9), torch.randn(9))),
    "softmax": (lambda x: x.softmax(0), (torch.tensor(2.0),)),
    "scan": (lambda x: x.cumsum(0), (torch.tensor(2.0),)),
    "whole sum": (lambda x: (x * x).sum(), (torch.randn(3, 5),)),
    "lookup": (lambda x, i: x.index_select(0, i), (torch.randn(5), torch.tensor(3))),
}


@pytest.mark.parametrize("name", [f"empty: {n}" for n in EMPTY] + [f"scalar: {n}" for n in SCALAR])
def test_it_plans_without_fallback_and_gives_what_torch_gives(name: str) -> None:
    table, _, case = name.partition(": ")
    function, args = (EMPTY if table == "empty" else SCALAR)[case]

    class Module(torch.nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            return function(*args)

    captured = capture(Module(), args)
    made = plan(captured.graph)
    expected = function(*args)
    (got,) = (run_plan(made, captured.feed())[o] for o in made.graph.outputs)
    assert not made.fallbacks and got.shape == expected.shape
    torch.testing.assert_close(got.to(expected.dtype), expected, equal_nan=True)

"""Cutting a kernel out of a spec keeps every axis's extent, however the dims of its inputs are joined and split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvc.frontends.fx.capture import capture
from kvc.interpret import interpret
from kvc.lower import lower
from kvc.pipeline_graph import plan
from kvc.plan_run import run_plan
from torch import Tensor


def wrapped_gather(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """A tensor read over its dims in one statement and flat in another."""
    at = torch.where(target < 0, target + x.shape[1], target)
    flat = torch.where(target < 0, target + len(weight), target).reshape(-1)
    return -x.gather(1, at.unsqueeze(1)).squeeze(1) * weight[flat].reshape(target.shape)


def flat_norm(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Statistics over flattened dims, applied in the original shape."""
    flat = x.reshape(-1, x[0].numel())
    rest = flat - flat.mean(1, keepdim=True)
    inverse = torch.reciprocal((rest * rest).mean(1, keepdim=True).sqrt())
    return (rest * inverse).reshape(x.shape) * weight[:, None] + target[:, None]


@pytest.mark.parametrize("function", [wrapped_gather, flat_norm])
@pytest.mark.parametrize("shape", [(3, 5, 2), (4, 3, 7), (2, 2, 2)])
def test_inputs_read_in_two_shapes(function: Callable[..., Tensor], shape: tuple[int, int, int]) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
            return function(x, target, weight)

    torch.manual_seed(0)
    batch, classes, length = shape
    target = torch.randint(-classes, classes, (batch, length))
    captured = capture(Module(), (torch.randn(shape), target, torch.rand(classes)))
    whole, _ = lower(captured.graph)
    feed = captured.feed()
    expected = interpret(whole, {o.name: feed[o.name] for o in whole.inputs})
    made = plan(captured.graph)
    for name, value in run_plan(made, feed).items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-9, atol=1e-9)

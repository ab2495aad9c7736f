"""Tensors without elements: nothing computes them, and they are there with the right type."""

from __future__ import annotations

import torch
from kvc.frontends.fx.capture import capture
from kvc.pipeline_graph import plan
from kvc.plan_run import run_plan
from torch import Tensor, nn


class Hollow(nn.Module):
    """A slice of nothing, an operator with two results without elements, and a join with nothing."""

    def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        sliced = x[:, :0].sin() * 2
        normed = torch.ops.aten._native_batch_norm_legit_no_training(x, w, w, w, w.abs() + 1, 0.1, 1e-5)
        return sliced, *normed, torch.cat([sliced, x], 1), sliced.sum(1), x.bool()[:, 3:]


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 4), torch.randn(3)


def test_no_kernel_writes_only_nothing() -> None:
    made = plan(capture(Hollow(), arguments()).graph)
    assert all(any(0 not in spec.shape_of(o.name) for o in spec.outputs) for spec in made.kernels)
    assert {t.shape for t in made.empties.values()} >= {(2, 0, 4), (0,)}


def test_values_and_types_are_those_of_torch() -> None:
    model, args = Hollow(), arguments()
    graph = capture(model, args).graph
    expected = model(*args)
    got = run_plan(plan(graph), dict(zip((i.name for i in graph.inputs), args, strict=True)))
    for name, want in zip(graph.outputs, expected, strict=True):
        assert got[name].shape == want.shape
        torch.testing.assert_close(got[name].to(want.dtype), want)

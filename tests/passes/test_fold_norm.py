"""Norms by running statistics become scale and shift, or disappear into the layer before them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvc.frontends.fx.capture import capture
from kvc.interpret import interpret
from kvc.lower import lower
from kvc.passes.fold_norm import fold_norms
from kvc.pipeline_graph import plan
from kvc.plan_run import run_plan
from torch import Tensor, nn


def trained(model: nn.Module) -> nn.Module:
    """The model with statistics and affine parameters that are not those of a fresh norm."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for t, low in (
                (module.running_var, 0.5),
                (module.weight, 0.5),
                (module.running_mean, -1),
                (module.bias, -1),
            ):
                if t is not None:
                    t.data.uniform_(low, 2)
    return model.eval()


LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), torch.randn(2, 3, 9)),
    "conv2d": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), torch.randn(2, 3, 7, 6)),
    "same": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4)), torch.randn(2, 3, 7, 6)),
    "conv3d": lambda: (nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4)), torch.randn(2, 2, 4, 5, 4)),
    "groups": lambda: (nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), torch.randn(2, 4, 7, 6)),
    "depthwise": lambda: (nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)), torch.randn(2, 4, 7, 6)),
    "plain norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False, eps=0.1)), torch.randn(2, 3, 7, 6),
    ),
    "transposed": lambda: (
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)), torch.randn(2, 3, 4, 5),
    ),
    "linear": lambda: (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), torch.randn(6, 5)),
}  # fmt: skip


class Tapped(nn.Module):
    """A norm behind a convolution that something else reads too, and one before a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.first = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(torch.relu(self.first(x)))
        return self.norm(y) + y


OTHERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "tapped": lambda: (Tapped(), torch.randn(2, 3, 7, 6)),
    # Groups of a transposed convolution share output dims of the weight; BatchNorm1d of rank 3 takes the middle dim.
    "transposed groups": lambda: (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), torch.randn(2, 4, 4, 5),
    ),
    "rank 3": lambda: (nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(4)), torch.randn(3, 4, 5)),
    "bf16": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).bfloat16(), torch.randn(2, 3, 7, 6).bfloat16(),
    ),
}  # fmt: skip


def folded(name: str, table: dict[str, Callable[[], tuple[nn.Module, Tensor]]]) -> tuple[list[str], bool]:
    """The operators that depend on the input after folding; and whether the results agree in float64."""
    torch.manual_seed(0)
    model, x = table[name]()
    captured = capture(trained(model), (x,))
    graph = fold_norms(captured.graph)
    moving = {i.name for i in graph.inputs if i.kind == "user"}
    for node in graph.nodes:
        if moving.intersection(node.refs):
            moving.update(node.outputs)
    results = []
    for g in (captured.graph, graph):
        spec, _ = lower(g)
        feed = captured.feed()
        results.append(interpret(spec, {o.name: feed[o.name] for o in spec.inputs})[g.outputs[0]])
    tolerance = 1e-2 if x.dtype is torch.bfloat16 else 1e-9
    same = torch.allclose(results[0].double(), results[1].double(), rtol=tolerance, atol=tolerance)
    made = plan(captured.graph)
    assert torch.allclose(
        run_plan(made, captured.feed())[made.graph.outputs[0]].double(), results[0].double(), tolerance, tolerance
    )
    return [n.op for n in graph.nodes if moving.intersection(n.outputs)], same


@pytest.mark.parametrize("name", LAYERS)
def test_a_norm_disappears_into_the_layer_before_it(name: str) -> None:
    ops, same = folded(name, LAYERS)
    assert len(ops) == 1 and same, ops


@pytest.mark.parametrize("name", OTHERS)
def test_other_norms_are_a_product_and_a_sum(name: str) -> None:
    ops, same = folded(name, OTHERS)
    assert same and {"mul", "add"} <= set(ops)
    assert not {"batch_norm", "batch_norm_inference", "rsqrt"} & set(ops)


def test_batch_statistics_stay() -> None:
    captured = capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (torch.randn(2, 3, 7, 6),), mode="train")
    assert fold_norms(captured.graph) == captured.graph


def test_folding_keeps_the_accuracy_of_eager_in_float32() -> None:
    """A weight that took the scale rounds once more; the error of the result stays within twice eager's."""
    torch.manual_seed(1)
    model = trained(nn.Sequential(nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8)))
    x = torch.randn(4, 16, 12, 12)
    captured = capture(model, (x,))
    made = plan(captured.graph)
    eager = model(x).detach()
    exact = model.double()(x.double()).detach()
    got = run_plan(made, captured.feed(), lambda spec, inputs: interpret(spec, inputs, "working"))[
        made.graph.outputs[0]
    ]
    assert float((got - exact).norm()) <= 2 * float((eager - exact).norm())

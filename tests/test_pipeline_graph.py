"""From a captured model to a plan: whole models, compared with the whole spec in float64."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kvc.explain import explain
from kvc.frontends.fx.capture import Captured, capture, capture_loaded
from kvc.frontends.fx.load import load
from kvc.interpret import interpret
from kvc.lower import lower
from kvc.passes.memory import eager_peak, live_peak, memory_plan
from kvc.patterns import match
from kvc.pipeline_graph import plan
from kvc.plan import Invoke, Plan
from kvc.plan_run import run_plan
from kvc.text import print_kernel
from torch import nn

from tests import models

EXAMPLES = Path(__file__).parent.parent / "examples"


def check(captured: Captured) -> Plan:
    """Plan a model, compare every output with the whole spec in float64, and check the memory plan."""
    made = plan(captured.graph)
    feed = captured.feed()
    whole, _ = lower(captured.graph)
    expected = interpret(whole, {o.name: feed[o.name] for o in whole.inputs})
    found = run_plan(made, feed)
    assert set(found) >= set(captured.graph.outputs)
    for name, value in found.items():
        if name in expected:
            torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-9, atol=1e-9, equal_nan=True)
    memory = memory_plan(made).nbytes
    assert live_peak(made) <= memory <= max(eager_peak(captured.graph), live_peak(made))
    return made


def steps(made: Plan) -> list[str]:
    return [made.kernels[s.kernel].name if isinstance(s, Invoke) else s.node.op for s in made.steps]


@pytest.mark.parametrize("name", ["mlp", "convnet", "decoder"])
def test_examples(name: str, golden: Callable[[str, str], None]) -> None:
    made = check(capture_loaded(load(str(EXAMPLES / f"{name}.py"))))
    golden(f"plan/{name}.kir", "\n\n".join(print_kernel(k) for k in made.kernels) + "\n")
    golden(f"plan/{name}.txt", explain(made) + "\n")
    assert not made.fallbacks


def test_a_multi_layer_perceptron_is_four_kernels() -> None:
    made = plan(capture_loaded(load(str(EXAMPLES / "mlp.py"))).graph)
    assert steps(made) == ["linear_gelu", "layer_norm", "linear", "softmax"]


@pytest.mark.parametrize(("name", "count"), list(models.KERNELS.items()))
def test_models(name: str, count: int) -> None:
    model, args = models.MODELS[name]()
    made = check(capture(model, args))
    assert len(made.calls) == count, explain(made)


def test_batch_norm_in_training_updates_its_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    made = check(capture(model, (torch.randn(2, 3, 9, 9),), mode="train"))
    assert [type(match(made.kernels[s.kernel])).__name__ for s in made.steps if isinstance(s, Invoke)] == [
        "Contraction",
        "Pointwise",
        "Rows",
    ]


def test_an_operator_outside_the_table_is_a_fallback_between_kernels() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x * 0.1).relu() + 1.0

    made = plan(capture(Model(), (torch.randn(3, 4, 4),)).graph)
    assert [type(s).__name__ for s in made.steps] == ["Invoke", "Fallback", "Invoke"]
    x = torch.randn(3, 4, 4, dtype=torch.float64)
    found = run_plan(made, {made.graph.inputs[0].name: x})
    torch.testing.assert_close(found[made.graph.outputs[0]], Model()(x))


def test_layers_share_their_kernels() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.LayerNorm(24)) for _ in range(5)]
    made = check(capture(nn.Sequential(*layers), (torch.randn(9, 24),)))
    assert len(made.steps) == 10 and len(made.kernels) == 2
    assert len({s.inputs for s in made.steps if isinstance(s, Invoke)}) == 10

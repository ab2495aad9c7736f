"""Captured and lowered models compute what eager computes, in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from kvc.diagnostics import KvcError
from kvc.frontends.fx.capture import Captured, capture, capture_loaded
from kvc.frontends.fx.load import load
from kvc.graph import Ref
from kvc.interpret import interpret
from kvc.lower import fallbacks, lower
from kvc.passes.canonicalize import canonicalize
from kvc.passes.fold import fold
from kvc.text import parse_graph, print_graph
from torch import nn

from tests.frontends.models import CASES, UNet

EXAMPLES = Path(__file__).parents[2] / "examples"


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def run(captured: Captured, tolerance: float = 1e-9) -> dict[str, torch.Tensor]:
    """Interpret the lowered graph, compare outputs and buffer updates with eager, give the spec's outputs."""
    graph = captured.graph
    assert parse_graph(print_graph(graph)) == graph
    assert fallbacks(graph) == {}
    reference = copy.deepcopy(captured.module).double()
    want = reference(*pytree.tree_map(wide, captured.args), **pytree.tree_map(wide, captured.kwargs))
    feed = {name: wide(x) for name, x in captured.feed().items()}
    spec, _ = lower(fold(canonicalize(graph)))
    got = interpret(spec, {o.name: feed[o.name] for o in spec.inputs})
    values = {**feed, **got}
    output = pytree.tree_map(
        lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf,
        captured.output,
        is_leaf=lambda x: isinstance(x, Ref),
    )
    torch.testing.assert_close(output, want, rtol=tolerance, atol=tolerance, check_dtype=False, check_stride=False)
    buffers = dict(reference.named_buffers())
    for name, value in graph.mutations:
        target = next(i.target for i in graph.inputs if i.name == name)
        torch.testing.assert_close(got[value], buffers[target], check_dtype=False)
    return got


@pytest.mark.parametrize("name", CASES)
def test_models(name: str) -> None:
    torch.manual_seed(0)
    module, args, kwargs = CASES[name]
    run(capture(copy.deepcopy(module), args, kwargs))


def test_training_mode_updates_running_statistics() -> None:
    captured = capture(UNet(), (torch.randn(2, 3, 10, 14),), mode="train")
    assert [b for b, _ in captured.graph.mutations] == ["bn_running_mean", "bn_running_var", "bn_num_batches_tracked"]
    run(captured)


@pytest.mark.parametrize(("file", "tolerance"), [("mlp.py", 1e-9), ("convnet.py", 1e-9), ("decoder.py", 1e-4)])
def test_examples(file: str, tolerance: float) -> None:
    """The decoder computes its rotary table in float32 whatever the model's dtype, so it cannot agree to 1e-9."""
    captured = capture_loaded(load(str(EXAMPLES / file)))
    run(captured, tolerance)
    assert all(node.loc is not None for node in captured.graph.nodes)


def test_locations_are_the_innermost_line_of_the_model() -> None:
    captured = capture_loaded(load(str(EXAMPLES / "mlp.py")))
    lines = (EXAMPLES / "mlp.py").read_text().splitlines()
    for node in captured.graph.nodes:
        assert node.loc is not None and node.loc.file == "mlp.py"
        assert node.op.split("_")[0] in lines[node.loc.line - 1] or "self." in lines[node.loc.line - 1]


def test_tied_parameters_are_one_input() -> None:
    module, args, _ = CASES["decoder"]
    captured = capture(copy.deepcopy(module), args)
    assert captured.tied == {"head.weight": "embed.weight"}
    assert [i.target for i in captured.graph.inputs if i.kind == "param"] == ["embed.weight"]
    assert captured.state["embed_weight"].data_ptr() == captured.module.get_parameter("embed.weight").data_ptr()


def test_scalars_are_literals_and_the_output_keeps_its_structure() -> None:
    module, args, kwargs = CASES["in_place"]
    captured = capture(module, args, kwargs)
    assert captured.inputs == (Ref("x"), 1.5, Ref("shift"))
    assert captured.output[1]["none"] is None and captured.output[1]["three"] == 3
    assert isinstance(captured.output[1]["where"], Ref)


def test_bf16_converts_model_and_inputs() -> None:
    captured = capture(nn.Linear(4, 3), (torch.randn(2, 4),), dtype="bf16")
    assert {t.dtype.name for t in captured.graph.types.values()} == {"bf16"}
    lower(captured.graph)


def test_a_state_kept_as_plain_attribute_is_a_buffer() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.zeros(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = torch.tanh(x + self.h)
            return self.h * 2

    captured = capture(Stateful(), (torch.randn(2, 3),))
    assert [(i.kind, i.target) for i in captured.graph.inputs] == [("buffer", "h"), ("user", "")]
    assert [b for b, _ in captured.graph.mutations] == ["h"]


def test_an_operator_outside_the_table_is_decomposed_or_reported() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.entr(x) + torch.special.bessel_j0(x)

    graph = capture(Odd(), (torch.rand(4),)).graph
    assert list(fallbacks(graph).values()) == ["prims.bessel_j0.default: no definition in the op table"]
    assert "aten.special_entr.default" not in [n.op for n in graph.nodes]


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x


class Writes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


@pytest.mark.parametrize(
    ("module", "shape", "code", "has_line"),
    [(Branch(), (4,), "KVC0202", True), (Writes(), (4,), "KVC0201", False), (Linear(), (3, 5), "KVC0104", True)],
)
def test_what_cannot_be_captured(module: nn.Module, shape: tuple[int, ...], code: str, has_line: bool) -> None:
    with pytest.raises(KvcError) as error:
        capture(module, (torch.randn(shape),))
    assert error.value.code == code
    assert error.value.diagnostic.hint
    location = error.value.diagnostic.location
    assert not has_line or (location is not None and location.file.endswith("test_capture.py") and location.line > 0)

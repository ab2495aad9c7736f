"""Graph -> one spec: names, provenance, fallbacks, buffer updates, disagreement with the captured types."""

import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.interpret import interpret
from kvc.lower import fallbacks, lower
from kvc.text import parse_graph, print_kernel

MLP = """graph mlp(%x: f32[5,7], %w: f32[3,7] @"w", %b: f32[3] @"b") {
  %linear = linear(%x, %w, %b) : f32[5,3]  # model.py:4
  %act = gelu(%linear) : f32[5,3]  # model.py:5
  return %act
}"""


def test_values_keep_their_names_and_statements_their_origin() -> None:
    spec, origin = lower(parse_graph(MLP))
    assert [o.name for o in spec.inputs] == ["x", "w", "b"]
    assert [s.target for s in spec.body] == ["linear_t", "linear", "act"]
    assert [str(origin[s.target][0].loc) for s in spec.body] == ["model.py:4", "model.py:4", "model.py:5"]


def test_the_spec_computes_the_graph() -> None:
    spec, _ = lower(parse_graph(MLP))
    x, w, b = (torch.randn(s, dtype=torch.float64) for s in ((5, 7), (3, 7), (3,)))
    got = interpret(spec, {"x": x, "w": w, "b": b})["act"]
    torch.testing.assert_close(got, torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)))


def test_axes_never_take_the_name_of_a_value() -> None:
    text = """graph g(%i: f32[4], %m: f32[4,4], %k: f32[4,4]) {
      %n = matmul(%m, %k) : f32[4,4]
      %b = add(%n, %i) : f32[4,4]
      return %b
    }"""
    spec, _ = lower(parse_graph(text))
    assert not set(spec.size) & {o.name for o in (*spec.inputs, *spec.outputs)}


def test_fallbacks_are_edges_of_the_spec() -> None:
    text = """graph g(%x: f32[4]) {
      %a = exp(%x) : f32[4]
      %r = aten.bernoulli.default(%a) : f32[4]
      %y = mul(%r, %a) : f32[4]
      return %y
    }"""
    graph = parse_graph(text)
    spec, _ = lower(graph)
    assert [o.name for o in spec.inputs] == ["x", "r"]
    assert [o.name for o in spec.outputs] == ["y", "a"]
    assert "no definition" in fallbacks(graph)["r"]


def test_an_op_refuses_what_it_cannot_express() -> None:
    text = "graph g(%x: f32[4]) {\n %y = dropout(%x, p=0.5, train=true) : f32[4]\n %z = exp(%y) : f32[4]\n return %z\n}"
    assert "random" in fallbacks(parse_graph(text))["y"]


def test_buffer_updates_are_outputs() -> None:
    text = """graph g(%x: f32[4], %n: i64[] buffer @"n") {
      %m = add(%n, other=1) : i64[]
      %y = exp(%x) : f32[4]
      update %n = %m
      return %y
    }"""
    spec, _ = lower(parse_graph(text))
    assert [o.name for o in spec.outputs] == ["y", "m"]


def test_a_value_that_is_another_tensor_is_copied_when_it_leaves() -> None:
    text = "graph g(%x: f32[4]) {\n %y = exp(%x) : f32[4]\n %z = identity(%y) : f32[4]\n return %y, %z\n}"
    spec, _ = lower(parse_graph(text))
    assert [s.target for s in spec.body] == ["y", "z"]


def test_strides_of_operands_are_those_of_the_graph() -> None:
    text = """graph g(%x: f32[4,6] strides(1,4)) {
      %y = permute(%x, dims=[1, 0]) : f32[6,4]
      %z = exp(%x) : f32[4,6] strides(1,4)
      return %y, %z
    }"""
    spec, _ = lower(parse_graph(text))
    assert [o.strides for o in (*spec.inputs, *spec.outputs)] == [(1, 4), None, (1, 4)]


def test_unused_results_leave_no_statements() -> None:
    text = "graph g(%x: f32[4,6]) {\n %v, %i = max_dim(%x, dim=1) : f32[4], i64[4]\n return %v\n}"
    spec, _ = lower(parse_graph(text))
    assert "argmax" not in print_kernel(spec)


@pytest.mark.parametrize("type_", ["f32[5,3]", "bf16[4,3]"])
def test_disagreement_with_the_captured_type(type_: str) -> None:
    text = f"graph g(%x: f32[4,3]) {{\n %y = exp(%x) : {type_}  # m.py:7\n return %y\n}}"
    with pytest.raises(KvcError) as error:
        lower(parse_graph(text))
    assert error.value.code == "KVC0302"
    assert str(error.value.diagnostic.location) == "m.py:7"

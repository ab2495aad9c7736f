from kvc.passes.canonicalize import canonicalize
from kvc.text import parse_graph


def ops(text: str) -> list[str]:
    return [n.op for n in canonicalize(parse_graph(text)).nodes]


def test_drops_what_repeats_its_argument() -> None:
    text = """graph g(%x: f32[4,6]) {
      %a = identity(%x) : f32[4,6]
      %b = view(%a, size=[4, -1]) : f32[4,6]
      %c = permute(%b, dims=[0, 1]) : f32[4,6]
      %d = slice(%c, dim=1, start=0) : f32[4,6]
      %e = to(%d, dtype=f32) : f32[4,6]
      %f = dropout(%e, p=0.5, train=false) : f32[4,6]
      %y = relu(%f) : f32[4,6]
      return %y
    }"""
    graph = canonicalize(parse_graph(text))
    assert [(n.op, n.refs) for n in graph.nodes] == [("relu", ("x",))]


def test_keeps_views_that_move_data_and_casts() -> None:
    text = """graph g(%x: f32[4,4]) {
      %a = permute(%x, dims=[1, 0]) : f32[4,4] strides(1,4)
      %b = to(%a, dtype=bf16) : bf16[4,4] strides(1,4)
      %c = flip(%b, dims=[0]) : bf16[4,4]
      %y = relu(%c) : bf16[4,4]
      return %y
    }"""
    assert ops(text) == ["permute", "to", "flip", "relu"]


def test_an_output_keeps_its_node() -> None:
    """A clone that is returned is a tensor of its own."""
    text = "graph g(%x: f32[4]) {\n %y = identity(%x) : f32[4]\n return %y\n}"
    assert ops(text) == ["identity"]


def test_merges_equal_nodes_and_drops_dead_ones() -> None:
    text = """graph g(%x: f32[4]) {
      %a = exp(%x) : f32[4]
      %b = exp(%x) : f32[4]
      %dead = sin(%x) : f32[4]
      %y = add(%a, %b) : f32[4]
      return %y
    }"""
    graph = canonicalize(parse_graph(text))
    assert [n.op for n in graph.nodes] == ["exp", "add"]
    assert graph.nodes[1].refs == ("a", "a")


def test_operators_without_a_meaning_are_not_merged() -> None:
    """They may draw random numbers."""
    text = """graph g(%x: f32[4]) {
      %a = aten.bernoulli.default(%x) : f32[4]
      %b = aten.bernoulli.default(%x) : f32[4]
      %y = add(%a, %b) : f32[4]
      return %y
    }"""
    assert ops(text) == ["aten.bernoulli.default"] * 2 + ["add"]

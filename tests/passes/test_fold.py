from kvc.passes.fold import fold
from kvc.text import parse_graph, print_node


def folded(text: str) -> list[str]:
    return [print_node(n) for n in fold(parse_graph(text)).nodes]


def test_constant_operands_become_literals() -> None:
    text = """graph g(%x: f32[4], %m: bool[4]) {
      %half = full(size=[], fill_value=0.5, dtype=f32) : f32[]
      %low = full(size=[], fill_value=-inf, dtype=f32) : f32[]
      %a = mul(%x, %half) : f32[4]
      %y = where(%m, %a, %low) : f32[4]
      return %y
    }"""
    assert folded(text) == ["%a = mul(%x, 0.5) : f32[4]", "%y = where(%m, %a, -inf) : f32[4]"]


def test_a_literal_that_would_change_the_type_stays_a_tensor() -> None:
    text = """graph g(%x: i64[4]) {
      %c = full(size=[], fill_value=2.0, dtype=f64) : f64[]
      %y = mul(%x, %c) : f64[4]
      return %y
    }"""
    assert len(folded(text)) == 2


def test_constant_computations_are_done_now() -> None:
    text = """graph g(%x: f32[4]) {
      %a = full(size=[], fill_value=3, dtype=i64) : i64[]
      %b = add(%a, other=4) : i64[]
      %c = to(%b, dtype=f32) : f32[]
      %y = add(%x, %c) : f32[4]
      return %y
    }"""
    assert folded(text) == ["%y = add(%x, 7.0) : f32[4]"]


def test_multiplying_by_one_is_dropped_and_parameters_are_not_looked_at() -> None:
    text = """graph g(%x: f32[4], %w: f32[4] @"w") {
      %one = ones(size=[4]) : f32[4]
      %a = mul(%x, other=1.0) : f32[4]
      %b = mul(%a, %one) : f32[4]
      %y = mul(%b, %w) : f32[4]
      return %y
    }"""
    assert folded(text) == ["%y = mul(%x, %w) : f32[4]"]

"""print -> parse -> print is the identity, for both IRs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from kvc.diagnostics import KvcError
from kvc.graph import Graph
from kvc.kernel import KernelSpec
from kvc.text import parse_graph, parse_kernel, print_graph, print_kernel
from kvc.text.kernel_parser import parse_unchecked

from tests.text.strategies import graphs, specs

quick = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@quick
@given(specs())
def test_kernel_text(spec: KernelSpec) -> None:
    text = print_kernel(spec)
    (parsed,) = parse_unchecked(text)
    assert parsed == spec
    assert print_kernel(parsed) == text


@quick
@given(graphs())
def test_graph_text(graph: Graph) -> None:
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert parsed == graph
    assert print_graph(parsed) == text


GRAPH = """\
graph block(%x: f32[32,128], %w: f32[64,128] @"fc.weight", %n: i64[] buffer @"count", %c: f32[2] const @"k") {
  %y = linear(%x, %w) : f32[32,64]  # model.py:12
  %a, %b = max_dim(%y, dim=1, keepdim=true) : f32[32,1], i64[32,1] strides(1,32)
  %m = add(%n, other=1) : i64[]
  %t = aten.foo.default([%a, %a], mode="x \\"y\\"", dtype=bf16, size=[1, [2, -3]], scale=-inf, pad=none) : f32[32,2]
  update %n = %m
  return %t, %b
}"""


def test_graph_form() -> None:
    """The form that a person reads and writes."""
    graph = parse_graph(GRAPH)
    assert print_graph(graph) == GRAPH
    assert [i.kind for i in graph.inputs] == ["user", "param", "buffer", "const"]
    assert graph.mutations == (("n", "m"),)
    assert str(graph.nodes[0].loc) == "model.py:12"
    assert graph.nodes[3].attr("size") == (1, (2, -3))


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("graph g(%x: f32[2]) {\n  %y = relu(%x) f32[2]\n  return %y\n}", "KVC0301", 2),
        ("graph g(%x: f32[2]) {\n  %y = relu(%z) : f32[2]\n  return %y\n}", "KVC0302", None),
    ],
)
def test_bad_graphs(text: str, code: str, line: int | None) -> None:
    with pytest.raises(KvcError) as error:
        parse_graph(text, "m.kir")
    assert error.value.code == code
    location = error.value.diagnostic.location
    assert (location.line if location else None) == line


def test_bad_kernels() -> None:
    with pytest.raises(KvcError, match="KVC0301"):
        parse_kernel("kernel k(x: f32[i]) -> (y: f32[i]) {\n y[i] = x[i]\n}")
    with pytest.raises(KvcError, match="no function"):
        parse_kernel("kernel k(x: f32[i=4]) -> (y: f32[i]) {\n y[i] = frob(x[i])\n}")

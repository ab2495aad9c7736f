"""Operations and least traffic of a spec."""

import pytest
from kvc.cost import bytes_moved, evaluations, flops, is_transcendental, price, weight, work
from kvc.kernel import Axis, call
from kvc.patterns import match
from kvc.text import parse_kernel

LINEAR = """kernel k(x: bf16[m=64,k=96], w: bf16[n=32,k], b: f32[n]) -> (y: bf16[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * w[n,k]
  y[m,n] = gelu(t[m,n] + b[n])
}"""


def test_a_matrix_product_is_2mnk() -> None:
    spec = parse_kernel("kernel k(x: f32[m=7,k=5], w: f32[n=3,k]) -> (y: f32[m,n]) { y[m,n] = sum(k) x[m,k] * w[n,k] }")
    assert flops(spec) == 2 * 7 * 5 * 3


def test_selection_and_indices_are_no_operations() -> None:
    spec = parse_kernel("kernel k(x: f32[m=8]) -> (y: f32[m]) { y[m] = where(m < 4, x[7 - m], x[m]) }")
    assert flops(spec) == 0


def test_each_operand_moves_once() -> None:
    assert bytes_moved(parse_kernel(LINEAR)) == 2 * 64 * 96 + 2 * 32 * 96 + 4 * 32 + 2 * 64 * 32


@pytest.mark.parametrize(
    ("expr", "elements"),
    [
        ("x[m,2*k]", 8 * 16),  # every other element
        ("x[m,k + 3]", 8 * 16),  # a slice
        ("x[m,k - 4 | 0.0]", 8 * 12),  # what lies outside is not read
        ("x[0,k] + x[1,k]", 16),  # at least as much as its widest access
        ("x[m // 4,k]", 2 * 16),
        ("x[m,0]", 8),
    ],
)
def test_only_elements_that_are_read_count(expr: str, elements: int) -> None:
    spec = parse_kernel(f"kernel k(x: f32[m=8,c=40]) -> (y: f32[m,k=16]) {{ y[m,k] = {expr} }}")
    assert bytes_moved(spec) == 4 * (elements + 8 * 16)


def test_equal_indices_bound_a_gather_and_distinct_ones_are_expected() -> None:
    spec = parse_kernel("kernel k(w: f32[v=100,d=8], i: i64[m=10]) -> (y: f32[m,d]) { y[m,d] = w[i[m],d] }")
    fixed = 10 * 8 + 10 * 8 * 4
    assert bytes_moved(spec) == 8 * 4 + fixed
    assert bytes_moved(spec, expected=True) == 10 * 8 * 4 + fixed


def test_a_convolution_reads_its_image_once() -> None:
    spec = parse_kernel(
        """kernel k(x: f32[b=2,c=3,h=9,w=9], f: f32[o=4,c,r=3,s=3]) -> (y: f32[b,o,i=9,j=9]) {
        y[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
    }"""
    )
    assert bytes_moved(spec) == 4 * (2 * 3 * 81 + 4 * 27 + 2 * 4 * 81)


def test_weights_of_composites_are_those_of_their_parts() -> None:
    assert weight("add") == 1 and weight("sigmoid") == weight("div") + weight("exp") + 2
    assert work(call("relu", Axis("i"))) == 1
    assert is_transcendental(call("gelu", Axis("i"))) and not is_transcendental(call("relu", Axis("i")))


def test_a_prologue_is_evaluated_for_each_tile_that_reads_it() -> None:
    spec = parse_kernel(
        """kernel k(x: f32[m=64,k=32], w: f32[n=300,k]) -> (y: f32[m,n]) {
        a: f32[m,k] = exp(x[m,k])
        y[m,n] = sum(k) a[m,k] * w[n,k]
    }"""
    )
    assert evaluations(spec, match(spec))["a"] == 64 * 32 * 3


def test_a_temporary_that_is_read_twice_at_one_point_is_evaluated_once() -> None:
    spec = parse_kernel(
        """kernel k(x: f32[m=64]) -> (y: f32[m], z: f32[m]) {
        a: f32[m] = exp(x[m])
        y[m] = a[m] * a[m]
        z[m] = a[m] + a[63 - m]
    }"""
    )
    assert evaluations(spec, match(spec))["a"] == 2 * 64


def test_few_rows_cost_more_than_many_where_they_are_written_again() -> None:
    text = """kernel k(x: f32[m={m},k={k}]) -> (y: f32[m,k], z: f32[m]) {{
    s: f32[m] = sum(k) x[m,k]
    y[m,k] = x[m,k] / s[m]
    z[m] = s[m]
}}"""
    few, many = (parse_kernel(text.format(m=m, k=(1 << 22) // m)) for m in (4, 4096))
    assert price(few, match(few)) > 10 * price(many, match(many))
    total = "kernel k(x: f32[k=4194304]) -> (y: f32[]) { y[] = sum(k) x[k] }"
    assert price(parse_kernel(total), match(parse_kernel(total))) < price(many, match(many))

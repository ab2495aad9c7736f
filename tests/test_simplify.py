"""Index algebra: a simplified index is equal at every point, and view chains come back to plain axes."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvc.dtypes import I32, I64
from kvc.kernel import Axis, Call, Cast, Const, Expr, Load, Size, call
from kvc.simplify import IndexAlgebra, simplify_expr, simplify_indices
from kvc.text import parse_kernel, print_expr, print_kernel

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # long reprs of strategies

SIZES = {"i": Size("i", 6), "j": Size("j", 4), "k": Size("k", 12), "u": Size("u", 1)}


def value(expr: Expr, at: dict[str, int]) -> int | bool:
    """Python's own meaning of an index expression or predicate."""
    match expr:
        case Const(v):
            return v  # type: ignore[return-value]
        case Axis(name):
            return at[name]
        case Cast(_, arg):
            return value(arg, at)
        case Call("where", (c, a, b)):
            return value(a, at) if value(c, at) else value(b, at)
        case Call(fn, args):
            v = [value(a, at) for a in args]
            return {
                "add": lambda: v[0] + v[1],
                "sub": lambda: v[0] - v[1],
                "mul": lambda: v[0] * v[1],
                "floordiv": lambda: v[0] // v[1],
                "mod": lambda: v[0] % v[1],
                "neg": lambda: -v[0],
                "minimum": lambda: min(v),
                "maximum": lambda: max(v),
                "lt": lambda: v[0] < v[1],
                "le": lambda: v[0] <= v[1],
                "gt": lambda: v[0] > v[1],
                "ge": lambda: v[0] >= v[1],
                "eq": lambda: v[0] == v[1],
                "ne": lambda: v[0] != v[1],
                "and": lambda: bool(v[0]) and bool(v[1]),
                "or": lambda: bool(v[0]) or bool(v[1]),
                "not": lambda: not v[0],
            }[fn]()
    raise TypeError(expr)


def points() -> list[dict[str, int]]:
    names = list(SIZES)
    return [dict(zip(names, p, strict=True)) for p in product(*(range(SIZES[n].size or 0) for n in names))]


constants = st.integers(-9, 30).map(Const)
divisors = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 24]).map(Const)
leaves = st.one_of(st.sampled_from([Axis(n) for n in SIZES]), constants)


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    binary = st.builds(lambda fn, a, b: Call(fn, (a, b)), st.sampled_from(["add", "sub", "add"]), inner, inner)
    scaled = st.builds(lambda a, c: Call("mul", (a, c)), inner, st.integers(-4, 12).map(Const))
    digits = st.builds(lambda fn, a, c: Call(fn, (a, c)), st.sampled_from(["floordiv", "mod"]), inner, divisors)
    bounded = st.builds(lambda fn, a, b: Call(fn, (a, b)), st.sampled_from(["minimum", "maximum"]), inner, inner)
    casts = st.builds(lambda t, a: Cast(t, a), st.sampled_from([I32, I64]), inner)
    return st.one_of(binary, scaled, digits, digits, bounded, casts)


indices = st.recursive(leaves, _grow, max_leaves=8)
comparisons = st.builds(
    lambda fn, a, b: Call(fn, (a, b)), st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), indices, indices
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(lambda fn, a, b: Call(fn, (a, b)), st.sampled_from(["and", "or"]), inner, inner),
        st.builds(lambda a: Call("not", (a,)), inner),
    ),
    max_leaves=3,
)


@settings(max_examples=300, deadline=None)
@given(indices)
def test_a_simplified_index_is_equal_everywhere(expr: Expr) -> None:
    algebra = IndexAlgebra(SIZES)
    simple = algebra.index(expr)
    low, high = algebra.interval(expr)
    for at in points():
        assert value(simple, at) == value(expr, at), print_expr(simple)
        assert low <= value(expr, at) <= high


@settings(max_examples=200, deadline=None)
@given(conditions, conditions, indices, indices)
def test_predicates_are_decided_only_where_their_branch_is_taken(c: Expr, d: Expr, a: Expr, b: Expr) -> None:
    expr = call("where", c, call("where", d, a, b), call("where", d, b, a))
    simple = simplify_expr(IndexAlgebra(SIZES), lambda tensor: (), expr)
    for at in points():
        assert value(simple, at) == value(expr, at), print_expr(simple)


@settings(max_examples=200, deadline=None)
@given(conditions, indices)
def test_bounds_under_an_assumption_hold_wherever_it_does(condition: Expr, expr: Expr) -> None:
    algebra = IndexAlgebra(SIZES)
    within, without = algebra.assuming(condition), algebra.assuming(condition, False)
    for at in points():
        low, high = (within if value(condition, at) else without).interval(expr)
        assert low <= value(expr, at) <= high


@pytest.mark.parametrize(
    ("index", "plain"),
    [
        ("(i*4 + j) // 4", "i"),
        ("(i*4 + j) % 4", "j"),
        ("k // 4 * 4 + k % 4", "k"),
        ("(k // 4 % 3)*4 + k % 4", "k"),
        ("k // 2 % 3 * 2 + k % 2", "k % 6"),
        ("((i*4 + j)*12 + k) // 12 % 4", "j"),
        ("((i*4 + j)*12 + k) // 48 * 48 + ((i*4 + j)*12 + k) % 48 - (j*12 + k)", "i * 48"),
        ("(i*4 + j + 24) % 24", "i * 4 + j"),
        ("(k + 12) // 12 - 1 + u", "0"),
        ("k // 2 // 3", "k // 6"),
        ("k % 6 % 3", "k % 3"),
        ("i64(i32(k // 4)) * 4 + k % 4", "k"),
    ],
)
def test_chains_of_views_come_back_to_plain_axes(index: str, plain: str) -> None:
    text = (
        f"kernel k(x: f32[n=4096], a: i64[i=6,j=4,k=12,u=1]) -> (y: f32[i,j,k,u]) {{ y[i,j,k,u] = x[{index} | 0.0] }}"
    )
    load = simplify_indices(parse_kernel(text)).body[0].expr
    assert isinstance(load, Load) and print_expr(load.index[0]) == plain


def test_a_guard_that_cannot_act_is_dropped_and_one_that_can_stays() -> None:
    text = """kernel k(x: f32[n=12]) -> (y: f32[n]) {
    y[n] = where(n < 6, where(n < 8, x[n + 3 | 0.0], 1.0), x[n - 6 | 0.0])
}"""
    assert print_kernel(simplify_indices(parse_kernel(text))).splitlines()[1] == (
        "  y[n] = where(n < 6, x[n + 3 | 0.0], x[n - 6 | 0.0])"
    )

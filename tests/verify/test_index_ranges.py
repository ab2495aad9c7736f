"""Drawn operands keep indices inside, also where arithmetic stands between an operand and the index."""

from __future__ import annotations

import pytest
from kvc.interpret import interpret
from kvc.text import parse_kernel
from kvc.verify.inputs import INPUT_SETS, draw, integer_ranges

CASES = {
    "offset": (
        """kernel k(p: i64[i=6], w: f32[n=9,d=2]) -> (y: f32[i,d]) {
             q: i64[i] = p[i] + 2
             y[i,d] = w[q[i],d]
           }""",
        {"p": (0, 7)},
    ),
    "count of a mask": (
        """kernel k(p: i64[i=6], m: bool[i], w: f32[n=9,d=2]) -> (y: f32[i,d]) {
             b: i32[i] = m[i]
             q: i64[i] = p[i] * b[i] + 1
             y[i,d] = w[q[i],d]
           }""",
        {"p": (0, 8)},
    ),
    "float positions": (
        """kernel k(p: f32[i=6], w: f32[n=9,d=2]) -> (y: f32[i,d]) {
             s: f32[i] = p[i] - 1
             q: i64[i] = i64(s[i])
             y[i,d] = w[q[i] + 2,d]
           }""",
        {"p": (0, 8)},
    ),
    "from the end": (
        """kernel k(p: i64[i=6], w: f32[n=9,d=2]) -> (y: f32[i,d]) {
             y[i,d] = w[where(p[i] < 0, p[i] + 9, p[i]),d]
           }""",
        {"p": (0, 9)},
    ),
    "a row of several": (
        """kernel k(p: i64[i=6], w: f32[n=48]) -> (y: f32[i,d=8]) {
             y[i,d] = w[p[i] * 8 + d]
           }""",
        {"p": (0, 6)},
    ),
    "backwards": (
        """kernel k(p: i64[i=5], w: f32[n=65]) -> (y: f32[i]) {
             y[i] = w[64 - i * 6 - p[i]]
           }""",
        {"p": (0, 41)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_indices_stay_inside(name: str) -> None:
    text, ranges = CASES[name]
    spec = parse_kernel(text)
    assert integer_ranges(spec) == ranges
    for inputs in INPUT_SETS[:2]:
        interpret(spec, draw(spec, inputs, 0))


def test_values_that_order_are_no_indices() -> None:
    """A float that is only compared or sorted keeps its whole range."""
    spec = parse_kernel(
        """kernel k(x: f32[i=6], w: f32[i]) -> (y: f32[i]) {
             o: i64[i] = argsort(i) x[i]
             y[i] = w[o[i]]
           }"""
    )
    assert integer_ranges(spec) == {}

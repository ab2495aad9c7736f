"""Buffer instructions and offsets with a negative part."""

from __future__ import annotations

import pytest
from kvc.backends.triton.addressing import offsets_stay_positive
from kvc.text import parse_kernel

HEAD = "kernel k(table: f32[n=34,d=32], at: i64[i=24], x: f32[i]) -> (y: f32[i,d]) {\n"

GATHERS = {
    "as it is": ("", "at[i]", True),
    "a position from -1": ("  p: i64[i] = i64(x[i] - 1)\n  q: i64[i] = p[i] + 2\n", "q[i]", False),
    "in the index itself": ("", "at[i] + 2", False),
    "scaled": ("  p: i64[i] = 2 * (at[i] + 1)\n", "p[i]", False),
    "from the end": ("  p: i64[i] = 33 - at[i]\n", "p[i]", False),
    "added before it became an integer": ("  p: i64[i] = i64(x[i] + 2.0)\n", "p[i]", True),
    "a negative one counts from the end": ("  p: i64[i] = where(at[i] < 0, at[i] + 34, at[i])\n", "p[i]", True),
    "of axes alone": ("", "i + 2", True),
    "a sum of values": ("  p: i64[i] = at[i] + at[i]\n", "p[i]", True),
}  # fmt: skip


@pytest.mark.parametrize("case", GATHERS)
def test_a_constant_beside_a_value_keeps_buffer_instructions_away(case: str) -> None:
    statements, index, positive = GATHERS[case]
    spec = parse_kernel(f"{HEAD}{statements}  y[i,d] = table[{index},d]\n}}")
    assert offsets_stay_positive(spec, "table") is positive
    assert offsets_stay_positive(spec, "y")


def test_scatters_are_indices_too() -> None:
    spec = parse_kernel(
        "kernel k(at: i64[i=24], x: f32[i]) -> (y: f32[n=34]) {\n"
        "  p: i64[i] = at[i] + 2\n  y[n] = scatter sum(i -> p[i]; 0.0) x[i]\n}"
    )
    assert not offsets_stay_positive(spec, "y") and offsets_stay_positive(spec, "x")


def test_a_flip_falls_while_its_axis_grows() -> None:
    spec = parse_kernel("kernel k(x: f32[n=34]) -> (y: f32[n]) {\n  y[n] = x[33 - n]\n}")
    assert not offsets_stay_positive(spec, "x") and offsets_stay_positive(spec, "y")

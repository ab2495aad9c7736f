"""Each part of a row holds the row's maximum in turn."""

from __future__ import annotations

import pytest
import torch
from kvc.text import parse_kernel
from kvc.verify.inputs import draw
from kvc.verify.peaks import REACH, reduced_by_maximum, segment_order

SOFTMAX = """kernel softmax(x: f32[m={m},k={k}]) -> (y: f32[m,k]) {{
    mx: f32[m] = max(k) x[m,k]
    e: f32[m,k] = exp(x[m,k] - mx[m])
    s: f32[m] = sum(k) e[m,k]
    y[m,k] = e[m,k] / s[m]
}}"""


@pytest.mark.parametrize(("waves", "piece"), [(4, 1), (4, 4), (8, 1), (2, 2)])
def test_five_rows_in_two_sets_reach_every_wave(waves: int, piece: int) -> None:
    spec = parse_kernel(SOFTMAX.format(m=5, k=1357))
    held: set[int] = set()
    for name in ("large", "negative"):
        x = draw(spec, name, 0)["x"].double()
        top = x.topk(2, dim=1)
        assert (top.values[:, 0] - top.values[:, 1] >= 0.99 * REACH).all(), name
        held |= {int(p) // 64 // piece % waves for p in top.indices[:, 0]}
    # As many waves as have elements at all.
    assert held == {s // piece % waves for s in range(-(-1357 // 64))}


def test_the_dim_that_is_reduced_has_the_peak() -> None:
    spec = parse_kernel("kernel low(x: f32[a=3,b=200,c=2]) -> (y: f32[a,c]) { y[a,c] = min(b) x[a,b,c] }")
    assert reduced_by_maximum(spec) == {"x": ((1, "min"),)}
    low = draw(spec, "large", 0)["x"].double().sort(dim=1).values
    assert (low[:, 1] - low[:, 0] >= 0.99 * REACH).all()


def test_orders_hold_every_segment_once() -> None:
    for segments in (1, 2, 22, 300):
        assert sorted(segment_order(segments)) == list(range(segments))


def test_short_rows_keep_a_set_without_peaks() -> None:
    spec = parse_kernel(SOFTMAX.format(m=4, k=33))
    x = draw(spec, "negative", 0)["x"].double()
    assert float((x.amax(1) - x.median(1).values).max()) < REACH
    assert torch.equal(draw(spec, "large", 3)["x"], draw(spec, "large", 3)["x"])

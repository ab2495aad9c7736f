"""The tuner's history as the report draws it."""

from __future__ import annotations

from kvc.report.drawing import TUNING_H, TUNING_W, tuning_plot


def entry(us: float | None, best: float | None, state: str = "verified") -> dict:
    return {"choice": "a.rule A=1", "us": us, "best_us": best, "state": state}


def test_the_history_is_drawn_with_its_best_so_far() -> None:
    history = [entry(8.0, 8.0), entry(None, 8.0, "failed"), entry(2.0, 2.0), entry(16.0, 2.0, "pruned")]
    plot = tuning_plot({"kind": "measured", "history": history})
    assert plot is not None and plot.kind == "measured"
    ys = [y for _, y, _ in plot.dots]
    assert ys[2] < ys[0] < ys[1] and all(0 <= y <= TUNING_H for y in ys)  # slow above, fast below
    assert all(0 <= x <= TUNING_W for x, _, _ in plot.dots)
    assert plot.best.startswith("M") and plot.best.count("H") == 3
    assert [label for _, label in plot.ticks] == ["16 µs", "2 µs"]


def test_nothing_timed_is_not_drawn() -> None:
    assert tuning_plot({}) is None
    assert tuning_plot({"kind": "estimate", "history": [entry(None, None, "failed")]}) is None

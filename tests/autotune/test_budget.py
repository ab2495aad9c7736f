"""Budgets: what they say, how they are shared, and when they are used up."""

from __future__ import annotations

import pytest
from kvc.autotune.budget import Account, Budget, Meter
from kvc.diagnostics import KvcError


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("0", Budget()),
        ("0s", Budget()),
        ("30s", Budget(seconds=30)),
        ("1.5m", Budget(seconds=90)),
        ("2h", Budget(seconds=7200)),
        ("200t", Budget(trials=200)),
    ],
)
def test_what_a_budget_says(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget
    assert budget.is_nothing == text.startswith("0")


@pytest.mark.parametrize("text", ["", "10", "-3s", "2.5t", "ten", "10 m"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(KvcError) as caught:
        Budget.parse(text)
    assert caught.value.code == "KVC0106"


def test_heavy_kernels_get_more_and_light_ones_something() -> None:
    account = Account(Budget(trials=100), {"heavy": 98.0, "light": 2.0})
    heavy = account.share("heavy")
    assert 70 <= heavy.trials <= 85
    account.spent(10)  # it stopped early: the rest goes to the other
    assert account.share("light").trials == 90


def test_time_that_is_left_over_goes_on() -> None:
    now = [0.0]
    account = Account(Budget(seconds=100), {"a": 1.0, "b": 1.0}, clock=lambda: now[0])
    assert account.share("a").seconds == 50
    now[0] = 20.0
    assert account.share("b").seconds == 80


def test_a_meter_counts_trials_or_seconds() -> None:
    now = [0.0]
    trials, seconds = Meter(Budget(trials=2)), Meter(Budget(seconds=5), clock=lambda: now[0])
    assert trials.left() == 2 and seconds.left() is None
    trials.trials, now[0] = 2, 5.0
    assert trials.left() == 0 and seconds.left() == 0
    assert Meter(Budget()).left() == 0

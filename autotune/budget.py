"""How much tuning may cost: seconds or trials."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvc.diagnostics import KvcError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
SMALLEST_SHARE = 0.5  # of an equal share of the budget, that every kernel gets


@dataclass(frozen=True)
class Budget:
    """Either `seconds` or `trials`; both 0: nothing is tried, and the best that a study already knows is used."""

    seconds: float = 0.0
    trials: int = 0

    @property
    def is_nothing(self) -> bool:
        return not self.seconds and not self.trials

    @staticmethod
    def parse(text: str) -> Budget:
        """ "0", "30s", "10m", "1.5h" or "200t" (trials). KVC0106 for anything else."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smht]?)", text.strip())
        if found is not None:
            amount, unit = float(found[1]), found[2]
            if unit == "t" and amount == int(amount):
                return Budget(trials=int(amount))
            if unit in _UNITS:
                return Budget(seconds=amount * _UNITS[unit])
            if amount == 0:
                return Budget()
        raise KvcError(
            "KVC0106", f"budget {text!r}", hint="0, seconds (30s), minutes (10m), hours (1h) or trials (200t)"
        )

    def __str__(self) -> str:
        return f"{self.trials}t" if self.trials else f"{self.seconds:g}s"


NOTHING = Budget()


class Account:
    """What is left of a budget that several kernels share, the heavier ones getting more of it. What one leaves over
    goes to those after it."""

    def __init__(
        self, budget: Budget, weights: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        total = sum(weights.values()) or 1.0
        least = SMALLEST_SHARE / max(len(weights), 1)
        raised = {name: max(w / total, least) for name, w in weights.items()}
        self._shares = raised
        self._clock = clock
        self._end = clock() + budget.seconds
        self._trials = budget.trials
        self.budget = budget

    def share(self, name: str) -> Budget:
        """The budget of the next kernel."""
        part = self._shares.pop(name)
        part /= part + sum(self._shares.values())
        if self.budget.trials:
            return Budget(trials=max(round(self._trials * part), 1) if self._trials > 0 else 0)
        return Budget(seconds=max(self._end - self._clock(), 0.0) * part)

    def spent(self, trials: int) -> None:
        """Trials that a kernel took."""
        self._trials -= trials


class Meter:
    """Whether one kernel's budget is used up."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._start = clock()
        self.trials = 0

    def left(self) -> int | None:
        """Trials that may still be made: None without a number, 0 when the budget is used up."""
        if self._budget.trials:
            return max(self._budget.trials - self.trials, 0)
        return None if self._clock() - self._start < self._budget.seconds else 0

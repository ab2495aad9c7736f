"""How times are compared: contestants in turn, so that a drift of clocks or of other load meets all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence


def interleave(
    names: Sequence[str],
    sample: Callable[[str], float],
    least: int,
    most: int,
    budget_s: float,
    stop: Callable[[dict[str, list[float]]], bool] = lambda samples: False,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[float]]:
    """Milliseconds of each contestant: `sample` runs one once. Every round runs all, every other round backwards; at
    least `least` rounds and at most `most`, as long as `budget_s` seconds allow and `stop` does not object."""
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = clock()
    for n in range(most):
        if n >= least and clock() - started > budget_s:
            break
        for name in names if n % 2 == 0 else reversed(names):
            samples[name].append(sample(name))
        if stop(samples):
            break
    return samples


def summary(ms: Sequence[float]) -> dict[str, float]:
    """{"median_ms", "min_ms", "p90_ms", "rounds"} of at least one sample."""
    ordered = sorted(ms)
    return {
        "median_ms": statistics.median(ordered),
        "min_ms": ordered[0],
        "p90_ms": ordered[min(math.ceil(0.9 * len(ordered)) - 1, len(ordered) - 1)],
        "rounds": len(ordered),
    }

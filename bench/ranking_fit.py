"""How well the model orders kernels, and the fit of its constants: the arithmetic of the ranking study.

Specs with an even number are for the fit, those with an odd one are held out. The score of a spec is Spearman's rank
correlation of estimated and measured times, and how much slower the variant with the best estimate is than the best.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvc.arch import ArchSpec
from kvc.autotune.features import Features, estimate_launches
from kvc.autotune.model import FITTED, Constants, total_us

PICK = 1.25  # the bar: the picked variant is at most so much slower than the best
RHO = 0.6  # the bar of the median correlation
_WIDEST = 4.0  # a constant stays within so many times of where it started


@dataclass(frozen=True)
class Measured:
    """One spec of a table: microseconds of its variants and their features."""

    name: str
    us: tuple[float, ...]
    launches: tuple[tuple[Features, ...], ...]


@dataclass(frozen=True)
class Score:
    """One spec: rank correlation, slowdown of the pick, and the factor by which estimates exceed times (median)."""

    name: str
    rho: float
    pick: float
    bias: float


def read_table(table: Mapping[str, Any]) -> list[Measured]:
    """The specs of a study's JSON; variants that were not timed are left out."""
    found = []
    for spec in table["specs"]:
        timed = [v for v in spec["variants"] if v["ms"] is not None]
        launches = tuple(tuple(Features.from_json(entry) for entry in v["launches"]) for v in timed)
        found.append(Measured(spec["name"], tuple(1e3 * v["ms"] for v in timed), launches))
    return found


def halves(specs: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Specs for the fit, and those held out."""
    return list(specs[0::2]), list(specs[1::2])


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, equal values sharing their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for i in order[at : end + 1]:
            found[i] = (at + end) / 2
        at = end + 1
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where one side is constant."""
    left, right = ranks(a), ranks(b)
    return statistics.correlation(left, right) if len(set(left)) > 1 and len(set(right)) > 1 else 0.0


def score(spec: Measured, arch: ArchSpec, constants: Constants = FITTED) -> Score:
    """How the model does on one spec."""
    estimated = [total_us(estimate_launches(v, arch, constants)) for v in spec.launches]
    picked = min(range(len(estimated)), key=estimated.__getitem__)
    bias = statistics.median(e / us for e, us in zip(estimated, spec.us, strict=True))
    return Score(spec.name, spearman(estimated, spec.us), spec.us[picked] / min(spec.us), bias)


def loss(specs: Sequence[Measured], arch: ArchSpec, constants: Constants) -> float:
    """What the fit makes small: order, the pick (what it costs, not more than e-fold), and a little of the size."""
    scores = [score(spec, arch, constants) for spec in specs]
    order = statistics.fmean(1 - s.rho for s in scores)
    pick = statistics.fmean(min(math.log(s.pick), 1.0) for s in scores)
    size = statistics.fmean(abs(math.log(s.bias)) for s in scores)
    return order + 0.7 * pick + 0.25 * size


def fit(
    specs: Sequence[Measured], arch: ArchSpec, start: Constants, steps: int, seed: int,
    say: Callable[[str], Any] = lambda text: None,
) -> Constants:  # fmt: skip
    """A random descent from `start`: one to three constants move at a time, and a move stays when the loss falls."""
    source = random.Random(seed)
    names = [f.name for f in fields(Constants)]
    best, least = start, loss(specs, arch, start)
    for step in range(steps):
        moved = {}
        for name in source.sample(names, source.choice((1, 1, 2, 3))):
            origin = getattr(start, name)
            value = getattr(best, name) * math.exp(source.gauss(0, source.choice((0.1, 0.4))))
            value = min(max(value, origin / _WIDEST), origin * _WIDEST)
            if name.endswith("share") or name == "again":
                value = min(value, 1.0)
            moved[name] = min(max(value, 1.5), 8.0) if name == "norm" else value
        tried = replace(best, **moved)
        if (found := loss(specs, arch, tried)) < least:
            best, least = tried, found
            say(f"step {step}: loss {least:.4f}")
    return best


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """Medians and the worst of several specs."""
    return {
        "specs": len(scores),
        "median_rho": round(statistics.median(s.rho for s in scores), 3),
        "least_rho": round(min(s.rho for s in scores), 3),
        "median_pick": round(statistics.median(s.pick for s in scores), 3),
        "worst_pick": round(max(s.pick for s in scores), 3),
        "picks_within_bar": sum(s.pick <= PICK for s in scores),
    }

"""The sampler: a tree-structured Parzen estimator (Bergstra et al. 2011) over an enumerated space.

Good and bad trials each give a density over the choices, with kernels that fall off with the distance between
settings (kvc.autotune.space.distance); the untried choice with the highest ratio comes next. Optuna's own TPE treats
labels as unordered, so it would learn nothing about a choice from its neighbours, and it proposes known ones again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from kvc.autotune.space import Choice, distance
from optuna.trial import TrialState

GOOD_SHARE = 0.2  # of the finished trials, that count as good
REACH = 1.5  # doublings of a knob over which a kernel falls to 1/e
POOL = 96  # untried choices that are looked at, beside the neighbours of the best
NEIGHBOURS = 16


class SpaceSampler(optuna.samplers.BaseSampler):
    """Proposes labels of `choices`. Trials that failed, were pruned or are still running count as bad."""

    def __init__(self, choices: Mapping[str, Choice], parameter: str, startup: int, seed: int) -> None:
        self._choices = choices
        self._parameter = parameter
        self._startup = startup
        self._random = random.Random(seed)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Nothing is sampled jointly: there is one parameter."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        """See `infer_relative_search_space`."""
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> str:
        """The label to try next: random ones at first, any when all are known."""
        finished: list[tuple[float, str]] = []
        others: list[str] = []
        for t in study.get_trials(deepcopy=False):
            label = t.params.get(self._parameter)
            if label is None or t.number == trial.number or t.user_attrs.get("repeat"):
                continue
            if t.state == TrialState.COMPLETE and t.value is not None:
                finished.append((t.value, label))
            else:
                others.append(label)
        known = {label for _, label in finished} | set(others)
        untried = [label for label in self._choices if label not in known]
        if not untried:
            return self._random.choice(list(self._choices))
        if len(finished) < self._startup:
            return self._random.choice(untried)
        finished.sort()
        count = max(1, math.ceil(GOOD_SHARE * len(finished)))
        good = [label for _, label in finished[:count]]
        bad = [label for _, label in finished[count:]] + others
        best = self._choices[good[0]]
        near = sorted(untried, key=lambda label: distance(best, self._choices[label]))[:NEIGHBOURS]
        pool = list(dict.fromkeys([*near, *self._random.sample(untried, min(POOL, len(untried)))]))
        return max(pool, key=lambda label: self._density(label, good) - self._density(label, bad))

    def _density(self, label: str, trials: Sequence[str]) -> float:
        """Logarithm of the kernel density at a choice, with one trial's worth of a uniform prior."""
        here = self._choices[label]
        mass = sum(math.exp(-distance(here, self._choices[t]) / REACH) for t in trials if t in self._choices)
        return math.log((mass + 1.0 / len(self._choices)) / (len(trials) + 1))

"""What an answer is worth: by execution, with the gates of every candidate and the guards against winning otherwise.

The published rewards (issue of the vault): Triton 0.4 for a kernel that compiles, 1.0 for one that is correct and
min(0.375 * log2(speedup)^2, 1.5) where it is also faster; HIP 0.3 + min(speedup, 10), 0.3 more above 1.1 times, and
nothing for a near-copy. Speed is against the best known kernel of the spec; without a GPU it is the estimate of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Stages at which a candidate has compiled.
COMPILED = ("resources", "execute", "compare", "determinism", "verified")


@dataclass(frozen=True)
class Outcome:
    """`stage`: where it was rejected, or "verified"; `speedup` against the best known (1 where nothing is known);
    `copy`: near-copy of a known kernel of the spec."""

    stage: str
    code: str = ""
    message: str = ""
    schedule: str = ""
    speedup: float = 1.0
    copy: bool = False

    @property
    def compiled(self) -> bool:
        return self.stage in COMPILED

    @property
    def correct(self) -> bool:
        return self.stage == "verified"


def triton_reward(o: Outcome) -> float:
    fast = min(0.375 * math.log2(o.speedup) ** 2, 1.5) if o.correct and o.speedup >= 1 else 0.0
    return 0.4 * o.compiled + 1.0 * o.correct + fast


def hip_reward(o: Outcome) -> float:
    if not o.correct or o.copy:
        return 0.0
    return 0.3 + min(max(o.speedup, 0.0), 10.0) + (0.3 if o.speedup > 1.1 else 0.0)


REWARDS: dict[str, Callable[[Outcome], float]] = {"triton": triton_reward, "hip": hip_reward}


def discounted(rewards: Sequence[float], discount: float) -> float:
    """What a turn is worth: its own reward and, discounted, those of the turns after it."""
    return sum(r * discount**n for n, r in enumerate(rewards))


def advantages(rewards: Sequence[float]) -> list[float]:
    """Within a group of answers to one prompt: above its mean, in its standard deviations; 0 where all are alike."""
    mean = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / spread if spread > 1e-6 else 0.0 for r in rewards]


@dataclass(frozen=True)
class Judged:
    """A task of the judge: the row of a held-out or training prompt (spec, target, arch), and a model's text."""

    spec: str
    target: str
    arch: str
    text: str
    seed: int = 0
    best_us: float | None = None
    copies: bool = False  # whether to look for near-copies of what the rules write


class Judge:
    """Judges answers in isolated worker processes (kvc.verify.pool), `jobs` at a time. A context manager."""

    def __init__(self, jobs: int, executor: str = "sim", timeout_s: float = 120.0) -> None:
        from kvc.verify.pool import WorkerPool

        self._jobs, self._executor = jobs, executor
        self._pool = WorkerPool(jobs, timeout_s)

    def __enter__(self) -> Judge:
        self._pool.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._pool.__exit__(*exception)

    def outcomes(self, answers: Sequence[Judged]) -> Iterator[Outcome]:
        """In the order of the answers."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self._jobs) as threads:
            yield from threads.map(self.one, answers)

    def one(self, answer: Judged) -> Outcome:
        from kvc.arch import arch
        from kvc.emitter import Task
        from kvc.model.copies import is_near_copy
        from kvc.model.emitter import ModelEmitter
        from kvc.model.prompt import Asked
        from kvc.model.writer import Recorded
        from kvc.text import parse_kernel
        from kvc.verify.judge import Bench, judge
        from kvc.verify.verdict import Rejected

        asked = Asked(Task(parse_kernel(answer.spec), arch(answer.arch)))
        made = ModelEmitter("model", answer.target, Recorded(())).read(answer.text, asked, answer.seed)
        if isinstance(made, Rejected):
            return Outcome(made.stage, made.diagnostic.code, made.diagnostic.message)
        verdict = judge(made, Bench(self._pool, self._executor, answer.seed))
        if isinstance(verdict, Rejected):
            found = verdict.diagnostic
            return Outcome(verdict.stage, found.code, found.message, made.schedule)
        copied = answer.copies and is_near_copy(made)
        speedup = _speedup(made, verdict, answer.best_us)
        return Outcome("verified", schedule=made.schedule, speedup=speedup, copy=copied)


def _speedup(candidate: Any, verdict: Any, best_us: float | None) -> float:
    """The best known time over this one's: both estimates from counted work, so that they compare."""
    from kvc.vault.judging import verdict_columns

    mine = verdict_columns(candidate, verdict)["estimate_us"]
    return best_us / mine if best_us and mine else 1.0

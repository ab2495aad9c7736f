"""The learned emitter: asks a model for a kernel, shows it what the gates said, asks again.

All that a model writes goes through the gates of every candidate. Factories are registered under "kvc.emitters", so
that the core knows no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from kvc.diagnostics import Diagnostic
from kvc.emitter import Candidate, Knob, Origin, Space, Support, Task
from kvc.model.frame import assemble, parse
from kvc.model.infer.generate import Sampling
from kvc.model.instructions import instructions, without_fence
from kvc.model.languages import LANGUAGES
from kvc.model.prompt import RANKS, Asked, Tried, prompt
from kvc.model.sizes import NotAFrame
from kvc.model.writer import Writer, writer
from kvc.verify.verdict import Rejected

VERSION = "1"


@dataclass(frozen=True)
class Budget:
    """`turns`: answers for a task. The first is the likeliest; later ones are sampled, and see the earlier verdicts."""

    turns: int = 4
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.6))


class ModelEmitter:
    """A kvc.emitter.Emitter for one target. `propose` yields candidates, and a Rejected (stage "propose") for an answer
    that is none."""

    version = VERSION

    def __init__(self, name: str, target: str, source: Writer, budget: Budget | None = None) -> None:
        self.name, self._target, self._writer = name, target, source
        self._budget = budget or Budget()
        self._ready: dict[tuple[str, int], str] = {}  # by prompt and seed: what `prepare` wrote

    def prepare(self, tasks: Sequence[Task], seed: int) -> None:
        """Write the first, greedy answers for all tasks side by side, where the writer gains by that."""
        asked = [Asked(task) for task in dict.fromkeys(tasks) if self.supports(task).ok]
        if getattr(self._writer, "together", 1) == 1 or len(asked) < 2:
            return
        keys = [(self.text(a, ()), seed_of(seed, a.task, 0)) for a in asked]
        cold = replace(self._budget.sampling, temperature=0.0)
        texts = self._writer.write([text for text, _ in keys], cold, [number for _, number in keys])
        self._ready |= dict(zip(keys, texts, strict=True))

    def supports(self, task: Task) -> Support:
        """Whether the model can be asked: a language it writes, static sizes, a prompt that leaves room."""
        if self._target not in LANGUAGES:
            return Support(False, f"no model writes {self._target}")
        if not task.spec.is_static:
            return Support(False, "sizes are symbolic")
        if not self._writer.fits(self.text(Asked(task), ())):
            return Support(False, "the specification is longer than the model reads")
        return Support(True)

    def space(self, task: Task) -> Space:
        """One setting: a model chooses its knobs itself."""
        return Space(((),))

    def text(self, asked: Asked, tried: Sequence[Tried], rank: str = RANKS[0]) -> str:
        """What the model reads."""
        plain = prompt(asked, self._target, tried, rank)
        return plain if self._writer.knows_frames else instructions(self._target) + plain

    def propose(
        self, task: Task, knobs: tuple[tuple[str, Knob], ...], history: Sequence[Any], seed: int
    ) -> Iterator[Any]:
        """Candidates, one a turn; `history` grows by their verdicts between turns. An answer that was given before is
        not given again."""
        asked = Asked(task)
        tried: list[Tried] = []
        seen: set[str] = set()
        for turn in range(self._budget.turns):
            before = len(history)
            made = self.answer(asked, turn, tried, seed)
            if isinstance(made, Rejected):
                tried.append(Tried("", made.stage, made.diagnostic.code, made.diagnostic.message))
                yield made
                continue
            if made.source in seen:
                continue
            seen.add(made.source)
            yield made
            tried += [t for entry in history[before:] if (t := _tried(entry)) is not None]

    def answer(self, asked: Asked, turn: int, tried: Sequence[Tried], seed: int) -> Candidate | Rejected:
        """The model's answer of a turn: a candidate, or why it is none."""
        sampling = self._budget.sampling if turn else replace(self._budget.sampling, temperature=0.0)
        number = seed_of(seed, asked.task, turn)
        # A trained model repairs from the prompt alone on the first repetition; later ones ask for another rank.
        rank = RANKS[min(max(turn - 1, 0), len(RANKS) - 1)]
        given = self.text(asked, tried if self._writer.reads_verdicts else (), rank)
        ready = self._ready.pop((given, number), None) if turn == 0 else None
        (text,) = (ready,) if ready is not None else self._writer.write([given], sampling, [number])
        return self.read(text, asked, number)

    def write(self, texts: Sequence[str], sampling: Sampling, seeds: Sequence[int]) -> list[str]:
        """Answers to prompts that `text` made, as they are."""
        return self._writer.write(texts, sampling, seeds)

    def count(self, text: str) -> int:
        """Tokens of an answer."""
        return self._writer.count(text)

    @property
    def sampling(self) -> Sampling:
        return self._budget.sampling

    def read(self, text: str, asked: Asked, number: int = 0) -> Candidate | Rejected:
        """A model's text as a candidate, or why it is none; no text whatsoever raises."""
        origin = Origin(self.name, self.version, self._writer.identity, number)
        try:
            return assemble(parse(without_fence(text)), asked, self._target, origin)
        except NotAFrame as problem:
            return Rejected("propose", problem.diagnostic)
        except RecursionError:
            return Rejected("propose", Diagnostic("KVC0301", "expressions are nested too deeply"))


def _tried(entry: Any) -> Tried | None:
    candidate, verdict = entry
    if not isinstance(verdict, Rejected):
        return None
    return Tried(candidate.schedule, verdict.stage, verdict.diagnostic.code, verdict.diagnostic.message)


def seed_of(seed: int, task: Task, turn: int) -> int:
    """A seed of its own for each task and turn, the same on every machine."""
    text = f"{seed}:{task.key}:{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@cache
def _writer(argument: str) -> Writer:
    return writer(argument)


def model(target: str, argument: str) -> ModelEmitter:
    """`model` (the shipped one), `model:PATH_OR_HUB_ID[+ADAPTER]`."""
    return ModelEmitter(f"model:{argument}" if argument else "model", target, _writer(argument))

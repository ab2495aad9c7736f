"""Sampling from an engine: prompts side by side, each with its own random stream, so that a batch changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from kvc.model.infer.engine import MAX_ROWS, Engine, Unavailable
from kvc.model.infer.reference import Reference
from kvc.model.tokenizer import EOS
from kvc.model.weights import Weights


class Runner(Protocol):
    """What forwards tokens: Engine or Reference."""

    slots: int
    context: int

    def forward(
        self, tokens: np.ndarray, slots: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray: ...


class Guard(Protocol):
    """What may come next in one answer (kvc.model.constrain.Guard)."""

    def allows(self, token: int) -> bool: ...

    def take(self, token: int) -> None: ...


#: Tokens that are tried in order before the likeliest one is taken whatever a guard says.
TRIES = 24


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0 takes the likeliest token; `top_p` cuts the tail; `most`: tokens of an answer."""

    temperature: float = 0.0
    top_p: float = 0.95
    most: int = 2048


@dataclass
class _Sequence:
    prompt: Sequence[int]
    rng: np.random.Generator
    number: int
    guard: Guard | None = None
    position: int = 0
    answer: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """`finished`: it ended by itself."""

    tokens: tuple[int, ...]
    finished: bool


def runner(weights: Weights, slots: int, context: int | None = None) -> Runner:
    """The compiled engine, or NumPy where there is no compiler."""
    try:
        return Engine(weights, slots, context)
    except Unavailable:
        return Reference(weights, slots, context)


def generate(
    engine: Runner, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int],
    guards: Sequence[Guard] | None = None,
) -> list[Answer]:  # fmt: skip
    """An answer for each prompt; as many at once as the engine has slots. A prompt that leaves no room has the empty
    answer. Deterministic: an answer depends on its prompt, its seed and the sampling alone, but for the last bits of
    sums that are taken in another order for another number of rows. `guards`: what each answer may hold."""
    answers: dict[int, Answer] = {}
    kept: Sequence[Guard | None] = guards or [None] * len(prompts)
    waiting = [_Sequence(p, np.random.default_rng(seeds[n]), n, kept[n]) for n, p in enumerate(prompts)][::-1]
    active: dict[int, _Sequence] = {}
    while waiting or active:
        for slot in range(engine.slots):
            while slot not in active and waiting:
                sequence = waiting.pop()
                if len(sequence.prompt) >= engine.context:
                    answers[sequence.number] = Answer((), False)
                    continue
                token = sample(_read(engine, slot, sequence), sampling, sequence.rng, sequence.guard)
                _advance(active, answers, slot, sequence, token, engine.context, sampling)
        for slot, sequence, logits in _step(engine, active):
            del active[slot]
            token = sample(logits, sampling, sequence.rng, sequence.guard)
            _advance(active, answers, slot, sequence, token, engine.context, sampling)
    return [answers[n] for n in range(len(prompts))]


def _read(engine: Runner, slot: int, sequence: _Sequence) -> np.ndarray:
    """Logits after the prompt."""
    prompt = np.asarray(sequence.prompt, np.int32)
    logits = np.empty((0, 0), np.float32)
    for start in range(0, len(prompt), MAX_ROWS):
        tokens = prompt[start : start + MAX_ROWS]
        wanted = np.arange(start, start + len(tokens)) == len(prompt) - 1
        positions = np.arange(start, start + len(tokens), dtype=np.int32)
        logits = engine.forward(tokens, np.full(len(tokens), slot, np.int32), positions, wanted)
    sequence.position = len(prompt)
    return logits[0]


def _step(engine: Runner, active: dict[int, _Sequence]) -> Iterator[tuple[int, _Sequence, np.ndarray]]:
    """One token for every active sequence."""
    if not active:
        return
    slots = list(active)[:MAX_ROWS]
    rows = [active[s] for s in slots]
    logits = engine.forward(
        np.array([r.answer[-1] for r in rows], np.int32), np.array(slots, np.int32),
        np.array([r.position for r in rows], np.int32), np.ones(len(rows), bool),
    )  # fmt: skip
    for row in rows:
        row.position += 1
    yield from [(s, r, logits[n]) for n, (s, r) in enumerate(zip(slots, rows, strict=True))]


def _advance(
    active: dict[int, _Sequence], answers: dict[int, Answer], slot: int, sequence: _Sequence, token: int,
    context: int, sampling: Sampling,
) -> None:  # fmt: skip
    """Take a token: the sequence goes on in its slot, or its answer is done."""
    if token == EOS:
        answers[sequence.number] = Answer(tuple(sequence.answer), True)
        return
    sequence.answer.append(token)
    if sequence.guard is not None:
        sequence.guard.take(token)
    if len(sequence.answer) >= sampling.most or sequence.position >= context:
        answers[sequence.number] = Answer(tuple(sequence.answer), False)
    else:
        active[slot] = sequence


def sample(logits: np.ndarray, sampling: Sampling, rng: np.random.Generator, guard: Guard | None = None) -> int:
    """A token of the distribution that `sampling` and `guard` leave."""
    if sampling.temperature <= 0:
        likeliest = int(logits.argmax())
        if guard is None or likeliest == EOS or guard.allows(likeliest):
            return likeliest
        some = np.argpartition(-logits, min(TRIES, len(logits) - 1))[:TRIES]
        ordered = some[np.argsort(-logits[some], kind="stable")]
        return next((int(t) for t in ordered if int(t) == EOS or guard.allows(int(t))), likeliest)
    scaled = logits.astype(np.float64) / sampling.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), sampling.top_p)) + 1]
    if guard is not None:
        allowed = _allowed(order, p, sampling.top_p, guard)
        kept = np.array(allowed) if allowed else kept
    return int(rng.choice(kept, p=p[kept] / p[kept].sum()))


def _allowed(order: np.ndarray, p: np.ndarray, top_p: float, guard: Guard) -> list[int]:
    """The likeliest allowed tokens, to `top_p` of what refused ones leave; none where TRIES tokens hold none."""
    found: list[int] = []
    mass, left = 0.0, 1.0
    for token in map(int, order[:TRIES]):
        if token == EOS or guard.allows(token):
            found.append(token)
            mass += float(p[token])
        else:
            left -= float(p[token])
        if mass >= top_p * left:
            break
    return found

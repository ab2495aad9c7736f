"""GRPO for models that are trained from zero: rollouts, execution, one clipped update.

An own loop rather than TRL's: the small model is no transformers checkpoint, its rollouts are cheap, and
the time goes into execution. Judging is spread over isolated workers (kvc.verify.pool). Larger models take TRL's loop
(kvc.model.train.pretrained) with the same reward and recipe.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from kvc.arch import arch
from kvc.emitter import Task
from kvc.model import weights as files
from kvc.model.dataset import Example, read
from kvc.model.prompt import Asked, Tried, prompt
from kvc.model.shape import Shape
from kvc.model.tokenizer import EOS, PAD, Tokenizer
from kvc.model.train import checkpoint
from kvc.model.train.network import Decoder, sample
from kvc.model.train.recipe import Recipe, Rl
from kvc.model.train.reward import REWARDS, Judge, Judged, Outcome, advantages, discounted
from kvc.model.train.zero import save, tensors_of
from kvc.text import parse_kernel


@dataclass(frozen=True)
class Run:
    """`base`: a folder that SFT wrote (its checkpoint is trained on); `data`: examples, whose specs are the tasks."""

    recipe: Recipe
    base: Path
    data: Path
    out: Path
    seconds: float = 0.0
    executor: str = "sim"
    device: str = "cuda"


@dataclass
class Talk:
    """One conversation about a task: what was asked and answered at each turn, and what came of it."""

    example: Example
    group: int
    prompts: list[list[int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return bool(self.outcomes) and self.outcomes[-1].correct


@dataclass(frozen=True)
class Piece:
    """A turn to learn from."""

    prompt: list[int]
    answer: list[int]
    advantage: float


def tasks_of(path: Path) -> list[Example]:
    """One example for each training spec, target and GPU, the best known."""
    found: dict[tuple[str, str, str], Example] = {}
    for e in read(path):
        key = (e.spec_hash, e.target, e.arch)
        if e.split == "train" and (key not in found or e.rank == "best"):
            found[key] = e
    return list(found.values())


class Rollouts:
    """Samples conversations and has them judged."""

    def __init__(self, tokenizer: Tokenizer, rl: Rl, judge: Judge, seed: int) -> None:
        self._tokenizer, self._rl, self._judge, self._seed = tokenizer, rl, judge, seed

    def play(self, network: Decoder, examples: Sequence[Example], generator: torch.Generator) -> list[Talk]:
        """`samples` conversations about each example, of at most `turns` turns; verdicts of earlier turns are shown."""
        talks = [Talk(e, n) for n, e in enumerate(examples) for _ in range(self._rl.samples)]
        for turn in range(self._rl.turns):
            active = [t for t in talks if not t.is_over]
            if not active:
                break
            prompts = [self._prompt(t) for t in active]
            written: list[list[int]] = []
            for start in range(0, len(active), 256):
                some = prompts[start : start + 256]
                written += sample(network, some, self._rl.answer_tokens, EOS, self._rl.temperature, generator)
            asked = [self._judged(t, a, turn) for t, a in zip(active, written, strict=True)]
            for talk, given, answer, outcome in zip(active, prompts, written, self._judge.outcomes(asked), strict=True):
                talk.prompts.append(given)
                talk.answers.append(answer)
                talk.outcomes.append(outcome)
        return talks

    def _prompt(self, talk: Talk) -> list[int]:
        if not talk.outcomes:
            return self._tokenizer.prompt(talk.example.prompt)
        e = talk.example
        asked = Asked(Task(parse_kernel(e.spec_text), arch(e.arch), e.prompt.split()[2]))
        tried = [Tried(o.schedule, o.stage, o.code, o.message) for o in talk.outcomes]
        return self._tokenizer.prompt(prompt(asked, e.target, tried))

    def _judged(self, talk: Talk, answer: list[int], turn: int) -> Judged:
        e, text = talk.example, self._tokenizer.decode(answer)
        return Judged(e.spec_text, e.target, e.arch, text, self._seed + turn, e.microseconds, self._rl.reward == "hip")


def pieces_of(talks: Sequence[Talk], rl: Rl) -> list[Piece]:
    """Each turn with its advantage within the turns of the same number about the same task."""
    reward = REWARDS[rl.reward]
    worth: dict[tuple[int, int], list[tuple[Talk, int, float]]] = {}
    for talk in talks:
        rewards = [reward(o) for o in talk.outcomes]
        for turn in range(len(rewards)):
            value = discounted(rewards[turn:], rl.discount)
            worth.setdefault((talk.group, turn), []).append((talk, turn, value))
    pieces = []
    for members in worth.values():
        for (talk, turn, _), advantage in zip(members, advantages([v for *_, v in members]), strict=True):
            if advantage:
                pieces.append(Piece(talk.prompts[turn], talk.answers[turn], advantage))
    return pieces


def log_probabilities(network: Decoder, pieces: Sequence[Piece], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each answer token, its end included, and the mask of those tokens: [pieces, time]."""
    rows = [[*p.prompt, *p.answer, EOS][: network.shape.context] for p in pieces]
    time_ = max(map(len, rows))
    tokens = torch.full((len(rows), time_), PAD, dtype=torch.long)
    mask = torch.zeros(len(rows), time_ - 1)
    for n, (row, piece) in enumerate(zip(rows, pieces, strict=True)):
        tokens[n, : len(row)] = torch.tensor(row)
        mask[n, len(piece.prompt) - 1 : len(row) - 1] = 1
    tokens, mask = tokens.to(device), mask.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = network(tokens[:, :-1])
    log_p = F.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]
    return log_p, mask


def loss_of(
    new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor, rl: Rl
) -> torch.Tensor:
    """Clipped surrogate with the asymmetric clip and the unbiased KL estimate of GRPO, mean over tokens."""
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - rl.clip_low, 1 + rl.clip_high)
    gain = torch.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
    apart = reference - new
    penalty = apart.exp() - apart - 1
    return -((gain - rl.kl * penalty) * mask).sum() / mask.sum().clamp(min=1)


def load(folder: Path, device: str) -> tuple[Decoder, Shape]:
    """The float checkpoint of a training run."""
    arrays, state = checkpoint.load(folder / "checkpoint")
    shape = Shape.from_json(state["shape"])
    network = Decoder(shape)
    network.load_state_dict({n: torch.from_numpy(np.array(arrays[n])) for n, _ in network.named_parameters()})
    return network.to(device), shape


def _chunks(pieces: list[Piece], tokens: int = 32768) -> Iterator[list[Piece]]:
    """Pieces of like length, few enough for one pass."""
    ordered = sorted(pieces, key=lambda p: len(p.prompt) + len(p.answer))
    some: list[Piece] = []
    for piece in ordered:
        longest = len(piece.prompt) + len(piece.answer) + 1
        if some and longest * (len(some) + 1) > tokens:
            yield some
            some = []
        some.append(piece)
    if some:
        yield some


def update(
    network: Decoder, reference: Decoder, optimise: torch.optim.Optimizer, pieces: list[Piece], rl: Rl, device: str
) -> float:
    """One optimiser step on the pieces of a rollout; gives the mean loss."""
    network.train()
    total, count = 0.0, max(len(pieces), 1)
    optimise.zero_grad(set_to_none=True)
    for some in _chunks(pieces):
        with torch.no_grad():
            known, _ = log_probabilities(reference, some, device)
        new, mask = log_probabilities(network, some, device)
        advantage = torch.tensor([p.advantage for p in some], device=device)
        loss = loss_of(new, new.detach(), known, mask, advantage, rl) * len(some) / count
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimise.step()
    return total


def train(run: Run, say: Callable[[str], None] = print) -> None:
    """Train and write `run.out`: model.safetensors, tokenizer.json, checkpoint/, rl.jsonl (a line a step)."""
    rl, started = run.recipe.rl, time.monotonic()
    network, shape = load(run.base, run.device)
    reference, _ = load(run.base, run.device)
    tokenizer = Tokenizer(run.base / "tokenizer.json")
    optimise = torch.optim.AdamW(network.parameters(), lr=rl.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator(run.device).manual_seed(run.recipe.seed)
    rng, tasks = random.Random(run.recipe.seed), tasks_of(run.data)
    run.out.mkdir(parents=True, exist_ok=True)
    with Judge(rl.jobs, run.executor) as judge:
        rollouts = Rollouts(tokenizer, rl, judge, run.recipe.seed)
        for step in range(rl.steps):
            if run.seconds and time.monotonic() - started > run.seconds:
                break
            talks = rollouts.play(network, rng.sample(tasks, min(rl.prompts, len(tasks))), generator)
            pieces = pieces_of(talks, rl)
            loss = update(network, reference, optimise, pieces, rl, run.device) if pieces else 0.0
            row = _row(step, talks, loss, rl) | {"seconds": round(time.monotonic() - started, 1)}
            with (run.out / "rl.jsonl").open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            say(" ".join(f"{k}={v}" for k, v in row.items()))
            save(run.out / "checkpoint", network, None, step + 1, run.recipe)
    files.save(files.from_float(shape, tensors_of(network)), run.out / "model.safetensors")
    (run.out / "tokenizer.json").write_text((run.base / "tokenizer.json").read_text(encoding="utf-8"), encoding="utf-8")


def _row(step: int, talks: Sequence[Talk], loss: float, rl: Rl) -> dict[str, float]:
    reward = REWARDS[rl.reward]
    first = [t.outcomes[0] for t in talks]
    return {
        "step": step,
        "reward": round(sum(reward(o) for o in first) / len(first), 4),
        "compiled": round(sum(o.compiled for o in first) / len(first), 4),
        "correct": round(sum(o.correct for o in first) / len(first), 4),
        "solved": round(sum(t.is_over for t in talks) / len(talks), 4),
        "loss": round(loss, 5),
    }

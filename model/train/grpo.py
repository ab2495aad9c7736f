"""GRPO for models that are trained from zero: rollouts, execution, one clipped update.

An own loop rather than TRL's: the small model is no transformers checkpoint, its rollouts are cheap, and the time goes
into execution. Judging is spread over processes of their own (kvc.model.train.judging). Larger models take TRL's loop
(kvc.model.train.pretrained) with the same reward and recipe.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Task
from kvc.model import weights as files
from kvc.model.dataset import Example, read
from kvc.model.prompt import Asked, Tried, prompt, without_setting
from kvc.model.shape import Shape
from kvc.model.tokenizer import EOS, PAD, Tokenizer
from kvc.model.train import checkpoint
from kvc.model.train.decode import sample
from kvc.model.train.judging import Judges
from kvc.model.train.network import Decoder
from kvc.model.train.recipe import Recipe, Rl
from kvc.model.train.reward import REWARDS, Outcome, advantages, discounted
from kvc.model.train.zero import save, tensors_of
from kvc.model.writer import MARK
from kvc.text import parse_kernel


@dataclass(frozen=True)
class Run:
    """`base`: a folder that SFT wrote (its checkpoint is trained on); `data`: examples, whose specs are the tasks.
    `seconds` of wall clock for all (0: no limit), `patience` for the verdicts of one step: answers without one by then
    are left out. `state`: where what a killed run goes on from is kept (None: nowhere). `jobs`: judges, 0 the
    recipe's."""

    recipe: Recipe
    base: Path
    data: Path
    out: Path
    seconds: float = 0.0
    executor: str = "sim"
    device: str = "cuda"
    state: Path | None = None
    patience: float = 60.0
    jobs: int = 0


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

    def __init__(self, tokenizer: Tokenizer, rl: Rl, judges: Judges, seed: int, patience: float) -> None:
        self._tokenizer, self._rl, self._judges = tokenizer, rl, judges
        self._seed, self._patience, self._turn = seed, patience, 0

    def play(
        self, network: Decoder, examples: Sequence[Example], generator: torch.Generator, until: float = math.inf
    ) -> list[Talk]:
        """`samples` conversations about each example, of at most `turns` turns; verdicts of earlier turns are shown.
        A turn without a verdict (its judge died, or time was over) is taken back. `until`: of time.monotonic()."""
        talks = [Talk(e, n) for n, e in enumerate(examples) for _ in range(self._rl.samples)]
        for _ in range(self._rl.turns):
            active = [t for t in talks if not t.is_over]
            if not active or time.monotonic() > until:
                break
            self._turn += 1
            prompts = [self._prompt(t) for t in active]
            written = self._written(network, prompts, generator)
            for number, (talk, answer) in enumerate(zip(active, written, strict=True)):
                self._judges.add(self._row(talk, answer, number))
            judged = self._judges.drain(min(self._patience, until - time.monotonic()))
            outcomes = {row["key"]: Outcome(**row["outcome"]) for row in judged}
            for number, (talk, given, answer) in enumerate(zip(active, prompts, written, strict=True)):
                outcome = outcomes.get(self._key(number))
                if outcome is not None and outcome.stage not in NO_VERDICT:
                    talk.prompts.append(given)
                    talk.answers.append(answer)
                    talk.outcomes.append(outcome)
        return talks

    def _written(self, network: Decoder, prompts: list[list[int]], generator: torch.Generator) -> list[list[int]]:
        """Answers, in batches of like prompts: a batch is done when its longest answer is."""
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
        written: dict[int, list[int]] = {}
        for start in range(0, len(order), 256):
            some = order[start : start + 256]
            made = sample(
                network, [prompts[n] for n in some], self._rl.answer_tokens, EOS, self._rl.temperature, generator
            )
            written |= dict(zip(some, made, strict=True))
        return [written[n] for n in range(len(prompts))]

    def _prompt(self, talk: Talk) -> list[int]:
        if not talk.outcomes:
            return self._tokenizer.prompt(without_setting(talk.example.prompt))
        e = talk.example
        asked = Asked(Task(parse_kernel(e.spec_text), arch(e.arch), e.prompt.split()[2]))
        tried = [Tried(o.schedule, o.stage, o.code, o.message) for o in talk.outcomes]
        return self._tokenizer.prompt(prompt(asked, e.target, tried))

    def _key(self, number: int) -> str:
        return f"{self._turn}/{number}"

    def _row(self, talk: Talk, answer: list[int], number: int) -> dict[str, Any]:
        e = talk.example
        return {
            "key": self._key(number), "spec": e.spec_text, "target": e.target, "arch": e.arch,
            "text": self._tokenizer.decode(answer), "seed": self._seed + self._turn, "best_us": e.microseconds,
            "copies": self._rl.reward == "hip",
        }  # fmt: skip


#: Stages that say nothing about the answer.
NO_VERDICT = ("lost", "judge")


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
    """The float checkpoint of a training run. KVC0101 where there is none."""
    found = checkpoint.place(folder)
    if found is None:
        raise KvcError("KVC0101", f"{folder} holds no checkpoint", hint="kvc model train session or sft leaves one")
    arrays, state = checkpoint.load(found)
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


@dataclass
class _Course:
    """A run under way."""

    run: Run
    network: Decoder
    optimise: torch.optim.AdamW
    rng: random.Random
    generator: torch.Generator
    step: int = 0

    def save(self, folder: Path) -> None:
        """What a killed run goes on from: float32 weights, moments, the step. Random streams start anew from it."""
        save(folder, self.network, self.optimise, self.step, self.run.recipe, progress=0.5)

    def resume(self, folder: Path) -> None:
        arrays, state = checkpoint.load(folder)
        self.step = int(state["step"])
        with torch.no_grad():
            for name, p in self.network.named_parameters():
                p.copy_(torch.from_numpy(arrays[name].copy()))
                if f"exp_avg/{name}" in arrays:
                    moments = {
                        k: torch.from_numpy(arrays[f"{k}/{name}"].copy()).to(p) for k in ("exp_avg", "exp_avg_sq")
                    }
                    self.optimise.state[p] = {"step": torch.tensor(float(self.step), device=p.device), **moments}
        self.rng.seed(f"{self.run.recipe.seed}/{self.step}")
        self.generator.manual_seed(self.run.recipe.seed * 1000 + self.step)


def train(run: Run, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Train and write `run.out`: model.safetensors, tokenizer.json, checkpoint/, rl.jsonl (a line a step, which it
    gives). KVC0101 where there are no tasks."""
    rl, started = run.recipe.rl, time.monotonic()
    until = started + run.seconds if run.seconds else math.inf
    network, shape = load(run.base, run.device)
    reference, _ = load(run.base, run.device)
    tokenizer, tasks = Tokenizer(run.base / "tokenizer.json"), tasks_of(run.data)
    if not tasks:
        raise KvcError("KVC0101", f"{run.data} holds no training examples")
    optimise = torch.optim.AdamW(network.parameters(), lr=rl.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator(run.device).manual_seed(run.recipe.seed)
    course = _Course(run, network, optimise, random.Random(run.recipe.seed), generator)
    if run.state is not None and (run.state / checkpoint.INDEX).is_file():
        course.resume(run.state)
    run.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with Judges(run.jobs or rl.jobs, run.executor, rl.timeout_s) as judges:
        rollouts = Rollouts(tokenizer, rl, judges, run.recipe.seed, run.patience)
        while course.step < rl.steps and not (rows and time.monotonic() + rows[-1]["took"] > until):
            begun = time.monotonic()
            some = course.rng.sample(tasks, min(rl.prompts, len(tasks)))
            talks = rollouts.play(network, some, generator, until)
            pieces = pieces_of(talks, rl)
            loss = update(network, reference, optimise, pieces, rl, run.device) if pieces else 0.0
            course.step += 1
            took = round(time.monotonic() - begun, 1)
            rows.append(_row(course.step, talks, len(pieces), loss, rl) | {"took": took})
            with (run.out / "rl.jsonl").open("a") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
            say(" ".join(f"{k}={v}" for k, v in rows[-1].items()))
            if run.state is not None:
                course.save(run.state)
    save(run.out / "checkpoint", network, None, course.step, run.recipe)
    files.save(files.from_float(shape, tensors_of(network)), run.out / "model.safetensors")
    (run.out / "tokenizer.json").write_text((run.base / "tokenizer.json").read_text(encoding="utf-8"), encoding="utf-8")
    (run.out / MARK).write_text(json.dumps({"prompt": "frame", "recipe": run.recipe.name, "turns": rl.turns}))
    return rows


def _row(step: int, talks: Sequence[Talk], pieces: int, loss: float, rl: Rl) -> dict[str, Any]:
    """Figures of a step: means over the first answers that have a verdict. `learned`: turns with an advantage."""
    reward = REWARDS[rl.reward]
    first = [t.outcomes[0] for t in talks if t.outcomes]
    count = max(len(first), 1)
    return {
        "step": step,
        "answers": len(first),
        "unjudged": len(talks) - len(first),
        "reward": round(sum(reward(o) for o in first) / count, 4),
        "compiled": round(sum(o.compiled for o in first) / count, 4),
        "correct": round(sum(o.correct for o in first) / count, 4),
        "solved": round(sum(t.is_over for t in talks) / max(len(talks), 1), 4),
        "learned": pieces,
        "loss": round(loss, 5),
    }

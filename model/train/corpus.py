"""Tokenised examples in one compressed file, and batches of like length from it.

Batches hold sequences of one bucket of lengths, padded on the right: no sequence sees another, attention needs no mask,
and a handful of shapes is compiled. Measured on kernels, a tenth of the tokens is padding.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kvc.diagnostics import KvcError
from kvc.model.dataset import Example
from kvc.model.prompt import without_setting
from kvc.model.tokenizer import EOS, PAD, Tokenizer

BUCKETS = (384, 640, 1024, 1536, 2560, 4096)


@dataclass(frozen=True)
class Corpus:
    """Sequence n is tokens[starts[n]:starts[n+1]]; its answer begins at answers[n] within it; `weights[n]`: how often
    it is drawn. `heldout`: prompts that are not trained on, with what is needed to judge an answer."""

    tokens: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    weights: np.ndarray
    heldout: list[dict[str, object]]

    def save(self, path: Path) -> None:
        held = np.frombuffer(json.dumps(self.heldout).encode(), np.uint8)
        np.savez_compressed(
            path, tokens=self.tokens, starts=self.starts, answers=self.answers, weights=self.weights, heldout=held
        )

    @staticmethod
    def load(path: Path) -> Corpus:
        with np.load(path, allow_pickle=False) as data:
            held = json.loads(bytes(data["heldout"]))
            return Corpus(data["tokens"], data["starts"], data["answers"], data["weights"], held)

    def __len__(self) -> int:
        return len(self.answers)

    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


#: How often an example is drawn against a "best" one of its rank.
RANK_WEIGHT = {"best": 1.0, "good": 0.6, "any": 0.4}
#: ... and a prompt that leaves the choice among many open.
OPEN_WEIGHT = 0.1
#: ... and one of a changed spec (kvc.model.augment), whose "best" is the rules' first guess and not measured.
CHANGED_WEIGHT = 0.5


def tokenise(examples: Iterable[Example], tokenizer: Tokenizer, longest: int = BUCKETS[-1]) -> Corpus:
    """Examples as tokens; those longer than `longest` are left out. Prompts at other sizes of one answer share its
    weight."""
    tokens: list[np.ndarray] = []
    answers: list[int] = []
    weights: list[float] = []
    held: dict[tuple[str, str, str], dict[str, object]] = {}
    for e in examples:
        if e.split == "heldout":
            if e.rank == "best":
                held[e.spec_hash, e.target, e.arch] = {
                    "prompt": tokenizer.prompt(e.prompt), "spec": e.spec_text, "target": e.target, "arch": e.arch,
                    "op_class": e.op_class, "answer": e.answer,
                }  # fmt: skip
            continue
        answer = [*tokenizer.encode(e.answer), EOS]
        weight = RANK_WEIGHT[e.rank] * (1.0 if e.structure else CHANGED_WEIGHT)
        drawn = {text: weight * 0.5 / len(e.more) for text in e.more} | {e.prompt: weight}
        if e.rank != "best":  # and now and then the choice is left open, so that it can be sampled
            drawn[without_setting(e.prompt)] = OPEN_WEIGHT
        for text, share in drawn.items():
            prompt = tokenizer.prompt(text)
            if len(prompt) + len(answer) <= longest:
                tokens.append(np.array(prompt + answer, np.uint16))
                answers.append(len(prompt))
                weights.append(share)
    starts = np.concatenate([[0], np.cumsum([len(t) for t in tokens])]).astype(np.int64)
    flat = np.concatenate(tokens) if tokens else np.zeros(0, np.uint16)
    return Corpus(
        flat, starts, np.array(answers, np.int32), np.array(weights, np.float32), [held[k] for k in sorted(held)]
    )


@dataclass(frozen=True)
class Batch:
    """tokens [n, length] and targets [n, length]; -100 where there is no loss."""

    tokens: np.ndarray
    targets: np.ndarray


def batches(
    corpus: Corpus, tokens_a_batch: int, seed: int, prompt_loss: bool = False, longest: int = BUCKETS[-1]
) -> Iterator[Batch]:
    """Endless batches: each epoch draws sequences by weight, groups them by bucket and shuffles the batches. Sequences
    of more than `longest` tokens are never drawn. KVC0101 where none is left."""
    lengths = corpus.lengths()
    buckets = [*(b for b in BUCKETS if b < longest), longest]
    bucket = np.searchsorted(buckets, lengths)
    rng = random.Random(seed)
    probability = np.where(lengths <= longest, corpus.weights, 0.0) / max(corpus.weights.max(initial=0.0), 1e-9)
    if not (probability > 0).any():
        raise KvcError("KVC0101", f"the corpus holds no sequence of at most {longest} tokens")
    while True:
        drawn = [n for n in range(len(corpus)) if rng.random() < probability[n]]
        rng.shuffle(drawn)
        queues: dict[int, list[int]] = {}
        ready: list[list[int]] = []
        for n in drawn:
            queue = queues.setdefault(int(bucket[n]), [])
            queue.append(n)
            if len(queue) == max(tokens_a_batch // buckets[bucket[n]], 1):
                ready.append(queues.pop(int(bucket[n])))
        # What is left of a bucket is filled up from the bucket itself: shapes stay few.
        for b, queue in queues.items():
            size = max(tokens_a_batch // buckets[b], 1)
            ready.append((queue * (size // len(queue) + 1))[:size])
        rng.shuffle(ready)
        for rows in ready:
            yield _batch(corpus, rows, buckets[int(bucket[rows[0]])], prompt_loss)


def _batch(corpus: Corpus, rows: list[int], length: int, prompt_loss: bool) -> Batch:
    tokens = np.full((len(rows), length), PAD, np.int64)
    targets = np.full((len(rows), length), -100, np.int64)
    for at, n in enumerate(rows):
        sequence = corpus.tokens[corpus.starts[n] : corpus.starts[n + 1]].astype(np.int64)
        tokens[at, : len(sequence)] = sequence
        first = 0 if prompt_loss else int(corpus.answers[n]) - 1
        targets[at, first : len(sequence) - 1] = sequence[first + 1 :]
    return Batch(tokens, targets)

"""Supervised training from zero: a plain loop in bf16 for models that fit one GPU many times over.

Resumes from its checkpoint (weights, moments, step and the corpus position); stops after a number of steps or seconds
with the cosine schedule finished, since the schedule follows whichever of the two is nearer its end.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kvc.diagnostics import KvcError
from kvc.model import weights as files
from kvc.model.tokenizer import EOS, Tokenizer
from kvc.model.train import checkpoint
from kvc.model.train.corpus import Corpus, batches
from kvc.model.train.decode import sample
from kvc.model.train.network import Decoder
from kvc.model.train.recipe import Recipe


@dataclass(frozen=True)
class Run:
    """`seconds` of wall clock (0: no limit); `out` gets weights, checkpoint, log and answers."""

    recipe: Recipe
    corpus: Corpus
    tokenizer: Path
    out: Path
    seconds: float = 0.0
    resume: Path | None = None
    answers: int = 0
    device: str = "cuda"
    keep: float = 0.0  # seconds between checkpoints to go on from (0: only the end, without moments)
    state: Path | None = None  # where those go (None: out/checkpoint)
    probe: float = 0.0  # seconds between calls of `probing` (0: none)
    probing: Callable[[Decoder, int], None] | None = None
    log: Path | None = None  # a file of its own for the log, without TensorBoard (None: out/log.jsonl)


def steps_of(run: Run) -> int:
    """Steps of the recipe: given, or so many that its epochs are full."""
    sft = run.recipe.sft
    drawn = float((run.corpus.lengths() * run.corpus.weights / run.corpus.weights.max()).sum())
    return sft.steps or max(int(sft.epochs * drawn / (0.88 * sft.tokens)), 1)


def rate(progress: float, step: int, sft: Any) -> float:
    """Learning rate: linear warm-up, then a cosine down to the floor. `progress` runs from 0 to 1."""
    if step < sft.warmup:
        return sft.learning_rate * (step + 1) / sft.warmup
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return sft.learning_rate * (sft.floor + (1 - sft.floor) * cosine)


def optimiser(network: Decoder, sft: Any) -> torch.optim.AdamW:
    matrices = [p for n, p in network.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in network.named_parameters() if p.dim() < 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": sft.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=sft.learning_rate, betas=(0.9, 0.95), fused=network.cosine.is_cuda)


def train(run: Run, say: Callable[[str], None] = print) -> Decoder:
    """Train and write `run.out`: model.safetensors (int8), tokenizer.json, checkpoint/, log.jsonl, answers.jsonl."""
    recipe, sft = run.recipe, run.recipe.sft
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    network = Decoder(recipe.shape, sft.dropout).to(run.device)
    optimise = optimiser(network, sft)
    step, behind = _resume(run, network, optimise)
    total, started = steps_of(run), time.monotonic() - behind * run.seconds
    run.out.mkdir(parents=True, exist_ok=True)
    log = Log(run.log or run.out / "log.jsonl", say, board=run.log is None)
    kept = probed = behind * run.seconds
    stream = _prefetched(run, step)
    if run.device == "cuda":
        network.compile_blocks()
    seen = 0
    while step < total:
        elapsed = time.monotonic() - started
        if run.seconds and elapsed > run.seconds:
            break
        progress = max(step / total, elapsed / run.seconds if run.seconds else 0.0)
        for group in optimise.param_groups:
            group["lr"] = rate(progress, step, sft)
        network.train()
        tokens, targets = next(stream)
        loss = _loss(network, tokens, targets, run.device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), sft.clip)
        optimise.step()
        optimise.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + tokens.numel()
        if step % 50 == 0 or step == total:
            log.add(step=step, of=total, loss=round(loss.item(), 4), seconds=round(time.monotonic() - started, 1),
                    tokens=seen, rate=optimise.param_groups[0]["lr"],
                    gib=round(torch.cuda.max_memory_allocated() / 2**30, 2) if run.device == "cuda" else 0)  # fmt: skip
        if run.keep and elapsed - kept >= run.keep:
            kept = elapsed
            save(run.state or run.out / "checkpoint", network, optimise, step, recipe, progress)
        if run.probing is not None and run.probe and elapsed - probed >= run.probe:
            probed = elapsed
            run.probing(network, step)
    _finish(run, network, optimise, step, log)
    return network


def _loss(forward: Any, tokens: torch.Tensor, targets: torch.Tensor, device: str) -> torch.Tensor:
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = forward(tokens)
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-100)


def _prefetched(run: Run, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches on the device; a thread makes them ahead."""
    import queue
    import threading

    ahead: queue.Queue[Any] = queue.Queue(8)
    sft = run.recipe.sft

    def produce() -> None:
        try:
            for batch in batches(run.corpus, sft.tokens, run.recipe.seed + step, longest=run.recipe.shape.context):
                tokens, targets = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
                ahead.put((tokens.pin_memory(), targets.pin_memory()) if run.device == "cuda" else (tokens, targets))
        except (KvcError, RuntimeError) as error:  # whoever waits for batches has to hear of it
            ahead.put(error)

    threading.Thread(target=produce, daemon=True).start()
    while True:
        made = ahead.get()
        if isinstance(made, Exception):
            raise made
        tokens, targets = made
        yield tokens.to(run.device, non_blocking=True), targets.to(run.device, non_blocking=True)


class Log:
    """Lines of JSON, and TensorBoard where it is installed."""

    def __init__(self, path: Path, say: Callable[[str], None], board: bool = True) -> None:
        self._path, self._say = path, say
        self._board: Any = None
        if board:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            self._board = SummaryWriter(str(path.parent / "board"))

    def add(self, **row: Any) -> None:
        with self._path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        self._say(" ".join(f"{k}={v}" for k, v in row.items()))
        if self._board is not None and "loss" in row:
            self._board.add_scalar("loss", row["loss"], row["step"])


def tensors_of(network: Decoder) -> dict[str, np.ndarray]:
    return {n: p.detach().float().cpu().numpy() for n, p in network.named_parameters()}


def save(
    folder: Path, network: Decoder, optimise: torch.optim.AdamW | None, step: int, recipe: Recipe, progress: float = 1.0
) -> None:
    """Checkpoint: with an optimiser float32 weights and moments, to go on from; without one float16 weights, the end of
    a run."""
    arrays = tensors_of(network)
    if optimise is None:
        arrays = {name: a.astype(np.float16) for name, a in arrays.items()}
    else:
        names = {id(p): n for n, p in network.named_parameters()}
        for p, state in optimise.state.items():
            for key in ("exp_avg", "exp_avg_sq"):
                arrays[f"{key}/{names[id(p)]}"] = state[key].detach().float().cpu().numpy()
    checkpoint.save(folder, arrays, {"step": step, "shape": recipe.shape.to_json(), "recipe": recipe.name,
                                   "progress": progress})  # fmt: skip


def _resume(run: Run, network: Decoder, optimise: torch.optim.AdamW) -> tuple[int, float]:
    """The step at which to go on and how far the schedule was (0 to 1); 0 for a new run. A run that had ended begins
    a schedule of its own."""
    if run.resume is None:
        return 0, 0.0
    arrays, state = checkpoint.load(run.resume)
    step = int(state["step"])
    with torch.no_grad():
        for name, p in network.named_parameters():
            p.copy_(torch.from_numpy(arrays[name].copy()))
            if f"exp_avg/{name}" in arrays:
                moments = {k: torch.from_numpy(arrays[f"{k}/{name}"].copy()).to(p) for k in ("exp_avg", "exp_avg_sq")}
                optimise.state[p] = {"step": torch.tensor(float(step), device=p.device), **moments}
    behind = float(state.get("progress", 1.0))
    return step, behind if behind < 1.0 else 0.0


def _finish(run: Run, network: Decoder, optimise: torch.optim.AdamW, step: int, log: Log) -> None:
    """Weights for inference, the checkpoint, and answers to held-out prompts."""
    files.save(files.from_float(run.recipe.shape, tensors_of(network)), run.out / "model.safetensors")
    (run.out / "tokenizer.json").write_text(run.tokenizer.read_text(encoding="utf-8"), encoding="utf-8")
    save(run.out / "checkpoint", network, None, step, run.recipe)
    if run.answers:
        started = time.monotonic()
        rows = list(answers(network, run.corpus, Tokenizer(run.tokenizer), run.answers))
        (run.out / "answers.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        log.add(answers=len(rows), seconds=round(time.monotonic() - started, 1))


def answers(
    network: Decoder, corpus: Corpus, tokenizer: Tokenizer, count: int, batch: int = 256, samples: int = 0,
    temperature: float = 0.6, most: int = 2048, until: float = math.inf,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Answers to the first `count` held-out prompts, in batches of like length: a greedy one each (`sample` 0), then
    `samples` drawn ones (1, 2, ...). No batch is begun after `until` (of time.monotonic())."""
    rows: list[dict[str, Any]] = sorted(corpus.heldout[:count], key=lambda r: len(r["prompt"]))
    generator = torch.Generator(network.cosine.device)
    generator.manual_seed(0)
    for number in range(samples + 1):
        for start in range(0, len(rows), batch):
            if time.monotonic() > until:
                return
            some = rows[start : start + batch]
            warm = temperature if number else 0.0
            written = sample(network, [r["prompt"] for r in some], most, EOS, warm, generator)
            for row, tokens in zip(some, written, strict=True):
                kept = {k: v for k, v in row.items() if k not in ("prompt", "answer")}
                yield {**kept, "sample": number, "text": tokenizer.decode(tokens), "tokens": len(tokens)}

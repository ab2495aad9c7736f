"""Recipes: one YAML schema for every size and both kinds of training. Unknown keys are errors, not ignored."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.model.shape import Shape


@dataclass(frozen=True)
class Lora:
    """Low-rank adaptation; rank 0 trains all weights."""

    rank: int = 0
    alpha: int = 32
    dropout: float = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Sft:
    """Supervised fine-tuning: loss on answers. `tokens`: of a batch; `steps` 0 means as many as `seconds` allow."""

    learning_rate: float = 1e-3
    warmup: int = 100
    floor: float = 0.05  # of the learning rate, at the end of the cosine
    weight_decay: float = 0.1
    dropout: float = 0.1
    clip: float = 1.0
    tokens: int = 65536
    steps: int = 0
    epochs: float = 3.0
    length: int = 4096
    gradient_checkpointing: bool = False
    optimiser: str = "adamw"  # or adamw8bit, which needs bitsandbytes


@dataclass(frozen=True)
class Rl:
    """GRPO with an execution reward (kvc.model.train.reward). `prompts` x `samples` a step."""

    learning_rate: float = 1e-6
    steps: int = 200
    prompts: int = 64
    samples: int = 8
    turns: int = 3
    discount: float = 0.6
    kl: float = 0.01
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    answer_tokens: int = 2048
    reward: str = "triton"  # a row of kvc.model.train.reward.REWARDS
    jobs: int = 8
    timeout_s: float = 30.0  # for compiling or running one answer


@dataclass(frozen=True)
class Recipe:
    """`base` "zero" trains a model of `shape` with its own tokenizer; "random" is a transformers model of `shape` with
    random weights, to see what training at that size takes; anything else is a transformers checkpoint, whose shape the
    recipe may state for the memory estimate."""

    name: str
    base: str = "zero"
    seed: int = 0
    vocabulary: int = 4096
    shape: Shape = field(default_factory=Shape)
    lora: Lora = field(default_factory=Lora)
    sft: Sft = field(default_factory=Sft)
    rl: Rl = field(default_factory=Rl)


def read(path: Path) -> Recipe:
    """The recipe of a file. KVC0101 where there is none, KVC0106 for what does not fit the schema."""
    import yaml

    if not path.is_file():
        raise KvcError("KVC0101", f"{path} is no recipe", hint="see model/recipes")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise KvcError("KVC0106", f"{path}: {error}") from None
    return make(Recipe, data, str(path))


def make(kind: type, data: Any, where: str) -> Any:
    """A dataclass of a mapping, nested ones too."""
    if not isinstance(data, dict):
        raise KvcError("KVC0106", f"{where}: a mapping is needed")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = set(data) - set(fields)
    if unknown:
        raise KvcError("KVC0106", f"{where}: no key {min(unknown)!r}", hint=f"one of: {', '.join(fields)}")
    nested = {"shape": Shape, "lora": Lora, "sft": Sft, "rl": Rl}
    values = {}
    for name, value in data.items():
        if name in nested and kind is Recipe:
            values[name] = make(nested[name], value, f"{where}: {name}")
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise KvcError("KVC0106", f"{where}: {error}") from None

"""Pretrained bases: the same recipes through TRL and PEFT, at toy size on the CPU; memory at the real size."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kvc.diagnostics import KvcError
from kvc.model.dataset import write
from kvc.model.shape import Shape
from kvc.model.tokenizer import train
from kvc.model.train import memory, reward
from kvc.model.train.pretrained import grpo, grpo_settings, sft, sft_settings
from kvc.model.train.recipe import Lora, Recipe, Rl, Sft, read
from kvc.model.train.reward import Outcome

from tests.model.test_train import RECIPES, example

SHAPE = Shape(vocabulary=400, hidden=32, layers=2, heads=2, kv_heads=1, head=16, inner=48, context=256)
TINY = Recipe(
    "toy", base="random", shape=SHAPE, lora=Lora(rank=0),
    sft=Sft(learning_rate=1e-3, warmup=1, tokens=256, steps=2, length=128, dropout=0.0),
    rl=Rl(learning_rate=1e-3, steps=2, prompts=1, samples=2, turns=1, answer_tokens=8, jobs=1),
)  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pytest.importorskip("trl")
    folder = tmp_path / "data"
    folder.mkdir()
    examples = [example(n) for n in range(10, 18)]
    train([t for e in examples for t in (e.prompt, e.answer)], folder / "tokenizer.json", 400, 2)
    write(folder / "examples.jsonl.gz", (e.__dict__ for e in examples))
    return folder


class Pretended:
    """A judge for which longer answers are better."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> "Pretended":
        return self

    def __exit__(self, *_: object) -> None: ...

    def outcomes(self, answers: list[Any]) -> list[Outcome]:
        return [Outcome("verified" if len(a.text) % 2 else "compile") for a in answers]


@pytest.mark.parametrize("rank", [0, 4])
def test_fine_tuning_leaves_a_model_that_knows_frames(data: Path, tmp_path: Path, rank: int) -> None:
    sft(replace(TINY, lora=Lora(rank=rank)), data, tmp_path / "out")
    mark = json.loads((tmp_path / "out" / "kvc.json").read_text())
    assert mark["prompt"] == "frame" and mark["steps"] == 2 and mark["tokens"] > 0
    assert (tmp_path / "out" / ("adapter_config.json" if rank else "config.json")).is_file()


@pytest.mark.parametrize("rank", [0, 4])
def test_grpo_takes_steps_by_the_reward_of_execution(
    data: Path, tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward, "Judge", Pretended)
    grpo(replace(TINY, lora=Lora(rank=rank)), "random", data, tmp_path / "out", "sim")
    assert json.loads((tmp_path / "out" / "kvc.json").read_text())["steps"] == 2


def test_a_random_model_needs_a_tokenizer_beside_the_examples(data: Path, tmp_path: Path) -> None:
    (data / "tokenizer.json").unlink()
    with pytest.raises(KvcError, match="tokenizer"):
        sft(TINY, data, tmp_path / "out")


def test_the_published_recipe_is_the_published_model_and_fits_one_gpu() -> None:
    recipe = read(RECIPES / "qwen3-8b.yaml")
    assert recipe.shape.parameters == pytest.approx(8.19e9, rel=1e-3)
    assert 60 < memory.sft(recipe).total < 139  # GiB; full, with an 8-bit optimiser and checkpointing
    adapters = replace(recipe, lora=Lora(rank=64))
    assert memory.rl(adapters).total < 80 and memory.adapted(recipe.shape, 64) < 0.03 * recipe.shape.parameters
    assert "weights 15.3" in memory.sft(recipe).text()


def test_settings_share_a_step_out_over_devices(tmp_path: Path) -> None:
    recipe = read(RECIPES / "qwen3-8b.yaml")
    one, eight = (sft_settings(recipe, tmp_path, True, n)["gradient_accumulation_steps"] for n in (1, 8))
    assert one == 8 * eight
    rl = grpo_settings(recipe, tmp_path, True)
    assert rl["gradient_accumulation_steps"] * rl["per_device_train_batch_size"] == 64 * 8


def test_a_shape_builds_the_transformers_configuration() -> None:
    pytest.importorskip("transformers")
    config = read(RECIPES / "qwen3-8b.yaml").shape.qwen3()
    assert (config.hidden_size, config.num_hidden_layers, config.tie_word_embeddings) == (4096, 36, False)
    assert Shape.from_json(read(RECIPES / "qwen3-8b.yaml").shape.to_json()).parameters > 8e9

"""Training: recipes, batches, checkpoints that resume, rewards, and a model that learns a handful of answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.model import evaluate as ev
from kvc.model.dataset import Example
from kvc.model.shape import Shape
from kvc.model.tokenizer import EOS, Tokenizer, train
from kvc.model.train import checkpoint
from kvc.model.train.corpus import Corpus, batches, tokenise
from kvc.model.train.pretrained import grpo_settings, sft_settings
from kvc.model.train.recipe import Recipe, Sft, read
from kvc.model.train.reward import Outcome, advantages, discounted, hip_reward, triton_reward
from kvc.model.train.zero import Run
from kvc.model.train.zero import train as train_zero

pytest.importorskip("tokenizers")
RECIPES = Path(__file__).parents[2] / "model" / "recipes"


def example(n: int, split: str = "train") -> Example:
    prompt = f"hip gfx942 strict best\n(a0:f32[d0={n}]) -> (y0:f32[d0])\ny0[d0] = a0[d0] + {n}.0\n"
    answer = f"pointwise\nrun fused(a0,y0) $cdiv(d0,256) block 256\n\ny0[i] = a0[i] + {n}.0f;\n"
    return Example(prompt, answer, "hip", "gfx942", split, "best", "r", "pointwise/plain", f"h{n}", "s", "", "[]", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    examples = [example(n) for n in range(10, 34)] + [example(99, "heldout")]
    train([t for e in examples for t in (e.prompt, e.answer)], made / "tokenizer.json", 340, 2)
    tokenise(examples, Tokenizer(made / "tokenizer.json")).save(made / "corpus.npz")
    return made


def test_tokenizer_equals_the_package_that_trained_it(folder: Path) -> None:
    from tokenizers import Tokenizer as Theirs

    ours, theirs = Tokenizer(folder / "tokenizer.json"), Theirs.from_file(str(folder / "tokenizer.json"))
    for text in (example(17).prompt, example(20).answer, "é i12 a3_value\n\t 1234  }", ""):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ours.encode(text)) == text


def test_corpus_comes_back_and_loss_is_on_answers_alone(folder: Path) -> None:
    corpus, tokenizer = Corpus.load(folder / "corpus.npz"), Tokenizer(folder / "tokenizer.json")
    assert len(corpus) == 24 and len(corpus.heldout) == 1
    batch = next(batches(corpus, 4096, 0))
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        learned = targets[targets != -100]
        assert learned[-1] == EOS and tokenizer.decode(learned[:-1].tolist()).startswith("pointwise\nrun fused")
        at = np.flatnonzero(targets != -100)
        assert (targets[at[:-1]] == tokens[at[:-1] + 1]).all()


def test_a_model_that_goes_on_learning_keeps_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    from kvc.model.dataset import write
    from kvc.model.train.prepare import prepare

    write(tmp_path / "examples.jsonl.gz", (example(n).__dict__ for n in range(50, 60)))
    first = prepare(tmp_path / "examples.jsonl.gz", tmp_path / "new", 340, 512)
    again = prepare(tmp_path / "examples.jsonl.gz", tmp_path / "old", 340, 512, folder / "tokenizer.json")
    assert first["sequences"] == again["sequences"] == 10
    assert (tmp_path / "old" / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()


def test_sequences_longer_than_the_model_reads_are_never_drawn(folder: Path) -> None:
    corpus = Corpus.load(folder / "corpus.npz")
    shortest = int(corpus.lengths().min())
    batch = next(batches(corpus, 4096, 0, longest=shortest))
    assert batch.tokens.shape[1] == shortest
    with pytest.raises(KvcError, match="KVC0101"):
        next(batches(corpus, 4096, 0, longest=shortest - 1))


def test_a_small_model_learns_its_examples_and_its_run_resumes(folder: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shape = Shape(vocabulary=340, hidden=48, layers=2, heads=4, kv_heads=2, head=16, inner=96, context=512)
    sft = Sft(learning_rate=1e-2, warmup=5, dropout=0.0, weight_decay=0.0, tokens=1536, steps=10)
    recipe = Recipe("tiny", vocabulary=340, shape=shape, sft=sft)
    corpus = Corpus.load(folder / "corpus.npz")
    first = Run(recipe, corpus, folder / "tokenizer.json", tmp_path / "a", device="cpu", answers=1, keep=0)
    said: list[str] = []
    train_zero(first, said.append)
    assert (tmp_path / "a" / "answers.jsonl").read_text().count("\n") == 1
    loss = float(said[0].partition("loss=")[2].split()[0])
    assert loss < 5.0
    longer, saved = replace(recipe, sft=replace(sft, steps=14)), tmp_path / "a" / "checkpoint"
    train_zero(replace(first, recipe=longer, out=tmp_path / "b", resume=saved, answers=0), said.append)
    assert said[-1].startswith("step=14 of=14")


def test_checkpoint_shards_are_small_and_damage_is_seen(tmp_path: Path) -> None:
    arrays = {"a": np.arange(5000, dtype=np.float32).reshape(50, 100), "b": np.zeros(0, np.float16), "c": np.ones(3)}
    checkpoint.save(tmp_path, arrays, {"step": 7}, limit=4096)
    assert all(p.stat().st_size <= 4096 for p in tmp_path.glob("shard-*"))
    loaded, state = checkpoint.load(tmp_path)
    assert state == {"step": 7}
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
    (shard,) = tmp_path.glob("shard-001-*.bin")
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(KvcError, match="KVC0804"):
        checkpoint.load(tmp_path)


def test_recipes_read_and_unknown_keys_are_errors(tmp_path: Path) -> None:
    names = {read(p).name for p in RECIPES.glob("*.yaml")}
    assert names == {"shipped", "qwen3-8b", "smollm2-135m-lora"}
    assert 20e6 < read(RECIPES / "shipped.yaml").shape.parameters < 45e6
    (tmp_path / "bad.yaml").write_text("name: x\nsft: {learning_rat: 1}\n")
    with pytest.raises(KvcError, match="learning_rat"):
        read(tmp_path / "bad.yaml")


def test_settings_for_trl_follow_the_recipe(tmp_path: Path) -> None:
    recipe = read(RECIPES / "qwen3-8b.yaml")
    sft, rl = sft_settings(recipe, tmp_path, True), grpo_settings(recipe, tmp_path, True)
    assert sft["optim"] == "adamw_bnb_8bit" and sft["gradient_checkpointing"] and sft["completion_only_loss"]
    assert rl["epsilon_high"] == 0.28 and rl["beta"] == 0.01 and rl["num_generations"] == 8


def test_rewards_are_the_published_ones() -> None:
    assert triton_reward(Outcome("propose")) == 0.0
    assert triton_reward(Outcome("compare")) == pytest.approx(0.4)
    assert triton_reward(Outcome("verified", speedup=0.5)) == pytest.approx(1.4)
    assert triton_reward(Outcome("verified", speedup=2.0)) == pytest.approx(1.775)
    assert triton_reward(Outcome("verified", speedup=1e6)) == pytest.approx(2.9)
    assert hip_reward(Outcome("verified", speedup=1.0)) == pytest.approx(1.3)
    assert hip_reward(Outcome("verified", speedup=20.0)) == pytest.approx(10.6)
    assert hip_reward(Outcome("verified", speedup=2.0, copy=True)) == 0.0
    assert discounted([1.0, 1.0, 1.0], 0.6) == pytest.approx(1.96)
    assert advantages([1.0, 1.0]) == [0.0, 0.0]
    assert sum(advantages([0.0, 1.0, 2.0])) == pytest.approx(0.0)


def test_figures_of_an_evaluation() -> None:
    assert ev.pass_at(1, 4, 1) == pytest.approx(0.25) and ev.pass_at(4, 4, 1) == 1.0
    low, high = ev.wilson(85, 100)
    assert low == pytest.approx(0.767, abs=2e-3) and high == pytest.approx(0.907, abs=2e-3)
    question = ev.Question("", "hip", "gfx942", "rows/max")
    good, bad = Outcome("verified", copy=True), Outcome("compile", "KVC0502")
    made = ev.report([ev.Scored(question, (good, bad)), ev.Scored(question, (bad, good))])
    assert made.first == 1 and made.compiled == 2 and made.near_copies == 2 and made.by_class == {"rows/max": [1, 2]}
    assert made.pass_k[1] == pytest.approx(0.5) and made.pass_k[2] == 1.0 and "Pass@1 50.0 %" in made.text()


def test_grpo_raises_what_was_rewarded() -> None:
    from kvc.model.train.grpo import Piece, log_probabilities, update
    from kvc.model.train.network import Decoder
    from kvc.model.train.recipe import Rl

    torch.manual_seed(0)
    shape = Shape(vocabulary=64, hidden=32, layers=1, heads=2, kv_heads=1, head=16, inner=48, context=64)
    network, reference = Decoder(shape), Decoder(shape)
    reference.load_state_dict(network.state_dict())
    pieces = [Piece([1, 9, 2], [20, 21], 1.0), Piece([1, 9, 2], [30, 31, 32], -1.0)]
    before = [float((p * m).sum().detach()) for p, m in [log_probabilities(network, [x], "cpu") for x in pieces]]
    optimise = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(3):
        update(network, reference, optimise, pieces, Rl(), "cpu")
    after = [float((p * m).sum().detach()) for p, m in [log_probabilities(network, [x], "cpu") for x in pieces]]
    assert after[0] > before[0] and after[1] < before[1]

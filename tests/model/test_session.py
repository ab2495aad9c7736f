"""A training session leaves what can be carried away, goes on where it was killed, and has its answers judged."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kvc.arch import arch
from kvc.emitter import Task, targets
from kvc.model.dataset import Example
from kvc.model.lift import emit, lift
from kvc.model.prompt import Asked, prompt
from kvc.model.shape import Shape
from kvc.model.tokenizer import Tokenizer, train
from kvc.model.train import checkpoint
from kvc.model.train.corpus import Corpus, tokenise
from kvc.model.train.judging import Judges
from kvc.model.train.recipe import Recipe, Sft
from kvc.model.train.session import Session, run
from kvc.text import parse_kernel, print_kernel

pytest.importorskip("tokenizers")
SPEC = parse_kernel("kernel add(x: f32[r=6,c=35], w: f32[c]) -> (y: f32[r,c]) {\n  y[r,c] = x[r,c] + w[c]\n}")


def example(split: str) -> Example:
    asked = Asked(Task(SPEC, arch("gfx942")))
    rule = targets()["hip"].emitters()[-1]
    made = emit(asked, rule, rule.space(asked.canonical_task).default)
    assert made is not None
    return Example(
        prompt(asked, "hip"), lift(made, rule).answer, "hip", "gfx942", split, "best", rule.name, "pointwise/plain",
        SPEC.hash, "s", print_kernel(SPEC), "[]", 1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    examples = [example("train"), example("heldout")]
    train([t for e in examples for t in (e.prompt, e.answer)], folder / "tokenizer.json", 300, 2)
    tokenise(examples, Tokenizer(folder / "tokenizer.json")).save(folder / "corpus.npz")
    return folder


def session(data: Path, tmp_path: Path, **more: float) -> Session:
    shape = Shape(vocabulary=300, hidden=16, layers=1, heads=1, kv_heads=1, head=16, inner=16, context=640)
    recipe = Recipe("tiny", vocabulary=300, shape=shape, sft=Sft(tokens=640, steps=2, warmup=1))
    return Session(recipe, data, tmp_path / "out", tmp_path / "state", 30, 60, 1, 0, jobs=1, device="cpu", **more)  # type: ignore[arg-type]


def test_a_session_leaves_a_few_small_files_and_goes_on_from_its_state(data: Path, tmp_path: Path) -> None:
    asked = session(data, tmp_path, keep=1e-9)
    report = run(asked, lambda text: None)
    names = {p.name.partition("-")[0] for p in asked.out.iterdir()}
    assert names == {"log.jsonl", "checkpoint.json", "shard", "tokenizer.json", "model.safetensors", "answers.jsonl"}
    (row,) = map(json.loads, (asked.out / "answers.jsonl").read_text().splitlines())
    assert report["judged"] == 1 and row["outcome"]["stage"] == "propose" and row["sample"] == 0
    assert checkpoint.load(asked.out)[1]["step"] == 2 and 0 < checkpoint.load(asked.state)[1]["progress"] < 1
    shutil.rmtree(asked.out)
    said: list[str] = []
    run(replace(session(data, tmp_path, files=5), count=0), said.append)
    assert "resumed=True" in said[0] and any("left_out=model.safetensors" in line for line in said)


def test_judges_tell_right_from_wrong_in_a_process_of_their_own() -> None:
    right = example("heldout")
    row = {"spec": right.spec_text, "target": "hip", "arch": "gfx942", "key": 0, "text": right.answer}
    with Judges(1) as judges:
        judges.add(row)
        judges.add(
            {**row, "key": 1, "text": right.answer.replace(" + w", " - w").replace("a0_value + a1", "a0_value - a1")}
        )
        judges.add({**row, "key": 2, "spec": "no spec"})
        stages = {r["key"]: r["outcome"]["stage"] for r in judges.wait(120)}
    assert stages == {0: "verified", 1: "compare", 2: "judge"}


def test_prompts_of_a_corpus_that_is_held_out_keep_what_judges_need(data: Path) -> None:
    (held,) = Corpus.load(data / "corpus.npz").heldout
    assert held["spec"] == print_kernel(SPEC) and held["target"] == "hip"

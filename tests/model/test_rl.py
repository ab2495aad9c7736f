"""Reward flows: answers are sampled, judged in other processes, and what was rewarded becomes more likely."""

import json
import math
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.model.shape import Shape
from kvc.model.tokenizer import Tokenizer, train
from kvc.model.train import checkpoint, grpo
from kvc.model.train.grpo import Piece, Rollouts, Run, Talk, pieces_of
from kvc.model.train.judging import Judges
from kvc.model.train.network import Decoder
from kvc.model.train.recipe import Recipe, Rl
from kvc.model.train.reward import Outcome
from kvc.model.train.zero import save

from tests.model.test_train import example

pytest.importorskip("tokenizers")

#: A judge without kernels: an answer is right when it begins with a lower-case letter. "die" ends it.
JUDGE = """
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if row["text"] == "die":
        sys.exit(3)
    stage = "verified" if row["text"][:1].islower() else "compile"
    outcome = {"stage": stage, "code": "KVC0502", "message": "no", "schedule": "s"}
    print(json.dumps({**row, "outcome": outcome}), flush=True)
"""
SHAPE = Shape(vocabulary=340, hidden=32, layers=1, heads=2, kv_heads=1, head=16, inner=48, context=256)
RL = Rl(learning_rate=3e-2, steps=8, prompts=4, samples=12, turns=1, answer_tokens=3, kl=0.0, jobs=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing, and examples beside it."""
    from kvc.model.dataset import write

    folder = tmp_path_factory.mktemp("base")
    examples = [example(n) for n in range(10, 16)]
    train([t for e in examples for t in (e.prompt, e.answer)], folder / "tokenizer.json", 340, 2)
    torch.manual_seed(0)
    save(folder / "checkpoint", Decoder(SHAPE), None, 0, Recipe("tiny", shape=SHAPE))
    write(folder / "examples.jsonl.gz", (e.__dict__ for e in examples))
    return folder


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "judge.py"
    script.write_text(JUDGE)
    return sys.executable, str(script)


def run_of(base: Path, tmp_path: Path, **more: object) -> Run:
    recipe = Recipe("tiny", shape=SHAPE, rl=RL)
    return replace(Run(recipe, base, base / "examples.jsonl.gz", tmp_path / "out", device="cpu"), **more)  # type: ignore[arg-type]


def test_reward_rises_and_a_killed_run_goes_on(
    base: Path, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(grpo, "Judges", partial(Judges, command=command))
    rows = grpo.train(run_of(base, tmp_path, state=tmp_path / "state"), lambda text: None)
    assert [r["step"] for r in rows] == list(range(1, 9)) and all(r["unjudged"] == 0 for r in rows)
    assert rows[-1]["correct"] > rows[0]["correct"] + 0.2 and rows[0]["learned"] > 0
    assert json.loads((tmp_path / "out" / "rl.jsonl").read_text().splitlines()[-1]) == rows[-1]
    assert {"model.safetensors", "tokenizer.json", "checkpoint", "rl.jsonl", "kvc.json"} == {
        p.name for p in (tmp_path / "out").iterdir()
    }
    arrays, state = checkpoint.load(tmp_path / "state")
    assert state["step"] == 8 and any(name.startswith("exp_avg/") for name in arrays)
    longer = run_of(base, tmp_path, state=tmp_path / "state", recipe=Recipe("t", shape=SHAPE, rl=replace(RL, steps=9)))
    (row,) = grpo.train(longer, lambda text: None)
    assert row["step"] == 9 and row["correct"] > rows[0]["correct"]


def test_a_run_ends_with_its_seconds(
    base: Path, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "Judges", partial(Judges, command=command))
    rows = grpo.train(run_of(base, tmp_path, seconds=1e-6), lambda text: None)
    assert len(rows) == 1 and rows[0]["answers"] == 0 and rows[0]["loss"] == 0.0


def test_the_flat_folder_that_a_session_leaves_is_a_base(base: Path, tmp_path: Path) -> None:
    import shutil

    flat = tmp_path / "flat"
    shutil.copytree(base / "checkpoint", flat)
    assert checkpoint.place(flat) == flat and checkpoint.place(base) == base / "checkpoint"
    assert grpo.load(flat, "cpu")[1] == SHAPE
    with pytest.raises(KvcError, match="KVC0101"):
        grpo.load(tmp_path / "nowhere", "cpu")


def test_without_examples_there_is_nothing_to_learn(base: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(KvcError, match="KVC0101"):
        grpo.train(run_of(base, tmp_path, data=tmp_path / "none"))


def test_a_judge_that_dies_loses_its_rows_and_no_others(command: tuple[str, ...]) -> None:
    row = {"spec": "", "target": "hip", "arch": "gfx942"}
    with Judges(1, command=command) as judges:
        for key, text in enumerate(("a", "die", "b", "C")):
            judges.add({**row, "key": key, "text": text})
        stages = {r["key"]: r["outcome"]["stage"] for r in judges.drain(60)}
    assert stages[1] == "lost" and set(stages) == {0, 1, 2, 3}
    assert {stages[k] for k in (0, 2)} <= {"verified", "lost"} and stages[3] in ("compile", "lost")


def test_judges_that_never_start_lose_all_and_nobody_waits(tmp_path: Path) -> None:
    with Judges(1, command=(sys.executable, str(tmp_path / "nothing.py"))) as judges:
        for key in range(6):
            judges.add({"key": key, "text": "a"})
        assert {r["outcome"]["stage"] for r in judges.drain(60)} == {"lost"}
        judges.add({"key": 7, "text": "a"})
        assert len(judges.drain(60)) == 1


def test_a_batch_that_is_late_does_not_count_in_the_next(command: tuple[str, ...]) -> None:
    with Judges(1, command=command) as judges:
        judges.add({"key": "a", "text": "x"})
        assert judges.drain(0.0) == []
        judges.add({"key": "b", "text": "x"})
        assert [r["key"] for r in judges.drain(60)] == ["b"]


def test_later_turns_see_the_verdict_and_stop_at_a_right_answer(base: Path, command: tuple[str, ...]) -> None:
    tokenizer = Tokenizer(base / "tokenizer.json")
    rl = replace(RL, samples=6, turns=2)
    spec = "kernel k(x: f32[r=6]) -> (y: f32[r]) {\n  y[r] = x[r] + 1.0\n}"
    with Judges(1, command=command) as judges:
        rollouts = Rollouts(tokenizer, rl, judges, 0, 60.0)
        asked = replace(example(10), spec_text=spec)
        talks = rollouts.play(Decoder(SHAPE), [asked], torch.Generator().manual_seed(0), time.monotonic() + 60)
    assert any(len(t.outcomes) == 2 for t in talks)
    for talk in talks:
        assert talk.outcomes[0].correct == (len(talk.outcomes) == 1)
        if len(talk.prompts) == 2:
            assert "tried s: compile KVC0502 no" in tokenizer.decode(talk.prompts[1])


def test_advantages_compare_turns_of_one_task_with_each_other() -> None:
    good, bad = Outcome("verified"), Outcome("compile")
    talks = [
        Talk(example(10), 0, [[1]], [[2]], [good]),
        Talk(example(10), 0, [[1]], [[3]], [bad]),
        Talk(example(11), 1, [[1]], [[4]], [good]),  # alone: nothing to compare with
        Talk(example(11), 2, [], [], []),  # no verdict
    ]
    pieces = pieces_of(talks, RL)
    assert [p.answer for p in pieces] == [[2], [3]] and pieces[0].advantage == -pieces[1].advantage > 0
    assert all(isinstance(p, Piece) and math.isfinite(p.advantage) for p in pieces)

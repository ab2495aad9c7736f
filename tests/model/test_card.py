"""A model card states what the files of a run say, and no more."""

import json
from pathlib import Path

import pytest
from kvc.diagnostics import KvcError
from kvc.model.card import Run, card
from kvc.model.shape import Shape


def answer(n: int, stage: str, sample: int = 0, copy: bool = False) -> dict[str, object]:
    outcome = {"stage": stage, "code": "", "message": "", "schedule": "s", "speedup": 1.0, "copy": copy}
    return {"spec": f"s{n}", "target": "hip", "arch": "gfx942", "op_class": "rows/max", "tokens": 7, "text": "",
            "sample": sample, "what": "final", "outcome": outcome}  # fmt: skip


def folder_of(tmp_path: Path) -> Path:
    state = {"shape": Shape().to_json(), "recipe": "shipped", "step": 900}
    (tmp_path / "checkpoint.json").write_text(json.dumps({"shards": [], "state": state}))
    log = [{"session": "shipped"}, {"step": 900, "of": 900, "loss": 0.05, "seconds": 400.0, "tokens": 350_000_000}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in log))
    rows = [answer(0, "verified", copy=True), answer(0, "compile", 1), answer(1, "compare"), answer(1, "verified", 1)]
    rows.append({**answer(2, "verified"), "what": "probe"})
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def test_a_card_holds_the_figures_of_the_run(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 << 20))
    rl = [{"step": 1, "correct": 0.5}, {"step": 9, "correct": 0.75}]
    text = card(Run.of(folder_of(tmp_path)), weights, {"examples": 1200, "hip prompt tokens": {"median": 130}}, rl)
    assert text.startswith("---\nlicense: apache-2.0\n") and "# shipped" in text
    assert "| training | 350 M tokens in 400 s, last loss 0.05 |" in text and "int8, 3.0 MiB" in text
    assert "| hip | 2 | 50.0 %" in text and "@2 100.0 %" in text and "1 of 2 verified answers are near-copies" in text
    assert "2 steps of GRPO; right answers: 0.5 of all first, 0.75 last" in text and "| examples | 1,200 |" in text


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "answers.jsonl").unlink()
    text = card(Run.of(folder), None, {})
    assert "Not evaluated." in text and "how much was not measured" in text and "Not recorded." in text
    with pytest.raises(KvcError, match="KVC0101"):
        Run.of(tmp_path / "nowhere")

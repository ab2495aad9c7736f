"""The model card of trained weights, made of what training and evaluation left: nothing in it is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.model import evaluate as ev
from kvc.model.train.reward import Outcome

_HEAD = """\
---
license: apache-2.0
library_name: kvc
tags: [hip, triton, amdgpu, cdna, kernel-generation]
---

# {name}

Writes HIP and Triton kernels for AMD CDNA GPUs from kvc's kernel specifications (docs/model.md). Every kernel that it
writes is compiled for the GPU, executed and compared with a float64 oracle before anybody gets it; where it fails,
rules write the kernel.

{facts}

## Held-out specifications

Their sets of operations occur in no training example. One greedy answer to each; no rule stands behind it.

{results}

## Data

{data}

## Limits

- It answers in kvc's frames, about kvc's specifications; as a chat model it is of no use.
- Verdicts of these tables are from {judge}. {speed}
- Kernels of training were written by kvc's rules (those of the vault executed and verified, those of changed
  specifications not executed), so its kernels resemble theirs: {copies}.
"""


@dataclass
class Run:
    """What a training session or run left in a folder: the log, the checkpoint's state, answers."""

    folder: Path
    log: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(folder: Path) -> Run:
        """KVC0101 where the folder holds no checkpoint."""
        index = next(
            (p for p in (folder / "checkpoint.json", folder / "checkpoint" / "checkpoint.json") if p.is_file()), None
        )
        if index is None:
            raise KvcError("KVC0101", f"{folder} holds no checkpoint", hint="kvc model train session leaves one")
        made = Run(folder, state=json.loads(index.read_text(encoding="utf-8"))["state"])
        made.log, made.answers = (lines_of(folder / name) for name in ("log.jsonl", "answers.jsonl"))
        return made


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def card(run: Run, weights: Path | None, data: Mapping[str, Any], rl: Iterable[dict[str, Any]] = ()) -> str:
    """The card's text. `weights`: the int8 file; `data`: counts that `kvc model tokens --json` gave; `rl`: lines of
    rl.jsonl."""
    from kvc.model.shape import Shape

    shape = Shape.from_json(run.state["shape"])
    steps = [row for row in run.log if "loss" in row]
    facts = {
        "parameters": f"{shape.parameters / 1e6:.1f} M, Qwen3 architecture, {shape.layers} layers of {shape.hidden}",
        "vocabulary, context": f"{shape.vocabulary} tokens of its own tokenizer, {shape.context}",
        "recipe": f"{run.state.get('recipe', '')}, step {run.state.get('step', 0)}",
    }
    if steps:
        last = steps[-1]
        facts["training"] = f"{last['tokens'] / 1e6:.0f} M tokens in {last['seconds']:.0f} s, last loss {last['loss']}"
    learned = list(rl)
    if learned:
        first, end = (row["correct"] for row in (learned[0], learned[-1]))
        facts["reinforcement"] = f"{len(learned)} steps of GRPO; right answers: {first} of all first, {end} last"
    if weights is not None:
        facts["weights"] = f"int8, {weights.stat().st_size / 2**20:.1f} MiB, safetensors, no code"
    return _HEAD.format(
        name=run.state.get("recipe", "kvc model"),
        facts=_table(("what", "figure"), facts.items()),
        results=_results(run.answers),
        data=_table(("what", "count"), ((k, _plain(v)) for k, v in data.items())) if data else "Not recorded.",
        judge="kvc's CDNA simulator" if run.answers else "no evaluation",
        speed="Times on a GPU are not in it.",
        copies=_copies(run.answers),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else f"{value:,}"


def _judged(answers: Iterable[dict[str, Any]]) -> dict[str, ev.Report]:
    """Figures by target, of the final answers that have a verdict."""
    rows = [r for r in answers if "outcome" in r and r.get("what", "final") == "final"]
    found = {}
    for target in sorted({r["target"] for r in rows}):
        pairs = [(r, Outcome(**r["outcome"])) for r in rows if r["target"] == target]
        found[target] = ev.report([s for s in ev.scored(pairs) if s.has_first])
    return found


def _results(answers: Iterable[dict[str, Any]]) -> str:
    rows = []
    for target, made in _judged(answers).items():
        low, high = made.interval
        share = 100 * made.first / max(made.questions, 1)
        more = ", ".join(f"@{k} {100 * p:.1f} %" for k, p in sorted(made.pass_k.items()) if k > 1)
        compiled = 100 * made.compiled / max(made.answers, 1)
        rows.append((target, made.questions, f"{share:.1f} % ({100 * low:.1f} to {100 * high:.1f})", more or "-",
                     f"{compiled:.1f} %", f"{made.median_tokens:.0f}"))  # fmt: skip
    if not rows:
        return "Not evaluated."
    return _table(("target", "specs", "Pass@1 (95 %)", "Pass@k", "answers that compile", "median tokens"), rows)


def _copies(answers: Iterable[dict[str, Any]]) -> str:
    made = _judged(answers).values()
    verified = sum(r.verified for r in made)
    if not verified:
        return "how much was not measured"
    return f"{sum(r.near_copies for r in made)} of {verified} verified answers are near-copies of what a rule writes"

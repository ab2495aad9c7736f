"""One training session on a borrowed machine: train for some seconds, answer held-out prompts and judge them, and leave
in one folder a few files that are small enough to be carried away.

    log.jsonl                    loss, probes, the final report
    checkpoint.json, shard-*     float16 weights in shards (`kvc model quantise` makes the int8 file of them)
    model.safetensors            int8 weights, where they fit
    tokenizer.json
    answers.jsonl                answers with their verdicts; those without one are judged by `kvc model eval --answers`

The state to go on from (float32 weights and moments) is kept elsewhere, since it is twelve times as large as the int8
weights. A session that was killed goes on from it when it is started again by the same command.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvc.model import evaluate as ev
from kvc.model.tokenizer import Tokenizer
from kvc.model.train import checkpoint
from kvc.model.train.corpus import Corpus
from kvc.model.train.judging import Judges, is_judgeable
from kvc.model.train.network import Decoder
from kvc.model.train.recipe import Recipe
from kvc.model.train.reward import Outcome
from kvc.model.train.zero import Log, Run, answers, train

#: Answers beyond these characters are cut: what is so long is no kernel, and the file has to stay small.
LONGEST_ANSWER = 16_000
#: Tokens of an answer to a probe: most answers are shorter than half, and an early model does not end by itself.
PROBE_TOKENS = 768


@dataclass(frozen=True)
class Session:
    """`seconds` of training, then at most `after` seconds in which answers are judged; `count` held-out prompts get a
    greedy answer and `samples` drawn ones. Every `probe` seconds the first `probes` prompts are answered and judged
    while training goes on. `files`, `each_mib`, `all_mib`: what may be carried away."""

    recipe: Recipe
    data: Path
    out: Path
    state: Path
    seconds: float
    after: float = 120.0
    count: int = 400
    samples: int = 3
    probe: float = 0.0
    probes: int = 64
    keep: float = 60.0
    jobs: int = 2
    device: str = "cuda"
    executor: str = "sim"
    files: int = 8
    each_mib: int = 16
    all_mib: int = 64


@dataclass
class _Course:
    """A session under way. `rows`: answers by key, judged or not."""

    session: Session
    corpus: Corpus
    tokenizer: Tokenizer
    judges: Judges
    log: Log
    targets: dict[str, bool] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ask(
        self, network: Decoder, count: int, samples: int, step: int, what: str, most: int = 2048,
        until: float = math.inf,
    ) -> int:  # fmt: skip
        """Answer prompts and hand the answers to the judges, batch by batch; gives their number. `until` as there."""
        number = 0
        written = answers(network, self.corpus, self.tokenizer, count, samples=samples, most=most, until=until)
        for number, row in enumerate(written, 1):
            row |= {"text": row["text"][:LONGEST_ANSWER], "step": step, "what": what, "key": f"{what}/{step}/{number}"}
            self.rows[row["key"]] = row
            if self.targets.setdefault(row["target"], is_judgeable(row["target"])):
                self.judges.add(row)
        return number

    def probe(self, network: Decoder, step: int) -> None:
        started = time.monotonic()
        made = self.ask(network, self.session.probes, 0, step, "probe", PROBE_TOKENS)
        self.log.add(probe=step, answers=made, seconds=round(time.monotonic() - started, 1))

    def settle(self, judged: list[dict[str, Any]]) -> None:
        """Take verdicts over."""
        for row in judged:
            self.rows[row["key"]] = row

    def report(self, what: str) -> dict[str, Any]:
        """Pass@1 by target and step of the judged answers of a kind."""
        found: dict[str, Any] = {}
        mine = [r for r in self.rows.values() if r["what"] == what and "outcome" in r]
        for target, step in sorted({(r["target"], r["step"]) for r in mine}):
            rows = [(r, Outcome(**r["outcome"])) for r in mine if (r["target"], r["step"]) == (target, step)]
            made = ev.report([s for s in ev.scored(rows) if s.has_first])
            low, high = made.interval
            found[f"{target} step {step}"] = {
                "questions": made.questions, "pass1": round(made.first / max(made.questions, 1), 4),
                "low": round(low, 4), "high": round(high, 4), "pass_k": made.pass_k, "stages": made.stages,
                "near_copies": made.near_copies, "verified": made.verified,
            }  # fmt: skip
        return found


def run(session: Session, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Do it all; gives the report. KVC0101 where `data` holds no corpus. The output folder is flat."""
    from kvc.diagnostics import KvcError

    for name in ("corpus.npz", "tokenizer.json"):
        if not (session.data / name).is_file():
            raise KvcError("KVC0101", f"{session.data} holds no {name}", hint="make it: kvc model tokens")
    session.out.mkdir(parents=True, exist_ok=True)
    corpus, names = Corpus.load(session.data / "corpus.npz"), session.data / "tokenizer.json"
    resume = session.state if (session.state / checkpoint.INDEX).is_file() else None
    log = Log(session.out / "log.jsonl", say, board=False)
    log.add(session=session.recipe.name, sequences=len(corpus), heldout=len(corpus.heldout), resumed=bool(resume))
    work = session.state.with_name(session.state.name + ".run")
    with Judges(session.jobs, session.executor) as judges:
        course = _Course(session, corpus, Tokenizer(names), judges, log)
        network = train(
            Run(session.recipe, corpus, names, work, session.seconds, resume, 0, session.device, session.keep,
                session.state, session.probe, course.probe, session.out / "log.jsonl"),
            say,
        )  # fmt: skip
        deadline = time.monotonic() + session.after
        _carry_weights(work, session, log)
        made = course.ask(network, session.count, session.samples, -1, "final", until=deadline)
        log.add(answers=made, left=round(deadline - time.monotonic(), 1))
        course.settle(judges.wait(max(deadline - time.monotonic(), 0.0)))
    rows = sorted(course.rows.values(), key=lambda r: (r["what"], r["step"]))
    _write_answers(rows, session)
    report = {"judged": sum("outcome" in r for r in rows), "answers": len(rows), "can judge": course.targets,
              "probe": course.report("probe"), "final": course.report("final")}  # fmt: skip
    log.add(report=report)
    shutil.rmtree(work, ignore_errors=True)
    return report


def _carry_weights(work: Path, session: Session, log: Log) -> None:
    """Float16 shards always, int8 weights where they fit beside them; log and answers are reckoned with."""
    out, limit = session.out, session.each_mib << 20
    for path in (work / "checkpoint").iterdir():
        shutil.copyfile(path, out / path.name)
    shutil.copyfile(work / "tokenizer.json", out / "tokenizer.json")
    small = work / "model.safetensors"
    present = [p.stat().st_size for p in out.iterdir()]
    room = (session.all_mib << 20) - sum(present) - limit  # one file of answers, at most
    if small.stat().st_size <= min(limit, room) and len(present) + 2 <= session.files:
        shutil.copyfile(small, out / small.name)
    else:
        log.add(left_out="model.safetensors", mib=round(small.stat().st_size / 2**20, 1), instead="kvc model quantise")


def _write_answers(rows: list[dict[str, Any]], session: Session) -> None:
    """As many as one file may hold, the final ones first."""
    left = (session.each_mib << 20) - 4096
    with (session.out / "answers.jsonl").open("wb") as stream:
        for row in rows:
            line = json.dumps(row).encode() + b"\n"
            left -= len(line)
            if left < 0:
                return
            stream.write(line)

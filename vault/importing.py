"""`kvc vault import`: kernels of other corpora through the same gates, each with an outcome that says why.

A kernel is judged against a spec that kvc made of the PyTorch reference, on several input sets and with hidden values.
What cannot be judged is no rejection: the report says which part of the record is missing, or what kvc cannot express.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Origin, Task
from kvc.kernel import KernelSpec
from kvc.records import candidate_from_json
from kvc.text import parse_kernel
from kvc.vault.adopt import candidate
from kvc.vault.foreign import Foreign
from kvc.vault.harvest import Item, fits
from kvc.vault.hostcode import Unclear
from kvc.vault.judging import Settings, Worker
from kvc.vault.observe import Observer
from kvc.vault.record import compact, digest
from kvc.vault.shards import ShardWriter, finished
from kvc.vault.workers import Workers

REPORT = "import.jsonl"
_LABEL = "import"
_ORIGIN = Origin("foreign", "1")


@dataclass
class Imported:
    """Counts of an import. `outcomes`: verified, rejected at STAGE, or "cannot be judged"; `reasons`: for those, the
    words up to the first colon."""

    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows, "outcomes": dict(self.outcomes), "reasons": dict(self.reasons.most_common())}


class Importer:
    """The handler of a worker process: {"foreign"} -> {"rows", "unclear"}."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.worker = Worker(settings)
        self.observer = Observer(settings.timeout_s)

    def close(self) -> None:
        self.observer.close()
        self.worker.close()

    def __call__(self, task: dict[str, Any]) -> dict[str, Any]:
        foreign = Foreign(**task["foreign"])
        try:
            return {"rows": self.judged(foreign), "unclear": ""}
        except Unclear as unclear:
            return {"rows": [], "unclear": str(unclear)}

    def judged(self, foreign: Foreign) -> list[dict[str, Any]]:
        """The row of a foreign kernel. Unclear where there is no verdict to be had."""
        if not foreign.code.strip():
            raise Unclear("the record holds no kernel")
        if foreign.spec and foreign.launch:
            made, filled = self._own(foreign), False
        else:
            made, filled = self._watched(foreign)
        spec = made.task.spec
        item = Item(
            "", spec.hash, "user", foreign.origin, foreign.licence, foreign.reference, foreign.functional,
        )  # fmt: skip
        rows = self.worker.judged([made], item, defaultdict(float))
        if filled and rows[0]["status"] == "rejected" and rows[0]["stage"] in ("execute", "compare", "determinism"):
            raise Unclear(
                f"the host fills memory before it launches, and the kernel needs that: {rows[0]['code']} without it"
            )
        return rows

    def _task(self, text: str) -> Task:
        try:
            spec: KernelSpec = parse_kernel(text)
        except KvcError as error:
            raise Unclear(f"the specification does not parse: {error.diagnostic.message}") from None
        if not fits(spec):
            raise Unclear("the specification is beyond what is simulated")
        return Task(spec, arch_row(self.settings.arch), self.settings.numerics)

    def _own(self, foreign: Foreign) -> Candidate:
        """A record of kvc's own export."""
        task = self._task(foreign.spec)
        data = {
            "arch": task.arch.name, "numerics": task.numerics, "schedule": "foreign", "source": foreign.code, "knobs": [],  # noqa: E501
            "target": "triton" if "triton" in foreign.code and "__global__" not in foreign.code else "hip",
            "spec": foreign.spec, "origin": asdict(_ORIGIN),
        }  # fmt: skip
        try:
            return candidate_from_json({**json.loads(foreign.launch), **data}, task.spec)
        except (KvcError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise Unclear(f"the launches do not parse: {error}") from None

    def _watched(self, foreign: Foreign) -> tuple[Candidate, bool]:
        """A candidate from a run of the foreign module's host code, and whether the host fills memory."""
        if not foreign.reference:
            raise Unclear("the record holds no PyTorch reference with get_inputs() to judge it by")
        request = {**foreign.to_json(), "seed": self.settings.seed}
        captured = _clear(self.observer.ask({**request, "do": "capture"}))
        task = self._task(str(captured.get("spec", "")))
        request["inputs"] = [o.name for o in task.spec.inputs]
        request["outputs"] = [[o.name, list(task.spec.shape_of(o.name))] for o in task.spec.outputs]
        seen = _clear(self.observer.ask({**request, "do": "watch"}))
        try:
            return candidate(task, seen, _ORIGIN), bool(seen["filled"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Unclear(f"what was seen makes no candidate: {error}") from None


def _clear(answer: dict[str, Any]) -> dict[str, Any]:
    if "unclear" in answer:
        raise Unclear(str(answer["unclear"]))
    return answer


def start(options: dict[str, Any]) -> Importer:
    from kvc.vault.judging import start as judge_worker

    return Importer(judge_worker(options).settings)


def import_rows(
    found: Iterable[Foreign],
    out: Path,
    settings: Settings,
    jobs: int,
    listen: Callable[[Imported], None] = lambda _: None,
) -> Imported:
    """Judge each kernel and keep what has a verdict in `out`, and a line for every one in import.jsonl. A row that an
    earlier run finished is not done again."""
    out.mkdir(parents=True, exist_ok=True)
    done, result = finished(out), Imported()
    queue = ((_task_id(f, settings), f) for f in found)
    given: dict[int, tuple[str, Foreign]] = {}

    def next_task() -> tuple[int, dict[str, Any]] | None:
        for key, foreign in queue:
            if key not in done:
                done.add(key)  # a corpus may hold one kernel twice
                given[len(given)] = (key, foreign)
                return len(given) - 1, {"foreign": foreign.to_json()}
        return None

    with (
        (out / REPORT).open("a", encoding="utf-8") as report,
        ShardWriter(out, _LABEL) as writer,
        Workers(jobs, start, asdict(settings)) as workers,
    ):
        for answer in workers.run(next_task):
            key, foreign = given.pop(answer.number) if answer.number in given else ("", Foreign("", ""))
            given[answer.number] = ("", Foreign("", ""))  # keeps numbers apart without keeping texts
            rows = answer.answer["rows"] if answer.answer else []
            unclear = answer.failure if answer.answer is None else answer.answer["unclear"]
            line = _outcome(foreign, rows, unclear)
            report.write(json.dumps(line) + "\n")
            report.flush()
            result.rows += 1
            result.outcomes[line["outcome"]] += 1
            if unclear:
                result.reasons[unclear.partition(":")[0][:100]] += 1
            writer.add(key, rows)
            listen(result)
    return result


def _task_id(foreign: Foreign, settings: Settings) -> str:
    return f"{_LABEL}/{settings.arch}/{settings.numerics}/{digest(compact(foreign.to_json()))}"


def _outcome(foreign: Foreign, rows: list[dict[str, Any]], unclear: str) -> dict[str, Any]:
    if unclear:
        return {"origin": foreign.origin, "outcome": "cannot be judged", "why": unclear}
    row = rows[0]
    if row["status"] == "verified":
        return {"origin": foreign.origin, "outcome": "verified", "id": row["id"], "estimate_us": row["estimate_us"]}
    why = f"{row['code']}: {row['message']}"
    return {"origin": foreign.origin, "outcome": f"rejected at {row['stage']}", "id": row["id"], "why": why}

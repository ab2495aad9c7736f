"""Runs items of a suite in isolated processes, journalled and resumable, and writes the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvc.bench.isolate import run_isolated
from kvc.bench.journal import Journal, Record
from kvc.bench.table import markdown, summarise
from kvc.diagnostics import KvcError
from kvc.store import build_id


@dataclass(frozen=True)
class Item:
    """One thing to run: `key` identifies it in the journal, `group` is the table's row that it counts in, `digest` what
    it was made of, `job` what its process is told beside the run's settings."""

    key: str
    group: int | str
    name: str
    digest: str
    job: Mapping[str, Any]


@dataclass(frozen=True)
class Runner:
    """`function` ("module:name", dict -> dict) makes the record of a job in a process of its own; `settings` are what a
    result depends on beside the item and kvc's own sources."""

    function: str
    settings: Record
    out: Path
    timeout_s: float
    fork: bool = True
    noun: str = "problems"

    def run(self, items: Sequence[Item], parallel: int, retry: bool, say: Any, show_progress: bool) -> list[Record]:
        """The records of all items, those from the journal included. With `retry` what passed is kept, whatever kvc's
        sources were then; without it everything that these sources gave is."""
        journal = Journal(self.out)
        build = build_id()
        by_key = {i.key: i for i in items}
        done: dict[str, Record] = {}
        for key, record in journal.latest(self.settings).items():
            current = record["build"] == build if not retry else record["status"] == "passed"
            if current and key in by_key and record["digest"] == by_key[key].digest:
                done[key] = record
        left = [i for i in items if i.key not in done]
        if done:
            say(f"{len(done)} of {len(items)} {self.noun} are in {journal.path} already")
        jobs = [{**self.settings, **i.job, "problem": i.key} for i in left]
        with progress(show_progress, len(jobs)) as tick:
            for job, result in run_isolated(self.function, jobs, parallel, self.timeout_s, fork=self.fork):
                record = _record(by_key[job["problem"]], result, self.settings, build)
                journal.append(record)
                done[record["problem"]] = record
                tick(_line(record))
        return [done[i.key] for i in items if i.key in done]


def _record(item: Item, result: dict[str, Any], settings: Record, build: str) -> Record:
    if "crash" in result:
        last = result["crash"].strip().splitlines()[-1] if result["crash"].strip() else ""
        result = {"status": "failed", "crash": result["crash"], "failure": {"code": "crash", "message": last}}
    elif "timeout" in result:
        failure = {"code": "KVC0604", "message": f"not done after {result['timeout']:.0f} s"}
        result = {"status": "failed", "seconds": {"timeout": result["timeout"]}, "failure": failure}
    return {
        **result,
        "problem": item.key,
        "level": item.group,
        "name": item.name,
        "digest": item.digest,
        "run": settings,
        "build": build,
    }


def _line(record: Record) -> str:
    seconds = sum(record.get("seconds", {}).values())
    kernels = f", {record['kernels']} kernels" if "kernels" in record else ""
    line = f"{record['problem']:>6} {record['name'][:44]:<44} {record['status']}{kernels}, {seconds:.1f} s"
    if record["status"] == "failed":
        failure = record.get("failure", {})
        line += f"\n       {failure.get('code', '')}: {failure.get('message', '')[:200]}"
    elif record["status"] == "reference":
        line += f": {record.get('reference', {}).get('degenerate', '')}"
    return line


def written(out: Path, title: str, records: list[Record], total: int, group: str = "level") -> dict[str, Any]:
    """Write table.json and table.md; gives the summary. `group` is what the table's rows are called."""
    summary = summarise(records, total)
    table = {"title": title, **summary, "records": [{k: v for k, v in r.items() if k != "run"} for r in records]}
    try:
        (out / "table.json").write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        (out / "table.md").write_text(markdown(summary, records, title, group), encoding="utf-8")
    except OSError as error:
        raise KvcError("KVC0801", f"{out}: {error.strerror}", hint="choose another folder with --out") from None
    return {**summary, "title": title, "out": str(out)}


@contextmanager
def progress(show: bool, total: int) -> Iterator[Any]:
    """A callback that prints an item's line: under a progress bar with the time left on a terminal, else plain."""
    if not show or not total:
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if not sys.stderr.isatty():
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    columns = (TextColumn("problems"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=3600) as bar:
        task = bar.add_task("problems", total=total)

        def tick(line: str) -> None:
            bar.console.print(line, highlight=False, markup=False)
            bar.advance(task)

        yield tick

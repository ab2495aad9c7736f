"""The journal of a run: one JSON object a line, appended as problems end, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError

Record = dict[str, Any]


class Journal:
    """`results.jsonl` of an output folder. KVC0801 where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path.touch()
        except OSError as error:
            raise KvcError("KVC0801", f"{folder}: {error.strerror}", hint="choose another folder with --out") from None

    def append(self, record: Record) -> None:
        """Write one record, in one piece."""
        line = json.dumps(record, sort_keys=True, default=str) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)

    def records(self) -> Iterator[Record]:
        """What was written so far. A last line that a kill cut short is left out."""
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and "problem" in record:
                    yield record

    def latest(self, run: Record) -> dict[str, Record]:
        """The last record of each problem that was made under the same settings."""
        return {r["problem"]: r for r in self.records() if r.get("run") == run}

"""Append-only shards: Parquet files (zstd) of records, each with the list of tasks that it completes.

A shard is written under a temporary name, flushed to disk and renamed. The list of finished tasks stands in the footer
of the same file, so that records and journal are one atomic thing: a killed build loses what it had not yet written,
never half a task, and a resumed one repeats exactly the tasks that no footer names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError
from kvc.vault.record import SCHEMA_VERSION, Record, schema

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

ROWS_PER_SHARD = 2000
_TASKS = b"kvc_vault_tasks"
_VERSION = b"kvc_vault_schema"
_NAME = re.compile(r"(?P<label>[\w.]+)-(?P<number>\d{5})\.parquet$")
_LEVEL = 15  # of zstd: shards are written once and kept


def shards(folder: Path) -> list[Path]:
    """Shards of a vault in order of name. KVC0101 where the folder is not there."""
    if not folder.is_dir():
        raise KvcError("KVC0101", f"{folder} is no folder of shards", hint="kvc vault build --out DIR makes one")
    return sorted(p for p in folder.iterdir() if _NAME.match(p.name))


def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise KvcError(
            "KVC0802", f"{path.name} is no readable shard: {error}", hint="remove it and build again"
        ) from None
    found = (file.metadata.metadata or {}).get(_VERSION, b"")
    if found != str(SCHEMA_VERSION).encode():
        raise KvcError("KVC0802", f"{path.name} has schema {found.decode() or 'none'}, this kvc reads {SCHEMA_VERSION}")
    return file


def finished(folder: Path) -> set[str]:
    """Ids of the tasks that the shards of a folder complete."""
    done: set[str] = set()
    for path in shards(folder) if folder.is_dir() else ():
        done |= set(json.loads((_open(path).metadata.metadata or {}).get(_TASKS, b"[]")))
    return done


def rows(folder: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of all shards, in order; `columns` limits what is read."""
    for path in shards(folder):
        for batch in _open(path).iter_batches(batch_size=512, columns=list(columns) if columns else None):
            yield from batch.to_pylist()


def records(folder: Path) -> Iterator[Record]:
    """Records of all shards, in order."""
    return (Record.from_row(row) for row in rows(folder))


def write_shard(path: Path, rows_: Sequence[dict[str, Any]], tasks: Iterable[str]) -> None:
    """Write one shard whole: temporary name, fsync, rename, fsync of the folder. KVC0803 where the disk refuses."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {**(schema().metadata or {}), _TASKS: json.dumps(sorted(tasks)).encode()}
    table = pa.Table.from_pylist(list(rows_), schema=schema()).replace_schema_metadata(metadata)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            pq.write_table(
                table, stream, compression="zstd", compression_level=_LEVEL, row_group_size=max(len(rows_), 1),
                data_page_size=8 << 20, dictionary_pagesize_limit=8 << 20,
            )  # fmt: skip
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise KvcError("KVC0803", f"{path}: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


class ShardWriter:
    """Collects the rows of finished tasks and writes a shard when there are enough. Use as a context manager: leaving
    it writes what is left."""

    def __init__(self, folder: Path, label: str, rows_per_shard: int = ROWS_PER_SHARD) -> None:
        self.folder, self.label, self.rows_per_shard = folder, label, rows_per_shard
        folder.mkdir(parents=True, exist_ok=True)
        self.written = 0
        self._rows: list[dict[str, Any]] = []
        self._tasks: list[str] = []

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An interrupt keeps finished tasks as well: a task is added whole or not at all.
        self.flush()

    def add(self, task: str, rows_: Sequence[dict[str, Any]]) -> None:
        """All rows of one finished task (none, where it had no result)."""
        self._tasks.append(task)
        self._rows += rows_
        if len(self._rows) >= self.rows_per_shard:
            self.flush()

    def flush(self) -> None:
        if not self._tasks:
            return
        numbers = [int(m["number"]) for p in shards(self.folder) if (m := _NAME.match(p.name))]
        path = self.folder / f"{self.label}-{max(numbers, default=0) + 1:05d}.parquet"
        write_shard(path, self._rows, self._tasks)
        self.written += len(self._rows)
        self._rows, self._tasks = [], []

"""The store's housekeeping: size limit, statistics, a check of everything in it, and recovery from damage.

Files that no record names go in the same kind of transaction as records are added in, so that a verdict that is being
put never loses a file. Records go first: a process killed in between leaves files without a record, which the next run
removes, and no record without its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.settings import settings
from kvc.store import SCHEMA, Store, record_digest

#: After a clean-up the store takes this share of its limit, so that the next one is not due at once.
_FILL = 0.8
_STALE_S = 3600.0  # a temporary file this old belongs to nobody
_INDEX_FILES = ("store.sqlite", "store.sqlite-wal", "store.sqlite-shm")
_DAMAGE = ("malformed", "not a database", "corrupt", "file is encrypted", "disk image", "malformed database schema")


@dataclass(frozen=True)
class Stats:
    """What a store holds: counts, and sizes in bytes. `limit` is None where there is none."""

    folder: str
    schema: int
    verified: int
    rejected: int
    files: int
    file_bytes: int
    index_bytes: int
    limit: int | None
    oldest_use: str
    by_task: int

    @property
    def total(self) -> int:
        return self.file_bytes + self.index_bytes

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True)
class Collected:
    """What a clean-up removed, and the size (bytes) before and after."""

    verdicts: int
    files: int
    before: int
    after: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _files(store: Store) -> Iterator[os.DirEntry[str]]:
    """Every blob file, temporary ones included."""
    with contextlib.suppress(FileNotFoundError), os.scandir(store.folder / "blobs") as folders:
        for folder in folders:
            with contextlib.suppress(OSError), os.scandir(folder.path) as files:
                yield from files


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _index_bytes(store: Store) -> int:
    return sum(p.stat().st_size for n in _INDEX_FILES if (p := store.folder / n).is_file())


def stats(store: Store) -> Stats:
    """Count everything in a store."""
    db = store._connection()
    query = "SELECT COUNT(*), COALESCE(SUM(record LIKE '{\"rejected\"%'), 0), MIN(NULLIF(used, 0)) FROM verdict"
    count, rejected, oldest = db.execute(query).fetchone()
    (tasks,) = db.execute("SELECT COUNT(DISTINCT task) FROM verdict").fetchone()
    sizes = [_size(entry) for entry in _files(store)]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(oldest)) if oldest else ""
    return Stats(
        str(store.folder), SCHEMA, count - rejected, rejected, len(sizes), sum(sizes), _index_bytes(store),
        settings().cache_limit, when, tasks,
    )  # fmt: skip


# ---------------------------------------------------------------- size limit


def keep_below(store: Store, limit: int | None) -> Collected | None:
    """Clean up where the verdicts' own account of their sizes exceeds the limit; None where nothing was due."""
    if limit is None or store.read_only:
        return None
    with contextlib.suppress(sqlite3.Error, OSError):
        (total,) = store._connection().execute("SELECT COALESCE(SUM(size), 0) FROM verdict").fetchone()
        if total > limit:
            return collect(store, limit)
    return None


def collect(store: Store, limit: int | None) -> Collected:
    """Let go the least recently used verdicts until those left fit into `_FILL` of the limit (bytes; None: let go
    none), then all files that no record names. KVC0803 where the store cannot be changed."""
    if store.read_only:
        raise KvcError("KVC0803", f"{store.folder} can only be read")
    try:
        before = sum(map(_size, _files(store))) + _index_bytes(store)
        removed = _let_go(store, limit)
        files = _sweep(store)
        db = store._connection()
        if removed:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        after = sum(map(_size, _files(store))) + _index_bytes(store)
    except (OSError, sqlite3.Error) as error:
        raise KvcError("KVC0803", f"{store.folder}: {error}") from None
    return Collected(removed, files, before, after)


def _let_go(store: Store, limit: int | None) -> int:
    if limit is None:
        return 0
    db = store._connection()
    with store._changing(db):
        kept, gone = 0, []
        for key, size in db.execute("SELECT key, size FROM verdict ORDER BY used DESC, created DESC"):
            kept += size
            if kept > limit * _FILL:
                gone.append((key,))
        db.executemany("DELETE FROM verdict WHERE key=?", gone)
    return len(gone)


def _sweep(store: Store) -> int:
    """Remove files that no record names, and temporary files that were left."""
    db = store._connection()
    removed = 0
    with store._changing(db):
        named = set()
        for (record,) in db.execute("SELECT record FROM verdict"):
            named |= _digests(record)
        for entry in list(_files(store)):
            with contextlib.suppress(FileNotFoundError):
                part = entry.name.startswith(".part-")
                if time.time() - entry.stat().st_mtime > _STALE_S if part else entry.name not in named:
                    os.unlink(entry.path)
                    removed += 1
    return removed


def _digests(record: str) -> set[str]:
    """The files that a record names; none for one that cannot be read."""
    try:
        return set(json.loads(record).get("blobs", {}).values())
    except (ValueError, AttributeError, TypeError):
        return set()


# ---------------------------------------------------------------- checks and recovery


@dataclass(frozen=True)
class Problem:
    """Something in a store that is not what was put there: the verdict's key, or a file's name."""

    what: str
    name: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(store: Store, repair: bool = False) -> list[Problem]:
    """Read everything: the index's own consistency, each record against its digest, each file against its name, and
    each record's files. With `repair`, what is wrong is removed; it will be judged again when it is needed."""
    db = store._connection()
    try:
        found = [Problem("the index", row[0]) for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        # Records first: whoever adds one meanwhile has written its files before.
        rows = db.execute("SELECT key, schema, record, digest FROM verdict").fetchall()
        files = {e.name: e.path for e in _files(store) if not e.name.startswith(".")}
        torn = {name for name, path in files.items() if not _whole(name, path) and os.path.exists(path)}
        found += [Problem("a file that is not what its name says", name) for name in sorted(torn)]
        bad = [problem for row in rows if (problem := _problem(db, row, files.keys() - torn)) is not None]
    except sqlite3.DatabaseError as error:
        if not is_damaged(error):
            raise KvcError("KVC0803", f"{store.folder}: {error}") from None
        found, bad, torn, files = [Problem("the index", str(error))], [], set(), {}
    if repair and not store.read_only:
        if any(p.what == "the index" for p in found):
            set_aside(store.folder, "kvc store verify", certain=True)
        else:
            with store._changing(db):
                db.executemany("DELETE FROM verdict WHERE key=?", [(p.name,) for p in bad])
            for name in torn:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(files[name])
    return [*found, *bad]


def _problem(db: sqlite3.Connection, row: tuple[str, int, str, str], whole: Set[str]) -> Problem | None:
    """What is wrong with a record; nothing is, where it has been let go meanwhile."""
    key, schema, record, digest = row
    if schema == SCHEMA and record_digest(key, record) != digest:
        return Problem("an altered record", key)
    if _digests(record) <= whole:
        return None
    still = db.execute("SELECT 1 FROM verdict WHERE key=? AND record=?", (key, record)).fetchone()
    return Problem("a record that misses a file", key) if still else None


def _whole(name: str, path: str) -> bool:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() == name
    except OSError:
        return False


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether an error means that the file itself is broken, and not that it is busy, full or out of reach."""
    return any(words in str(error).lower() for words in _DAMAGE)


def set_aside(folder: Path, reason: str, certain: bool = False) -> Path:
    """Move a damaged index away, one process at a time, and only if it still is damaged; the store begins anew. Files
    of verdicts stay: they are found again by their content. Gives the new name of the index."""
    target = folder / f"store.sqlite.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    with open(folder / ".recovery", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not certain and _opens(folder / "store.sqlite"):
            return folder / "store.sqlite"  # another process was here first
        for name in _INDEX_FILES:
            with contextlib.suppress(FileNotFoundError):
                os.replace(folder / name, str(target) + name.removeprefix("store.sqlite"))
        target.with_name(target.name + ".why").write_text(reason + "\n")
    return target


def _opens(index: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(index, timeout=5.0)) as db:
            return bool(db.execute("PRAGMA quick_check").fetchone()[0] == "ok")
    except sqlite3.Error:
        return False

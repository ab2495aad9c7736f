"""The content-addressed store: every verdict under a key of everything that could change it.

An index in SQLite (WAL, so that several runs share it) and one file a blob, written under a temporary name, synced and
renamed before the index names it. A killed run therefore leaves nothing half-written. Each record carries a digest of
itself and each blob is named by its own, and both are checked on the way out: what is torn or altered is judged again,
never used. A store that cannot keep a verdict (full disk, read-only folder) says so once, and the run goes on.

Size limit, statistics, checks and recovery stand in `kvc.store_upkeep`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kvc
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Target
from kvc.records import Blobs, candidate_to_json, compiled_from_json, compiled_to_json, diagnostic_from_json
from kvc.settings import settings
from kvc.verify.judge import CHECKS_VERSION
from kvc.verify.verdict import Evidence, Rejected, Verdict, Verified

#: Of the index; raised when its tables or records change. An older one is brought up to date, a newer one refused.
SCHEMA = 2
_BUSY_S = 30.0
_TOUCH_S = 3600  # a use is noted when the last note is older: most hits then write nothing
_PUTS_BETWEEN_CHECKS = 64  # of the size

_TABLES = """
CREATE TABLE IF NOT EXISTS verdict (
  key TEXT PRIMARY KEY, schema INTEGER NOT NULL, task TEXT NOT NULL, fields TEXT NOT NULL, record TEXT NOT NULL,
  created TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, used INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL DEFAULT 0,
  digest TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS verdict_task ON verdict (task);
CREATE INDEX IF NOT EXISTS verdict_used ON verdict (used);
"""


def cache_dir() -> Path:
    """Where verdicts are kept unless a store is told otherwise."""
    return settings().cache_dir


@cache
def build_id() -> str:
    """Digest of kvc's own sources and tables. It stands in every key, so that a changed emitter, check or simulator
    never meets an old verdict, whether or not somebody thought of raising a version."""
    import importlib

    digest = hashlib.sha256()
    for package in ("kvc", "kvc.frontends", "kvc.backends", "kvc.simulator"):
        for folder in importlib.import_module(package).__path__:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".h", ".lark", ".json", ".ll") and "__pycache__" not in path.parts:
                    digest.update(str(path.relative_to(folder)).encode())
                    digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def packages() -> dict[str, str]:
    """Versions of what computes references, lints and simulates beside kvc itself."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "torch", "triton", "libclang", "ziglang"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


@dataclass(frozen=True)
class Key:
    """What a verdict depends on. `fields` is JSON; changing any of them changes the digest."""

    fields: dict[str, Any]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()


def key_of(candidate: Candidate, target: Target, executor: str, seed: int) -> Key:
    """The key of a candidate's verdict: task, source, launches, knobs and origin of the candidate, the toolchain, the
    executor, the seed, kvc's version and build, the packages that the oracle and the lint rest on, and the version of
    the checks."""
    return Key(
        {
            "task": candidate.task.key,
            "candidate": candidate_to_json(candidate),
            "toolchain": target.toolchain(),
            "executor": executor,
            "seed": seed,
            "kvc": kvc.__version__,
            "build": build_id(),
            "packages": packages(),
            "checks": CHECKS_VERSION,
        }
    )


def record_digest(key: str, record: str) -> str:
    """What ties a record to its key: a row that was altered, or stands under another key, does not have it."""
    return hashlib.sha256(f"{key}\n{record}".encode()).hexdigest()


class Store:
    """Verdicts by key. Safe to share between threads and processes. KVC0803 where the folder cannot be used at all."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_dir()
        self.hits = 0
        self.read_only = False
        self._local = threading.local()
        self._puts = 0
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            from kvc.store_upkeep import is_damaged, set_aside

            if not is_damaged(error):
                raise self._unusable(error) from None
            complain(f"the store's index is damaged and was set aside: {set_aside(self.folder, str(error))}")
            try:
                self._local = threading.local()
                self._prepare()
            except (OSError, sqlite3.Error) as second:
                raise self._unusable(second) from None
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> KvcError:
        return KvcError("KVC0803", f"{self.folder}: {error}", hint="set KVC_CACHE_DIR to a folder that can be written")

    def _prepare(self) -> None:
        """Make folder and tables; a folder that can only be read serves what it holds."""
        index = self.folder / "store.sqlite"
        try:
            (self.folder / "blobs").mkdir(parents=True, exist_ok=True)
            self.read_only = not os.access(self.folder, os.W_OK)
        except PermissionError:
            self.read_only = True
        except OSError as error:
            if not index.is_file():
                raise
            self.read_only = True
            complain(f"the store cannot be written: {error}")
        if self.read_only and not index.is_file():
            raise OSError("the folder cannot be written and holds no store")
        db = self._connection()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise KvcError(
                "KVC0803", f"{index} was written by a newer kvc (schema {version}, this one knows {SCHEMA})",
                hint="update kvc, set KVC_CACHE_DIR to another folder, or work without the store (--no-cache)",
            )  # fmt: skip
        if version < SCHEMA and not self.read_only:
            self._upgrade(db)

    def _upgrade(self, db: sqlite3.Connection) -> None:
        """Bring an empty or older index up to date, once among all processes that try. Records of an older schema
        stay; no lookup meets them, since a key names the build of kvc that made it."""
        db.execute("PRAGMA journal_mode=WAL")
        with self._changing(db):
            known = {row[1] for row in db.execute("PRAGMA table_info(verdict)")}
            for column, kind in (("used", "INTEGER"), ("size", "INTEGER"), ("digest", "TEXT")):
                if known and column not in known:
                    default = "0" if kind == "INTEGER" else "''"
                    db.execute(f"ALTER TABLE verdict ADD COLUMN {column} {kind} NOT NULL DEFAULT {default}")
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={SCHEMA}")

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection in this process: SQLite's must not be carried through a fork."""
        held: tuple[int, sqlite3.Connection] | None = getattr(self._local, "held", None)
        if held is not None and held[0] == os.getpid():
            return held[1]
        path = self.folder / "store.sqlite"
        if self.read_only:
            # Nobody else can be assumed to write it: a WAL cannot be shared in a folder without writing there.
            db = sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True, isolation_level=None)
        else:
            db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            db.execute(
                "PRAGMA synchronous=NORMAL"
            )  # a killed process loses nothing; a power cut perhaps the last verdict
        self._local.held = (os.getpid(), db)
        return db

    @contextlib.contextmanager
    def _changing(self, db: sqlite3.Connection) -> Iterator[None]:
        """One transaction that is the only one of its kind while it lasts."""
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def get(self, key: Key) -> Verdict | None:
        """The verdict under a key; None where there is none, or where its record or a file of it is not what was put
        there."""
        name = key.digest
        try:
            row = self._connection().execute(
                "SELECT record, digest, used FROM verdict WHERE key=? AND schema=?", (name, SCHEMA)
            ).fetchone()  # fmt: skip
        except sqlite3.Error as error:
            complain(f"the store cannot be read: {error}")
            return None
        if row is None or record_digest(name, row[0]) != row[1]:
            return None
        record = json.loads(row[0])
        if "rejected" in record:
            rejected = record["rejected"]
            return Rejected(rejected["stage"], diagnostic_from_json(rejected["diagnostic"]))
        blobs = {blob: self._read(digest) for blob, digest in record["blobs"].items()}
        present: Blobs = {blob: data for blob, data in blobs.items() if data is not None}
        if len(present) != len(blobs):
            return None
        self.hits += 1
        self._touch(name, row[2])
        return Verified(Evidence.from_json(record["evidence"]), compiled_from_json(record["compiled"], present))

    def _touch(self, name: str, used: int) -> None:
        """Note a use, for the order in which verdicts are let go."""
        now = int(time.time())
        if self.read_only or now - used < _TOUCH_S:
            return
        with contextlib.suppress(sqlite3.Error):  # an order that is a little off is no harm
            self._connection().execute("UPDATE verdict SET used=? WHERE key=?", (now, name))

    def put(self, key: Key, verdict: Verdict) -> None:
        """Keep a verdict. Rejections for reasons outside the candidate (a dead worker) are not kept. Where the disk is
        full or the folder cannot be written, nothing is kept and that is said once."""
        if self.read_only or (isinstance(verdict, Rejected) and verdict.diagnostic.code == "KVC0604"):
            return
        try:
            self._put(key, verdict)
        except (OSError, sqlite3.Error) as error:
            complain(f"a verdict could not be kept in {self.folder}: {error}")
            return
        self._puts += 1
        if self._puts % _PUTS_BETWEEN_CHECKS == 1:
            from kvc.store_upkeep import keep_below

            keep_below(self, settings().cache_limit)

    def _put(self, key: Key, verdict: Verdict) -> None:
        record: dict[str, Any]
        blobs: Blobs = {}
        if isinstance(verdict, Rejected):
            record = {"rejected": {"stage": verdict.stage, "diagnostic": verdict.diagnostic.to_json()}}
        else:
            compiled, blobs = compiled_to_json(verdict.compiled)
            names = {name: self._write(blob) for name, blob in blobs.items()}
            record = {"evidence": verdict.evidence.to_json(), "compiled": compiled, "blobs": names}
        text, name = json.dumps(record), key.digest
        size = len(text) + sum(map(len, blobs.values()))
        fields = json.dumps(key.fields, sort_keys=True)
        row = (name, SCHEMA, key.fields["task"], fields, text, int(time.time()), size, record_digest(name, text))
        db = self._connection()
        with self._changing(db):
            # Whoever removes files that no record names does so in a transaction, too: they are here, or made again.
            for blob in blobs.values():
                self._write(blob)
            db.execute(
                "INSERT OR REPLACE INTO verdict (key, schema, task, fields, record, used, size, digest)"
                " VALUES (?,?,?,?,?,?,?,?)",
                row,
            )

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest[:2] / digest

    def _read(self, digest: str) -> bytes | None:
        try:
            blob = self._path(digest).read_bytes()
        except OSError:
            return None
        return blob if hashlib.sha256(blob).hexdigest() == digest else None

    def _write(self, blob: bytes) -> str:
        digest = hashlib.sha256(blob).hexdigest()
        path = self._path(digest)
        if self._read(digest) is not None:
            return digest
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return digest


@cache
def complain(message: str) -> None:
    """Say once that the store does less than it should; the run goes on."""
    print(f"kvc: warning: {message}", file=sys.stderr)

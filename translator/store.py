"""The content-addressed store: every verdict under a key of everything that could change it.

An index in SQLite (WAL, so that several runs share it) and one file a blob, written under a temporary name and renamed:
a killed run leaves nothing half-written, and a torn or altered file is noticed by its hash and judged again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
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

SCHEMA = 1
_BUSY_S = 30.0


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


@dataclass(frozen=True)
class Key:
    """What a verdict depends on. `fields` is JSON; changing any of them changes the digest."""

    fields: dict[str, Any]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()


def key_of(candidate: Candidate, target: Target, executor: str, seed: int) -> Key:
    """The key of a candidate's verdict: task, source, launches, knobs and origin of the candidate, the toolchain, the
    executor, the seed, kvc's version and build, and the version of the checks."""
    return Key(
        {
            "task": candidate.task.key,
            "candidate": candidate_to_json(candidate),
            "toolchain": target.toolchain(),
            "executor": executor,
            "seed": seed,
            "kvc": kvc.__version__,
            "build": build_id(),
            "checks": CHECKS_VERSION,
        }
    )


class Store:
    """Verdicts by key. Safe to share between threads and processes. KVC0803 where the folder cannot be used."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_dir()
        self.hits = 0
        try:
            (self.folder / "blobs").mkdir(parents=True, exist_ok=True)
            with self._connect() as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute(
                    "CREATE TABLE IF NOT EXISTS verdict ("
                    " key TEXT PRIMARY KEY, schema INTEGER NOT NULL, task TEXT NOT NULL, fields TEXT NOT NULL,"
                    " record TEXT NOT NULL, created TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
                )
                db.execute("CREATE INDEX IF NOT EXISTS verdict_task ON verdict (task)")
        except (OSError, sqlite3.Error) as error:
            raise KvcError(
                "KVC0803", f"{self.folder}: {error}", hint="set KVC_CACHE_DIR to a folder that can be written"
            ) from None

    @contextlib.contextmanager
    def _connect(self) -> Any:
        db = sqlite3.connect(self.folder / "store.sqlite", timeout=_BUSY_S)
        try:
            with db:
                yield db
        finally:
            db.close()

    def get(self, key: Key) -> Verdict | None:
        """The verdict under a key; None where there is none or a file of it is missing or altered."""
        with self._connect() as db:
            row = db.execute("SELECT record FROM verdict WHERE key=? AND schema=?", (key.digest, SCHEMA)).fetchone()
        if row is None:
            return None
        record = json.loads(row[0])
        if "rejected" in record:
            rejected = record["rejected"]
            return Rejected(rejected["stage"], diagnostic_from_json(rejected["diagnostic"]))
        blobs = {name: self._read(digest) for name, digest in record["blobs"].items()}
        present: Blobs = {name: blob for name, blob in blobs.items() if blob is not None}
        if len(present) != len(blobs):
            return None
        self.hits += 1
        return Verified(Evidence.from_json(record["evidence"]), compiled_from_json(record["compiled"], present))

    def put(self, key: Key, verdict: Verdict) -> None:
        """Keep a verdict. Rejections for reasons outside the candidate (a dead worker) are not kept."""
        record: dict[str, Any]
        if isinstance(verdict, Rejected):
            if verdict.diagnostic.code == "KVC0604":
                return
            record = {"rejected": {"stage": verdict.stage, "diagnostic": verdict.diagnostic.to_json()}}
        else:
            compiled, blobs = compiled_to_json(verdict.compiled)
            names = {name: self._write(blob) for name, blob in blobs.items()}
            record = {"evidence": verdict.evidence.to_json(), "compiled": compiled, "blobs": names}
        row = (key.digest, SCHEMA, key.fields["task"], json.dumps(key.fields, sort_keys=True), json.dumps(record))
        with self._connect() as db:
            db.execute("INSERT OR REPLACE INTO verdict (key, schema, task, fields, record) VALUES (?,?,?,?,?)", row)

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest[:2] / digest

    def _read(self, digest: str) -> bytes | None:
        try:
            blob = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        return blob if hashlib.sha256(blob).hexdigest() == digest else None

    def _write(self, blob: bytes) -> str:
        digest = hashlib.sha256(blob).hexdigest()
        path = self._path(digest)
        if self._read(digest) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        return digest

"""The store under stress: killed writers, full disks, folders that cannot be written, damage, other schemas, limits."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kvc.store as store_module
import pytest
from kvc.diagnostics import KvcError
from kvc.settings import bytes_of
from kvc.store import SCHEMA, Store
from kvc.store_upkeep import collect, stats, verify

from tests.store_kills import entry, kill_writers


@pytest.fixture(autouse=True)
def say_again() -> None:
    store_module.complain.cache_clear()


def filled(folder: Path, count: int = 12) -> Store:
    store = Store(folder)
    for number in range(count):
        store.put(*entry(number))
    return store


def test_writers_that_are_killed_tear_nothing_and_lose_nothing(tmp_path: Path) -> None:
    wrong, finished = kill_writers(tmp_path, kills=10, writers=4, seed=1, every=5)
    assert wrong == [] and finished > 0


@pytest.mark.long
def test_two_hundred_kills_under_eight_writers(tmp_path: Path) -> None:
    wrong, finished = kill_writers(tmp_path, kills=200, writers=8, seed=2)
    assert wrong == [] and finished > 50


# ---------------------------------------------------------------- damage


def _index(folder: Path) -> Path:
    return folder / "store.sqlite"


def test_a_damaged_index_is_set_aside_and_the_store_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    filled(tmp_path)
    for name in ("store.sqlite", "store.sqlite-wal", "store.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    _index(tmp_path).write_bytes(b"this is no database" * 1000)
    store = Store(tmp_path)
    assert "damaged" in capsys.readouterr().err
    assert list(tmp_path.glob("store.sqlite.damaged-*"))
    key, verdict = entry(1)
    assert store.get(key) is None
    store.put(key, verdict)
    assert Store(tmp_path).get(key) == verdict


def test_damage_inside_the_index_gives_no_wrong_kernel(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    with sqlite3.connect(_index(tmp_path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(_index(tmp_path).read_bytes())
    for place in range(9000, len(data), 1777):
        data[place] ^= 0x5A
    _index(tmp_path).write_bytes(data)
    store = Store(tmp_path)
    for number in range(40):
        key, right = entry(number)
        assert store.get(key) in (None, right)
    assert verify(store)
    verify(store, repair=True)
    again = Store(tmp_path)
    key, right = entry(1)
    again.put(key, right)
    assert again.get(key) == right


def test_an_altered_record_is_no_hit_and_is_found(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (key, right), (other, _) = entry(1), entry(2)
    with sqlite3.connect(_index(tmp_path)) as db:
        (record,) = db.execute("SELECT record FROM verdict WHERE key=?", (key.digest,)).fetchone()
        db.execute("UPDATE verdict SET record=? WHERE key=?", (record.replace('"gfx942"', '"gfx950"'), key.digest))
    assert store.get(key) is None
    with sqlite3.connect(_index(tmp_path)) as db:  # a whole record, under another key
        row = db.execute("SELECT record, digest FROM verdict WHERE key=?", (other.digest,)).fetchone()
        db.execute("UPDATE verdict SET record=?, digest=? WHERE key=?", (*row, key.digest))
    assert store.get(key) is None
    assert [p.name for p in verify(store)] == [key.digest]
    verify(store, repair=True)
    assert verify(store) == []
    store.put(key, right)
    assert store.get(key) == right


def test_an_altered_file_is_found_and_repaired(tmp_path: Path) -> None:
    store = filled(tmp_path)
    victim = max((p for p in (tmp_path / "blobs").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    victim.write_bytes(b"\0" * victim.stat().st_size)
    problems = verify(store)
    assert victim.name in {p.name for p in problems} and any("misses a file" in p.what for p in problems)
    verify(store, repair=True)
    assert verify(store) == []


# ---------------------------------------------------------------- schemas


def _old_store(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with sqlite3.connect(_index(folder)) as db:
        db.execute(
            "CREATE TABLE verdict (key TEXT PRIMARY KEY, schema INTEGER NOT NULL, task TEXT NOT NULL, fields TEXT"
            " NOT NULL, record TEXT NOT NULL, created TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)"
        )
        key, _ = entry(1)
        row = (key.digest, 1, "task", "{}", json.dumps({"rejected": {"stage": "lint", "diagnostic": {}}}))
        db.execute("INSERT INTO verdict (key, schema, task, fields, record) VALUES (?,?,?,?,?)", row)


def test_an_older_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    _old_store(tmp_path)
    store = Store(tmp_path)
    key, right = entry(1)
    assert store.get(key) is None
    store.put(key, right)
    assert store.get(key) == right
    with sqlite3.connect(_index(tmp_path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    with sqlite3.connect(_index(tmp_path)) as db:
        db.execute(f"PRAGMA user_version={SCHEMA + 1}")
    with pytest.raises(KvcError) as caught:
        Store(tmp_path)
    assert caught.value.code == "KVC0803" and "newer" in caught.value.diagnostic.message
    assert "--no-cache" in caught.value.diagnostic.hint


# ---------------------------------------------------------------- no room, no right to write


def test_a_full_disk_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    store = filled(tmp_path, 2)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    key, right = entry(3)
    store.put(key, right)
    store.put(*entry(4))
    assert capsys.readouterr().err.count("could not be kept") == 1
    assert store.get(key) is None and not list(tmp_path.rglob(".part-*"))
    monkeypatch.undo()
    store.put(key, right)
    assert store.get(key) == right and verify(store) == []


_SMALL = """
import os, resource, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from kvc.store import Store
from kvc.store_upkeep import verify
from kvc.verify import linux
from tests.store_kills import entry
folder = Path({folder!r})
uid, gid = os.getuid(), os.getgid()
try:
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{uid}} 1"), ("gid_map", f"0 {{gid}} 1")):
        Path("/proc/self", name).write_text(text)
    {mount}
except OSError:
    sys.exit(77)
"""


def _in_namespace(folder: Path, mount: str, rest: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parent.parent)
    code = _SMALL.format(root=root, folder=str(folder), mount=mount) + rest
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("no user namespaces here")
    return done


def test_a_small_disk_that_runs_full(tmp_path: Path) -> None:
    """On a real file system without room: no torn entry, and it works on once there is room."""
    done = _in_namespace(
        tmp_path,
        "linux.mount('tmpfs', str(folder), 'tmpfs', 0, 'size=2m')",
        """
store = Store(folder)
for n in range(60):
    store.put(*entry(n))
kept = [n for n in range(60) if store.get(entry(n)[0]) is not None]
wrong = [n for n in kept if store.get(entry(n)[0]) != entry(n)[1]]
assert kept and len(kept) < 60 and not wrong, (kept, wrong)
assert verify(store) == [], verify(store)
for path in list((folder / "blobs").rglob("*")):
    if path.is_file():
        path.unlink()
store.put(*entry(59))
assert store.get(entry(59)[0]) == entry(59)[1]
print("fine")
""",
    )
    assert done.stdout == "fine\n", done.stderr
    assert done.stderr.count("could not be kept") >= 1


def test_a_folder_that_can_only_be_read_still_serves(tmp_path: Path) -> None:
    filled(tmp_path, 6)
    with sqlite3.connect(_index(tmp_path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    done = _in_namespace(
        tmp_path,
        "linux.mount(str(folder), str(folder), None, linux.MS_BIND); linux.restrict_mount(str(folder), 1)",
        """
store = Store(folder)
assert store.read_only
assert all(store.get(entry(n)[0]) == entry(n)[1] for n in range(6))
store.put(*entry(7))
assert store.get(entry(7)[0]) is None
print("fine")
""",
    )
    assert done.stdout == "fine\n", done.stderr


# ---------------------------------------------------------------- size


def test_the_least_recently_used_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 20)
    with sqlite3.connect(_index(tmp_path)) as db:  # as if 0 to 19 had been put hours apart
        for number in range(20):
            db.execute("UPDATE verdict SET used=? WHERE key=?", (1000 + number, entry(number)[0].digest))
    assert store.get(entry(1)[0]) is not None  # a use
    before = stats(store)
    done = collect(store, before.total // 2)
    assert done.verdicts and done.files and done.after < done.before
    kept = {n for n in range(20) if store.get(entry(n)[0]) is not None}
    assert 1 in kept and 19 in kept and 2 not in kept
    assert verify(store) == []
    assert all(store.get(entry(n)[0]) == entry(n)[1] for n in kept)


def test_a_put_cleans_up_when_the_limit_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_CACHE_LIMIT", "1M")
    monkeypatch.setattr(store_module, "_PUTS_BETWEEN_CHECKS", 4)
    store = filled(tmp_path, 41)
    assert stats(store).file_bytes < 3 << 20
    assert verify(store) == []


def test_files_of_nobody_go(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    folder = tmp_path / "blobs" / "ab"
    folder.mkdir(exist_ok=True)
    (folder / ("ab" + "0" * 62)).write_bytes(b"orphan")
    (folder / ".part-new").write_bytes(b"being written")
    (folder / ".part-old").write_bytes(b"left by a killed run")
    os.utime(folder / ".part-old", (time.time() - 7200,) * 2)
    assert collect(store, None).files == 2
    assert [p.name for p in folder.iterdir() if p.name.startswith((".", "ab00"))] == [".part-new"]


@pytest.mark.parametrize(
    ("text", "size"), [("0", None), ("500M", 500 << 20), ("1.5 GiB", 3 << 29), ("12", 12), ("2tb", 2 << 40)]
)
def test_sizes(text: str, size: int | None) -> None:
    assert bytes_of(text) == size


def test_a_size_that_is_none() -> None:
    with pytest.raises(KvcError) as caught:
        bytes_of("plenty")
    assert caught.value.code == "KVC0106"


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvc.cli_store import app
    from typer.testing import CliRunner

    monkeypatch.setenv("KVC_CACHE_DIR", str(tmp_path))
    filled(tmp_path)

    def run(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--json"])
        return done.exit_code, json.loads(done.stdout)

    code, found = run("stats")
    assert code == 0 and (found["verified"], found["rejected"]) == (9, 3) and found["total"] > 0
    assert run("verify") == (0, {"ok": True, "problems": [], "repaired": False})
    victim = next(p for p in (tmp_path / "blobs").rglob("*") if p.is_file())
    victim.write_bytes(b"")
    assert run("verify")[0] == 1
    assert run("verify", "--repair")[0] == 0
    code, done = run("gc", "--limit", "300K")
    assert code == 0 and done["verdicts"] > 0
    assert CliRunner().invoke(app, ["stats"]).stdout.startswith(str(tmp_path))

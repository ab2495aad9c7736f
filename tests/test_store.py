"""The store: what a key depends on, and that only whole records come back."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import kvc.store as store_module
import pytest
from kvc.arch import arch
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, CodeObject, Compiled, Launch, Origin, Scratch, Task
from kvc.records import candidate_from_json, candidate_to_json
from kvc.store import Key, Store, cache_dir, key_of
from kvc.text import parse_kernel
from kvc.verify.verdict import Evidence, OutputError, Rejected, Verified

SPEC = parse_kernel("kernel twice(x: f32[m=5]) -> (y: f32[m]) {\n  y[m] = x[m] * 2.0\n}")


class FakeTarget:
    def __init__(self, version: str = "1") -> None:
        self.version = version

    def toolchain(self) -> dict[str, str]:
        return {"compiler": self.version}


def candidate() -> Candidate:
    launch = Launch("k", (1, 1, 1), (64, 1, 1), ("x", "y"), 16, (("num_warps", 4),))
    knobs = (("BLOCK", 64),)
    origin = Origin("pointwise", "1")
    task = Task(SPEC, arch("gfx942"))
    return Candidate(task, "hip", "pointwise", "code", (launch,), (Scratch("s", "f32", 3),), knobs, origin)


def verified() -> Verified:
    error = OutputError("y", 1e-7, 1e-4, 2e-7, 3e-6, "normal", (3,))
    evidence = Evidence("sim", "gfx942", 0, ("lint",), ("normal",), (error,), {"k": {"vgprs": 4}}, {}, ("careful",))
    return Verified(evidence, Compiled({"k": CodeObject("asm", b"\x7fELF", (("clang", "22"),), "", 64, 2)}))


def key(**changes) -> Key:
    values = {"candidate": candidate(), "target": FakeTarget(), "executor": "sim", "seed": 0, **changes}
    return key_of(values["candidate"], values["target"], values["executor"], values["seed"])  # type: ignore[arg-type]


def test_candidates_survive_json() -> None:
    assert candidate_from_json(json.loads(json.dumps(candidate_to_json(candidate())))) == candidate()


def test_verdicts_come_back_as_they_went_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.get(key()) is None
    store.put(key(), verified())
    assert store.get(key()) == verified()
    rejected = Rejected("compile", Diagnostic("KVC0502", "no", hint="yes"))
    store.put(key(seed=1), rejected)
    assert store.get(key(seed=1)) == rejected


CHANGES = {
    "spec": {"candidate": replace(candidate(), task=Task(replace(SPEC, name="other"), arch("gfx942")))},
    "arch": {"candidate": replace(candidate(), task=Task(SPEC, arch("gfx950")))},
    "numerics": {"candidate": replace(candidate(), task=Task(SPEC, arch("gfx942"), "fast"))},
    "source": {"candidate": replace(candidate(), source="code ")},
    "knobs": {"candidate": replace(candidate(), knobs=(("BLOCK", 128),))},
    "workspace": {"candidate": replace(candidate(), workspace=())},
    "launch": {"candidate": replace(candidate(), launches=())},
    "emitter version": {"candidate": replace(candidate(), origin=Origin("pointwise", "2"))},
    "weights": {"candidate": replace(candidate(), origin=Origin("pointwise", "1", "abc"))},
    "toolchain": {"target": FakeTarget("2")},
    "executor": {"executor": "amdgpu"},
    "seed": {"seed": 1},
}


@pytest.mark.parametrize("field", CHANGES)
def test_everything_that_changes_the_result_changes_the_key(field: str) -> None:
    assert key(**CHANGES[field]).digest != key().digest
    assert key().digest == key().digest


@pytest.mark.parametrize("name", ["CHECKS_VERSION", "build_id"])
def test_a_new_kvc_does_not_meet_old_verdicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key().digest
    monkeypatch.setattr(store_module, name, "new" if name == "CHECKS_VERSION" else lambda: "new")
    assert key().digest != before


def test_an_altered_or_missing_file_is_no_hit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(key(), verified())
    blob = next(p for p in (tmp_path / "blobs").rglob("*") if p.is_file() and p.read_bytes() == b"\x7fELF")
    blob.write_bytes(b"\x7fELG")
    assert store.get(key()) is None
    store.put(key(), verified())
    assert store.get(key()) == verified()
    blob.unlink()
    assert store.get(key()) is None


def test_a_dead_worker_is_not_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(key(), Rejected("execute", Diagnostic("KVC0604", "died")))
    assert store.get(key()) is None


def test_the_journal_lets_several_runs_share_it(tmp_path: Path) -> None:
    Store(tmp_path)
    mode = sqlite3.connect(tmp_path / "store.sqlite").execute("PRAGMA journal_mode").fetchone()
    assert mode == ("wal",)


def test_the_folder_is_chosen_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_CACHE_DIR", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.delenv("KVC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "kvc"


def test_a_folder_that_cannot_be_used_is_a_diagnostic(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvcError) as caught:
        Store(tmp_path / "file")
    assert caught.value.code == "KVC0803"

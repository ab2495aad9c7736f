"""The folder that carries kvc to a machine without it, and what is checked there first."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kvc.model.shape import Shape
from kvc.model.train import bundle, check
from kvc.model.train.bundle import Part
from kvc.model.train.recipe import Recipe


def test_a_bundle_runs_kvc_with_its_targets_and_commands(tmp_path: Path) -> None:
    bundle.bundle(tmp_path / "bundle")
    code = (
        "import kvc.model.train.judging as j; from kvc.emitter import targets;"
        "from importlib.metadata import entry_points;"
        "print(j.__file__); print(sorted(targets())); print('eval' in entry_points(group='kvc.commands').names)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "bundle")},
    )  # fmt: skip
    where, names, has_eval = done.stdout.splitlines()
    assert where.startswith(str(tmp_path / "bundle")) and names == "['hip', 'triton']" and has_eval == "True"
    assert not list((tmp_path / "bundle").rglob("*.pyc")) and (tmp_path / "bundle" / "unpack.py").is_file()


def test_packages_that_are_there_already_are_taken_from_there(tmp_path: Path) -> None:
    made = tmp_path / "bundle"
    bundle.bundle(made)
    unpack = ["bundle/unpack.py", "nothing", "bundle"]
    bare = [sys.executable, "-S", "-E", *unpack]  # without site-packages
    subprocess.run(bare, cwd=tmp_path, check=True)
    assert (made / "typer").is_dir() and (made / "lark").is_dir()
    subprocess.run([sys.executable, *unpack], cwd=tmp_path, check=True)
    assert not (made / "typer").exists() and not (made / "lark").exists() and (made / "kvc").is_dir()


def test_what_is_packed_comes_back_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lark

    monkeypatch.setattr(bundle, "PARTS", (Part("lark", "lark", "lark.py", ("__init__.py", "grammars")),))
    first = bundle.compiler(tmp_path / "packed")
    times = [p.stat().st_mtime_ns for p in first[:1]]
    assert [p.stat().st_mtime_ns for p in bundle.compiler(tmp_path / "packed")[:1]] == times  # packed once
    (tmp_path / "unpack.py").write_text(bundle.UNPACK)
    made = tmp_path / "there"
    made.mkdir()
    for _ in range(2):  # the second time there is nothing to do
        subprocess.run([sys.executable, "-I", "unpack.py", "packed", "there"], cwd=tmp_path, check=True)
    program, theirs = made / "lark" / "lark.py", Path(lark.__file__).parent
    assert program.read_bytes() == (theirs / "lark.py").read_bytes() and os.access(program, os.X_OK)
    assert (made / "lark" / "grammars").is_dir() and list(made.glob("lark-*.dist-info/METADATA"))


def test_a_machine_is_judged_by_what_works_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, jobs: int) -> None: ...

        def __enter__(self) -> "Silent":
            return self

        def __exit__(self, *_: object) -> None: ...

        def add(self, row: dict[str, Any]) -> None: ...

        def drain(self, seconds: float) -> list[dict[str, Any]]:
            return []

    monkeypatch.setattr("kvc.model.train.judging.Judges", Silent)
    shape = Shape(vocabulary=64, hidden=32, layers=1, heads=2, kv_heads=1, head=16, inner=48, context=64)
    found = check.check(Recipe("tiny", shape=shape), "cpu", 1, 1.0)
    assert found["step"]["tokens_a_second"] > 0 and found["simulator"]["compiled"] in (True, False)
    assert not found["ok"] and not any(row["ok"] for row in found["judges"].values())
    none = check._step(replace(Recipe("tiny", shape=shape)), "xpu:7")
    assert "error" in none

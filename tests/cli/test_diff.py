"""`kvc diff` and `kvc check`, on folders and on git revisions, and what CI runs of them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvc.diff import EVIDENCE, diff, findings
from kvc.findings import LEVELS, RULES, Finding, github, sarif
from kvc.folder import read_folder

from .conftest import Run, run_kvc

SMALL = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1, x.sum(0)


def get_inputs():
    return [torch.randn(5, 3)]
"""

ROOT = Path(__file__).parents[2]
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two kernels, in the place of the larger one that other tests share."""
    path = tmp_path_factory.mktemp("model") / "tiny.py"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def folder(tiny: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVC_CACHE_DIR", str(cache))
        ran = run_kvc("translate", tiny, "-o", out, "--quiet")
    assert ran.code == 0, ran.err
    return out


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def edit_lock(folder: Path, edit: Edit) -> None:
    lock = json.loads((folder / "kvc.lock").read_text())
    edit(lock)
    (folder / "kvc.lock").write_text(json.dumps(lock, indent=2, sort_keys=True) + "\n")


def first(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "kvc.lock").read_text())["kernels"][0]
    return record


def test_the_same_folder_does_not_differ(kvc: Run, folder: Path, copy: Path) -> None:
    (copy / "measurements.json").write_text("{}")  # measurements make no difference
    edit_lock(copy, lambda lock: lock["toolchain"].update(torch="9.9"))
    ran = kvc("diff", folder, copy)
    assert ran.code == 0, ran
    assert "no difference" in ran.out and "torch" in ran.out
    assert json.loads(kvc("diff", folder, copy, "--json").out)["same"]


def test_every_kind_of_change_is_named(kvc: Run, folder: Path, copy: Path) -> None:
    record = first(folder)
    source = copy / record["file"]
    source.write_text(source.read_text().replace("\n", "\nint changed;\n", 1))
    specs = (copy / "kernels.kir").read_text()
    (copy / "kernels.kir").write_text(specs.replace("relu(", "silu("))

    def edit(lock: dict[str, Any]) -> None:
        kernel = lock["kernels"][0]
        (resources,) = kernel["resources"].values()
        resources |= {"vgprs": resources["vgprs"] + 64, "vgpr_spills": 3, "waves_per_simd": 2}
        kernel["knobs"]["BLOCK"] = 64
        kernel["errors"][0]["error"] *= 10
        gone = lock["kernels"].pop()
        lock["kernels"].append({**gone, "name": "renamed"})
        lock["fallbacks"].append({"op": "aten.eig", "reason": "no meaning", "at": "m.py:3"})
        lock["model"]["mode"] = "train"

    edit_lock(copy, edit)
    found = diff(read_folder(str(folder)), read_folder(str(copy)))
    by_name = {k.name: k for k in found.kernels}
    changed = by_name[record["name"]]
    assert {"source", "knobs", "resources", "errors"} <= set(changed.parts)
    assert "+int changed;" in changed.source
    assert {"vgprs", "spills", "waves_per_simd", "error"} <= {v.name for v in changed.worse}
    assert by_name["renamed"].status == "changed" and by_name["renamed"].renamed_from
    assert any("spec" in k.parts and any("silu(" in line for line in k.spec) for k in found.kernels)
    assert found.fallbacks_added == ("aten.eig: no meaning (m.py:3)",) and [v.name for v in found.model] == ["mode"]
    rules = {f.rule for f in findings(found)}
    assert {"kernel-changed", "kernel-worse", "fallback-added", "model-changed"} <= rules
    ran = kvc("diff", folder, copy)
    assert ran.code == 1
    assert "spilled registers" in ran.out and "worse" in ran.out and "+int changed;" in ran.out


def test_added_and_removed_kernels(folder: Path, copy: Path) -> None:
    edit_lock(copy, lambda lock: lock["kernels"].pop(0))
    name = first(folder)["name"]
    for old, new, status in ((folder, copy, "removed"), (copy, folder, "added")):
        found = diff(read_folder(str(old)), read_folder(str(new)))
        assert [(k.name, k.status) for k in found.kernels if k.status != "same"] == [(name, status)]
        assert not found.same and not found.same_code


def test_moved_lines_of_the_model_are_no_other_code(folder: Path, copy: Path) -> None:
    for path in (*copy.glob("*.kir"), *copy.glob("kernels/*.hip"), copy / "module.py"):
        path.write_text(path.read_text().replace("tiny.py:", "tiny.py:1"))

    def edit(lock: dict[str, Any]) -> None:
        for kernel in lock["kernels"]:
            kernel["origin"] = [at.replace(":", ":1") for at in kernel["origin"]]

    edit_lock(copy, edit)
    found = diff(read_folder(str(folder)), read_folder(str(copy)))
    assert not found.same and found.same_code
    assert all(set(k.parts) <= set(EVIDENCE) for k in found.kernels)


@pytest.fixture
def repository(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with the translation checked in as `kernels/tiny`."""
    root = copy.parent / "repository"
    (root / "kernels").mkdir(parents=True)
    shutil.copytree(copy, root / "kernels" / "tiny")
    monkeypatch.chdir(root)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=false")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "--no-verify", "--no-gpg-sign", "-m", "kernels"], check=True)
    return root


def test_a_folder_against_a_revision(kvc: Run, repository: Path) -> None:
    assert kvc("diff", "HEAD:kernels/tiny", "kernels/tiny").code == 0
    source = repository / "kernels/tiny" / first(repository / "kernels/tiny")["file"]
    source.write_text("// mine\n" + source.read_text())
    ran = kvc("diff", "HEAD:kernels/tiny", "kernels/tiny", "--github")
    assert ran.code == 1 and "+// mine" in ran.out
    assert f"::notice file=kernels/tiny/kernels/{source.name},line=1,title=kvc kernel-changed::" in ran.out
    for bad in ("nowhere:kernels/tiny", "HEAD:kernels", "missing"):
        ran = kvc("diff", bad, "kernels/tiny")
        assert ran.code == 2 and "KVC0802" in ran.err, bad


def test_sarif_and_annotations_say_what_was_found(tmp_path: Path) -> None:
    found = [Finding(rule, LEVELS[n % 3], "50% more,\nsee: a", "k,1:2.hip", n) for n, rule in enumerate(RULES)]
    log = sarif(found)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and len(run["results"]) == len(RULES)
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1
    line = github(found[:1])
    assert line == "::error file=k%2C1%3A2.hip,line=0,title=kvc kernel-added::50%25 more,%0Asee: a"
    with pytest.raises(ValueError, match="no rule"):
        Finding("of-thumb", "note", "")


# ---------------------------------------------------------------- check


def test_a_checked_in_folder_is_reproduced(kvc: Run, folder: Path, tiny: Path, tmp_path: Path) -> None:
    ran = kvc("check", folder, "--model", tiny, "--sarif", tmp_path / "x.sarif", "--json")
    result = json.loads(ran.out)
    assert ran.code == 0 and result["ok"] and result["folders"][0]["difference"]["same"]
    assert json.loads((tmp_path / "x.sarif").read_text())["runs"][0]["results"] == []


def test_another_model_is_not_what_was_checked_in(kvc: Run, folder: Path, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "tiny.py"
    other.write_text(tiny.read_text().replace("torch.relu", "torch.tanh"))
    ran = kvc("check", folder, "--model", other)
    assert ran.code == 1 and "translate again" in ran.out and "NOT as verified" in ran.out


def test_altered_files_are_found_by_their_hashes(kvc: Run, copy: Path) -> None:
    assert kvc("check", copy, "--quick").code == 0
    record = first(copy)
    (copy / record["file"]).write_text("// nothing\n")
    (copy / next(iter(record["code_objects"]))).unlink()
    (copy / "kernels" / "more.hip").write_text("")
    ran = kvc("check", copy, "--quick", "--json")
    messages = [f["message"] for f in json.loads(ran.out)["folders"][0]["findings"]]
    assert ran.code == 1 and len(messages) == 3
    assert all(any(word in m for m in messages) for word in ("is missing", "hash", "not part"))
    assert kvc("check", copy.parent, "--quick").code == 2


# ---------------------------------------------------------------- CI


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script as CI runs it: bash that stops at the first failure, with kvc on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_pre_commit_hook(repository: Path) -> None:
    yaml = pytest.importorskip("yaml")
    import re

    hook = next(h for h in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()) if h["id"] == "kvc-check")
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    chosen = [f for f in files if re.search(hook["files"], f)]
    assert len(chosen) >= len(files) - 2  # all but measurements.json and report.html
    (repository / "module.py").write_text("somebody else's\n")
    command = f"{hook['entry']} {shlex.join([*chosen, 'module.py'])}"
    assert shell(command, repository).returncode == 0
    lock = repository / "kernels/tiny/graph.kir"
    lock.write_text(lock.read_text() + "# more\n")
    done = shell(command, repository)
    assert done.returncode == 1 and "graph.kir" in done.stdout


def test_the_github_action(repository: Path, tiny: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    inputs = {name: str(i.get("default", "")) for name, i in action["inputs"].items()}
    inputs |= {"folder": "kernels/tiny", "model": str(tiny), "base": "HEAD", "sarif": str(tmp_path / "kvc.sarif")}
    summary = tmp_path / "summary.md"
    steps = [s for s in action["runs"]["steps"] if "run" in s and s["id"] != "install"]
    assert [s["id"] for s in steps] == ["check", "diff"]
    for step in steps:
        environment = dict(step["env"])
        for key, value in step["env"].items():
            for name, given in inputs.items():
                environment[key] = environment[key].replace(f"${{{{ inputs.{name} }}}}", given)
            assert "${{" not in environment[key], value
        assert "${{" not in step["run"]  # inputs reach the shell as variables, never as text of the script
        done = shell(step["run"], repository, GITHUB_STEP_SUMMARY=str(summary), **environment)
        assert done.returncode == 0, done
    assert "no difference" in summary.read_text()
    assert json.loads((tmp_path / "kvc.sarif").read_text())["version"] == "2.1.0"


def test_the_gitlab_template(repository: Path) -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((ROOT / "ci/gitlab.yml").read_text())[".kvc-check"]
    variables = {k: v for k, v in job["variables"].items() if k != "KVC_CACHE_DIR"}
    variables |= {"KVC_FOLDER": "kernels/tiny", "KVC_BASE": "HEAD"}
    done = shell("\n".join(job["script"]), repository, **variables)
    assert done.returncode == 0, done
    assert "no difference" in done.stdout and (repository / "kvc.sarif").is_file()

"""What is shipped: every package and data file of the checkout, and a wheel that works where nothing else of it is."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def setuptools_table() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return found


def folder_of(package: str) -> Path:
    """Where the files of a package are in the checkout."""
    roots: dict[str, str] = setuptools_table()["package-dir"]
    name = max((r for r in roots if package == r or package.startswith(f"{r}.")), key=len)
    return ROOT / roots[name] / Path(*package.removeprefix(name).strip(".").split("."))


def tracked() -> set[Path]:
    """Files of the package folders that belong to the source: those that version control has, where there is one."""
    tops = [ROOT / top for top in setuptools_table()["package-dir"].values()]
    done = subprocess.run(["git", "ls-files", *map(str, tops)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return {ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()}
    return {p for top in tops for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


def shipped() -> Iterator[Path]:
    """The files that setuptools takes, by what pyproject.toml says."""
    table = setuptools_table()
    for package in table["packages"]:
        folder = folder_of(package)
        patterns = ["*.py", *table["package-data"].get("*", ()), *table["package-data"].get(package, ())]
        for file in folder.rglob("*"):
            relative = file.relative_to(folder).as_posix()
            if file.is_file() and any(_matches(relative, pattern) for pattern in patterns):
                yield file


def _matches(path: str, pattern: str) -> bool:
    """As setuptools globs: `**` is any number of folders, anything else stays within one."""
    if "**" in pattern:
        return fnmatch.fnmatch(path, pattern.replace("**/", "")) and path.startswith(pattern.partition("**")[0])
    return path.count("/") == pattern.count("/") and fnmatch.fnmatch(path, pattern)


def test_every_file_of_the_packages_is_shipped() -> None:
    assert sorted(str(p.relative_to(ROOT)) for p in tracked() - set(shipped())) == []


def test_every_package_is_there() -> None:
    assert [p for p in setuptools_table()["packages"] if not (folder_of(p) / "__init__.py").is_file()] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it, as `python -m build` makes them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "out")
    for name in (*setuptools_table()["package-dir"].values(), "pyproject.toml", "README.md", "LICENSE"):
        target = source / name
        shutil.copytree(ROOT / name, target, ignore=ignored) if (ROOT / name).is_dir() else shutil.copy(
            ROOT / name, target
        )
    hook = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", hook, "build_sdist", str(out)], cwd=source, check=True, capture_output=True)
    (archive,) = out.glob("*.tar.gz")
    shutil.unpack_archive(archive, out / "unpacked")
    (unpacked,) = (out / "unpacked").iterdir()
    subprocess.run([sys.executable, "-c", hook, "build_wheel", str(out)], cwd=unpacked, check=True, capture_output=True)
    return out


@pytest.mark.long
def test_the_wheel_of_the_sdist_holds_the_checkout(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if not n.partition("/")[0].endswith(".dist-info")}
    roots = {value: key.replace(".", "/") for key, value in setuptools_table()["package-dir"].items()}
    wanted = set()
    for file in shipped():
        top, _, rest = file.relative_to(ROOT).as_posix().partition("/")
        wanted.add(f"{roots[top]}/{rest}")
    assert names == wanted


@pytest.mark.long
def test_the_wheel_translates_a_model_by_itself(built: Path, tmp_path: Path) -> None:
    """In an environment that has kvc's dependencies, but no checkout."""
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    # The dependencies are this environment's; its own kvc, where it is linked to a checkout, is not found that way.
    dependencies = sysconfig.get_paths()["purelib"]
    environment = {**os.environ, "PYTHONPATH": dependencies, "KVC_CACHE_DIR": str(tmp_path / "cache")}

    def run(*words: str) -> str:
        done = subprocess.run([str(python), *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in run("-c", "import kvc, kvc.bench, kvc.vault, kvc.model; print(kvc.__file__)")
    for target in ("hip", "triton"):
        run("-m", "kvc", "translate", "examples/mlp.py", "--target", target, "-o", f"out/{target}")
        assert (tmp_path / "out" / target / "report.html").is_file()
    assert "hip" in run("-m", "kvc", "doctor")

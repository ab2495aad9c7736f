"""A folder that runs kvc on a machine which has Python and torch but no kvc and no network: put it on PYTHONPATH.

    python -m kvc.model.train.bundle build/bundle
    PYTHONPATH=build/bundle python3 -m kvc model train sft ...

It holds kvc as it is installed here, its entry points, and the pure-Python packages that its command line needs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from pathlib import Path

#: Pure Python, and not on every machine that has torch.
PACKAGES = ("lark", "typer", "click", "rich", "markdown-it-py", "mdurl", "pygments", "shellingham", "typing-extensions",
            "annotated-doc", "pyyaml")  # fmt: skip
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")


def copy_package(name: str, folder: Path) -> None:
    """Copy the installed files of a distribution, its metadata included; nothing where it is not installed."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or source.suffix == ".so" or not source.is_file():
            continue
        target = folder / str(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def copy_kvc(folder: Path) -> None:
    """Copy kvc, following the links of an editable install, and what says where its entry points are."""
    from setuptools.config.pyprojecttoml import read_configuration

    root = Path(__file__).resolve().parents[2]
    places = read_configuration(root / "pyproject.toml")["tool"]["setuptools"]["package-dir"]
    for package, place in sorted(places.items()):
        if (root / place).is_dir():
            shutil.copytree(root / place, folder / package.replace(".", "/"), ignore=_SKIPPED, dirs_exist_ok=True)
    info = folder / "kvc-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvc\nVersion: 0\n")
    groups = importlib.metadata.distribution("kvc").entry_points
    lines = [f"[{g}]\n" + "".join(f"{e.name} = {e.value}\n" for e in groups if e.group == g) for g in _groups(groups)]
    (info / "entry_points.txt").write_text("\n".join(lines))


def _groups(entries: importlib.metadata.EntryPoints) -> list[str]:
    return sorted({e.group for e in entries if e.group != "console_scripts"})


def bundle(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_kvc(folder)
    for name in PACKAGES:
        copy_package(name, folder)


if __name__ == "__main__":
    bundle(Path(sys.argv[1]))

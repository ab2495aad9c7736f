"""A folder that runs kvc on a machine which has Python and torch but no kvc and no network: put it on PYTHONPATH.

    python -m kvc.model.train.bundle build/bundle --compiler build/compiler     # here
    python3 build/bundle/unpack.py build/compiler build/bundle                  # there
    PYTHONPATH=build/bundle python3 -m kvc model train check ...

It holds kvc as it is installed here, its entry points, and the pure-Python packages that its command line needs. The
compiler (of HIP, and of the simulator's fast tier) is packed apart, since packing takes minutes and it seldom changes:
one program and the C headers of the ziglang package, all that kvc uses of it, 40 MiB instead of 100.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import lzma
import shutil
import sys
from collections.abc import Sequence
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


#: What kvc uses of ziglang's library: the compiler's own headers, and the file by which it finds its library.
_LIBRARY = ("include", "std/std.zig")


def compiler(folder: Path) -> Path:
    """Pack the compiler into one file, unless it is there for the installed version. KVC0501 without ziglang."""
    import tarfile

    from kvc.diagnostics import KvcError

    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise KvcError("KVC0501", "ziglang is not installed", hint="pip install 'ziglang>=0.17,<0.18'")
    root, version = Path(next(iter(spec.submodule_search_locations))), importlib.metadata.version("ziglang")
    made = folder / f"ziglang-{version}.tar.xz"
    if made.is_file():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    temporary = made.with_suffix(".tmp")
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 64 << 20}]
    with lzma.open(temporary, "wb", filters=filters) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("zig", "__init__.py", *(f"lib/{n}" for n in _LIBRARY)):
            if (root / name).exists():
                archive.add(root / name, f"ziglang/{name}")
        info = root.parent / f"ziglang-{version}.dist-info"
        archive.add(info / "METADATA", f"{info.name}/METADATA")
    temporary.replace(made)
    return made


#: Runs there, where nothing of kvc can be imported yet.
UNPACK = '''\
"""Unpack the compiler's archive (or archives) of FOLDER into BUNDLE: python3 unpack.py FOLDER BUNDLE"""

import pathlib, sys, tarfile

for file in sorted(pathlib.Path(sys.argv[1]).glob("*.tar.xz")):
    if not (pathlib.Path(sys.argv[2]) / "ziglang" / "zig").is_file():
        with tarfile.open(file, "r:xz") as archive:
            archive.extractall(sys.argv[2], filter="data")
'''


def bundle(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_kvc(folder)
    for name in PACKAGES:
        copy_package(name, folder)
    (folder / "unpack.py").write_text(UNPACK)


def main(arguments: Sequence[str]) -> None:
    """`FOLDER [--compiler FOLDER]`."""
    bundle(Path(arguments[0]))
    if "--compiler" in arguments:
        made = compiler(Path(arguments[arguments.index("--compiler") + 1]))
        print(f"{made}: {made.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])

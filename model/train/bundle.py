"""A folder that runs kvc on a machine which has Python and torch but no kvc and no network: put it on PYTHONPATH.

    python -m kvc.model.train.bundle build/bundle --compiler build/compiler     # here
    python3 build/bundle/unpack.py build/compiler build/bundle                  # there
    PYTHONPATH=build/bundle python3 -m kvc model train check ...

It holds kvc as it is installed here, its entry points, and the pure-Python packages that its command line needs. The
compiler (of HIP and of the simulator's fast tier, and the parser that lint reads HIP with) is packed apart, since
packing takes minutes and it seldom changes: 55 MiB instead of 500.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import lzma
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Pure Python, and not on every machine that has torch.
PACKAGES = ("lark", "typer", "click", "rich", "markdown-it-py", "mdurl", "pygments", "shellingham", "typing-extensions",
            "annotated-doc", "pyyaml")  # fmt: skip
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")


def copy_package(name: str, folder: Path) -> list[str]:
    """Copy the installed files of a distribution, its metadata included; nothing where it is not installed. Gives what
    lies in `folder` for it."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return []
    made: set[str] = set()
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or source.suffix == ".so" or not source.is_file():
            continue
        target = folder / str(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        made.add(file.parts[0])
    return sorted(made)


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


@dataclass(frozen=True)
class Part:
    """A distribution whose one large file, and what it needs beside that, travel: files below `package`."""

    distribution: str
    package: str
    program: str
    beside: tuple[str, ...]


#: The compiler's own headers are all that kvc uses of ziglang's library, and std.zig is how it finds that.
PARTS = (
    Part("ziglang", "ziglang", "zig", ("__init__.py", "lib/include", "lib/std/std.zig")),
    Part("libclang", "clang", "native/libclang.so", ("__init__.py", "cindex.py", "enumerations.py",
                                                     "native/__init__.py")),
)  # fmt: skip


def compiler(folder: Path) -> list[Path]:
    """Pack what HIP's gates need, two files a part: its program and what stands beside it. A program that is packed
    already stays. KVC0501 for what is not installed."""
    import tarfile

    from kvc.diagnostics import KvcError

    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for part in PARTS:
        spec = importlib.util.find_spec(part.package)
        if spec is None or not spec.submodule_search_locations:
            raise KvcError("KVC0501", f"{part.distribution} is not installed", hint="pip install kvc")
        root, version = Path(next(iter(spec.submodule_search_locations))), importlib.metadata.version(part.distribution)
        stem = f"{part.distribution}-{version}"
        program, beside = folder / f"{stem}.program.xz", folder / f"{stem}.tar.xz"
        if not program.is_file():
            temporary = program.with_suffix(".tmp")
            with (root / part.program).open("rb") as source, lzma.open(temporary, "wb", filters=_FILTERS) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
            temporary.replace(program)
        with tarfile.open(beside, "w:xz") as archive:
            for name in part.beside:
                archive.add(root / name, f"{part.package}/{name}")
            info = root.parent / f"{stem}.dist-info"
            archive.add(info / "METADATA", f"{info.name}/METADATA")
        (folder / f"{stem}.where").write_text(f"{part.package}/{part.program}")
        made += [program, beside]
    return made


#: x86 code packs a third better with its filter.
_FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 64 << 20}]

#: Runs there, where nothing of kvc can be imported yet.
UNPACK = '''\
"""Unpack the compiler of FOLDER into BUNDLE, once: python3 unpack.py FOLDER BUNDLE

Of the packages that came along, those that the Python here has are removed: its own fit what else it has."""

import importlib.metadata, json, lzma, pathlib, shutil, sys, tarfile

source, bundle = map(pathlib.Path, sys.argv[1:3])
here = [path for path in sys.path if pathlib.Path(path or ".").resolve() != bundle.resolve()]
listed = bundle / "packages.json"
for name, parts in json.loads(listed.read_text() if listed.is_file() else "{}").items():
    if next(iter(importlib.metadata.distributions(name=name, path=here)), None) is None:
        continue
    for part in map(bundle.joinpath, parts):
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)
for where in source.glob("*.where"):
    program = bundle / where.read_text().strip()
    if program.is_file():
        continue
    with tarfile.open(where.with_suffix(".tar.xz"), "r:xz") as archive:
        archive.extractall(bundle, filter="data")
    made = program.with_suffix(".tmp")
    with lzma.open(where.with_suffix(".program.xz")) as stream, made.open("wb") as out:
        shutil.copyfileobj(stream, out, 1 << 20)
    made.chmod(0o755)
    made.replace(program)
'''


def bundle(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_kvc(folder)
    packages = {name: copy_package(name, folder) for name in PACKAGES}
    (folder / "packages.json").write_text(json.dumps(packages))
    (folder / "unpack.py").write_text(UNPACK)


def main(arguments: Sequence[str]) -> None:
    """`FOLDER [--compiler FOLDER]`."""
    bundle(Path(arguments[0]))
    if "--compiler" in arguments:
        for made in compiler(Path(arguments[arguments.index("--compiler") + 1])):
            print(f"{made}: {made.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A library's headers as an installation would lay them out, made from its checkout without running its build.

A build does three things to headers that users see: it fills in templates (`version.h.in`), writes export macros
(CMake's GenerateExportHeader) and puts everything below a folder that the checkout may not have (`<mylib/mylib.h>`
stands in `library/include/mylib.h`). Each is repeated here into a folder of its own; the checkout is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_VARIABLE = re.compile(r"@[A-Za-z_]\w*@|\$\{[A-Za-z_]\w*\}")
_CMAKE_DEFINE = re.compile(r"^[ \t]*#[ \t]*cmakedefine(01)?[ \t]+(\w+)[^\n]*$", re.MULTILINE)
_EXPORT = re.compile(r"^(?P<name>\w[\w.-]*?)[-_]export\.h(?:pp)?$")
_HEADERS = (".h", ".hpp", ".hh", ".cuh", ".inl", ".ipp")

#: What the resource folder of a ROCm clang holds and HIP's headers include by name: device overloads of host functions.
#: Syntax is checked on the host side, where the host's own functions serve, so that each may be empty.
_WRAPPERS = (
    "__clang_cuda_math_forward_declares.h", "__clang_cuda_complex_builtins.h", "__clang_hip_math.h",
    "__clang_hip_cmath.h", "__clang_hip_libdevice_declares.h", "__clang_hip_stdlib.h",
    "include/cuda_wrappers/algorithm", "include/cuda_wrappers/complex", "include/cuda_wrappers/new",
)  # fmt: skip


def headers_in(folder: Path) -> list[Path]:
    """Headers below a folder, in order."""
    return sorted(p for p in folder.rglob("*") if p.suffix in _HEADERS and p.is_file())


def lay_out(own: Sequence[Path], others: Sequence[Path], into: Path) -> dict[Path, str]:
    """Write below `into` (empty, to be searched after `own` and `others`) what an installation adds to the folders
    `own` of a checkout. Gives, for a folder whose headers are included with a prefix that it lacks, that prefix."""
    prefixes: dict[Path, str] = {}
    wanted = _wanted(own)
    for folder in own:
        for name in sorted(wanted):
            prefix, _, rest = name.rpartition("/")
            missing = not any((place / name).is_file() for place in (*own, *others))
            if prefix and missing and (folder / rest).is_file():
                prefixes.setdefault(folder, prefix)
    for folder, prefix in prefixes.items():
        _mirror(folder, into / prefix)
    for folder in own:
        for template in sorted(p for p in folder.rglob("*.in") if Path(p.stem).suffix in _HEADERS):
            text = configured(template.read_text(encoding="utf-8", errors="replace"))
            relative = template.relative_to(folder).with_suffix("")
            places = {relative, Path(relative.name), Path(prefixes.get(folder, "")) / relative}
            # Under the name by which headers include it, whatever the checkout's own folders are.
            places |= {Path(name) for name in wanted if name.rpartition("/")[2] == relative.name and ".." not in name}
            for place in places:
                _write(into / place, text)
    for name in wanted:
        found = _EXPORT.match(name.rpartition("/")[2])
        if found and ".." not in name and not any((place / name).is_file() for place in (*own, *others, into)):
            _write(into / name, export_header(found["name"]))
    return prefixes


def configured(text: str) -> str:
    """A template as CMake's configure_file would write it, each variable a zero: versions and switches."""
    text = _CMAKE_DEFINE.sub(lambda m: f"#define {m[2]} 0" if m[1] else f"/* #undef {m[2]} */", text)
    return _VARIABLE.sub("0", text)


def export_header(name: str) -> str:
    """What CMake's GenerateExportHeader writes for a library, as its users see it on Linux (module documentation)."""
    base = re.sub(r"\W", "_", name).upper()
    visible, hidden = '__attribute__((visibility("default")))', '__attribute__((visibility("hidden")))'
    old = "__attribute__((__deprecated__))"
    rows = {
        "EXPORT": visible, "NO_EXPORT": hidden, "DEPRECATED": old, "DEPRECATED_EXPORT": f"{visible} {old}",
        "DEPRECATED_NO_EXPORT": f"{hidden} {old}",
    }  # fmt: skip
    return "#pragma once\n" + "".join(f"#define {base}_{key} {value}\n" for key, value in rows.items())


def compiler_wrappers(into: Path) -> None:
    """The empty headers that stand for the resource folder of a ROCm clang."""
    for name in _WRAPPERS:
        _write(into / name, "")


def _wanted(folders: Iterable[Path]) -> set[str]:
    """Names that the headers below these folders include."""
    names: set[str] = set()
    for folder in folders:
        for path in headers_in(folder):
            names |= set(_INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")))
    return {name for name in names if not name.startswith("/")}


def _mirror(folder: Path, target: Path) -> None:
    for path in headers_in(folder):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(path)


def _write(path: Path, text: str) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


__all__ = ["compiler_wrappers", "configured", "export_header", "headers_in", "lay_out"]

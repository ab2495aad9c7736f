"""Whether a piece of C++ or HIP passes the compiler's front end: the bundled clang, host side, with given headers.

No ROCm is needed where the library's headers and HIP's own (`-I`) are given. Nothing is built or run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvc.diagnostics import KvcError
from kvc.vault.installed import compiler_wrappers, lay_out

#: What libc++ expects of its installer; the bundled compiler sets these by itself only in modes that know no HIP.
_LIBCXX = {
    "_LIBCPP_ABI_VERSION": "1", "_LIBCPP_ABI_NAMESPACE": "__1", "_LIBCPP_HAS_THREADS": "1",
    "_LIBCPP_HAS_MONOTONIC_CLOCK": "1", "_LIBCPP_HARDENING_MODE": "_LIBCPP_HARDENING_MODE_NONE",
    "_LIBCPP_ASSERTION_SEMANTIC_DEFAULT": "_LIBCPP_ASSERTION_SEMANTIC_IGNORE", "_LIBCPP_PSTL_BACKEND_SERIAL": "",
    "_LIBCPP_HAS_FILESYSTEM": "1", "_LIBCPP_HAS_LOCALIZATION": "1", "_LIBCPP_HAS_WIDE_CHARACTERS": "1",
    "_LIBCPP_HAS_UNICODE": "1", "_LIBCPP_HAS_TIME_ZONE_DATABASE": "1", "_LIBCPP_HAS_RANDOM_DEVICE": "1",
    "_LIBCPP_HAS_TERMINAL": "1", "_LIBCPP_HAS_MUSL_LIBC": "0", "_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS": "0",
}  # fmt: skip
#: What headers written for an older clang or libc++ rely on: the wave size as a macro, and a trait that libc++ had.
_OLDER = {"__AMDGCN_WAVEFRONT_SIZE": "64", "__AMDGCN_WAVEFRONT_SIZE__": "64"}
_OLDER_TEXT = """#ifdef __cplusplus
namespace std { template <class T> struct __numeric_type; }
#endif
#ifdef __HIP__
// Declared for host code by the header that a ROCm clang includes first.
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
#endif
"""
#: Errors of a newer clang about headers that the library's own compiler takes.
_LENIENT = ("-Wno-invalid-specialization", "-Wno-missing-template-arg-list-after-template-kw")
_ERROR = re.compile(r"^(?:.*?:)?\s*(?:fatal )?error: (.*)$", re.MULTILINE)
_HEAD = re.compile(r"\A(?:\s*#[ \t]*include[ \t]*<[^>\n]+>[ \t]*(?:\n|\Z))+")
_INCLUDES = re.compile(r"^[ \t]*#[ \t]*include[^\n]*(?:\n|\Z)", re.MULTILINE)
#: A function or type defined at the left margin says that an example is a file.
_IS_FILE = re.compile(
    r"^(?!if|for|while|switch|else|do\b)[\w:<>,*& ]+\([^;{}]*\)\s*\{|^(?:struct|class|template|namespace)\b",
    re.MULTILINE,
)
#: What a reader of an excerpt takes for granted.
_EVERYDAY = ("cstddef", "cstdint", "iostream", "string", "vector")
_LIMIT_S = 120.0
_ELIDED = re.compile(
    r"(?P<keep>//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|catch\s*\(\s*\.\.\.\s*\))"
    r"|(?P<value>\s*=\s*\.\.\.\s*(?=;))|(?P<list>\(\s*\.\.\.\s*\))|(?P<line>^[ \t]*\.\.\.[ \t]*;?[ \t]*$)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Failed:
    """Why code does not compile: the first error."""

    why: str


@dataclass(frozen=True)
class Shown:
    """Code that compiled. `text`: the example as it may be shown; `form`: the file that was compiled."""

    text: str
    form: str


class FrontEnd:
    """`include`: folders searched for headers, in order. `own`: those of them that belong to a checkout and have not
    been through its build (kvc.vault.installed). `macros`: NAME or NAME=VALUE, defined everywhere. Files that it needs
    live in a temporary folder and go with it."""

    def __init__(self, include: Sequence[Path], own: Sequence[Path] = (), macros: Sequence[str] = ()) -> None:
        self._macros = [f"-D{m}" for m in macros]
        self._folder = tempfile.TemporaryDirectory(prefix="kvc-qa-")
        self._work = Path(self._folder.name)
        made, wrappers = self._work / "made", self._work / "wrappers"
        made.mkdir()
        wrappers.mkdir()
        compiler_wrappers(wrappers)
        #: Folder of a checkout -> how an installation calls it in an include, where the checkout lacks that folder.
        self.prefixes = lay_out(own, [p for p in include if p not in own], made)
        self.include = [str(p) for p in (*include, made)]
        self._wrappers = str(wrappers)
        self._older = self._work / "older.h"
        self._older.write_text(_OLDER_TEXT, encoding="utf-8")
        names = [*_EVERYDAY, *(h for h in ("hip/hip_runtime.h",) if any((Path(p) / h).is_file() for p in self.include))]
        self.everyday = "".join(f"#include <{name}>\n" for name in names)
        self._heads: dict[str, str] = {}
        self._head_file = ("", self._work / "head.pch")

    def parse_args(self) -> list[str]:
        """Arguments for libclang, which reads declarations and can do without what is missing. C's headers alone are
        given: libclang is older than the bundled C++ library and does not read it."""
        system = [w for p in _compiler()[1][1:] for w in ("-isystem", p)]
        macros = [f"-D{name}={value}" for name, value in _OLDER.items()]
        first = [
            "-x",
            "c++",
            "-std=c++17",
            "-nostdinc",
            "-D__HIP_PLATFORM_AMD__",
            "-ferror-limit=0",
            *macros,
            *self._macros,
        ]
        return [*first, *(f"-I{p}" for p in self.include), *system]

    def problem(self, code: str, beside: Sequence[Path] = (), *, is_c: bool = False) -> str:
        """The first error, "" for none. Headers included first are compiled once for all pieces of code that begin with
        the same ones. KVC0501 without the bundled compiler."""
        head = _HEAD.match(code)
        words: list[str] = []
        if head and not is_c and not beside:
            wrong = self._precompiled(head[0])
            if wrong:
                return wrong
            words = ["-include-pch", str(self._head_file[1])]
            code = "\n" * head[0].count("\n") + code[head.end() :]
        return self._run(code, words, beside, is_c)[0]

    def _precompiled(self, head: str) -> str:
        """Make the precompiled form of these includes the current one; their own first error, "" for none."""
        if self._heads.get(head) or self._head_file[0] == head:
            return self._heads[head]
        # The compiler writes the precompiled file to its standard output where it is asked for syntax alone.
        wrong, made = self._run(head, ["-Xclang", "-emit-pch"], (), False, name="head.hpp")
        self._heads[head] = wrong
        if not wrong:
            self._head_file[1].write_bytes(made)
            self._head_file = (head, self._head_file[1])
        return wrong

    def _run(
        self, code: str, more: Sequence[str], beside: Sequence[Path], is_c: bool, name: str = "code.cpp"
    ) -> tuple[str, bytes]:
        zig, folders = _compiler()
        words = [zig, "clang", "-fsyntax-only", "-w", *_LENIENT, "-nostdinc", "--target=x86_64-linux-gnu"]
        words += ["-D__HIP_PLATFORM_AMD__", *self._macros, "-include", str(self._older)]
        if is_c:
            words += ["-x", "c"]
        else:
            words += ["-x", "hip", "--cuda-host-only", "-nogpuinc", "-nogpulib", "-std=c++17"]
            words += [f"-D{name}={value}" for name, value in {**_LIBCXX, **_OLDER}.items()]
        words += [w for p in folders[is_c:] for w in ("-isystem", p)]
        words += [f"-I{p}" for p in (*beside, *self.include)] + ["-isystem", self._wrappers]
        path = self._work / name
        path.write_text(code, encoding="utf-8")
        try:
            done = subprocess.run([*words, *more, str(path)], capture_output=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"compiles for more than {_LIMIT_S:.0f} s", b""
        if done.returncode == 0:
            return "", done.stdout
        errors = [e for e in _ERROR.findall(done.stderr.decode(errors="replace")) if e.strip()]
        return (errors[0][:300] if errors else f"the compiler ended with status {done.returncode}"), b""

    def compiled_form(self, example: str, headers: Sequence[str]) -> Shown | Failed:
        """The form of an example that compiles: as it is, with these headers, or as the body of a function; then the
        same with what its author left out written as valid code. The reason is that of the example as it stands."""
        first: Failed | None = None
        for text in dict.fromkeys((example, completed(example))):
            made = self._as_file_or_body(text, headers)
            if isinstance(made, Shown):
                return made
            first = first or made
        return first or Failed("nothing to compile")

    def _as_file_or_body(self, example: str, headers: Sequence[str]) -> Shown | Failed:
        includes = "".join(f"{line.strip()}\n" for line in _INCLUDES.findall(example))
        rest = _INCLUDES.sub("", example)
        head = self.everyday + "".join(f"#include <{h}>\n" for h in headers) + includes
        first = ""
        forms = [f"{head}{rest}", f"{head}void example() {{\n{rest}\n}}\n"]
        for form in forms if _IS_FILE.search(rest) else forms[::-1]:
            problem = self.problem(form)
            if not problem:
                return Shown(example, form)
            first = first or problem
        return Failed(first)


def completed(example: str) -> str:
    """An example whose author wrote `...` for a value, an argument list or statements, as code that says so in
    comments: `int v = ...;` becomes `int v{/* ... */};`. What cannot be filled in (one argument of several) stays."""

    def filled(found: re.Match[str]) -> str:
        if found["keep"] is not None:
            return found["keep"]
        if found["value"] is not None:
            return "{/* ... */}"
        if found["list"] is not None:
            return "(/* ... */)"
        return found["line"].replace("...", "// ...").rstrip(";")

    return _ELIDED.sub(filled, example)


@cache
def _compiler() -> tuple[str, tuple[str, ...]]:
    """(the compiler, folders of system headers, that of C++ first)."""
    import importlib.util

    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise KvcError("KVC0501", "ziglang is not installed", hint="pip install 'ziglang>=0.17,<0.18'")
    root = Path(spec.submodule_search_locations[0])
    lib = root / "lib"
    names = ("x86_64-linux-gnu", "x86-linux-gnu", "generic-glibc", "x86-linux-any", "any-linux-any")
    found = [lib / "libcxx" / "include", lib / "include", *(lib / "libc" / "include" / n for n in names)]
    zig = next((p for n in ("zig", "zig.exe") if (p := root / n).is_file()), root / "zig")
    return str(zig), tuple(str(p) for p in found if p.is_dir())

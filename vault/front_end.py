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

#: What libc++ expects of its installer; the bundled compiler sets these by itself only in modes that know no HIP.
_LIBCXX = {
    "_LIBCPP_ABI_VERSION": "1", "_LIBCPP_ABI_NAMESPACE": "__1", "_LIBCPP_HAS_THREADS": "1",
    "_LIBCPP_HAS_MONOTONIC_CLOCK": "1", "_LIBCPP_HARDENING_MODE": "_LIBCPP_HARDENING_MODE_NONE",
    "_LIBCPP_ASSERTION_SEMANTIC_DEFAULT": "_LIBCPP_ASSERTION_SEMANTIC_IGNORE", "_LIBCPP_PSTL_BACKEND_SERIAL": "",
    "_LIBCPP_HAS_FILESYSTEM": "1", "_LIBCPP_HAS_LOCALIZATION": "1", "_LIBCPP_HAS_WIDE_CHARACTERS": "1",
    "_LIBCPP_HAS_UNICODE": "1", "_LIBCPP_HAS_TIME_ZONE_DATABASE": "1", "_LIBCPP_HAS_RANDOM_DEVICE": "1",
    "_LIBCPP_HAS_TERMINAL": "1", "_LIBCPP_HAS_MUSL_LIBC": "0", "_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS": "0",
}  # fmt: skip
_ERROR = re.compile(r"^(?:.*?:)?\s*(?:fatal )?error: (.*)$", re.MULTILINE)
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Failed:
    """Why code does not compile: the first error."""

    why: str


class FrontEnd:
    """`include`: folders searched for headers, in order."""

    def __init__(self, include: Sequence[Path]) -> None:
        self.include = [str(p) for p in include]

    def parse_args(self) -> list[str]:
        """Arguments for libclang, which reads declarations and can do without what is missing."""
        return ["-x", "c++", "-std=c++17", "-D__HIP_PLATFORM_AMD__", *(f"-I{p}" for p in self.include)]

    def problem(self, code: str, beside: Path | None = None, *, is_c: bool = False) -> str:
        """The first error, "" for none. KVC0501 without the bundled compiler."""
        zig, folders = _compiler()
        words = [
            zig,
            "clang",
            "-fsyntax-only",
            "-w",
            "-nostdinc",
            "--target=x86_64-linux-gnu",
            "-D__HIP_PLATFORM_AMD__",
        ]
        if is_c:
            words += ["-x", "c"]
        else:
            words += ["-x", "hip", "--cuda-host-only", "-nogpuinc", "-nogpulib", "-std=c++17"]
            words += [f"-D{name}={value}" for name, value in _LIBCXX.items()]
        words += [w for p in folders[is_c:] for w in ("-isystem", p)]
        words += [f"-I{p}" for p in ([str(beside)] if beside else [])] + [f"-I{p}" for p in self.include]
        with tempfile.TemporaryDirectory(prefix="kvc-qa-") as folder:
            path = Path(folder) / "code.cpp"
            path.write_text(code, encoding="utf-8")
            try:
                done = subprocess.run(
                    [*words, str(path)], capture_output=True, text=True, timeout=_LIMIT_S, check=False, errors="replace"
                )
            except subprocess.TimeoutExpired:
                return f"compiles for more than {_LIMIT_S:.0f} s"
        if done.returncode == 0:
            return ""
        errors = [e for e in _ERROR.findall(done.stderr) if e.strip()]
        return errors[0][:300] if errors else f"the compiler ended with status {done.returncode}"

    def compiled_form(self, example: str, header: str) -> str | Failed:
        """The form of an example that compiles: as it is, with its header, or as the body of a function."""
        includes = "".join(re.findall(r"^\s*#\s*include[^\n]*\n?", example, re.MULTILINE))
        rest = example.replace(includes, "") if includes else example
        head = includes + (f"#include <{header}>\n" if header and header not in includes else "")
        first = ""
        # A function definition at the left margin says that the example is a file.
        is_file = re.search(r"^(?!if|for|while|switch)[\w:<>,*& ]+\([^;{}]*\)\s*\{", rest, re.MULTILINE)
        forms = [f"{head}{rest}", f"{head}void example() {{\n{rest}\n}}\n"]
        for form in forms if is_file else forms[::-1]:
            problem = self.problem(form)
            if not problem:
                return form
            first = first or problem
        return Failed(first)


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

"""Compiles and loads the second tier: once for a version of its source, a compiler and a processor, then from disk."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_FLAGS = (
    "-O2", "-march=native", "-shared", "-fPIC", "-ffreestanding", "-nostdlib", "-fno-math-errno", "-ffp-contract=off",
    "-fno-strict-aliasing", "-fno-sanitize=all", "-fno-stack-protector", "-mprefer-vector-width=512", "-std=gnu11",
)  # fmt: skip
_TIMEOUT_S = 300
_MACHINE = ("state.h", "alu.h", "memory.h", "lds.h", "lanes.h", "machine.h")  # in this order


class Unavailable(Exception):
    """Why there is no second tier on this machine."""


def source() -> str:
    """The whole C source: helpers, the ALU made from the opcode table, the machine."""
    from kvc.simulator.native.source import alu_source

    here = Path(__file__).parent
    parts = {name: (here / name).read_text(encoding="utf-8") for name in ("ops.h", *_MACHINE)}
    return "\n".join([parts["ops.h"], alu_source(), *(parts[name] for name in _MACHINE)])


def _processor() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor()
    keep = ("model name", "flags", "Features", "CPU part")
    lines = [line for line in info.read_text().splitlines() if line.startswith(keep)]
    return "\n".join(sorted(set(lines)))


def _compiler() -> Path:
    spec = importlib.util.find_spec("ziglang")
    folder = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    zig = next((path for name in ("zig", "zig.exe") if folder and (path := folder / name).is_file()), None)
    if zig is None:
        raise Unavailable("the ziglang package, which carries the C compiler, is not installed")
    return zig


def library() -> ctypes.CDLL:
    """The compiled machine, built at most once in a process. Unavailable where it cannot be built or loaded."""
    found = _load()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@cache
def _load() -> ctypes.CDLL | str:
    try:
        return _open()
    except Unavailable as problem:
        return str(problem)


def _open() -> ctypes.CDLL:
    from kvc.store import cache_dir

    zig, text = _compiler(), source()
    parts = (text, " ".join(_FLAGS), importlib.metadata.version("ziglang"), _processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = cache_dir() / "simulator" / f"{key}.so"
    try:
        if not target.is_file():
            _compile(zig, text, target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise Unavailable(f"the compiled simulator cannot be stored or loaded: {error}") from None


def _compile(zig: Path, text: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvc-sim-") as folder:
        work = Path(folder)
        (work / "machine.c").write_text(text, encoding="utf-8")
        command = [str(zig), "cc", *_FLAGS, "machine.c", "-o", "machine.so"]
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TMPDIR": folder, "HOME": folder}
        try:
            done = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"compiling the simulator took more than {_TIMEOUT_S} s") from None
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "unknown error")
            raise Unavailable(f"the simulator does not compile: {first}")
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_bytes((work / "machine.so").read_bytes())
        os.replace(fresh, target)

"""Compile HIP device source for NVIDIA: NVRTC where its library and headers are, else nvcc.

The source is the same text that hipcc compiles; `<hip/hip_runtime.h>` resolves to kvc's HIP-to-CUDA header. CUDA's
default of fusing multiply-adds is left on: what is seen on NVIDIA is a second opinion under a tolerance, never evidence
for a gfx kernel.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvc.arch import arch as arch_row
from kvc.backends.hip.toolchain import COMPILE_TIMEOUT_S, INCLUDE_DIR, CodeObject, device_headers_hash
from kvc.diagnostics import KvcError, Location

FLAGS = ("--std=c++17", "--fmad=true", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")

_SOURCE_NAME = "kernel.hip"
_INSTALL_HINT = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime (or a CUDA build of torch), or put nvcc on the PATH"
# Both compilers write `file(12): error: text`.
_ERROR = re.compile(r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class CudaCompiler:
    """`kind` is "nvrtc" (`path` of the library, `headers` with cuda_fp16.h) or "nvcc" (`path` of the program)."""

    kind: str
    path: str
    headers: tuple[str, ...] = ()


def discover() -> list[CudaCompiler]:
    """The CUDA compilers on this machine, preferred first; empty when there is none."""
    found = []
    library = next((path for root in _roots() for path in _libraries(root)), None)
    headers = next((str(path.parent) for root in _roots() for path in _headers(root)), None)
    if library is not None and headers is not None:
        found.append(CudaCompiler("nvrtc", str(library), (headers,)))
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is not None:
        found.append(CudaCompiler("nvcc", nvcc))
    return found


def _roots() -> list[Path]:
    """Folders under which a CUDA toolkit may lie: NVIDIA's Python wheels, then an installed toolkit."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]
    variables = [Path(value) for name in ("CUDA_HOME", "CUDA_PATH") if (value := os.environ.get(name))]
    return [*wheels, *variables, Path("/usr/local/cuda")]


def _libraries(root: Path) -> Iterator[Path]:
    for pattern in ("lib64/libnvrtc.so*", "lib/libnvrtc.so*", "targets/*/lib/libnvrtc.so*", "*/lib/libnvrtc.so*"):
        yield from sorted(path for path in root.glob(pattern) if "static" not in path.name)


def _headers(root: Path) -> Iterator[Path]:
    for pattern in ("include/cuda_fp16.h", "targets/*/include/cuda_fp16.h", "*/include/cuda_fp16.h"):
        yield from sorted(root.glob(pattern))


def compile_for_cuda(source: str, arch: str, *, compiler: str = "auto", name: str = _SOURCE_NAME) -> CodeObject:
    """A cubin for an NVIDIA row of `arch.py`; `asm` of the result is empty (SASS has no use here).

    Kernels must be `extern "C"`. Raises KVC0105 (no such row, or not NVIDIA), KVC0501 (no compiler), KVC0502 (errors,
    with line).
    """
    if arch_row(arch).vendor != "nvidia":
        raise KvcError("KVC0105", f"{arch} is not an NVIDIA GPU", hint="use kvc.backends.hip.toolchain.compile_hip")
    found = next((item for item in discover() if compiler in ("auto", item.kind)), None)
    if found is None:
        raise KvcError("KVC0501", f"no CUDA compiler (wanted: {compiler})", hint=_INSTALL_HINT)
    build = _with_nvrtc if found.kind == "nvrtc" else _with_nvcc
    binary, log, version = build(found, source, arch, name)
    record = {"name": found.kind, "version": version, "flags": list(FLAGS), "device_headers": device_headers_hash()}
    return CodeObject("", binary, record, log)


def _include_flags(*folders: str) -> list[str]:
    return [f"-I{folder}" for folder in (*folders, INCLUDE_DIR / "cuda")]


# ---- nvcc -----------------------------------------------------------------------------------------------------------


def _with_nvcc(compiler: CudaCompiler, source: str, arch: str, name: str) -> tuple[bytes, str, str]:
    with tempfile.TemporaryDirectory(prefix="kvc-cuda-") as folder:
        work = Path(folder)
        (work / _SOURCE_NAME).write_text(source, encoding="utf-8")
        command = [compiler.path, "-x", "cu", "-cubin", f"-arch={arch}", *FLAGS, *_include_flags()]
        done = _run([*command, _SOURCE_NAME, "-o", "kernel.cubin"], work)
        log = (done.stdout + done.stderr).replace(_SOURCE_NAME, name)
        if done.returncode != 0:
            raise _compile_error(log, name)
        return (work / "kernel.cubin").read_bytes(), log, _nvcc_version(compiler.path)


@cache
def _nvcc_version(path: str) -> str:
    lines = _run([path, "--version"], Path.cwd()).stdout.splitlines()
    return next((line.strip() for line in lines if "release" in line), "unknown")


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KvcError("KVC0502", f"nvcc ran longer than {COMPILE_TIMEOUT_S} s", hint="simplify the kernel") from None


def _compile_error(log: str, name: str) -> KvcError:
    errors = [{"file": m["file"], "line": int(m["line"]), "message": m["text"]} for m in _ERROR.finditer(log)]
    if not errors:
        first = next((line for line in log.splitlines() if line.strip()), "no message")
        return KvcError("KVC0502", first, Location(name), errors=[], log=log)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    place = Location(str(errors[0]["file"]), int(str(errors[0]["line"])))
    return KvcError("KVC0502", f"{errors[0]['message']}{more}", place, errors=errors, log=log)


# ---- NVRTC ----------------------------------------------------------------------------------------------------------


def _with_nvrtc(compiler: CudaCompiler, source: str, arch: str, name: str) -> tuple[bytes, str, str]:
    library = ctypes.CDLL(compiler.path)
    program = ctypes.c_void_p()
    text, title = source.encode(), name.encode()
    _nvrtc(library, "nvrtcCreateProgram", ctypes.byref(program), text, title, 0, None, None)
    try:
        folders = _include_flags(*compiler.headers, str(INCLUDE_DIR / "cuda" / "rtc"))
        options = [flag.encode() for flag in (f"--gpu-architecture={arch}", *FLAGS, *folders)]
        status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _nvrtc_output(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != 0:
            raise _compile_error(log, name)
        return _nvrtc_output(library, program, "CUBIN"), log, _nvrtc_version(library)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(library, function)(*arguments)
    if status != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise KvcError("KVC0502", f"{function} returned {status} ({library.nvrtcGetErrorString(status).decode()})")


def _nvrtc_output(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _nvrtc(library, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    _nvrtc(library, f"nvrtcGet{what}", program, buffer)
    return buffer.raw[: size.value]


def _nvrtc_version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc(library, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"

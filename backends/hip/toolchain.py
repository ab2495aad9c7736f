"""Compile HIP device code to assembly and a code object, with nothing but pip where there is no ROCm.

Three toolchains, in order of preference under ``"auto"``:

``bundled``   the clang 22 and ld.lld inside the `ziglang` wheel, AMD's device libraries inside the `triton` wheel and
              kvc's own device headers. Hermetic: pinned wheels give the same bytes on every machine.
``hipcc``     ROCm's compiler with ROCm's headers: the last word on a machine that has it.
``clang-19``  Debian's clang with Debian's HIP headers and device libraries; kvc supplies the control constants, since
              that package lacks one for the newer chips. It knows no chip newer than itself.

Every toolchain goes the same way: source -> assembly text -> object -> shared code object. The text is therefore
exactly what the binary holds, which the simulator, the resource check and a reader all rely on.

Floating point: ``-ffp-contract=on``. HIP's own default (fast-honor-pragmas) fuses a multiply and an add wherever they
meet, across statements too; that would fuse through the typed temporaries in which a spec says "rounded here", and
break error-compensated sums. ``on`` fuses within one expression alone, so ``acc += a * b`` is still one fma and a
separate statement is still a separate rounding. Division and square root in fp32 are correctly rounded, and
denormals are kept.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError, Location

INCLUDE_DIR = Path(__file__).parent / "include"

#: What a kernel source puts at its top instead of the bare include, when it reads KVC_WAVE_SIZE or KVC_HAS_MFMA:
#: kvc's headers define both, a real hipcc defines neither.
PROLOGUE = """\
#include <hip/hip_runtime.h>
#ifndef KVC_WAVE_SIZE
#define KVC_WAVE_SIZE 64
#if defined(__HIP_DEVICE_COMPILE__)
#define KVC_HAS_MFMA 1
#else
#define KVC_HAS_MFMA 0
#endif
#endif
"""

#: Flags that decide what the code means or how fast it is; the same for every toolchain and part of the cache key.
CODE_FLAGS = (
    "-O3",
    "-std=c++17",
    "-ffp-contract=on",
    "-fhip-fp32-correctly-rounded-divide-sqrt",
    "-mcode-object-version=5",
    # No access below the alignment of its elements' words: legal on these GPUs, but slow, and a fault when simulated.
    *("-Xclang", "-target-feature", "-Xclang", "-unaligned-access-mode"),
)

COMPILE_TIMEOUT_S = 120
_SOURCE_NAME = "kernel.hip"
_TARGET = "amdgcn-amd-amdhsa"
_INSTALL_HINT = "pip install 'ziglang>=0.17,<0.18' 'triton>=3.6,<3.10', or install ROCm so that hipcc is on the PATH"
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)
_LINK_ERROR = re.compile(r"^(?:\S*ld\.lld|lld): error: (?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class CodeObject:
    """What a compilation gives.

    `asm` is the assembly text, `binary` the ELF code object linked from exactly that text, `toolchain` a JSON-able
    record (name, version, flags, device_headers, device_libraries) that belongs in the cache key, `log` the
    compiler's warnings (empty when there were none).
    """

    asm: str
    binary: bytes
    toolchain: dict[str, Any]
    log: str = ""


@dataclass(frozen=True)
class ToolchainInfo:
    """One usable HIP toolchain: its name, version line, compiler and linker."""

    name: str
    version: str
    compiler: tuple[str, ...]  # command that takes clang's arguments for HIP
    assembler: tuple[str, ...]  # command that takes clang's arguments for an assembly file
    linker: tuple[str, ...]  # command that takes ld.lld's arguments
    hermetic: bool = False
    device_libraries: str = ""  # version of the device libraries, for the record
    library_paths: tuple[str, ...] = ()  # bitcode to link; empty when the compiler finds its own
    extra_flags: tuple[str, ...] = field(default=())

    def describe(self) -> str:
        return f"{self.name}: {self.version}, device libraries: {self.device_libraries}"

    def record(self) -> dict[str, Any]:
        """The deterministic part, for lock files and cache keys: no paths."""
        return {
            "name": self.name,
            "version": self.version,
            "flags": list(CODE_FLAGS),
            "device_headers": device_headers_hash() if self.hermetic else "vendor",
            "device_libraries": self.device_libraries,
        }


# ---- finding toolchains ---------------------------------------------------------------------------------------------


def discover() -> list[ToolchainInfo]:
    """Every toolchain on this machine, preferred first; empty when there is none. Asks each compiler once a process."""
    return [info for info in (_find_bundled(), _find_hipcc(os.environ.get("PATH", "")), _find_debian()) if info]


def select(toolchain: str = "auto") -> ToolchainInfo:
    """The toolchain of that name, or the preferred one. KVC0501 when it is not there."""
    found = discover()
    for info in found:
        if toolchain in ("auto", info.name):
            return info
    if toolchain not in ("auto", "bundled", "hipcc", "clang-19"):
        raise KvcError("KVC0501", f"no toolchain named {toolchain!r}", hint="one of: auto, bundled, hipcc, clang-19")
    what = "no HIP compiler" if toolchain == "auto" else f"toolchain {toolchain!r} is not on this machine"
    present = ", ".join(info.name for info in found)
    raise KvcError("KVC0501", what, hint=_INSTALL_HINT + (f" (found: {present})" if present else ""))


def _package_dir(package: str) -> Path | None:
    """Where a package lies, without importing it (triton's import costs most of a second)."""
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


@cache
def _find_bundled() -> ToolchainInfo | None:
    zig_dir, triton_dir = _package_dir("ziglang"), _package_dir("triton")
    if zig_dir is None or triton_dir is None:
        return None
    # The wheel's `python -m ziglang` only re-executes this file; calling it directly saves an interpreter start.
    zig = next((path for name in ("zig", "zig.exe") if (path := zig_dir / name).is_file()), None)
    libraries = [triton_dir / "backends" / "amd" / "lib" / name for name in ("ocml.bc", "ockl.bc")]
    if zig is None or not all(path.is_file() for path in libraries):
        return None
    return ToolchainInfo(
        name="bundled",
        version=f"ziglang {importlib.metadata.version('ziglang')}, {_version_line((str(zig), 'clang'))}",
        compiler=(str(zig), "clang"),
        assembler=(str(zig), "clang"),
        linker=(str(zig), "ld.lld"),
        hermetic=True,
        device_libraries=f"triton {importlib.metadata.version('triton')}",
        library_paths=tuple(str(path) for path in libraries),
        extra_flags=("-fdeclspec", "-nogpuinc", "-nogpulib", "-nostdinc", *_include_flags()),
    )


@lru_cache(maxsize=8)
def _find_hipcc(search_path: str) -> ToolchainInfo | None:
    hipcc = shutil.which("hipcc", path=search_path) or shutil.which("hipcc", path="/opt/rocm/bin")
    if hipcc is None:
        return None
    banner = _run([hipcc, "--version"]).stdout
    installed = re.search(r"^InstalledDir: (.+)$", banner, re.MULTILINE)
    clang = Path(installed.group(1).strip()) / "clang" if installed else None
    linker = clang.with_name("ld.lld") if clang else None
    if clang is None or linker is None or not clang.is_file() or not linker.is_file():
        return None
    version = ", ".join(line.strip() for line in banner.splitlines() if "version" in line)
    return ToolchainInfo("hipcc", version, (hipcc,), (str(clang),), (str(linker),), device_libraries="ROCm's own")


@cache
def _find_debian() -> ToolchainInfo | None:
    clang = shutil.which("clang-19")
    linker = shutil.which("ld.lld-19") or shutil.which("ld.lld")
    headers = Path("/usr/include/hip/hip_runtime.h")
    roots = (Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"), Path("/usr/amdgcn/bitcode"))
    # hip.bc holds the barrier and fence functions that the headers of that time call.
    names = ("hip.bc", "ocml.bc", "ockl.bc")
    root = next((path for path in roots if all((path / name).is_file() for name in names)), None)
    if clang is None or linker is None or root is None or not headers.is_file():
        return None
    return ToolchainInfo(
        name="clang-19",
        version=_version_line((clang,)),
        compiler=(clang,),
        assembler=(clang,),
        linker=(linker,),
        device_libraries="Debian rocm-device-libs",
        library_paths=tuple(str(root / name) for name in names),
        extra_flags=("-nogpulib", "--rocm-path=/usr", "-D__HIP_PLATFORM_AMD__=1"),
    )


def _version_line(command: Sequence[str]) -> str:
    return next(iter(_run([*command, "--version"]).stdout.splitlines()), "unknown version").strip()


def _include_flags() -> tuple[str, ...]:
    return ("-isystem", str(INCLUDE_DIR), "-isystem", str(INCLUDE_DIR / "c"))


@cache
def device_headers_hash() -> str:
    """SHA-256 (16 hex digits) over kvc's device headers: a change in one is a change of the compiler's input."""
    digest = hashlib.sha256()
    for path in sorted(path for path in INCLUDE_DIR.rglob("*") if path.is_file()):
        digest.update(path.relative_to(INCLUDE_DIR).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# ---- compiling ------------------------------------------------------------------------------------------------------


def compile_hip(source: str, arch: str, *, toolchain: str = "auto", name: str = _SOURCE_NAME) -> CodeObject:
    """Compile HIP device source for one GPU.

    `arch` is an `arch.py` row of vendor "amd"; `name` is only how the source is called in messages. The result depends
    on the source, the arch and the toolchain alone: files have fixed names in a fresh folder, and no path enters the
    output.
    Raises KVC0105 (unknown arch), KVC0501 (no toolchain), KVC0502 (does not compile: location, `details["errors"]`).
    """
    row = arch_row(arch)
    if row.vendor != "amd":
        hint = "HIP code for NVIDIA goes through kvc.backends.device.cuda"
        raise KvcError("KVC0105", f"{arch} is not an AMD GPU", hint=hint)
    info = select(toolchain)
    with tempfile.TemporaryDirectory(prefix="kvc-hip-") as folder:
        work = Path(folder)
        (work / _SOURCE_NAME).write_text(source, encoding="utf-8")
        log = _step(info, [*info.compiler, *_compile_arguments(info, arch, work)], work, name)
        asm = (work / "kernel.s").read_text(encoding="utf-8")
        _assemble_and_link(info, arch, work, name)
        binary = (work / "kernel.co").read_bytes()
    return CodeObject(asm, binary, info.record(), log)


def assemble(asm: str, arch: str, *, toolchain: str = "auto") -> bytes:
    """Turn assembly text back into a linked code object (ELF bytes). KVC0502 when it does not assemble."""
    info = select(toolchain)
    with tempfile.TemporaryDirectory(prefix="kvc-asm-") as folder:
        work = Path(folder)
        (work / "kernel.s").write_text(asm, encoding="utf-8")
        _assemble_and_link(info, arch, work, "kernel.s")
        return (work / "kernel.co").read_bytes()


def warm(arch: str) -> None:
    """Find the toolchain and make the constants of a chip: once for a process and all that are forked from it."""
    info = select()
    if info.library_paths:
        _control_constants(info, arch)


def check_syntax(source: str, arch: str, *, toolchain: str = "auto", name: str = _SOURCE_NAME) -> None:
    """Parse and type-check only, about a third of a compilation. KVC0502 when the source has errors."""
    info = select(toolchain)
    with tempfile.TemporaryDirectory(prefix="kvc-hip-") as folder:
        work = Path(folder)
        (work / _SOURCE_NAME).write_text(source, encoding="utf-8")
        _step(info, [*info.compiler, *_front_end_flags(info, arch), "-fsyntax-only", _SOURCE_NAME], work, name)


def _front_end_flags(info: ToolchainInfo, arch: str) -> list[str]:
    device_only = "--cuda-device-only" if info.name == "hipcc" else "--offload-device-only"
    return ["-x", "hip", f"--offload-arch={arch}", device_only, *CODE_FLAGS, *info.extra_flags, "-fuse-cuid=none"]


def _compile_arguments(info: ToolchainInfo, arch: str, work: Path) -> list[str]:
    arguments = _front_end_flags(info, arch)
    if info.library_paths:
        (work / "control.bc").write_bytes(_control_constants(info, arch))
        for library in (*info.library_paths, "control.bc"):
            arguments += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", library]
    return [*arguments, "-S", _SOURCE_NAME, "-o", "kernel.s"]


def _assemble_and_link(info: ToolchainInfo, arch: str, work: Path, name: str) -> None:
    to_object = [f"--target={_TARGET}", f"-mcpu={arch}", "-nogpulib", "-c", "kernel.s", "-o", "kernel.o"]
    _step(info, [*info.assembler, *to_object], work, name)
    _step(info, [*info.linker, "-shared", "--no-undefined", "kernel.o", "-o", "kernel.co"], work, name)


def isa_version(arch: str) -> int:
    """The device libraries' number of a chip, from its name: gfx<major><minor hex><stepping hex> -> e.g. 9402."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]) * 1000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)


@lru_cache(maxsize=16)
def _control_constants(info: ToolchainInfo, arch: str) -> bytes:
    """Bitcode of the seven globals by which AMD's device libraries are specialised; made once per arch and process."""
    constants = (
        ("ISA_version", "i32", isa_version(arch)),
        ("ABI_version", "i32", 500),  # code object version 5
        ("finite_only_opt", "i8", 0),
        ("unsafe_math_opt", "i8", 0),
        ("daz_opt", "i8", 0),
        ("correctly_rounded_sqrt32", "i8", 1),
        ("wavefrontsize64", "i8", 1),
    )
    text = f'target triple = "{_TARGET}"\n' + "".join(
        f"@__oclc_{name} = linkonce_odr hidden local_unnamed_addr addrspace(4) constant {kind} {value}\n"
        for name, kind, value in constants
    )
    with tempfile.TemporaryDirectory(prefix="kvc-ll-") as folder:
        work = Path(folder)
        (work / "control.ll").write_text(text, encoding="utf-8")
        command = [f"--target={_TARGET}", f"-mcpu={arch}", "-nogpulib", "-Wno-override-module", "-emit-llvm", "-c"]
        _step(info, [*info.assembler, *command, "control.ll", "-o", "control.bc"], work, "control.ll")
        return (work / "control.bc").read_bytes()


# ---- running a compiler ---------------------------------------------------------------------------------------------


def _environment(info: ToolchainInfo, work: Path) -> Mapping[str, str]:
    """A hermetic compiler sees no variable of the user's (CPATH and kin would change what it reads)."""
    if info.hermetic:
        return {"PATH": os.defpath, "LC_ALL": "C", "TMPDIR": str(work), "HOME": str(work)}
    return {**os.environ, "LC_ALL": "C"}


def _run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **options)


def _step(info: ToolchainInfo, command: Sequence[str], work: Path, name: str) -> str:
    """Run one tool in `work`; its diagnostics on success, KVC0502 on failure."""
    try:
        done = _run(command, cwd=work, env=_environment(info, work), timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise KvcError(
            "KVC0502", f"the compiler ran longer than {COMPILE_TIMEOUT_S} s", Location(name), hint="simplify the kernel"
        ) from None
    log = done.stderr.replace(str(INCLUDE_DIR), "<kvc>").replace(_SOURCE_NAME, name)
    if done.returncode != 0:
        raise _compile_error(done.returncode, log, name)
    return log


def _compile_error(status: int, log: str, name: str) -> KvcError:
    errors = [
        {"file": m["file"], "line": int(m["line"]), "column": int(m["column"]), "message": m["text"]}
        for m in _ERROR.finditer(log)
    ]
    own = [error for error in errors if error["file"] == name]
    first = own[0] if own else (errors[0] if errors else None)
    if first is not None:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        place = Location(str(first["file"]), int(str(first["line"])))
        return KvcError("KVC0502", f"{first['message']}{more}", place, errors=errors, log=log)
    link = _LINK_ERROR.search(log)
    if link:
        hint = "device code must define every function that it calls" if "undefined symbol" in link["text"] else ""
        return KvcError("KVC0502", link["text"], Location(name), hint=hint, errors=[], log=log)
    lines = [line for line in log.splitlines() if line.strip()]
    message = f"compiler exited with status {status}: {lines[0] if lines else 'no message'}"
    return KvcError("KVC0502", message, Location(name), errors=[], log=log)

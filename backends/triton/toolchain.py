"""Compile Triton kernels ahead of time, for any GPU of the architecture table and without one.

The source of a candidate is a Python file with `@triton.jit` functions. It is written to a private folder (Triton
reads a kernel's text from its file), imported from there, and each launch is compiled with `triton.compile` for the
target's row in `arch.py`: to assembly text and a code object for gfx9, to PTX and a cubin for NVIDIA.

The result depends on the source, the launch options, the architecture and the Triton version alone. Line information
is off, since it would write the private path into the binary; Triton's cache lives in the private folder, since a
shared one can hold binaries of another configuration; knobs that users set in their environment and that change code
are set to fixed values; and all of it is put back afterwards.

Floating point: `enable_fp_fusion` is always stated, because Triton's default changes with its version. Strict
numerics turn it off: the compiler's fusion works across statements, so it would fuse through the typed temporaries
in which a spec says "rounded here". Emitters write `tl.fma` where one rounding is meant.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import linecache
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kvc.arch import ArchSpec
from kvc.backends.triton.addressing import offsets_stay_positive
from kvc.diagnostics import Diagnostic, KvcError, Location
from kvc.emitter import Candidate, CodeObject, Compiled, Launch, Task

SOURCE_NAME = "kernel.py"

#: The type of a pointer's elements in Triton's signatures, by kvc dtype.
ELEMENT: dict[str, str] = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16",
    "f8e4m3fn": "fp8e4nv", "f8e4m3fnuz": "fp8e4b8", "f8e5m2": "fp8e5", "f8e5m2fnuz": "fp8e5b16",
    "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "u8": "u8", "bool": "i1",
}  # fmt: skip

#: A kernel that does next to nothing, to have Triton do once what it does once in a process.
_SMALL = """import triton
import triton.language as tl


@triton.jit
def small(x):
    tl.store(x, 0.0)
"""

#: Launch options that only one kind of GPU knows; the others' are left out, so that one source serves all.
_AMD_ONLY = frozenset({"waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint"})
#: LLVM else merges loads of bf16 neighbours at odd offsets into one of 8 bytes that is not aligned to a word: legal on
#: these GPUs, but slow, and a fault when simulated. The HIP toolchain says the same by a flag. Triton 3.6 and 3.7 lack
#: the option and ignore it.
_ALIGNED = "target-features=-unaligned-access-mode"
_INSTALL_HINT = "pip install 'triton>=3.6,<3.10'"


@dataclass(frozen=True)
class Argument:
    """A kernel parameter as Triton's compiler is told about it."""

    type: str  # of Triton's signature, e.g. "*fp32"
    aligned: bool = False  # the pointer is a multiple of 16 bytes
    small: bool = False  # every byte offset into it fits in 32 bits, which allows buffer instructions

    @property
    def attributes(self) -> list[list[str | int]]:
        found: list[list[str | int]] = []
        if self.aligned:
            found.append(["tt.divisibility", 16])
        if self.small:
            found.append(["tt.pointer_range", 32])
        return found


@cache
def version() -> str:
    """Triton's version; KVC0501 when it is not installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise KvcError("KVC0501", "Triton is not installed", hint=_INSTALL_HINT) from None


def toolchain() -> dict[str, str]:
    """Name and version, for lock files and cache keys."""
    return {"name": "triton", "version": version()}


def argument(task: Task, candidate: Candidate, name: str) -> Argument:
    """How the launch argument `name` is declared: an operand, a scratch buffer, or `#axis`, the i64 extent of an axis.
    KVC0603 when it is none of them."""
    if name.startswith("#"):
        return Argument("i64")
    spec = task.spec
    if name in spec.operand:
        operand = spec.operand[name]
        extents = [s.size for s in map(spec.size.__getitem__, operand.dims)]
        known = [e for e in extents if e is not None]
        reach = sum(max(e - 1, 0) * s for e, s in zip(known, spec.strides_of(name), strict=False)) + 1
        near = len(known) == len(extents) and reach * operand.dtype.bytes < 2**31
        small = near and offsets_stay_positive(spec, name)
        return Argument("*" + ELEMENT[operand.dtype.name], operand.align % 16 == 0, small and task.arch.vendor == "amd")
    for scratch in candidate.workspace:
        if scratch.name == name:
            return Argument("*" + ELEMENT[scratch.dtype], True)
    raise KvcError("KVC0603", f"launch argument {name!r} is neither an operand nor a scratch buffer")


def compile_candidate(candidate: Candidate) -> Compiled:
    """Compile every kernel that the candidate launches.

    Raises KVC0501 (no Triton), KVC0502 (the source does not import or compile: location, `details["kernel"]`) and
    KVC0603 (the launches do not fit the kernels' parameters).
    """
    # The figures stand in LLVM's metadata, whoever drove it.
    from kvc.backends.hip.resources import Resources, parse

    started = time.perf_counter()
    version()
    objects: dict[str, CodeObject] = {}
    resources: dict[str, Resources] = {}
    with _private_module(candidate.source) as (module, path), _fixed_knobs(path.parent):
        for launch in candidate.launches:
            if launch.kernel not in objects:
                code = objects[launch.kernel] = _compile_launch(candidate, launch, module)
                if candidate.task.arch.vendor == "amd":
                    used = parse(code.asm)[launch.kernel]
                    # Triton asks for its LDS at the launch.
                    resources[launch.kernel] = replace(used, lds_bytes=max(used.lds_bytes, code.lds_bytes))
    return Compiled(objects, time.perf_counter() - started, dict(resources))


@cache
def warm(arch: ArchSpec) -> None:
    """Compile a small kernel of our own: imports, the hash of Triton's files and LLVM's tables then are there for every
    process forked from this one. It leaves no thread behind."""
    import triton
    from kvc.backends.hip import resources as _resources  # noqa: F401 (what `compile_candidate` imports)
    from triton.compiler import ASTSource
    from triton.language.extra import libdevice as _libdevice  # noqa: F401 (what kernels import)

    version()
    with _private_module(_SMALL) as (module, path), _fixed_knobs(path.parent):
        source = ASTSource(module.small, {"x": "*fp32"}, {}, {})
        triton.compile(source, target=gpu_target(arch), options={"enable_fp_fusion": False})


def confirm(candidate: Candidate, compiled: Compiled) -> list[Diagnostic]:
    """KVC0502 for each code object that is not what Triton's own assembler and linker make of its assembly text.

    Importing the source ran the candidate's Python in the process that compiled it. The text is what is executed and
    judged on the simulator; this ties the binary to it, with none of the candidate's code in the process."""
    from triton.backends.amd.compiler import HIPBackend
    from triton.backends.compiler import GPUTarget

    arch = candidate.task.arch
    if arch.vendor != "amd":
        return []
    backend = HIPBackend(GPUTarget("hip", arch.name, arch.wave_size))
    wrong = []
    for launch in candidate.launches:
        code = compiled.objects[launch.kernel]
        options = backend.parse_options(launch_options(launch, arch, candidate.task.numerics))
        try:
            linked = backend.make_hsaco(code.asm, {}, options)
        except (RuntimeError, ValueError, AssertionError) as error:
            return [Diagnostic("KVC0502", f"{launch.kernel}: its assembly text does not assemble: {error}")]
        if linked != code.binary:
            wrong.append(Diagnostic("KVC0502", f"{launch.kernel}: the binary is not what its assembly text says"))
    return wrong


@contextmanager
def _private_module(source: str) -> Iterator[tuple[ModuleType, Path]]:
    """The source as a module that no one else can import, under a fixed file name in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kvc-triton-") as folder:
        path = Path(folder) / SOURCE_NAME
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("kvc_kernel", path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        try:
            # Compiled here, not by the import system: no .pyc, no entry in sys.modules.
            exec(compile(source, str(path), "exec"), module.__dict__)
        except SyntaxError as error:
            raise _does_not_compile(f"{error.msg}", error.lineno or 0) from error
        except (NameError, AttributeError, TypeError, ValueError, ImportError) as error:
            raise _does_not_compile(f"the file does not import: {error}", _line_in(error, path)) from error
        try:
            yield module, path
        finally:
            linecache.cache.pop(str(path), None)


@contextmanager
def _fixed_knobs(folder: Path) -> Iterator[None]:
    """Triton's settings that change code, at fixed values; the user's own come back afterwards."""
    from triton import knobs

    with ExitStack() as stack:
        for group in (knobs.cache, knobs.compilation, knobs.runtime, knobs.language, knobs.amd, knobs.nvidia):
            stack.enter_context(group.scope())
        knobs.cache.dir = str(folder / "cache")
        knobs.compilation.disable_line_info = True
        knobs.compilation.override = False
        knobs.compilation.dump_ir = False
        knobs.compilation.always_compile = True
        knobs.runtime.override_arch = None
        knobs.runtime.interpret = False
        yield


def gpu_target(arch: ArchSpec) -> Any:
    """Triton's name of an architecture-table row."""
    from triton.backends.compiler import GPUTarget

    if arch.vendor == "amd":
        return GPUTarget("hip", arch.name, arch.wave_size)
    return GPUTarget("cuda", int(arch.name.partition("_")[2]), arch.wave_size)


def launch_options(launch: Launch, arch: ArchSpec, numerics: str) -> dict[str, Any]:
    """The launch's options as `triton.compile` takes them: those of the GPU's kind, fp-fusion always stated."""
    options: dict[str, Any] = {"enable_fp_fusion": numerics == "fast"}
    if arch.vendor == "amd":
        options["llvm_fn_attrs"] = _ALIGNED
    options |= {k: v for k, v in launch.options if arch.vendor == "amd" or k not in _AMD_ONLY}
    return options


def _compile_launch(candidate: Candidate, launch: Launch, module: ModuleType) -> CodeObject:
    import triton
    from triton.compiler import ASTSource

    function = getattr(module, launch.kernel, None)
    if not isinstance(function, triton.JITFunction):
        raise _does_not_compile(f"the file has no @triton.jit function {launch.kernel!r}", 0)
    task, arch = candidate.task, candidate.task.arch
    signature, constants, attributes = _signature(candidate, launch, function)
    source = ASTSource(function, signature, constants, attributes)
    options = launch_options(launch, arch, task.numerics)
    kernel = _guarded(function, lambda: triton.compile(source, target=gpu_target(arch), options=options))
    if int(kernel.metadata.shared) > arch.lds_bytes:
        used = f"{int(kernel.metadata.shared):,} bytes of LDS, of {arch.lds_bytes:,} on {arch.name}"
        raise _does_not_compile(f"{launch.kernel} takes {used}", _first_line(function))
    text, binary = ("amdgcn", "hsaco") if arch.vendor == "amd" else ("ptx", "cubin")
    record = (*sorted(toolchain().items()), ("options", ", ".join(f"{k}={v}" for k, v in sorted(options.items()))))
    return CodeObject(
        asm=kernel.asm[text],
        binary=kernel.asm[binary],
        toolchain=record,
        lds_bytes=int(kernel.metadata.shared),
        extra_pointers=_extra_pointers(kernel.asm[text], launch, arch),
    )


def _signature(
    candidate: Candidate, launch: Launch, function: Any
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[str | int]]]]:
    """Types, constants (parameters marked tl.constexpr take their defaults) and attributes of a kernel's parameters."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[str | int]]] = {}
    given = iter(launch.args)
    for position, parameter in enumerate(function.params):
        if parameter.is_constexpr:
            if not parameter.has_default:
                message = f"{launch.kernel}: constexpr parameter {parameter.name} has no default"
                raise _does_not_compile(message, _first_line(function))
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = parameter.default
            continue
        name = next(given, None)
        if name is None:
            raise KvcError("KVC0603", f"{launch.kernel} takes more than the {len(launch.args)} arguments of its launch")
        declared = argument(candidate.task, candidate, name)
        signature[parameter.name] = declared.type
        if declared.attributes:
            attributes[(position,)] = declared.attributes
    if next(given, None) is not None:
        raise KvcError("KVC0603", f"{launch.kernel} takes fewer than the {len(launch.args)} arguments of its launch")
    return signature, constants, attributes


def _guarded(function: Any, build: Any) -> Any:
    """Run a compilation; what Triton throws becomes KVC0502. MLIR's failures come as RuntimeError, a verifier's as
    ValueError or AssertionError, an ill-typed call as TypeError."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    try:
        return build()
    except CompilationError as error:
        line = getattr(error.node, "lineno", 0)
        cause = error.__cause__
        message = error.error_message or (str(cause) if cause is not None else "not accepted by Triton")
        # Lines count from the function's decorator, except where the error arose in another function.
        raise _does_not_compile(str(message), _absolute(function, error, line)) from error
    except (RuntimeError, ValueError, AssertionError, TypeError, IndexError, KeyError, OutOfResources) as error:
        raise _does_not_compile(f"{type(error).__name__}: {error}", _first_line(function)) from error


def _absolute(function: Any, error: Any, line: int) -> int:
    """The line in the file of a line counted within a kernel's text."""
    whole = "".join(linecache.getlines(inspect.getsourcefile(function.fn) or ""))
    body = (error.src or "").strip()
    at = whole.find(body) if body else -1
    return whole.count("\n", 0, at) + line if at >= 0 and line else _first_line(function)


def _first_line(function: Any) -> int:
    return int(function.fn.__code__.co_firstlineno)


def _line_in(error: BaseException, path: Path) -> int:
    """The last line of the candidate's own file in a traceback."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _extra_pointers(text: str, launch: Launch, arch: ArchSpec) -> int:
    """Pointers that Triton appends to the parameters (scratch and profiling buffers), counted in what it emitted."""
    if arch.vendor == "amd":
        block = text.partition("amdhsa.kernels:")[2]
        explicit = sum(
            line.split(":")[1].strip() in ("global_buffer", "by_value")
            for line in block.splitlines()
            if line.strip().startswith((".value_kind", "- .value_kind"))
        )
    else:
        head = text.partition(".entry")[2].partition("{")[0]
        explicit = sum(line.strip().startswith(".param") for line in head.splitlines())
    return max(explicit - len(launch.args), 0)


def _does_not_compile(message: str, line: int) -> KvcError:
    hint = "the line counts in the kernel file" if line else ""
    return KvcError("KVC0502", message, Location(SOURCE_NAME, line), hint)

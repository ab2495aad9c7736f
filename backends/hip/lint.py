"""Static rules for HIP device source: faults that compile, and often run, but are wrong on a 64-lane wave or unwanted.

The source is parsed by libclang with kvc's own device headers (no ROCm). libclang may be older than the chip; then it
parses for the newest chip that it knows, with the builtins that it lacks declared on the spot. Whether the source is
valid for the chip itself is asked of the real compiler (`-fsyntax-only`) where one is installed.

`RULES` lists every rule; each finding is a KVC0403 whose `details["rule"]` names it. Syntax errors are KVC0502.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvc.arch import CDNA, ArchSpec
from kvc.arch import arch as arch_row
from kvc.backends.hip import toolchain
from kvc.diagnostics import Diagnostic, KvcError, Location

if TYPE_CHECKING:
    from clang.cindex import Cursor, TranslationUnit

RULES: dict[str, str] = {
    "no-kernel": "the file defines no __global__ kernel",
    "shuffle-width": "a shuffle names a width of 32 where the wave has 64 lanes",
    "wave-reduction": "a shuffle loop starts at 16 and so leaves out half of a 64-lane wave",
    "lane-arithmetic": "a lane or wave index is computed for waves of 32 lanes",
    "ballot-width": "a 64-bit lane mask is cut to 32 bits",
    "mask-literal": "a 32-lane mask literal is used with a 64-lane vote or shuffle",
    "lds-bytes": "static __shared__ arrays exceed the LDS of a workgroup",
    "launch-bounds": "__launch_bounds__ exceeds the threads of a workgroup",
    "undefined-function": "device code calls a function that is declared and nowhere defined",
    "inline-asm": "inline assembly hides work from every later check",
    "allocation": "device code allocates memory dynamically",
    "printf": "device code prints",
    "host-code": "the file holds host code (launches, runtime API); kvc launches kernels itself",
    "include": "the file includes something other than the HIP headers that kvc brings",
    "device-state": "a variable of the file outlives a launch, so that a call can depend on those before it",
    "clock": "device code reads a clock or the place where it runs, on which no result may depend",
}

_SHUFFLES = {"__shfl", "__shfl_up", "__shfl_down", "__shfl_xor"}
_VOTES = {"__ballot", "__ballot64", "__activemask", "__builtin_amdgcn_ballot_w64"}
_NAMES_OF_RULES = {
    "allocation": {"malloc", "calloc", "realloc", "free", "__ockl_dm_alloc", "__ockl_dm_dealloc"},
    "printf": {"printf", "puts", "putchar", "__ockl_printf_begin", "__builtin_printf"},
    "host-code": {
        "hipLaunchKernelGGL",
        "hipLaunchKernel",
        "hipModuleLaunchKernel",
        "hipMalloc",
        "hipMemcpy",
        "hipFree",
    },
    "clock": {
        "clock", "clock64", "wall_clock64", "__clock", "__clock64", "__builtin_readcyclecounter",
        "__builtin_readsteadycounter", "__builtin_amdgcn_s_memtime", "__builtin_amdgcn_s_memrealtime",
        "__builtin_amdgcn_s_getreg", "__smid", "__builtin_amdgcn_dispatch_id",
    },
}  # fmt: skip
_HINTS = {
    "no-kernel": 'write the entry point as extern "C" __global__ void name(...)',
    "shuffle-width": "leave the width out, or write KVC_WAVE_SIZE / 2 where half-wave sections are meant",
    "wave-reduction": "start at KVC_WAVE_SIZE / 2",
    "lane-arithmetic": "use KVC_WAVE_SIZE (or warpSize) in place of 32",
    "ballot-width": "keep lane masks in unsigned long long; count them with __popcll and search them with __ffsll",
    "mask-literal": "write ~0ULL, or compare with __activemask()",
    "lds-bytes": "use smaller tiles",
    "launch-bounds": "use a smaller workgroup",
    "undefined-function": "define it in this file; library calls cannot be linked into a kernel",
    "inline-asm": "use a __builtin_amdgcn_* instead",
    "allocation": "ask for workspace as a kernel argument",
    "printf": "remove it",
    "host-code": "leave only __global__ and __device__ functions in the file",
    "include": "include hip/hip_runtime.h, hip/hip_bf16.h or hip/hip_fp16.h, and write the rest out",
    "device-state": "pass what is to be kept as an argument, or make it const",
    "clock": "remove it",
}
_WAVE_NAMES = re.compile(r"lane|warp|wave", re.IGNORECASE)
_MASK_32 = re.compile(r"0[xX][fF]{8}[uU]?[lL]{0,2}$")
_INTEGER = re.compile(r"(\d+)[uUlL]*$")


@dataclass(frozen=True)
class _Finding:
    rule: str
    message: str
    line: int
    column: int = 0


def lint(source: str, arch: str, *, name: str = "kernel.hip", syntax: bool = True) -> list[Diagnostic]:
    """Findings for one HIP file on one GPU, in the order of their lines; empty for a clean file.

    `syntax=False` leaves out the compiler's own check (about 0.06 s), for callers that compile next anyway.
    Raises KVC0501 when libclang is not installed.
    """
    row = arch_row(arch)
    unit, bounds = _parse(source, row, name)
    errors = _syntax(source, arch, name, unit) if syntax else []
    findings: list[_Finding] = []
    kernels: list[Cursor] = []
    for cursor in _own_declarations(unit, name):
        findings += _walk(cursor, row, name, kernels)
        findings += _state(cursor)
    findings += _tokens(unit)
    findings += _includes(source)
    findings += _limits(kernels, row, bounds, unit, name)
    if not kernels and not errors:
        findings.append(_Finding("no-kernel", "no __global__ function", 0))
    unique = sorted(set(findings), key=lambda item: (item.line, item.column, item.rule))
    return errors + [
        Diagnostic(
            "KVC0403",
            f"{item.rule}: {item.message}",
            Location(name, item.line),
            _HINTS[item.rule],
            {"rule": item.rule, "column": item.column},
        )
        for item in unique
    ]


# ---- parsing --------------------------------------------------------------------------------------------------------

_UNDECLARED = re.compile(r"undeclared identifier '(__builtin_amdgcn_\w+)'")
_BOUNDS = "kvc_lint_bounds_"


@cache
def _libclang() -> Any:
    try:
        from clang import cindex
    except ModuleNotFoundError:
        raise KvcError("KVC0501", "libclang is not installed", hint="pip install 'libclang>=18.1,<19'") from None
    return cindex


def _parse(source: str, row: ArchSpec, name: str) -> tuple[TranslationUnit, dict[int, str]]:
    """The translation unit, and which line's __launch_bounds__ each appended constant holds."""
    bounds = list(_launch_bounds(source))
    tail = "".join(f"enum {{ {_BOUNDS}{index} = ({text}) }};\n" for index, (_, text) in enumerate(bounds))
    text = f"{source}\n{tail}"
    unit = _parse_text(text, row, name, ())
    missing = sorted({m[1] for item in unit.diagnostics for m in _UNDECLARED.finditer(item.spelling)})
    if missing:
        unit = _parse_text(text, row, name, missing)
    return unit, {line: f"{_BOUNDS}{index}" for index, (line, _) in enumerate(bounds)}


def _parse_text(text: str, row: ArchSpec, name: str, builtins: tuple[str, ...] | list[str]) -> TranslationUnit:
    cindex = _libclang()
    files = [(name, text)]
    arguments = [
        "-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-nostdinc", "-fdeclspec", "-std=c++17",
        "-isystem", str(toolchain.INCLUDE_DIR), "-isystem", str(toolchain.INCLUDE_DIR / "c"), "-ferror-limit=0",
    ]  # fmt: skip
    if builtins:
        files.append(("kvc_newer_builtins.h", _declare(builtins)))
        arguments += ["-include", "kvc_newer_builtins.h"]
    older = [candidate for candidate in reversed(CDNA) if candidate != row.name]
    for candidate in (row.name, *older):
        try:
            index = cindex.Index.create()
            return index.parse(name, [f"--offload-arch={candidate}", *arguments], unsaved_files=files)
        except cindex.TranslationUnitLoadError:
            continue  # this libclang does not know the chip
    raise KvcError("KVC0501", "libclang cannot parse HIP device code", hint="pip install 'libclang>=18.1,<19'")


def _declare(builtins: tuple[str, ...] | list[str]) -> str:
    """Declarations that accept any arguments and give whatever type is wanted of them."""
    lines = ["struct kvc_any { template <class T> __attribute__((device)) operator T() const; };"]
    lines += [f"template <class... A> __attribute__((device)) kvc_any {builtin}(A...);" for builtin in builtins]
    return "\n".join(lines) + "\n"


def _launch_bounds(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the first argument of every __launch_bounds__."""
    for match in re.finditer(r"__launch_bounds__\s*\(", source):
        depth, end = 1, match.end()
        while end < len(source) and not (depth == 1 and source[end] in ",)"):
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        text = " ".join(source[match.end() : end].split())
        if text:
            yield source.count("\n", 0, match.start()) + 1, text


def _syntax(source: str, arch: str, name: str, unit: TranslationUnit) -> list[Diagnostic]:
    if toolchain.discover():
        try:
            toolchain.check_syntax(source, arch, name=name)
        except KvcError as error:
            return [error.diagnostic]
        return []
    return [
        Diagnostic("KVC0502", item.spelling, Location(name, item.location.line))
        for item in unit.diagnostics
        if item.severity >= _libclang().Diagnostic.Error and _BOUNDS not in item.spelling
    ]


# ---- rules on the tree ----------------------------------------------------------------------------------------------


def _own_declarations(unit: TranslationUnit, name: str) -> Iterator[Cursor]:
    for cursor in unit.cursor.get_children():
        place = cursor.location.file
        if place is not None and place.name == name and not cursor.spelling.startswith(_BOUNDS):
            yield cursor


def _walk(root: Cursor, row: ArchSpec, name: str, kernels: list[Cursor]) -> list[_Finding]:
    """One pass over a top-level declaration; collects the kernels on the way."""
    kinds = _libclang().CursorKind
    found: list[_Finding] = []
    stack: list[tuple[Cursor, Cursor | None]] = [(root, None)]
    while stack:
        cursor, parent = stack.pop()
        kind = _kind(cursor)
        if kind == kinds.CUDAGLOBAL_ATTR and parent is not None:
            kernels.append(parent)
        elif kind == kinds.CALL_EXPR:
            found += _call(cursor, row, name)
        elif kind == kinds.FOR_STMT and row.wave_size == 64:
            found += _loop(cursor)
        elif kind == kinds.VAR_DECL and row.wave_size == 64:
            found += _lane_variable(cursor)
        elif kind in (kinds.ASM_STMT, kinds.MS_ASM_STMT):
            found.append(_at(cursor, "inline-asm", "inline assembly"))
        elif kind in (kinds.CXX_NEW_EXPR, kinds.CXX_DELETE_EXPR):
            found.append(_at(cursor, "allocation", "new or delete in device code"))
        children = list(cursor.get_children())
        if row.wave_size == 64:
            found += _narrowed_vote(cursor, children)
        stack.extend((child, cursor) for child in children)
    return found


def _kind(cursor: Cursor) -> Any:
    """The cursor's kind; None for one that the Python binding has no name for."""
    try:
        return cursor.kind
    except ValueError:
        return None


def _at(cursor: Cursor, rule: str, message: str) -> _Finding:
    return _Finding(rule, message, cursor.location.line, cursor.location.column)


def _call(call: Cursor, row: ArchSpec, name: str) -> list[_Finding]:
    callee = call.spelling
    if callee in _SHUFFLES and row.wave_size == 64:
        arguments = list(call.get_arguments())
        if len(arguments) == 3 and _literal(arguments[2]) == 32:
            return [_at(call, "shuffle-width", f"{callee} with width 32 on a wave of {row.wave_size} lanes")]
        return []
    target = call.referenced
    if target is None or _kind(target) != _libclang().CursorKind.FUNCTION_DECL or callee.startswith("__builtin_"):
        return []
    place = target.location.file
    if place is not None and place.name == name and target.get_definition() is None:
        return [_at(call, "undefined-function", f"{callee} is declared and nowhere defined")]
    return []


def _loop(loop: Cursor) -> list[_Finding]:
    """for (int d = 16; ...; d >>= 1) ... __shfl_xor(v, d): the reduction of a 32-lane wave."""
    kinds = _libclang().CursorKind
    children = list(loop.get_children())
    start = (
        next((item for item in children[0].walk_preorder() if _kind(item) == kinds.VAR_DECL), None)
        if children
        else None
    )
    if start is None or not any(_literal(child) == 16 for child in start.get_children()):
        return []
    found = []
    for node in children[-1].walk_preorder():
        if _kind(node) != kinds.CALL_EXPR or node.spelling not in _SHUFFLES:
            continue
        arguments = list(node.get_arguments())
        uses = any(
            item.kind == kinds.DECL_REF_EXPR and item.spelling == start.spelling
            for item in arguments[1].walk_preorder()
        )
        if uses and _without_width(node):
            message = f"{node.spelling} loop starts at 16: lanes 32 to 63 of the wave never meet the others"
            found.append(_at(loop, "wave-reduction", message))
    return found


def _without_width(call: Cursor) -> bool:
    """Whether the call leaves `width` to its default, whose expression stands in the header and has no tokens here."""
    arguments = list(call.get_arguments())
    return len(arguments) < 3 or arguments[2] is None or not any(True for _ in arguments[2].get_tokens())


def _lane_variable(variable: Cursor) -> list[_Finding]:
    """int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 and the like, known by the variable's name."""
    if not _WAVE_NAMES.search(variable.spelling):
        return []
    tokens = [token.spelling for token in variable.get_tokens()]
    wrong = {("%", "32"), ("/", "32"), ("&", "31"), ("&", "0x1f"), (">>", "5")}
    for operator, operand in pairwise(tokens):
        if (operator, operand.rstrip("uUlL").lower()) in wrong and "threadIdx" in tokens:
            return [_at(variable, "lane-arithmetic", f"{variable.spelling} = ... {operator} {operand}")]
    return []


def _narrowed_vote(cursor: Cursor, children: list[Cursor]) -> list[_Finding]:
    """A conversion to a 32-bit integer right above a vote, or a 32-bit mask literal beside one."""
    kinds = _libclang().CursorKind
    if _kind(cursor) == kinds.BINARY_OPERATOR and len(children) == 2 and any(map(_vote, children)):
        for child in children:
            text = "".join(token.spelling for token in child.get_tokens())
            if _MASK_32.match(text):
                return [_at(cursor, "mask-literal", f"a vote of 64 lanes beside {text}")]
    if len(children) != 1 or _kind(cursor) == kinds.VAR_DECL:
        return []
    integer = cursor.type.get_canonical().spelling in ("int", "unsigned int")
    if integer and _kind(cursor) != kinds.CALL_EXPR and _vote(children[0]):
        return [_at(children[0], "ballot-width", f"{_vote(children[0])} is converted to {cursor.type.spelling}")]
    return []


def _vote(cursor: Cursor) -> str:
    """Name of the vote that this expression is, through parentheses and 64-bit conversions; "" for any other."""
    kinds = _libclang().CursorKind
    while _kind(cursor) in (kinds.UNEXPOSED_EXPR, kinds.PAREN_EXPR) and cursor.type.get_size() == 8:
        child = next(iter(cursor.get_children()), None)
        if child is None:
            return ""
        cursor = child
    return cursor.spelling if _kind(cursor) == kinds.CALL_EXPR and cursor.spelling in _VOTES else ""


def _literal(cursor: Cursor | None) -> int | None:
    """The value of an expression that is one integer literal in the source, else None."""
    if cursor is None:
        return None
    tokens = [token.spelling for token in cursor.get_tokens()]
    match = _INTEGER.match(tokens[0]) if len(tokens) == 1 else None
    return int(match[1]) if match else None


# ---- rules on tokens and sizes --------------------------------------------------------------------------------------


_DIRECTIVE = re.compile(r"^\s*(?:#|%:|\?\?=)\s*(include|include_next|import|embed)\b\s*(\S.*)?$")
_KNOWN_HEADERS = frozenset({"hip/hip_runtime.h", "hip/hip_bf16.h", "hip/hip_fp16.h", "hip/hip_fp8.h"})


def _includes(source: str) -> list[_Finding]:
    """Directives that bring in another file. Lines joined by a backslash count as one."""
    found = []
    joined = re.sub(r"\\\n", lambda m: " \0", source)  # keeps the count of lines below
    for number, line in enumerate(joined.split("\n"), 1):
        match = _DIRECTIVE.match(line.replace("\0", " "))
        name = re.match(r"<([^>]+)>", (match[2] or "")) if match else None
        if match and (name is None or name[1] not in _KNOWN_HEADERS or match[1] != "include"):
            at = number + joined[: sum(len(x) + 1 for x in joined.split("\n")[: number - 1])].count("\0")
            found.append(_Finding("include", f"{match[1]} {match[2] or ''}".rstrip(), at))
    return found


def _state(declaration: Cursor) -> list[_Finding]:
    """Variables of the file, and static ones of its functions, that a launch can change for the next one."""
    kinds = _libclang().CursorKind
    found = []
    for cursor in declaration.walk_preorder():
        if _kind(cursor) != kinds.VAR_DECL:
            continue
        of_file = cursor == declaration or _kind(cursor.semantic_parent) == kinds.NAMESPACE
        static = cursor.storage_class == _libclang().StorageClass.STATIC
        shared = any(_kind(child) == kinds.CUDASHARED_ATTR for child in cursor.get_children())
        if (of_file or static) and not shared and not _constant(cursor.type):
            found.append(_at(cursor, "device-state", f"{cursor.spelling} can be written"))
    return found


def _constant(kind: Any) -> bool:
    """Whether a type, or the elements of an array type, are const."""
    while kind.get_array_size() > 0 and not kind.is_const_qualified():
        kind = kind.get_array_element_type()
    return bool(kind.get_canonical().is_const_qualified() or kind.is_const_qualified())


def _tokens(unit: TranslationUnit) -> list[_Finding]:
    """Names that may not even be declared here, so that the tree does not hold their calls."""
    found = []
    tokens = list(unit.cursor.get_tokens())
    for token, following in pairwise(tokens):
        if following.spelling == "(" and token.spelling in ("asm", "__asm__", "__asm"):
            found.append(_Finding("inline-asm", "inline assembly", token.location.line, token.location.column))
        elif following.spelling == "(":
            for rule, names in _NAMES_OF_RULES.items():
                if token.spelling in names:
                    found.append(
                        _Finding(rule, f"call of {token.spelling}", token.location.line, token.location.column)
                    )
            if token.spelling.endswith("_sync") and token.spelling.startswith("__"):
                found += _sync_mask(tokens, token)
        elif token.spelling in ("asm", "__asm__", "__asm"):
            found.append(_Finding("inline-asm", "inline assembly", token.location.line, token.location.column))
        elif token.spelling == "<<<":
            found.append(_Finding("host-code", "kernel launch", token.location.line, token.location.column))
    return found


def _sync_mask(tokens: list[Any], name: Any) -> list[_Finding]:
    position = next(index for index, token in enumerate(tokens) if token.location.offset == name.location.offset)
    mask = tokens[position + 2].spelling if position + 2 < len(tokens) else ""
    if not _MASK_32.match(mask):
        return []
    message = f"{name.spelling} names 32 of 64 lanes ({mask})"
    return [_Finding("mask-literal", message, name.location.line, name.location.column)]


def _limits(
    kernels: list[Cursor], row: ArchSpec, bounds: dict[int, str], unit: TranslationUnit, name: str
) -> list[_Finding]:
    kinds = _libclang().CursorKind
    values = {
        item.spelling: item.enum_value
        for cursor in unit.cursor.get_children()
        if _kind(cursor) == kinds.ENUM_DECL
        for item in cursor.get_children()
        if item.spelling.startswith(_BOUNDS)
    }
    found = []
    for line, constant in bounds.items():
        threads = values.get(constant, 0)
        if threads > row.max_threads:
            message = f"__launch_bounds__({threads:,}) of {row.max_threads:,} threads a workgroup"
            found.append(_Finding("launch-bounds", message, line))
    for kernel in kernels:
        used = _shared_bytes(kernel, name, set())
        if used > row.lds_bytes:
            message = f"{kernel.spelling}: __shared__ {used:,} B of {row.lds_bytes:,} B"
            found.append(_at(kernel, "lds-bytes", message))
    return found


def _shared_bytes(function: Cursor, name: str, seen: set[str]) -> int:
    """Static __shared__ bytes of a function and of the functions of this file that it calls, each counted once."""
    kinds = _libclang().CursorKind
    usr = function.get_usr()
    if usr in seen:
        return 0
    seen.add(usr)
    total = 0
    for node in function.walk_preorder():
        if _kind(node) == kinds.VAR_DECL:
            shared = any(_kind(child) == kinds.CUDASHARED_ATTR for child in node.get_children())
            total += max(node.type.get_size(), 0) if shared else 0  # negative: extern arrays and dependent types
        elif _kind(node) == kinds.CALL_EXPR and node.referenced is not None:
            callee = node.referenced.get_definition()
            place = callee.location.file if callee is not None else None
            if callee is not None and place is not None and place.name == name:
                total += _shared_bytes(callee, name, seen)
    return total

"""Runs the host part of a HIP or CUDA extension without a GPU: enough C++ to see what it launches, and with what.

Such a file holds kernels and the functions that launch them (`k<<<grid, block>>>(x.data_ptr<float>(), n)`). The host
functions are interpreted over real CPU tensors; a launch is noted and not done. What the interpreter does not know ends
it with `Unclear`, whose text goes into the report: a launch is never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_STEPS = 200_000  # tokens that may be evaluated; a host loop over elements is not worth following


class Unclear(Exception):
    """What stands in the way of knowing the launches, in words for a report."""


@dataclass(frozen=True)
class Pointer:
    """`tensor`'s first element as a pointer to the C type `ctype` ("" where the code does not say)."""

    tensor: Any
    ctype: str = ""


@dataclass(frozen=True)
class Launched:
    """A launch: the kernel as it is named, template arguments included; arguments are Pointers or numbers."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Type:
    """A C type as a value: what stands between angle brackets or in a cast."""

    name: str


class _Opaque:
    """A value that may be passed on (streams, guards) and must not decide anything."""


OPAQUE = _Opaque()


@dataclass(frozen=True)
class Function:
    """A function of the file: parameter names, the tokens of its body."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[str, ...]


@dataclass
class Parts:
    """A file taken apart: `device` is the text that a kernel needs, `host` the functions that launch, `exported` what
    Python calls (PYBIND11_MODULE), by name; `macros` object-like and function-like ones."""

    device: str = ""
    kernels: dict[str, str] = field(default_factory=dict)  # name -> text of its definition
    host: dict[str, Function] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    macros: dict[str, tuple[tuple[str, ...] | None, str]] = field(default_factory=dict)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?[fFuUlL]*|0[xX][0-9a-fA-F]+[uUlL]*|[A-Za-z_]\w*'
    r"|<<<|>>>|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%]=|\S"
)
_INCLUDE = re.compile(r"^\s*#\s*(include|pragma|if|ifdef|ifndef|endif|else|elif|undef)[^\n]*$", re.MULTILINE)
_DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)(\([^)\n]*\))?[ \t]*((?:[^\n\\]|\\\n|\\.)*)$", re.MULTILINE)
_HEAD = re.compile(r"(\w+)\s*\(((?:[^()]|\([^()]*\))*)\)\s*(?:const)?\s*$", re.DOTALL)
_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")
_EXPORT = re.compile(r'\.def\(\s*"(\w+)"\s*,\s*&?\s*(\w+)')
_SCALARS = {
    "float": float, "double": float, "int": int, "long": int, "unsigned": int, "size_t": int, "int64_t": int,
    "int32_t": int, "uint32_t": int, "uint64_t": int, "short": int, "char": int, "bool": bool,
}  # fmt: skip


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def take_apart(text: str) -> Parts:
    """The parts of a HIP or CUDA source. Unclear where braces do not match."""
    parts = Parts()
    text = _COMMENT.sub(" ", text)
    for name, parameters, body in _DEFINE.findall(text):
        names = tuple(p.strip() for p in parameters[1:-1].split(",")) if parameters else None
        parts.macros[name] = (names, body.replace("\\\n", " ").strip())
    device = [m[0].strip() for m in _DEFINE.finditer(text) if "TORCH_CHECK" not in m[0]]
    for item in _items(_INCLUDE.sub("", _DEFINE.sub("", text))):
        kind = _sort_item(item, parts)
        if kind == "device":
            device.append(_BOUNDS.sub("", item).replace("__global__", "__device__ __forceinline__"))
    parts.device = "\n".join(device)
    return parts


def _items(text: str) -> list[str]:
    """Top-level declarations; the contents of namespaces and of `extern "C"` blocks are top-level too."""
    found: list[str] = []
    depth = start = 0
    for at, char in enumerate(text):
        if char == "{":
            head = text[start:at].strip()
            if depth == 0 and re.fullmatch(r'(namespace(\s+\w+)?|extern\s+"C")', head):
                end = _closing(text, at)
                return [*found, *_items(text[at + 1 : end]), *_items(text[end + 1 :])]
            depth += 1
        elif char == "}":
            depth -= 1
            if depth < 0:
                raise Unclear("the braces of the source do not match")
            head = text[start : text.index("{", start)]
            if depth == 0 and not re.search(r"\b(struct|class|union|enum)\b|=\s*$", head.partition("(")[0]):
                found.append(text[start : at + 1].strip())
                start = at + 1
        elif char == ";" and depth == 0:
            found.append(text[start : at + 1].strip())
            start = at + 1
    if depth:
        raise Unclear("the braces of the source do not match")
    return [item for item in found if item.strip("; \n")]


def _closing(text: str, at: int) -> int:
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place
    raise Unclear("the braces of the source do not match")


def _sort_item(item: str, parts: Parts) -> str:
    """Puts an item where it belongs; "device" where the kernels need its text."""
    head, brace, body = item.partition("{")
    if "PYBIND11_MODULE" in head or "TORCH_LIBRARY" in head:
        parts.exported |= dict(_EXPORT.findall(item))
        return "host"
    found = _HEAD.search(_BOUNDS.sub("", head)) if brace else None
    if "__global__" in head:
        if found:
            parts.kernels[found[1]] = item
        return "device" if brace else "host"  # a prototype's __global__ has no definition to go with
    if "__device__" in head or found is None:
        foreign = re.search(r"\b(torch|at|c10|std::vector|PYBIND)\b", head) or head.lstrip().startswith(
            "using namespace"
        )
        return "host" if foreign and "__device__" not in head else "device"
    names = [re.split(r"[\s*&]+", p.partition("=")[0].strip())[-1] for p in _split(found[2])]
    parts.host[found[1]] = Function(found[1], tuple(n for n in names if n), tuple(tokens(body.rpartition("}")[0])))
    return "device" if "constexpr" in head else "host"


def _split(text: str) -> list[str]:
    """Parts between commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "(<[{") - (char in ")>]}")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]] if text.strip() else []


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Host:
    """Calls functions of a file; `launches` grows. `library(name, args)` answers torch's functions, `method(tensor,
    name, args, template)` its methods."""

    def __init__(self, parts: Parts, library: Callable[..., Any], method: Callable[..., Any]) -> None:
        self.parts, self.library, self.method = parts, library, method
        self.launches: list[Launched] = []
        self.steps = 0

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """The result of an exported or host function."""
        function = self.parts.host.get(self.parts.exported.get(name, name))
        if function is None:
            raise Unclear(f"the source defines no host function {name}")
        if len(args) > len(function.parameters):
            raise Unclear(f"{name} takes {len(function.parameters)} arguments, not {len(args)}")
        from kvc.vault.hostcode_run import Frame

        frame = Frame(self, list(function.body), dict(zip(function.parameters, args, strict=False)))
        try:
            frame.block()
        except _Return as done:
            return done.value
        return None

    def count(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Unclear("the host code runs too long to follow")


def number(text: str) -> int | float:
    """The value of a C literal."""
    if text[:2] in ("0x", "0X"):
        return int(text.rstrip("uUlL"), 16)
    plain = text.rstrip("uUlLfF")
    return float(plain) if re.search(r"[.eE]", plain) or text[-1] in "fF" else int(plain)


def as_dim(value: Any) -> tuple[int, int, int]:
    """A launch extent from a number or dim3."""
    parts = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(p, int) for p in parts):
        raise Unclear(f"a launch extent is {value!r}")
    x, y, z = (*parts, 1, 1)[:3]
    return int(x), int(y), int(z)


def cast(name: str, value: Any) -> Any:
    """A value as a scalar C type; other casts change no value that matters here."""
    kind = next((k for word in reversed(name.split()) if (k := _SCALARS.get(word.split(":")[-1]))), None)
    if kind is None or not isinstance(value, (int, float)):
        return value
    if kind is int and isinstance(value, float) and not math.isfinite(value):
        raise Unclear("an infinite number becomes an integer")
    return kind(value)

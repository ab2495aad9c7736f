"""Faults in HIP source: substitutions on the code of an emitted kernel, one at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.adversarial.faults import Fault

_SKIP = re.compile(r"^\s*(//|#|template|typedef|struct|using|extern|$)")
_EXTENT = re.compile(r"^constexpr \w+ (\w+) = (\d+);")
_TUNING = re.compile(r"BLOCK|THREADS|LANES|WAVES|WIDTH|^MI|GROUPS|FRAGMENT|SEGMENTS|DEPTH|UNROLL|TILE|STEP|CHUNK_")

#: (class, pattern, replacement): every match on a line of code is a fault.
_RULES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("bound", r"(?<=[\w\])]) < (?=[\w(])", " <= "),
    ("bound", r"(?<=[\w\])]) >= (?=[\w(])", " > "),
    ("bound", r"(?<=[\w\])]) <= (?=[\w(])", " < "),
    ("comparison", r"(?<=[\w\])]) (<|>) (?=[\w(])", lambda m: " > " if m[1] == "<" else " < "),
    ("comparison", r" == ", " != "),
    ("comparison", r" && ", " || "),
    ("stride", r"(?<=\* )(\d+)\b(?![.\w])", lambda m: str(int(m[1]) + 1)),
    ("index", r"(?<=[/%] )(\d+)\b(?![.\w])", lambda m: str(int(m[1]) + 1)),
    ("index", r"(?<=[+-] )(\d+)\b(?![.\w])", lambda m: str(int(m[1]) + 1)),
    ("index", r"(?<=\[)(\d+)(?=\])", lambda m: str(int(m[1]) + 1)),
    ("arithmetic", r"(?<=[\w\])]) \+ (?=[\w(])", " - "),
    ("arithmetic", r"(?<=[\w\])]) \* (?=[\w(])", " + "),
    ("arithmetic", r" \+= ", " -= "),
    ("operands", r"(\b[\w.]+(?:\[[^\]]*\])?) (-|/) ([\w.]+(?:\[[^\]]*\])?)", lambda m: f"{m[3]} {m[2]} {m[1]}"),
    ("constant", r"\b(\d+\.\d+(?:e[+-]?\d+)?)(f?)\b", lambda m: f"{float(m[1]) * 1.01 or 0.01!r}{m[2]}"),
    ("init", r"= -?INFINITY;", "= 0.0f;"),
    ("init", r"(?<=: )-?INFINITY\b", "0.0f"),
    ("init", r"(?<=: )0\.0f\b", "1.0f"),
    ("init", r"(\w+ = )0\.0f;", r"\g<1>1.0f;"),
    ("init", r"= (true|false);", lambda m: "= false;" if m[1] == "true" else "= true;"),
    ("nan", r" \|\| a != a", ""),
    ("nan", r"\b(maximum|minimum)\((?=\w+, )", lambda m: "fmaxf(" if m[1] == "maximum" else "fminf("),
    ("wave32", r"\bKVC_WAVE_SIZE\b", "32"),
    ("wave32", r"(?<=int LANES = )64", "32"),
    ("wave32", r"(__shfl\w*\((?:[^()]|\([^()]*\))*)\)", r"\1, 32)"),
    ("wave32", r"\bROW_LANES / 2\b", "16"),
    ("barrier", r"__syncthreads\(\);", ";"),
    ("atomic", r"\batomicAdd\(&?(.+?), (.+)\);", r"*(\1) += \2;"),
)  # fmt: skip


def faults(source: str) -> Iterator[Fault]:
    """All faults of a HIP source that `_RULES` and the functions below find, in order of lines."""
    lines = source.split("\n")
    device = _device_lines(lines)
    for number in device:
        line = lines[number - 1]
        code, comment = _split(line)
        found = [*_extent(code), *_rules(code), *_guards(code), *_stores(code), *_precision(code, source)]
        for kind, text in found:
            if text != code:
                new = lines.copy()
                new[number - 1] = text + comment
                yield Fault("source", kind, number, code.strip(), text.strip(), "\n".join(new))


def _device_lines(lines: list[str]) -> list[int]:
    """Lines of code that the chip's compiler sees: the branch for GPUs without matrix instructions is not."""
    out, hidden = [], False
    for number, line in enumerate(lines, 1):
        if line.startswith("#else"):
            hidden = True
        elif line.startswith("#endif"):
            hidden = False
        elif not hidden and not _SKIP.match(line):
            out.append(number)
    return out


def _split(line: str) -> tuple[str, str]:
    at = line.find("  //")
    return (line, "") if at < 0 else (line[:at], line[at:])


def _rules(code: str) -> Iterator[tuple[str, str]]:
    for kind, pattern, new in _RULES:
        for match in re.finditer(pattern, code):
            text = match.expand(new) if isinstance(new, str) else new(match)
            yield kind, code[: match.start()] + text + code[match.end() :]


def _extent(code: str) -> Iterator[tuple[str, str]]:
    """constexpr int M = 65, one less and one more; block sizes are structure, no extents."""
    match = _EXTENT.match(code)
    if match and not _TUNING.search(match[1]):
        for value in (int(match[2]) - 1, int(match[2]) + 1):
            yield "bound", code[: match.start(2)] + str(value) + code[match.end(2) :]


def _closing(text: str, start: int) -> int:
    """Position of the parenthesis that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1


def _guards(code: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"\bif (?:constexpr )?\(", code):
        end = _closing(code, match.end() - 1)
        if end > 0 and "constexpr" not in match[0]:
            leaves = re.search(r"(return|continue)\b", code[end:]) is not None
            yield "guard", f"{code[: match.end()]}{'false' if leaves else 'true'}{code[end:]}"
    match = re.search(r"= ([^=?]+|[^?]*[<>]=[^?]*) \? ", code)
    if match and "for" not in code:
        yield "guard", f"{code[: match.start(1)]}true{code[match.end(1) :]}"


def _stores(code: str) -> Iterator[tuple[str, str]]:
    match = re.match(r"^(\s*(?:if \(.*?\) )?)(?:\w+\[.*?\]|\*reinterpret_cast<[^;]*?\)) = [^;{]*;$", code)
    if match:
        yield "store", match[1] + ";"


def _precision(code: str, source: str) -> Iterator[tuple[str, str]]:
    """fp32 values through fp16 (through bf16, where the kernel stores narrow types), and roundings left out."""
    narrow = "(float)(__bf16)" if "bfloat16* __restrict__ y" in source else "(float)(_Float16)"
    match = re.match(r"^(\s*(?:const )?float \w+ = )(.*);$", code)
    if match and not re.fullmatch(r"-?(INFINITY|[\d.]+f)", match[2]):
        yield "precision", f"{match[1]}{narrow}({match[2]});"
    match = re.match(r"^(\s*)([\w.\[\]]+) \+= (.*);$", code)
    if match and "chunk" not in match[2] and "k0" not in match[2]:
        yield "precision", f"{match[1]}{match[2]} = {narrow}({match[2]} + {match[3]});"
    for name, fast in (("expf", "__expf"), ("logf", "__logf"), ("sinf", "__sinf"), ("cosf", "__cosf")):
        if re.search(rf"(?<!_)\b{name}\(", code):
            yield "precision", re.sub(rf"(?<!_)\b{name}\(", f"{fast}(", code)
    for match in re.finditer(r"__bfloat162float\(__float2bfloat16\(", code):
        inner = _closing(code, match.end() - 1)
        if inner > 0 and code[inner : inner + 2] == "))":
            yield "rounding", f"{code[: match.start()]}({code[match.end() : inner]}){code[inner + 2 :]}"

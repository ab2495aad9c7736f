"""Declarations of a header with their comments, by libclang: what is declared, its documentation, and a call of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clang.cindex import Cursor

_COMMAND = re.compile(
    r"[@\\](brief|details|param(?:\s*\[[\w, ]+\])?|tparam|returns?|par|note|code(?:\{[^}]*\})?|endcode|p|ref|c|a|e|b)\b"
)
_MARKS = re.compile(r"^\s*(?:/\*[*!]?<?|\*+/|\*(?!/)|///?<?|//!<?)[ \t]?|\*+/\s*$", re.MULTILINE)
_CODE = re.compile(r"[@\\]code(?:\{[^}]*\})?(.*?)[@\\]endcode", re.DOTALL)
_INLINE = re.compile(r"[@\\](?:p|ref|c|a|e|b|em)\s+(\S+?)(?=[\s.,;:)]|$)")
_MATH = re.compile(r"[@\\]f[$\[\]{}]")
_PARAM = re.compile(
    r"[@\\]t?param\s*(?:\[[\w, ]+\])?\s+(\w+)\s*-?\s*(.*?)(?=[@\\](?:t?param|returns?|par\b|brief|details|note|code|see|sa)\b|\Z)",  # noqa: E501
    re.DOTALL,
)
_RETURNS = re.compile(r"[@\\]returns?\s+(.*?)(?=[@\\](?:t?param|par\b|brief|note|code|see|sa)\b|\n\s*\n|\Z)", re.DOTALL)
_BLOCK = re.compile(
    r"[@\\](?:parblock|endparblock|par[^\n]*|verbatim|endverbatim|addtogroup[^\n]*|ingroup[^\n]*|defgroup[^\n]*|file[^\n]*|[{}])"
)


@dataclass(frozen=True)
class Comment:
    """A documentation comment taken apart; texts are plain, without commands."""

    brief: str
    details: str
    params: tuple[tuple[str, str], ...]
    returns: str
    code: tuple[str, ...]

    def prose(self) -> str:
        return "\n\n".join(p for p in (self.brief, self.details) if p)


@dataclass(frozen=True)
class Symbol:
    """A documented declaration. `call`: for a plain function, a function that calls it with arguments of its own
    parameters, which compiles if the declaration is whole; "" for templates. `values`: of an enumeration."""

    kind: str
    name: str
    line: int
    comment: Comment
    call: str = ""
    values: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        return f"the {self.kind} {self.name}"


def comment_of(raw: str) -> Comment:
    """The parts of a comment as it stands in the file."""
    text = _MARKS.sub("", raw).replace("\r", "")
    code = tuple(_dedented(c) for c in _CODE.findall(text))
    text = _CODE.sub("\n\n", text)
    params = tuple((n, _plain(t)) for n, t in _PARAM.findall(text))
    found = _RETURNS.search(text)
    returns = _plain(found[1]) if found else ""
    rest = _RETURNS.sub("\n\n", _PARAM.sub("\n\n", text))
    head, mark, tail = re.sub(r"[@\\]details", "\0", rest).partition("\0")
    brief, _, more = re.sub(r"^.*?[@\\]brief", "", head, count=1, flags=re.DOTALL).strip().partition("\n\n")
    return Comment(_plain(brief), _plain(f"{more}\n\n{tail}" if mark else more), params, returns, code)


def _plain(text: str) -> str:
    """Words without commands, paragraphs kept."""
    text = _INLINE.sub(r"`\1`", _BLOCK.sub(" ", _MATH.sub("", text)))
    text = re.sub(r"[@\\](?:note|see|sa|warning|remark|deprecated|par|li|pre|post|brief|details)\b\s*", "", text)
    parts = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
    return "\n\n".join(p for p in parts if re.search(r"\w", p))


def _dedented(code: str) -> str:
    import textwrap

    return textwrap.dedent(code.strip("\n")).strip() + "\n"


def symbols(path: Path, args: Sequence[str]) -> Iterator[Symbol]:
    """Documented declarations of one header, in order of line, each name once; internal namespaces are left out."""
    from clang.cindex import Index, TranslationUnit, TranslationUnitLoadError

    options = TranslationUnit.PARSE_SKIP_FUNCTION_BODIES
    try:
        unit = Index.create().parse(str(path), list(args), options=options)
    except TranslationUnitLoadError:
        return
    seen: set[str] = set()
    for cursor, space in _declarations(unit.cursor, str(path), ""):
        symbol = _symbol(cursor, space)
        if symbol is not None and symbol.name not in seen:
            seen.add(symbol.name)
            yield symbol


def _declarations(cursor: Cursor, file: str, space: str) -> Iterator[tuple[Cursor, str]]:
    for child in cursor.get_children():
        if child.location.file is None or child.location.file.name != file:
            continue
        kind = child.kind.name
        if kind == "NAMESPACE":
            if child.spelling and child.spelling not in ("detail", "internal", "impl"):
                yield from _declarations(child, file, f"{space}{child.spelling}::")
        elif kind in ("LINKAGE_SPEC", "UNEXPOSED_DECL"):
            yield from _declarations(child, file, space)
        elif child.raw_comment:
            yield child, space


_KINDS = {
    "FUNCTION_DECL": "function", "FUNCTION_TEMPLATE": "function", "STRUCT_DECL": "struct", "CLASS_DECL": "class",
    "CLASS_TEMPLATE": "class template", "ENUM_DECL": "enum", "TYPEDEF_DECL": "type", "TYPE_ALIAS_DECL": "type",
    "TYPE_ALIAS_TEMPLATE_DECL": "type",
}  # fmt: skip


def _symbol(cursor: Cursor, space: str) -> Symbol | None:
    kind = _KINDS.get(cursor.kind.name)
    if kind is None or not cursor.spelling or "(unnamed" in cursor.spelling:
        return None
    name = f"{space}{cursor.spelling}"
    comment = comment_of(cursor.raw_comment)
    line = cursor.location.line
    if kind == "enum":
        values = tuple(
            (child.spelling, comment_of(child.raw_comment).prose() if child.raw_comment else "")
            for child in cursor.get_children()
            if child.kind.name == "ENUM_CONSTANT_DECL"
        )
        return Symbol(kind, name, line, comment, values=values)
    if cursor.kind.name == "FUNCTION_DECL":
        return Symbol(kind, name, line, comment, call=_call(cursor, name))
    return Symbol("function template" if kind == "function" else kind, name, line, comment)


def _call(cursor: Cursor, name: str) -> str:
    """A function with the parameters of another that hands them on."""
    given: list[str] = []
    passed: list[str] = []
    for number, argument in enumerate(cursor.get_arguments()):
        label = argument.spelling or f"a{number}"
        text: Any = argument.type.spelling
        if "(" in text or "[" in text:  # pointers to functions and arrays are declared around their name
            return ""
        given.append(f"{text} {label}")
        passed.append(label)
    result = cursor.result_type.spelling
    body = f"{name}({', '.join(passed)});"
    ret = "" if result == "void" else "return "
    parameters = ",\n    ".join(given)
    return f"{result} call({parameters and chr(10) + '    '}{parameters})\n{{\n    {ret}{body}\n}}"

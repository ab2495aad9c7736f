"""Declarations of a header with their comments, by libclang: what is declared, its documentation, and a call of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvc.vault.doxygen import Comment, comment_of

if TYPE_CHECKING:
    from clang.cindex import Cursor, TranslationUnit

_PRIVATE = ("detail", "details", "internal", "impl", "experimental_detail")
_HIDDEN = re.compile(r"[@\\]internal\b|DOXYGEN_SHOULD_SKIP_THIS|[@\\]cond\b")
_KINDS = {
    "FUNCTION_DECL": "function", "FUNCTION_TEMPLATE": "function template", "STRUCT_DECL": "struct",
    "CLASS_DECL": "class",
    "CLASS_TEMPLATE": "class template", "ENUM_DECL": "enum", "TYPEDEF_DECL": "type", "TYPE_ALIAS_DECL": "type",
    "TYPE_ALIAS_TEMPLATE_DECL": "type", "CXX_METHOD": "member function", "CONSTRUCTOR": "constructor",
}  # fmt: skip
_CLASSES = ("STRUCT_DECL", "CLASS_DECL", "CLASS_TEMPLATE")
_BESIDE = re.compile(rb"[ \t]*[,;]?[ \t]*(/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[/!]<[^\n]*)*)", re.DOTALL)
_MAX_DECLARED = 3000
_SPECIFIER = re.compile(
    r"inline|static|extern|constexpr|friend|__host__|__device__|__forceinline__|__inline__|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
)


@dataclass(frozen=True)
class Symbol:
    """A documented declaration.

    `call`: for a plain function, a function that calls it with arguments of its own parameters, which compiles if the
    declaration is whole; "" for templates and members. `declared`: its own text up to the body. `arguments`: names of
    its parameters, None for what is not called. `values`: (text, comment) of enumerators or fields.
    """

    kind: str
    name: str
    line: int
    comment: Comment
    call: str = ""
    declared: str = ""
    arguments: tuple[str, ...] | None = None
    values: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        return f"the {self.kind} {self.name}"

    @property
    def callable(self) -> bool:
        return self.arguments is not None


@dataclass(frozen=True)
class Unread:
    """A declaration whose types libclang could not find, so that what it says of it may be wrong."""

    name: str
    line: int
    why: str


def symbols(path: Path, args: Sequence[str]) -> Iterator[Symbol | Unread]:
    """Documented declarations of one header in order of line, overloads apart; internal namespaces, private members and
    what comes out of macros are left out."""
    from clang.cindex import Index, TranslationUnit, TranslationUnitLoadError

    options = TranslationUnit.PARSE_SKIP_FUNCTION_BODIES
    try:
        unit = Index.create().parse(str(path), list(args), options=options)
    except TranslationUnitLoadError:
        return
    text = path.read_bytes()
    errors = _errors(unit, str(path))
    seen: set[tuple[str, str]] = set()
    for cursor, space in _declarations(unit.cursor, str(path), ""):
        kind = _KINDS.get(cursor.kind.name)
        named = bool(cursor.spelling) and "(unnamed" not in cursor.spelling and "(anonymous" not in cursor.spelling
        # In an expansion of a macro the name stands nowhere in the file: what its line shows is the macro.
        at = cursor.location.offset
        if kind is None or not named or text[at : at + len(_bare(cursor))].decode(errors="replace") != _bare(cursor):
            continue
        key = (f"{space}{_full(cursor)}", cursor.raw_comment)
        if key in seen or _HIDDEN.search(cursor.raw_comment) or not _stands_here(cursor, text):
            continue
        seen.add(key)
        first, last = cursor.extent.start.line, _head_end(cursor)
        wrong = next((why for line, why in errors if first <= line <= last), "")
        found = _symbol(cursor, kind, space, text)
        if wrong and found.callable and cursor.kind.name == "FUNCTION_DECL":
            yield Unread(found.name, found.line, wrong)
        else:
            yield found


def _stands_here(cursor: Cursor, text: bytes) -> bool:
    """Whether a comment is beside this very declaration: libclang gives it to each later or earlier one of the same
    entity too, and a place that only announces a class is no source of what is said of it."""
    if cursor.spelling.startswith("_"):
        return False  # a tag, or reserved for the implementation
    start, comment = cursor.extent.start.offset, cursor.raw_comment.encode()
    if text[:start].rstrip().endswith(b"typedef"):
        return False  # the name of the type says it
    line_end = text.find(b"\n", cursor.extent.end.offset)
    if comment.split(b"\n")[0] in text[cursor.extent.end.offset : line_end if line_end >= 0 else len(text)]:
        return True
    at = text.rfind(comment, 0, start)
    # Between them may stand attributes and macros, but no other declaration.
    return at >= 0 and not re.search(rb"[;}]", text[at + len(comment) : start])


def _bare(cursor: Cursor) -> str:
    """A name as it is written: libclang adds template parameters to that of a constructor."""
    return cursor.spelling.partition("<")[0] if cursor.kind.name == "CONSTRUCTOR" else cursor.spelling


def _full(cursor: Cursor) -> str:
    """A name that tells a specialisation of a class from the class."""
    special = cursor.kind.name in ("STRUCT_DECL", "CLASS_DECL") and "<" in cursor.displayname
    return cursor.displayname if special else _bare(cursor)


def _errors(unit: TranslationUnit, file: str) -> list[tuple[int, str]]:
    return [
        (d.location.line, d.spelling)
        for d in unit.diagnostics
        if d.severity >= 3 and d.location.file is not None and d.location.file.name == file
    ]


def _head_end(cursor: Cursor) -> int:
    """The last line of a function's parameters."""
    lines = [a.extent.end.line for a in cursor.get_arguments() or () if a is not None]
    return max([cursor.location.line, *lines])


def _declarations(cursor: Cursor, file: str, space: str) -> Iterator[tuple[Cursor, str]]:
    for child in cursor.get_children():
        if child.location.file is None or child.location.file.name != file:
            continue
        kind = child.kind.name
        if kind == "NAMESPACE":
            if child.spelling and child.spelling not in _PRIVATE:
                yield from _declarations(child, file, f"{space}{child.spelling}::")
            continue
        if kind in ("LINKAGE_SPEC", "UNEXPOSED_DECL"):
            yield from _declarations(child, file, space)
            continue
        if child.access_specifier.name in ("PRIVATE", "PROTECTED"):
            continue
        if child.raw_comment:
            yield child, space
        if kind in _CLASSES and child.spelling and child.is_definition():
            yield from _declarations(child, file, f"{space}{child.spelling}::")


def _symbol(cursor: Cursor, kind: str, space: str, text: bytes) -> Symbol:
    name, line = f"{space}{_full(cursor)}", cursor.location.line
    comment = comment_of(cursor.raw_comment)
    holder = _definition_of(cursor)
    if holder.kind.name == "ENUM_DECL":
        items = [c for c in holder.get_children() if c.kind.name == "ENUM_CONSTANT_DECL"]
        said = _comments_of(items, text)
        values = tuple((f"`{c.spelling}` = {c.enum_value}", t) for c, t in zip(items, said, strict=True))
        return Symbol("enum", name, line, comment, values=values)
    if holder.kind.name in _CLASSES:
        members = (c for c in holder.get_children() if c.kind.name == "FIELD_DECL")
        fields = [c for c in members if c.access_specifier.name == "PUBLIC"]
        # Some libraries describe members as parameters of the structure.
        listed = dict(comment.params)
        said = [t or listed.get(c.spelling, "") for c, t in zip(fields, _comments_of(fields, text), strict=True)]
        values = tuple((f"`{_source(c, text)}`", t) for c, t in zip(fields, said, strict=True) if t)
        names = {c.spelling for c in fields}
        comment = replace(comment, params=tuple(p for p in comment.params if p[0] not in names))
        return Symbol("struct" if kind == "type" else kind, name, line, comment, values=values)
    if "function" not in kind and kind != "constructor":
        return Symbol(kind, name, line, comment)
    arguments = tuple(c.spelling for c in cursor.get_children() if c.kind.name == "PARM_DECL")
    call = _call(cursor, name, text) if cursor.kind.name == "FUNCTION_DECL" else ""
    return Symbol(kind, name, line, comment, call, _declared(cursor, text), arguments)


def _comments_of(items: Sequence[Cursor], text: bytes) -> list[str]:
    """What is said of each enumerator or member. A comment that begins on the line on which an item ends is that
    item's, even where it lacks the mark that says so and goes to the next one by the rules of the tools."""
    found: list[str] = []
    free = 0  # where text begins that belongs to no earlier item
    for number, item in enumerate(items):
        start, end = item.extent.start.offset, item.extent.end.offset
        limit = items[number + 1].extent.start.offset if number + 1 < len(items) else len(text)
        beside = _BESIDE.match(text, end, limit)
        raw = item.raw_comment
        ahead = raw is not None and text.rfind(raw.encode(), free, start) >= 0
        parts = [_said(raw)] if ahead else []
        parts += [_said(beside[1].decode(errors="replace"))] if beside else []
        found.append(" ".join(p for p in parts if p))
        free = beside.end() if beside else end
    return found


def _said(raw: str) -> str:
    return " ".join(re.sub(r"\s*\n\s*[*+-] ", "; ", comment_of(raw).prose()).replace(":;", ":").split())


def _definition_of(cursor: Cursor) -> Cursor:
    """What a `typedef struct/enum {...} Name;` names; the cursor itself where it is none."""
    if cursor.kind.name != "TYPEDEF_DECL":
        return cursor
    inner = cursor.underlying_typedef_type.get_declaration()
    same = inner.kind.name in ("ENUM_DECL", *_CLASSES) and inner.location.file is not None
    return inner if same and inner.extent.start.line >= cursor.extent.start.line else cursor


def _source(cursor: Cursor, text: bytes) -> str:
    """A declaration as it stands in the file, in one line."""
    found = text[cursor.extent.start.offset : cursor.extent.end.offset].decode(errors="replace")
    return " ".join(found.split())


def _declared(cursor: Cursor, text: bytes) -> str:
    """The text of a function's declaration up to its body or its initialisers; "" where its end is not found."""
    source = text[cursor.extent.start.offset : cursor.extent.end.offset].decode(errors="replace")
    source = re.sub(r"^[ \t]*#[^\n]*\n?", "", source, flags=re.MULTILINE)
    depth = 0
    for at, char in enumerate(source):
        depth += (char in "([") - (char in ")]")
        starts = char == ":" and "::" not in source[max(at - 1, 0) : at + 2] and source[:at].rstrip().endswith(")")
        if depth == 0 and (char in "{;" or starts):
            source = source[:at]
            break
    # The first line has lost its indentation, which the others have; a macro ahead of it may have been cut off.
    later = [len(line) - len(line.lstrip()) for line in source.rstrip().split("\n")[1:] if line.strip()]
    indent = " " * min([cursor.extent.start.column - 1, *later])
    shown = textwrap.dedent(re.sub(r"\b[A-Z]\w*_EXPORT\b\s*", "", indent + source.rstrip()))
    return f"{shown};" if ")" in shown and len(shown) < _MAX_DECLARED else ""


def _result(cursor: Cursor, text: bytes) -> str:
    """A function's result type as it is written, without what says how the function is built or exported."""
    written = text[cursor.extent.start.offset : cursor.location.offset].decode(errors="replace")
    words = re.sub(r"\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)|\"C\"", " ", written, flags=re.DOTALL).split()
    kept = [w for w in words if not _SPECIFIER.fullmatch(w)]
    return " ".join(kept) or "auto"


def _call(cursor: Cursor, name: str, text: bytes) -> str:
    """A function with the parameters of another that hands them on."""
    given: list[str] = []
    passed: list[str] = []
    for number, argument in enumerate(cursor.get_arguments()):
        label = argument.spelling or f"a{number}"
        # As it is written: libclang calls every type that it does not know `int`.
        written = _source(argument, text).partition("=")[0].strip()
        given.append(written if argument.spelling else f"{written} {label}")
        passed.append(label)
    result = _result(cursor, text)
    body = f"{name}({', '.join(passed)});"
    ret = "" if result == "void" else "return "
    parameters = ",\n    ".join(given)
    return f"{result} call({parameters and chr(10) + '    '}{parameters})\n{{\n    {ret}{body}\n}}"


__all__ = ["Symbol", "Unread", "symbols"]

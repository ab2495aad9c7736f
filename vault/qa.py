"""Questions and answers from a ROCm library's own checkout: declarations with their comments, examples, samples, pages.

Nothing is made up: an answer is the library's own text, rearranged, and cites file and line. Code in an answer has gone
through the compiler's front end with the library's headers; code that has not is left out, and listed with the reason.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.doxygen import Comment, Symbol, symbols
from kvc.vault.front_end import FrontEnd

REPORT = "dropped.jsonl"
MIN_WORDS = 12  # of prose, for an answer that is prose alone
MAX_CHARS = 12_000
_HEADERS, _SAMPLES, _PAGES = (".h", ".hpp"), (".cpp", ".hip", ".c", ".cc"), (".rst", ".md")
_SKIPPED = {"test", "tests", "gtest", "benchmark", "benchmarks", "deps", "detail", "build", "cmake", ".git", "perf"}
_SAMPLE_FOLDERS = {"sample", "samples", "example", "examples"}
_TITLE = re.compile(r"^(?P<rst>[^\n]+)\n(?P<line>[=\-*~^#]{3,})[ \t]*$|^(?P<md>#{1,4} [^\n]+)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*\.\. [^\n]*(?:\n(?:[ \t]+[^\n]*)?)*", re.MULTILINE)
_CODE_BLOCK = re.compile(r"^\.\. code(?:-block)?:: *(?:c\+\+|cpp|c|hip)\s*\n\n?((?:[ \t]+[^\n]*\n|\n)+)", re.MULTILINE)
_MD_CODE = re.compile(r"```(?:c\+\+|cpp|c|hip)\n(.*?)```", re.DOTALL)
_ROLE = re.compile(r":[\w:]+:`~?([^`<]+?)(?: *<[^`>]*>)?`|`([^`<]+?) *<[^`>]*>`_+|``([^`]+)``")


@dataclass(frozen=True)
class Pair:
    """One question with its answer. `code`: "compiled" or "none". `line`: where in `file` its source begins."""

    id: str
    kind: str
    question: str
    answer: str
    library: str
    file: str
    line: int
    commit: str
    licence: str
    code: str
    symbols: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields, and the same as chat messages."""
        cited = f"{self.answer}\n\nSource: {self.library}, {self.file}:{self.line}"
        messages = [{"role": "user", "content": self.question}, {"role": "assistant", "content": cited}]
        return {**asdict(self), "messages": messages}


@dataclass(frozen=True)
class Checkout:
    """A library's files. `include`: folders of its headers and of what they include, for the compiler."""

    root: Path
    name: str
    licence: str
    commit: str
    front_end: FrontEnd

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def files(self, endings: Sequence[str]) -> list[Path]:
        """Files of these endings in order, without tests, benchmarks and what is private to the library."""
        found = [p for p in self.root.rglob("*") if p.suffix in endings and p.is_file()]
        return sorted(p for p in found if not _SKIPPED & {part.lower() for part in p.relative_to(self.root).parts[:-1]})


def make(source: Path, out: Path, include: Sequence[Path], licence: str = "", commit: str = "") -> dict[str, Any]:
    """Write the pairs of a checkout to `out` (JSON lines) and what was left out to dropped.jsonl beside it. Gives
    counts. KVC0101 where there is no checkout, or where its licence is nowhere stated and not given."""
    if not source.is_dir():
        raise KvcError("KVC0101", f"{source} is no folder")
    root = source.resolve()
    name, found = root.name, licence or licence_of(root)
    if not found:
        raise KvcError("KVC0101", f"{source} has no licence file that is known", hint="say it with --licence SPDX")
    places = [*_own_includes(root), *include]
    checkout = Checkout(root, name, found, commit or _commit(root), FrontEnd(places))
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as stream, (out.parent / REPORT).open("w", encoding="utf-8") as report:
        for made in (*_of_headers(checkout), *_of_samples(checkout), *_of_pages(checkout)):
            if isinstance(made, Dropped):
                dropped[made.kind] += 1
                report.write(json.dumps(asdict(made)) + "\n")
            elif made.question not in seen and len(made.answer) <= MAX_CHARS:
                seen.add(made.question)
                counts[made.kind] += 1
                stream.write(json.dumps(made.to_json()) + "\n")
    return {
        "library": name,
        "licence": found,
        "pairs": sum(counts.values()),
        "kinds": dict(counts),
        "dropped": dict(dropped),
    }


@dataclass(frozen=True)
class Dropped:
    """Something that gave no pair, and why."""

    kind: str
    file: str
    line: int
    why: str


def licence_of(root: Path) -> str:
    """SPDX name of a checkout's licence file, by the words that only that licence has; "" where it is not known."""
    for path in sorted(root.glob("LICEN[SC]E*")):
        text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        if "Apache License" in text and "Version 2.0" in text:
            return "Apache-2.0 WITH LLVM-exception" if "LLVM Exceptions" in text else "Apache-2.0"
        if "Redistribution and use in source and binary forms" in text and "Permission is hereby granted" not in text:
            return "BSD-3-Clause" if "Neither the name" in text or "endorse or promote" in text else "BSD-2-Clause"
        if "Permission is hereby granted, free of charge" in text:
            return "MIT AND BSD-3-Clause" if "Redistribution and use in source" in text else "MIT"
    return ""


def _commit(root: Path) -> str:
    import subprocess

    words = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _own_includes(root: Path) -> list[Path]:
    """The folders named include of a checkout, outer ones first."""
    return sorted(
        (p for p in root.rglob("include") if p.is_dir() and ".git" not in p.parts), key=lambda p: len(p.parts)
    )


def _pair(
    checkout: Checkout, kind: str, question: str, answer: str, path: Path, line: int, code: str, *names: str
) -> Pair:
    from kvc.vault.record import digest

    file = checkout.relative(path)
    return Pair(
        digest(f"{checkout.name}\0{question}\0{answer}"), kind, question, answer.strip(), checkout.name, file, line,
        checkout.commit, checkout.licence, code, names,
    )  # fmt: skip


# ---------------------------------------------------------------- headers


def _of_headers(checkout: Checkout) -> Iterator[Pair | Dropped]:
    for path in checkout.files(_HEADERS):
        if "include" not in path.parts or _SAMPLE_FOLDERS & set(path.parts):
            continue
        for symbol in symbols(path, checkout.front_end.parse_args()):
            if len(symbol.comment.prose().split()) >= 4:
                yield from _of_symbol(checkout, path, symbol)


def _include_of(checkout: Checkout, path: Path) -> str:
    """How a header is included: its path below the folder named include."""
    parts = path.parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("include") + 1 :])


def _of_symbol(checkout: Checkout, path: Path, symbol: Symbol) -> Iterator[Pair | Dropped]:
    library, header = checkout.name, _include_of(checkout, path)
    place = (path, symbol.line)
    if symbol.kind == "enum" and symbol.values:
        lines = [f"- `{name}`" + (f": {text}" if text else "") for name, text in symbol.values]
        answer = f"{symbol.comment.prose()}\n\n" + "\n".join(lines)
        question = f"Which values does {symbol.name} have in {library}, and what do they mean?"
        yield _pair(checkout, "enum", question, answer, *place, "none", symbol.name)
        return
    parts = [symbol.comment.prose()]
    parts += (
        ["Parameters:\n" + "\n".join(f"- `{n}`: {t}" for n, t in symbol.comment.params)]
        if symbol.comment.params
        else []
    )
    parts += [f"Returns: {symbol.comment.returns}"] if symbol.comment.returns else []
    prose = "\n\n".join(p for p in parts if p)
    if symbol.kind == "function" and symbol.call:
        code = f"#include <{header}>\n\n{symbol.call}\n"
        problem = checkout.front_end.problem(code)
        if problem:
            yield Dropped("function", checkout.relative(path), symbol.line, problem)
        else:
            answer = f"{prose}\n\nA call, with its types:\n```cpp\n{code}```"
            question = f"What does {symbol.name} do in {library}, and how is it called?"
            yield _pair(checkout, "function", question, answer, *place, "compiled", symbol.name)
    elif len(prose.split()) >= MIN_WORDS:
        question = f"What is {symbol.title} in {library}{' for' if symbol.comment.params else ''}?"
        yield _pair(checkout, symbol.kind, question, prose, *place, "none", symbol.name)
    yield from _examples(checkout, path, symbol, header)


def _examples(checkout: Checkout, path: Path, symbol: Symbol, header: str) -> Iterator[Pair | Dropped]:
    for number, example in enumerate(symbol.comment.code):
        shown = checkout.front_end.compiled_form(example, header)
        if isinstance(shown, str):
            which = "" if number == 0 else f" (another example, number {number + 1})"
            question = f"Show how {symbol.title} of {checkout.name} is used{which}."
            answer = f"{symbol.comment.brief}\n\n```cpp\n{example.strip()}\n```"
            yield _pair(checkout, "example", question, answer, path, symbol.line, "compiled", symbol.name)
        else:
            yield Dropped("example", checkout.relative(path), symbol.line, shown.why)


# ---------------------------------------------------------------- samples and pages


def _of_samples(checkout: Checkout) -> Iterator[Pair | Dropped]:
    for path in checkout.files(_SAMPLES):
        if not _SAMPLE_FOLDERS & {p.lower() for p in path.parts}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        body = re.sub(r"\A(\s*(/\*.*?\*/|//[^\n]*))+", "", text, flags=re.DOTALL).strip()
        prefix = checkout.name.replace("-", "").lower()
        calls = dict.fromkeys(re.findall(rf"\b({prefix}(?:::|_)?[A-Za-z]\w*)\s*(?:<[^;()]*>)?\(", text, re.IGNORECASE))
        names = [c for c in calls if not re.search(r"create|destroy|status|error|string|check", c, re.IGNORECASE)][:4]
        file = checkout.relative(path)
        if not names or len(body) > MAX_CHARS:
            yield Dropped("sample", file, 1, "calls nothing of the library" if not names else "too long for an answer")
            continue
        problem = checkout.front_end.problem(text, path.parent, is_c=path.suffix == ".c")
        if problem:
            yield Dropped("sample", file, 1, problem)
            continue
        question = f"Write a complete program with {checkout.name} that uses {', '.join(names)} ({path.stem})."
        line = text[: text.index(body[:40])].count("\n") + 1
        yield _pair(checkout, "sample", question, f"```cpp\n{body}\n```", path, line, "compiled", *names)


def _of_pages(checkout: Checkout) -> Iterator[Pair | Dropped]:
    for path in checkout.files(_PAGES):
        if path.stem.upper().startswith(("CHANGELOG", "LICENSE", "NOTICE", "CONTRIBUTING")):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        titles = list(_TITLE.finditer(text))
        page = ""
        for number, found in enumerate(titles):
            title = (found["rst"] or found["md"] or "").strip("# *\t")
            page = page or title
            end = titles[number + 1].start() if number + 1 < len(titles) else len(text)
            yield from _of_section(
                checkout, path, page, title, text[found.end() : end], text[: found.start()].count("\n") + 1
            )


def _of_section(
    checkout: Checkout, path: Path, page: str, title: str, body: str, line: int
) -> Iterator[Pair | Dropped]:
    blocks = [re.sub(r"^ {3,4}", "", b, flags=re.MULTILINE) for b in _CODE_BLOCK.findall(body)] + _MD_CODE.findall(body)
    prose = _ROLE.sub(lambda m: f"`{m[1] or m[2] or m[3]}`", _DIRECTIVE.sub("", _MD_CODE.sub("", body)))
    prose = re.sub(r"\n{3,}", "\n\n", re.sub(r"^={3,}.*$|^\*{3,}.*$|^\.\. _.*$", "", prose, flags=re.MULTILINE)).strip()
    if len(prose.split()) < MIN_WORDS:
        return
    shown, compiled = [], "none"
    for block in blocks:
        made = checkout.front_end.compiled_form(block, "")
        if isinstance(made, str):
            shown.append(f"```cpp\n{block.strip()}\n```")
            compiled = "compiled"
        else:
            yield Dropped("page", checkout.relative(path), line, made.why)
    where = f" ({page})" if page != title else ""
    question = f"What does the documentation of {checkout.name} say about {title}{where}?"
    yield _pair(checkout, "page", question, "\n\n".join([prose, *shown]), path, line, compiled)


__all__ = ["Checkout", "Comment", "Dropped", "Pair", "licence_of", "make"]

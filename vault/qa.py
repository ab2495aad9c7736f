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
from itertools import chain
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.declarations import Symbol, Unread, symbols
from kvc.vault.front_end import Failed, FrontEnd, Shown
from kvc.vault.pages import Section, sections

REPORT = "dropped.jsonl"
MIN_WORDS = 12  # of prose, for an answer that is prose alone
MAX_CHARS = 12_000
_HEADERS, _SAMPLES, _PAGES = (".h", ".hpp"), (".cpp", ".hip", ".c", ".cc"), (".rst", ".md")
_SKIPPED = {"test", "tests", "gtest", "benchmark", "benchmarks", "deps", "detail", "build", "cmake", ".git", "perf"}
_SAMPLE_FOLDERS = {"sample", "samples", "example", "examples"}
_NO_PAGES = ("CHANGELOG", "LICENSE", "LICENCE", "NOTICE", "CONTRIBUTING", "CODE_OF_CONDUCT")
_CLIENTS = {"client", "clients"}  # programs that test and time a library: their headers are none of it
_COMMENT_HEAD = re.compile(r"\A(\s*(/\*.*?\*/|//[^\n]*))+", re.DOTALL)


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
    tally: Counter[str]
    #: Name of a documented declaration -> (the header that has it, as it is included; the namespace that it is in).
    headers: dict[str, tuple[str, str]]
    spaces: set[str]  # namespaces among those of the declarations; the others are classes

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def files(self, endings: Sequence[str]) -> list[Path]:
        """Files of these endings in order, without tests, benchmarks and what is private to the library."""
        found = [p for p in self.root.rglob("*") if p.suffix in endings and p.is_file()]
        return sorted(p for p in found if not _SKIPPED & {part.lower() for part in p.relative_to(self.root).parts[:-1]})


def make(
    source: Path, out: Path, include: Sequence[Path], licence: str = "", commit: str = "", macros: Sequence[str] = ()
) -> dict[str, Any]:
    """Write the pairs of a checkout to `out` (JSON lines) and what was left out to dropped.jsonl beside it. Gives
    counts: pairs by kind, documented declarations seen, pieces of code tried, compiled and kept. KVC0101 where there is
    no checkout, or where its licence is nowhere stated and not given."""
    if not source.is_dir():
        raise KvcError("KVC0101", f"{source} is no folder")
    root = source.resolve()
    name, found = root.name, licence or licence_of(root)
    if not found:
        raise KvcError("KVC0101", f"{source} has no licence file that is known", hint="say it with --licence SPDX")
    own = _own_includes(root)
    tally: Counter[str] = Counter()
    checkout = Checkout(
        root, name, found, commit or _commit(root), FrontEnd([*own, *include], own, macros), tally, {}, set()
    )
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as stream, (out.parent / REPORT).open("w", encoding="utf-8") as report:

        def leave_out(what: Dropped) -> None:
            dropped[what.kind] += 1
            report.write(json.dumps(asdict(what)) + "\n")

        for made in chain(_of_headers(checkout), _of_samples(checkout), _of_pages(checkout)):
            why = "" if isinstance(made, Dropped) else _repeats(made, seen)
            if isinstance(made, Dropped):
                leave_out(made)
            elif why:
                leave_out(Dropped(made.kind, made.file, made.line, why))
            else:
                counts[made.kind] += 1
                tally["kept"] += made.code == "compiled"
                stream.write(json.dumps(made.to_json()) + "\n")
    return {
        "library": name,
        "licence": found,
        "pairs": sum(counts.values()),
        "kinds": dict(counts),
        "dropped": dict(dropped),
        "declarations": tally["declarations"],
        "code": {key: tally[key] for key in ("tried", "compiled", "kept")},
    }


def _repeats(pair: Pair, seen: set[str]) -> str:
    """Why a pair is not written beside those that were; "" for none. The same words about another name, or the same
    name in a second header, teach nothing new."""
    if len(pair.answer) > MAX_CHARS:
        return "too long for an answer"
    # Overloads and wrappers: the same text once what they are called is taken out.
    bare = pair.answer
    for name in sorted({n.rpartition("::")[2] for n in pair.symbols if n}, key=len, reverse=True):
        bare = re.sub(rf"\b{re.escape(name)}\b", "", bare)
    keys = {pair.question, f"{pair.kind}\0{' '.join(bare.split())}"}
    if keys & seen:
        return "repeats another answer"
    seen |= keys
    return ""


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
        if "include" not in path.parts or (_SAMPLE_FOLDERS | _CLIENTS) & {part.lower() for part in path.parts}:
            continue
        found = list(symbols(path, checkout.front_end.parse_args()))
        checkout.tally["declarations"] += len(found)
        said = [s for s in found if isinstance(s, Symbol) and (s.values or len(s.comment.prose().split()) >= 4)]
        overloads = Counter(s.name for s in said if s.callable)
        for symbol in found:
            space, _, bare = symbol.name.rpartition("::")
            checkout.headers.setdefault(bare, (_include_of(checkout, path), space))
            if space and isinstance(symbol, Symbol) and symbol.kind not in ("member function", "constructor"):
                checkout.spaces.add(space)
            if isinstance(symbol, Unread):
                yield Dropped("function", checkout.relative(path), symbol.line, symbol.why)
        for symbol in said:
            yield from _of_symbol(checkout, path, symbol, overloads[symbol.name] > 1)


def _include_of(checkout: Checkout, path: Path) -> str:
    """How a header is included: its path below the folder named include, as an installation calls it."""
    parts = path.parts
    cut = len(parts) - 1 - parts[::-1].index("include") + 1
    prefix = checkout.front_end.prefixes.get(Path(*parts[:cut]), "")
    return "/".join([*([prefix] if prefix else []), *parts[cut:]])


def _of_symbol(checkout: Checkout, path: Path, symbol: Symbol, overloaded: bool) -> Iterator[Pair | Dropped]:
    library, header = checkout.name, _include_of(checkout, path)
    place = (path, symbol.line)
    # Overloads have one name: their parameters tell them apart.
    which = f"({', '.join(symbol.arguments or ())})" if overloaded else ""
    if symbol.values:
        answer = symbol.comment.answer() + "\n\n" + _listed(symbol.values)
        verb = "values does" if symbol.kind == "enum" else "members does"
        question = f"Which {verb} {symbol.name} have in {library}, and what do they mean?"
        if len(answer.split()) >= MIN_WORDS:
            yield _pair(checkout, symbol.kind, question, answer, *place, "none", symbol.name)
    elif symbol.callable:
        yield from _of_function(checkout, path, symbol, which)
    elif len(symbol.comment.answer().split()) >= MIN_WORDS:
        question = f"What is {symbol.title} in {library} for?"
        yield _pair(checkout, symbol.kind, question, symbol.comment.answer(), *place, "none", symbol.name)
    yield from _examples(checkout, path, symbol, header, which)


def _listed(values: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}" + (f": {said}" if said else "") for name, said in values)


def _of_function(checkout: Checkout, path: Path, symbol: Symbol, which: str) -> Iterator[Pair | Dropped]:
    library, header = checkout.name, _include_of(checkout, path)
    prose = symbol.comment.answer()
    if symbol.call:
        code, title = f"#include <{header}>\n\n{symbol.call}\n", "A call, with its types"
        form = code
    elif symbol.declared and len(prose.split()) >= MIN_WORDS:
        # A template cannot be called without an invention. Its declaration has been compiled where it stands.
        code, title, form = f"#include <{header}>\n\n{symbol.declared}\n", "Its declaration", f"#include <{header}>\n"
        owner = symbol.name.rpartition("::")[0]
        code = f"// {header}" + (f", in {owner}" if owner else "") + f"\n{symbol.declared}\n"
    else:
        return
    checkout.tally["tried"] += 1
    problem = checkout.front_end.problem(form)
    space = symbol.name.rpartition("::")[0]
    if problem and symbol.call and space:  # its types may be named as they are inside its namespace
        code = form = f"#include <{header}>\n\nusing namespace {space};\n\n{symbol.call}\n"
        problem = checkout.front_end.problem(form) and problem
    if problem:
        yield Dropped(symbol.kind, checkout.relative(path), symbol.line, problem)
        return
    checkout.tally["compiled"] += 1
    answer = f"{prose}\n\n{title}:\n```cpp\n{code}```"
    article = "" if symbol.kind == "function" else f"the {symbol.kind} "
    question = f"What does {article}{symbol.name}{which} do in {library}, and how is it called?"
    yield _pair(checkout, symbol.kind, question, answer, path, symbol.line, "compiled", symbol.name)


def _examples(checkout: Checkout, path: Path, symbol: Symbol, header: str, which: str) -> Iterator[Pair | Dropped]:
    for number, example in enumerate(symbol.comment.code):
        checkout.tally["tried"] += 1
        shown = checkout.front_end.compiled_form(example, [header])
        if not isinstance(shown, Shown):
            yield Dropped("example", checkout.relative(path), symbol.line, shown.why)
            continue
        checkout.tally["compiled"] += 1
        another = "" if number == 0 else f" (another example, number {number + 1})"
        question = f"Show how {symbol.title}{which} of {checkout.name} is used{another}."
        said = "\n\n".join(p for p in (symbol.comment.brief, symbol.comment.lead) if p)
        code = shown.text.strip()
        if header not in code:
            code = f"#include <{header}>\n\n{code}"
        answer = f"{said}\n\n```cpp\n{code}\n```"
        yield _pair(checkout, "example", question, answer, path, symbol.line, "compiled", symbol.name)


# ---------------------------------------------------------------- samples and pages


def _of_samples(checkout: Checkout) -> Iterator[Pair | Dropped]:
    for path in checkout.files(_SAMPLES):
        if not _SAMPLE_FOLDERS & {p.lower() for p in path.parts}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        body = _COMMENT_HEAD.sub("", text).strip()
        names = _used(checkout, text)
        file = checkout.relative(path)
        helpers = _helpers(path, text)
        helped = "".join(f"\n\nIts {h.name}:\n```cpp\n{_body(h)}\n```" for h in helpers)
        if len(body) + len(helped) > MAX_CHARS:
            helped = "".join(f"\n\n`{h.name}` is the samples' own: {checkout.relative(h)}." for h in helpers)
        if not names or len(body) + len(helped) > MAX_CHARS:
            yield Dropped("sample", file, 1, "calls nothing of the library" if not names else "too long for an answer")
            continue
        checkout.tally["tried"] += 1
        beside = list(dict.fromkeys((path.parent, *(h.parent for h in helpers))))
        problem = checkout.front_end.problem(text, beside, is_c=path.suffix == ".c")
        if problem:
            yield Dropped("sample", file, 1, problem)
            continue
        checkout.tally["compiled"] += 1
        question = f"Write a complete program with {checkout.name} that uses {', '.join(names)} ({path.stem})."
        line = text[: text.index(body[:40])].count("\n") + 1
        yield _pair(checkout, "sample", question, f"```cpp\n{body}\n```{helped}", path, line, "compiled", *names)


def _used(checkout: Checkout, text: str) -> list[str]:
    """Up to four names of the library that a program calls, or else uses."""
    prefix = re.sub(r"\W", "", checkout.name).lower()
    name = rf"\b({prefix}\w*(?:::\w+)*)"
    calls = re.findall(rf"{name}\s*(?:<[^;()]*>)?\(", text, re.IGNORECASE)
    uses = re.findall(rf"\b({prefix}\w*(?:::\w+)+)", text, re.IGNORECASE)
    used = dict.fromkeys([*calls, *uses])
    return [c for c in used if not re.search(r"create|destroy|status|error|string|check", c, re.IGNORECASE)][:4]


def _body(path: Path) -> str:
    return _COMMENT_HEAD.sub("", path.read_text(encoding="utf-8", errors="replace")).strip()


def _helpers(path: Path, text: str) -> list[Path]:
    """Files of the samples' own folder that a sample includes by quotes: without them it is no complete program."""
    names = {p.lower(): p for p in path.parts}
    top = next((names[f] for f in sorted(_SAMPLE_FOLDERS) if f in names), "")
    root = Path(*path.parts[: path.parts.index(top) + 1])
    found: list[Path] = []
    for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text, re.MULTILINE):
        if (path.parent / name).is_file():
            found.append((path.parent / name).resolve())
        else:
            found += sorted(p for p in root.rglob(Path(name).name) if p.as_posix().endswith(f"/{name}"))[:1]
    return found


def _of_pages(checkout: Checkout) -> Iterator[Pair | Dropped]:
    for path in checkout.files(_PAGES):
        if path.stem.upper().startswith(_NO_PAGES):
            continue
        for section in sections(path.read_text(encoding="utf-8", errors="replace")):
            yield from _of_section(checkout, path, section)


def _compiled_excerpt(checkout: Checkout, code: str) -> str | Failed:
    """An excerpt of a page with the headers of the library whose declarations it names; where that does not do, with
    their namespaces opened as well."""
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w{3,}", code))
    known = [found for word in words if (found := checkout.headers.get(word))]
    headers = list(dict.fromkeys(header for header, _ in known))
    spaces = dict.fromkeys(space for _, space in known if space in checkout.spaces)
    using = "".join(f"using namespace {space};\n" for space in spaces)
    made = checkout.front_end.compiled_form(code, headers)
    if isinstance(made, Failed) and using:
        second = checkout.front_end.compiled_form(f"{using}\n{code}", headers)
        made = second if isinstance(second, Shown) else made
    if isinstance(made, Failed):
        return made
    return "".join(f"#include <{h}>\n" for h in headers if h not in made.text) + made.text.strip()


def _of_section(checkout: Checkout, path: Path, section: Section) -> Iterator[Pair | Dropped]:
    shown: dict[int, str] = {}
    code = "none"
    for number, part in enumerate(section.parts):
        if not part.is_cpp:
            continue
        checkout.tally["tried"] += 1
        made = _compiled_excerpt(checkout, part.text)
        if isinstance(made, str):
            checkout.tally["compiled"] += 1
            shown[number] = made
            code = "compiled"
        else:
            yield Dropped("page", checkout.relative(path), section.line, made.why)
    answer = section.answer(shown)
    if answer:
        question = section.question(checkout.name)
        yield _pair(checkout, "page", question, answer, path, section.line, code)


__all__ = ["Checkout", "Dropped", "Pair", "licence_of", "make"]

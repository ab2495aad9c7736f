"""Pages of documentation (reStructuredText, Markdown) as sections: a title, prose, and code blocks in order."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MIN_WORDS = 25  # of prose, for a section that shows nothing else
_LINE = r"[=\-*~^#+\"'`]"
_RST_TITLE = re.compile(rf"^(?P<rst>\S[^\n]*|[ ]\S[^\n]*)\n(?P<line>{_LINE}{{3,}})[ \t]*$", re.MULTILINE)
_MD_TITLE = re.compile(r"^#{1,5} +(?P<md>[^\n]+?)[ #]*$", re.MULTILINE)
_RULE = re.compile(rf"^{_LINE}{{4,}}[ \t]*$", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"^(?P<in>[ \t]*)\.\. (?P<name>[\w:-]*[\w-])::[ \t]*(?P<arg>[^\n]*)\n(?P<body>(?:(?P=in)[ \t]+[^\n]*\n|[ \t]*\n)*)",
    re.M,
)
_TARGET = re.compile(r"^[ \t]*\.\. (?:_[^\n]*|\|[^\n]*|\[[^\n]*)\n?", re.MULTILINE)
_REMARK = re.compile(r"^\.\.(?:[ \t]+(?![\w:-]+::)[^\n]*)?\n(?:[ \t]+[^\n]*\n)*", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<lang>[\w+]*)[^\n]*\n(?P<body>.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":[\w:+-]+:`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`|`([^`<]+?)\s*<[^`>]*>`_+|``([^`]+)``")
_CPP = {"c++", "cpp", "c", "hip", "cuda"}
_NOTES = {"note": "Note", "warning": "Warning", "important": "Important", "tip": "Tip", "caution": "Caution"}
_CODE = {"code", "code-block", "sourcecode", "highlight"}
_COMMENTS = re.compile(r"<!--.*?-->", re.DOTALL)
#: A sentence that tells where things stand, and nothing of them.
_POINTER = re.compile(
    r"\b(?:this|these|the following|the next|below|above|following)\b[^.]*\b"
    r"(?:document|page|section|chapter|topic|table|list|code|example|sample|command)s?\b"
    r"|^(?:here|see|refer|for more|to learn|for details|click)\b|\b(?:refer to|see)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Part:
    """A stretch of prose (`language` "") or one block of code."""

    text: str
    language: str = ""

    @property
    def is_cpp(self) -> bool:
        return self.language in _CPP


@dataclass(frozen=True)
class Section:
    """`page`: title of the page; `line`: that of the section's own title, counted from 1."""

    page: str
    title: str
    line: int
    parts: tuple[Part, ...]

    def question(self, library: str) -> str:
        """A section that is titled by a question asks it."""
        where = f" ({self.page})" if self.page != self.title else ""
        if self.title.endswith("?"):
            return f"{self.title} ({library}{': ' + self.page if where else ''})"
        return f"What does the documentation of {library} say about {self.title}{where}?"

    def answer(self, shown: Mapping[int, str]) -> str:
        """The section with the C++ blocks of these numbers; others go, and so does the sentence that announces them.
        "" where what is left says too little."""
        kept: list[str] = []
        gone = False
        for number, part in enumerate(self.parts):
            if not part.language:
                text = _plain(part.text)
                kept += [text] if text else []
            elif not part.is_cpp:
                kept.append(f"```{part.language}\n{part.text.strip()}\n```")
            elif number in shown:
                kept.append(f"```cpp\n{shown[number]}\n```")
            else:
                gone = True
                _without_announcement(kept)
        if gone or not any(p.language for p in self.parts):
            _without_announcement(kept)
        prose = " ".join(k for k in kept if not k.startswith("```"))
        words = [w for s in re.split(r"(?<=[.:!?])\s+", prose) if not _POINTER.search(s) for w in s.split()]
        if len(words) < (8 if any(k.startswith("```") for k in kept) else MIN_WORDS):
            return ""
        return "\n\n".join(kept).strip()


def _without_announcement(kept: list[str]) -> None:
    """Take out a last paragraph that ends with a colon."""
    while kept and not kept[-1].startswith("```") and kept[-1].rstrip(" *").endswith(":"):
        rest, _, _ = kept[-1].rpartition("\n\n")
        kept.pop()
        if rest:
            kept.append(rest)


def sections(text: str) -> Iterator[Section]:
    """Sections of a page in order; the text before a page's first title belongs to none."""
    text = _COMMENTS.sub(lambda m: "\n" * m[0].count("\n"), text.replace("\r", ""))
    # Titles inside of code are none: "# a comment" of a shell command.
    hidden = _FENCE.sub(lambda m: re.sub(r"[^\n]", "x", m[0]), text)
    rst = [m for m in _RST_TITLE.finditer(hidden) if not _RULE.match(m["rst"].strip())]
    titles = rst if any(len(m["line"]) >= len(m["rst"].strip()) for m in rst) else []
    titles = sorted([*titles, *_MD_TITLE.finditer(hidden)], key=lambda m: m.start())
    page = ""
    for number, found in enumerate(titles):
        title = _title(text[slice(*found.span(1))])
        page = page or title
        end = titles[number + 1].start() if number + 1 < len(titles) else len(text)
        line = text[: found.start()].count("\n") + 1
        parts = tuple(_parts(text[found.end() : end]))
        yield Section(page, title, line, parts)


def _title(text: str) -> str:
    """A title without marks, links and badges."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", _ROLE.sub(lambda m: m[1] or m[2] or m[3], text))
    return re.sub(r"[*`]+", "", text).strip(" #\t").removesuffix("::")


def _parts(body: str) -> Iterator[Part]:
    """Prose and code blocks of a section."""
    marked = sorted([*_FENCE.finditer(body), *_DIRECTIVE.finditer(body + "\n")], key=lambda m: m.start())
    at = 0
    for found in marked:
        if found.start() < at:
            continue
        yield Part(body[at : found.start()])
        at = found.end()
        groups = found.groupdict()
        inner = textwrap.dedent(re.sub(r"^[ \t]*:[\w-]+:[^\n]*\n", "", groups["body"], flags=re.MULTILINE)).strip("\n")
        if "lang" in groups:
            yield Part(inner, groups["lang"].lower() or "text")
        elif groups["name"] in _CODE:
            yield Part(inner, groups["arg"].strip().lower() or "text")
        elif groups["name"] in _NOTES:
            yield Part(f"\n{_NOTES[groups['name']]}: {groups['arg']} {' '.join(inner.split())}\n")
    yield Part(body[at:])


def _plain(text: str) -> str:
    text = _REMARK.sub("", _TARGET.sub("", _RULE.sub("", text)))
    text = _ROLE.sub(lambda m: f"`{m[1] or m[2] or m[3]}`", text)
    text = re.sub(r"::[ \t]*$", ":", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"\n\s*\n\s*", lambda m: "\n\n" + m[0].rpartition("\n")[2], text)).strip()


__all__ = ["Part", "Section", "sections"]

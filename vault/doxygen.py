"""Documentation comments taken apart: plain words, lists, parameters, results and examples, without commands."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

_MARKS = re.compile(r"^\s*(?:/\*[*!]?<?|\*+/|\*(?!/)|///?!?<?|//!<?)[ \t]?|\*+/\s*$", re.MULTILINE)
_CODE = re.compile(r"[@\\]code(?:\{[^}]*\})?(.*?)[@\\]endcode", re.DOTALL)
_INLINE = re.compile(r"[@\\](?:p|ref|c|a|e|b|em|link)\s+([^\s,;]+?\(\)|[^\s,;]+?)(?=[.,;:)\]]*(?:\s|$)|[,;])")
_HTML = re.compile(r"<(tt|code)>(.*?)</\1>|</?(?:b|i|em|strong|br|p|ul|ol|sub|sup)\s*/?>", re.DOTALL)
_MATH = re.compile(r"[@\\]f[$\[\]{}]")
_STARTS = (
    r"[@\\](?:t?param|returns?|retval|par\b|brief|details|note|code|see|sa|warning|pre|post|deprecated|exception"
    r"|throws?)"
)
_ITEM = re.compile(
    rf"[@\\]t?param\s*(?:\[[\w, ]+\])?\s+([\w.]+(?:\s*,\s*[\w.]+)*)\s*[-:]?\s*(.*?)(?={_STARTS}|\n\s*\n|\Z)", re.DOTALL
)
_RETVAL = re.compile(rf"[@\\]retval\s+(\S+)\s*[-:]?\s*(.*?)(?={_STARTS}|\n\s*\n|\Z)", re.DOTALL)
_RETURNS = re.compile(rf"[@\\]returns?\b\s*(.*?)(?={_STARTS}|\n\s*\n|\Z)", re.DOTALL)
_BLOCK = re.compile(
    r"[@\\](?:(?:addtogroup|ingroup|defgroup|file|author|date|name|internal|headerfile)\b[^\n]*|(?:parblock|endparblock|verbatim|endverbatim|endlink)\b|[{}])"
)
_EXAMPLES = re.compile(
    r"[@\\]par[ \t]+(?:Code |Usage )?(?:Examples?|Usage|Snippet)[ \t]*:?[ \t]*(?:\n|\Z)", re.IGNORECASE
)
_OF_EXAMPLES = re.compile(
    r"^[ \t]*(?:In (?:the|this|these) examples?|The examples?)\b.*?(?=\n\s*\n|[@\\](?!p\b|c\b|ref\b)|\Z)",
    re.MULTILINE | re.DOTALL,
)
_PAR = re.compile(r"[@\\]par\b[ \t]*([^\n]*)")
_LABELS = {
    "note": "Note:", "warning": "Warning:", "deprecated": "Deprecated:", "pre": "Requires:", "post": "Afterwards:",
    "attention": "Attention:", "remark": "", "see": "See", "sa": "See", "li": "\n* ", "arg": "\n* ", "brief": "",
    "details": "", "short": "", "exception": "Throws", "throw": "Throws", "throws": "Throws", "todo": "", "n": "\n",
    "overload": "", "copydoc": "See",
}  # fmt: skip
_LABEL = re.compile(rf"[@\\]({'|'.join(_LABELS)})\b:?[ \t]*")
_BULLET = re.compile(r"^\s*(?:[*+-]|\d+[.)])\s+")


@dataclass(frozen=True)
class Comment:
    """A documentation comment taken apart; texts are plain, without commands. `lead`: what is said of the examples,
    which means nothing without them. `code`: the examples themselves."""

    brief: str
    details: str
    params: tuple[tuple[str, str], ...]
    returns: str
    code: tuple[str, ...]
    lead: str = ""

    def prose(self) -> str:
        return "\n\n".join(p for p in (self.brief, self.details) if p)

    def answer(self) -> str:
        """Prose, parameters and results."""
        parts = [self.prose()]
        if self.params:
            parts.append("Parameters:\n" + "\n".join(f"- `{name}`: {text}" for name, text in self.params))
        if self.returns:
            parts.append(("Returns:\n" if self.returns.startswith("- ") else "Returns: ") + self.returns)
        return "\n\n".join(p for p in parts if p)


def comment_of(raw: str) -> Comment:
    """The parts of a comment as it stands in the file."""
    text = _MARKS.sub("", raw).replace("\r", "")
    code = tuple(_dedented(c) for c in _CODE.findall(text))
    text = _CODE.sub("\n\n", text)
    text, lead = _without_examples(text)
    if code:  # what is said of the examples outside of a paragraph titled so
        lead = "\n\n".join([lead, *_OF_EXAMPLES.findall(text)])
        text = _OF_EXAMPLES.sub("", text)
    params = tuple(
        (" ".join(n.split()), t) for n, d in _ITEM.findall(text) if re.search(r"\w", t := " ".join(plain(d).split()))
    )
    text = _ITEM.sub("\n\n", text)
    values = [f"- `{name}`: {' '.join(plain(d).split())}".rstrip(": ") for name, d in _RETVAL.findall(text)]
    text = _RETVAL.sub("\n\n", text)
    found = _RETURNS.search(text)
    returns = plain(found[1]) if found else ""
    if values:
        returns = "\n".join([*([f"- {returns}"] if returns else []), *dict.fromkeys(values)])
    text = _RETURNS.sub("\n\n", text)
    head, mark, tail = re.sub(r"[@\\]details", "\0", text).partition("\0")
    brief, _, more = re.sub(r"^.*?[@\\]brief", "", head, count=1, flags=re.DOTALL).strip().partition("\n\n")
    return Comment(plain(brief), plain(f"{more}\n\n{tail}" if mark else more), params, returns, code, plain(lead))


def _without_examples(text: str) -> tuple[str, str]:
    """(the comment without paragraphs titled "Example", what they say)."""
    kept, leads = [], []
    parts = _EXAMPLES.split(text)
    for number, part in enumerate(parts):
        if number == 0:
            kept.append(part)
            continue
        block = re.match(r"\s*[@\\]parblock(.*?)[@\\]endparblock", part, re.DOTALL)
        end = block.end() if block else _next_paragraph(part)
        leads.append(block[1] if block else part[:end])
        kept.append("\n\n" + part[end:])
    return "".join(kept), "\n\n".join(leads)


def _next_paragraph(text: str) -> int:
    """Where a \\par without \\parblock ends: at the next section command."""
    found = re.search(_STARTS, text)
    return found.start() if found else len(text)


def plain(text: str) -> str:
    """Words without commands. Paragraphs and list items keep lines of their own."""
    text = _HTML.sub(lambda m: f"`{m[2].strip()}`" if m[1] else " ", _MATH.sub("$", text))
    text = _PAR.sub(_heading, _BLOCK.sub(" ", text))
    text = _LABEL.sub(lambda m: f"{_LABELS[m[1]]} ", text)
    text = re.sub(r"(`[^`\n]+`) +(?=[.,;:)])", r"\1", _INLINE.sub(_as_code, text))
    parts = [_lines(p) for p in re.split(r"\n\s*\n", text)]
    kept = [p for p in parts if re.search(r"\w", p)]
    # A heading whose section was taken out says nothing.
    return "\n\n".join(
        p for n, p in enumerate(kept) if not (p.endswith(":") and p.count(" ") < 5 and n + 1 == len(kept))
    )


def _heading(found: re.Match[str]) -> str:
    """The title of a \\par; a whole sentence there is none."""
    title = found[1].strip().rstrip(":")
    is_title = title and not title.endswith(".") and len(title.split()) <= 8
    return f"\n\n{title}{':' if is_title else ''}\n\n"


def _as_code(found: re.Match[str]) -> str:
    """A word in code marks; a formula that was cut at a blank has none."""
    word = found[1]
    return word if "`" in word or word.count("(") != word.count(")") else f"`{word}`"


def _lines(paragraph: str) -> str:
    """One paragraph with its words in one line, but for list items."""
    lines: list[str] = []
    for line in paragraph.split("\n"):
        if _BULLET.match(line) or not lines:
            depth = (len(line) - len(line.lstrip())) if _BULLET.match(line) else 0
            lines.append(("  " if depth > 1 else "") + " ".join(line.split()))
        else:
            lines[-1] = f"{lines[-1]} {' '.join(line.split())}".rstrip() if lines[-1] else " ".join(line.split())
    return "\n".join(line for line in lines if re.search(r"\w", line))


def _dedented(code: str) -> str:
    return textwrap.dedent(code.strip("\n")).strip() + "\n"


__all__ = ["Comment", "comment_of", "plain"]

"""When two sources are the same kernel: a hash that comments, layout and the names of things do not change.

Sources are read as tokens. Comments and blanks go; names that the file itself chooses (everything that is neither a
keyword nor reached through a module, a builtin or a macro) become their number in order of first appearance, so that
a copy with other names has the hash of its original. Numbers and operators stay: two tile sizes are two kernels.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import re
import tokenize

_C_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\\\n|\s+"""  # nothing
    r"""|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<number>\.?\d(?:[\w.]|(?<=[eEpP])[+-])*)|(?P<name>[A-Za-z_]\w*)|(?P<sign>.)""",
    re.DOTALL,
)
#: Names with a meaning of their own in HIP device code; all others are the author's.
_C_KNOWN = re.compile(
    r"__\w+|(?:thread|block)(?:Idx|Dim)|gridDim|warpSize|atomic\w+|hip\w+|KVC_\w+|(?:exp|log|sin|cos|tanh?|erf|"
    r"sqrt|rsqrt|pow|fma|fabs|floor|ceil|rint|round|trunc|fmin|fmax|min|max|fmod|isnan|isinf|isfinite|ldexp)"
    r"(?:f|2f?|10f?|1pf?|m1f?)?|INFINITY|NAN"
)
_C_KEYWORDS = frozenset({
    "alignas", "alignof", "auto", "bool", "break", "case", "char", "const", "constexpr", "continue", "default", "do",
    "double", "else", "enum", "extern", "false", "float", "for", "if", "inline", "int", "long", "namespace",
    "operator", "reinterpret_cast", "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast",
    "struct", "switch", "template", "true", "typedef", "typename", "union", "unsigned", "using", "void", "volatile",
    "while",
})  # fmt: skip


def normal_form(source: str, suffix: str) -> str:
    """The tokens of a source with the author's names numbered; `suffix` is ".py" or that of a C dialect."""
    tokens = _python(source) if suffix == ".py" else _c(source)
    numbers: dict[str, str] = {}
    return " ".join(numbers.setdefault(t, f"${len(numbers)}") if own else t for t, own in tokens)


def source_hash(source: str, suffix: str) -> str:
    """Hex SHA-256 of `normal_form`."""
    return hashlib.sha256(normal_form(source, suffix).encode()).hexdigest()


def _c(source: str) -> list[tuple[str, bool]]:
    """(token, whether its name is the author's own)"""
    out: list[tuple[str, bool]] = []
    for match in _C_TOKEN.finditer(source):
        if match.lastgroup == "name":
            name = match["name"]
            member = bool(out) and out[-1][0] == "." and name in ("x", "y", "z", "w")  # threadIdx.x
            out.append((name, not member and name not in _C_KEYWORDS and not _C_KNOWN.fullmatch(name)))
        elif match.lastgroup:
            out.append((match[0], False))
    return out


def _python(source: str) -> list[tuple[str, bool]]:
    """A source that does not tokenize is taken word by word."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return [(word, False) for word in source.split()]
    out: list[tuple[str, bool]] = []
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
    known = {"tl", "triton", "libdevice", "range", "float", "int", "bool", "min", "max", "annotations", "print"}
    marks = {tokenize.INDENT: "<in>", tokenize.DEDENT: "<out>", tokenize.NEWLINE: "<end>"}
    before = ""
    for token in (t for t in tokens if t.type not in skipped):
        starts = not out or out[-1][0] in marks.values()
        if token.type in marks:
            if token.type != tokenize.NEWLINE or not starts:  # the end of a docstring's line ends nothing
                out.append((marks[token.type], False))
        elif token.type == tokenize.STRING and starts:
            pass  # a docstring
        elif token.type == tokenize.NAME:
            own = before != "." and not keyword.iskeyword(token.string) and token.string not in known
            out.append((token.string, own))
        else:
            out.append((token.string, False))
        before = token.string
    return out

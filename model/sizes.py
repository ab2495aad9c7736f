"""Size expressions: what a model writes where a kernel needs a number that follows from the sizes of its spec.

A small language model cannot multiply, so a kernel's text says `$(d2*d3)` for the stride 255, and the number is worked
out when the frame becomes a candidate. Names are extents of canonical axes (`d0`), constants of the spec (`c0`, floats
that stand alone) and, in launches, knobs (`BLOCK`). Functions: cdiv(a,b) rounds up, min, max, pow2(a) is the next
power of two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from kvc.diagnostics import Diagnostic, KvcError

LIMIT = 1 << 63
_START = re.compile(r"\$(?=[A-Za-z_(])")
_NAME = re.compile(r"\w+")


class NotAFrame(KvcError):
    """What a model wrote is not a kernel in a frame: KVC0301 with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__("KVC0301", reason)


def diagnostic(reason: str) -> Diagnostic:
    return Diagnostic("KVC0301", reason)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def pow2(a: int) -> int:
    """The least power of two that is at least `a`."""
    return 1 << max(a - 1, 0).bit_length()


FUNCTIONS: dict[str, tuple[int, Callable[..., int]]] = {
    "cdiv": (2, cdiv),
    "min": (2, min),
    "max": (2, max),
    "pow2": (1, pow2),
}


@cache
def _parser() -> object:
    from lark import Lark

    return Lark((Path(__file__).parent / "sizes.lark").read_text(), parser="lalr", maybe_placeholders=False)


def evaluate(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression. NotAFrame for one that does not parse, an unknown name, a division by zero or a
    result beyond 63 bits."""
    if text.isdecimal():  # most are
        return int(text) if len(text) < 20 else _fail(text, "is out of range")
    if text in names:
        return names[text]
    return _evaluate(_tree(text), text, names)


@cache
def _tree(text: str) -> object:
    from lark.exceptions import LarkError

    try:
        return _parser().parse(text)  # type: ignore[attr-defined]
    except LarkError:
        return _fail(text, "is no size expression")


def _fail(text: str, why: str) -> int:
    raise NotAFrame(f"{text[:60]!r} {why}")


def _evaluate(node: object, text: str, names: Mapping[str, int]) -> int:
    kind, children = str(node.data), node.children  # type: ignore[attr-defined]
    if kind == "number":
        return int(children[0]) if len(children[0]) < 20 else _fail(text, "is out of range")
    if kind == "name":
        name = str(children[0])
        return names[name] if name in names else _fail(text, f"names {name}, which is no size")
    if kind == "call":
        return _call(str(children[0]), [_evaluate(c, text, names) for c in children[1:]], text)
    a, b = (_evaluate(c, text, names) for c in children)
    if kind in ("div", "mod") and b == 0:
        return _fail(text, "divides by zero")
    value = {"add": a + b, "sub": a - b, "mul": a * b}[kind] if kind not in ("div", "mod") else (
        a // b if kind == "div" else a % b
    )  # fmt: skip
    return value if abs(value) < LIMIT else _fail(text, "is out of range")


def _call(name: str, args: list[int], text: str) -> int:
    if name not in FUNCTIONS:
        return _fail(text, f"calls {name}, which is no function of sizes")
    arity, function = FUNCTIONS[name]
    if len(args) != arity:
        return _fail(text, f"gives {name} {len(args)} arguments of {arity}")
    if name == "cdiv" and args[1] == 0:
        return _fail(text, "divides by zero")
    return function(*args)


def spans(text: str) -> list[tuple[int, int]]:
    """Where the expressions of a text stand, `$` included. NotAFrame for an open parenthesis."""
    found = []
    for match in _START.finditer(text):
        at = match.end()
        name = _NAME.match(text, at)
        end = name.end() if name else at
        if end < len(text) and text[end] == "(" and (not name or name[0] in FUNCTIONS):
            depth = 0
            for end in range(end, min(len(text), end + 400)):  # noqa: B020 - goes on from where it stands
                depth += (text[end] == "(") - (text[end] == ")")
                if depth == 0:
                    end += 1
                    break
            else:
                raise NotAFrame(f"{text[at : at + 40]!r} is no size expression")
        found.append((match.start(), end))
    return found


def substitute(text: str, names: Mapping[str, int], constants: Mapping[str, str]) -> str:
    """A text with its expressions worked out; `constants` gives the spelling of each constant of the spec."""
    parts, last = [], 0
    for start, end in spans(text):
        body = text[start + 1 : end]
        parts += [text[last:start], constants[body] if body in constants else str(evaluate(body, names))]
        last = end
    return "".join([*parts, text[last:]])

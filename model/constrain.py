"""Constrained decoding: an answer may only name what its prompt declares.

A small model's likeliest mistake is a name that is not there: an operand, an axis, a helper, a size. Whether a text can
still become a frame with known names is decided token by token, from the end of the text alone; a token that rules it
out is passed over for the next likeliest one. What the rules write always passes (tested), so nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from kvc.model.frame import NO_HELPERS
from kvc.model.languages import LANGUAGES
from kvc.model.sizes import FUNCTIONS
from kvc.model.tokenizer import Tokenizer

#: Names of the spec as answers use them: operands, temporaries, axes, and what is derived of them (`a0_value`).
_NAME = re.compile(r"(?<![A-Za-z0-9_])([adty])([0-9]+)(?![0-9])")
_OPEN_NAME = re.compile(r"(?<![A-Za-z0-9_])([adty])([0-9]+)$")
_IN_PROMPT = re.compile(r"(?<![A-Za-z0-9_])([acdty][0-9]+)(?![A-Za-z0-9_])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_KNOB = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)=")
#: Characters of an expression's or a name's longest.
_TAIL = 200


class Guard:
    """For one answer: `allows` a token, then `take` it. `prompt` is the text that the model reads."""

    def __init__(self, prompt: str, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._text = tokenizer, ""
        self._declared = frozenset(_IN_PROMPT.findall(prompt))
        target = prompt.split(" ", 1)[0]
        self._helpers = (*NO_HELPERS, *(LANGUAGES[target].helpers if target in LANGUAGES else ()))
        self._knobs: frozenset[str] = frozenset()
        self._in_head = True

    def allows(self, token: int) -> bool:
        """Whether the answer with this token can still name nothing but what is declared."""
        piece = self._tokenizer.decode([token])
        return self._is_viable(self._text[-_TAIL:] + piece, len(self._text[-_TAIL:]))

    def take(self, token: int) -> None:
        self._text += self._tokenizer.decode([token])
        if self._in_head and "\n\n" in self._text:
            head = self._text.partition("\n\n")[0]
            self._knobs, self._in_head = _knobs_of(head), False

    def _is_viable(self, text: str, since: int) -> bool:
        """Whether names that end after character `since` are declared, or can become so."""
        for found in _NAME.finditer(text):
            if found.end() > since and found.end() < len(text) and found[0] not in self._declared:
                return False
        last = _OPEN_NAME.search(text)
        if last and not any(name.startswith(last[0]) for name in self._declared):
            return False
        return self._size_is_viable(text) and self._helpers_are_viable(text)

    def _size_is_viable(self, text: str) -> bool:
        """Whether the words of the last size expression are names of sizes, knobs or functions, or may become so."""
        at = text.rfind("$")
        if at < 0:
            return True
        expression = text[at + 1 : at + 1 + _end_of_size(text[at + 1 :])]
        is_open = at + 1 + len(expression) == len(text)
        known = self._declared | set(FUNCTIONS) | (_knobs_of(self._text + text) if self._in_head else self._knobs)
        for word in _WORD.finditer(expression):
            may_grow = is_open and word.end() == len(expression)
            if word[0] not in known and not (may_grow and any(k.startswith(word[0]) for k in known)):
                return False
        return True

    def _helpers_are_viable(self, text: str) -> bool:
        if not self._in_head or "\n\n" in text:
            return True
        line = text.rpartition("\n")[2]
        if not line.startswith("use "):
            return True
        *done, last = line[4:].split(" ")
        return all(w in self._helpers for w in done if w) and any(h.startswith(last) for h in self._helpers)


def _end_of_size(text: str) -> int:
    """How much of what follows a `$` belongs to the expression: a name, a call, or a parenthesis."""
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0 or (depth == 0 and letter != ")" and not (letter.isalnum() or letter == "_")):
            return n
        if depth == 0 and letter == ")":
            return n + 1
    return len(text)


@lru_cache(maxsize=64)
def _knobs_of(head: str) -> frozenset[str]:
    lines = [line for line in head.splitlines() if line.startswith("set ")]
    return frozenset(name for line in lines for name in _KNOB.findall(line))


def guards(prompts: Sequence[str], tokenizer: Tokenizer) -> list[Guard]:
    return [Guard(p, tokenizer) for p in prompts]

"""Integers that know which sizes they were made of.

A rule that writes a kernel works with the extents of its spec. Given extents of this type it writes `$(d1*d2)` where it
would have written a stride, because products, sums and quotients of traced integers are traced. What goes through
`gcd`, `int` or a bit operation is a plain number again; `Trace.known` says which expressions had its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from kvc.emitter import Knob, Task
from kvc.kernel import Size

Monomial = tuple[str, ...]
Terms = dict[Monomial, int]
#: A polynomial of more terms is no stride and no offset.
MOST_TERMS = 6
#: Zeros of 31 scripts. A mark is two of them, which number the expression, and the value in digits of the first script:
#: to Python a numeral of that value (`isdigit`, `int`), as emitters ask their texts, and no other text of a kernel.
_ZEROS = "".join(map(chr, (
    0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xE50, 0xED0, 0xF20, 0x1040,
    0x17E0, 0x1810, 0x1946, 0x19D0, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xAA50, 0xABF0,
    0xFF10,
)))  # fmt: skip
_DIGITS = str.maketrans({str(n): chr(ord(_ZEROS[0]) + n) for n in range(10)})
MARK = re.compile(f"([{_ZEROS}][{_ZEROS}])[{chr(ord(_ZEROS[0]))}-{chr(ord(_ZEROS[0]) + 9)}]+")
_AXIS = re.compile(r"d([0-9]+)$")


@dataclass
class Trace:
    """The expressions that one emission made: by number of their mark, and by value."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    known: dict[int, set[str]] = field(default_factory=dict)

    def mark(self, text: str, value: int) -> str:
        """What stands for an expression of a value; the plain number where there are too many expressions."""
        if text not in self.numbers:
            if len(self.texts) == len(_ZEROS) ** 2:
                return str(value)
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
        high, low = divmod(self.numbers[text], len(_ZEROS))
        return _ZEROS[high] + _ZEROS[low] + str(value).translate(_DIGITS)

    def expression(self, mark: re.Match[str]) -> str:
        """The expression of a mark (a match of MARK)."""
        high, low = map(_ZEROS.index, mark[1])
        return self.texts[high * len(_ZEROS) + low]

    def only(self, value: int) -> str | None:
        """The expression of a value, where a single one had it."""
        found = self.known.get(value, set())
        return next(iter(found)) if len(found) == 1 else None


_current: ContextVar[Trace | None] = ContextVar("kvc_model_trace", default=None)


@contextmanager
def tracing() -> Iterator[Trace]:
    """The trace of the emissions inside."""
    trace = Trace()
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


class Traced(int):
    """An int with a polynomial over names that has its value. It equals and hashes like the int; its text is a mark."""

    terms: Terms

    @property
    def text(self) -> str:
        """The polynomial, in order of the axes' numbers."""
        return _text(self.terms)

    def __repr__(self) -> str:
        trace = _current.get()
        if trace is None:
            return int.__repr__(self)
        value = int(self)
        return f"-{trace.mark(_text(_scaled(self.terms, -1)), -value)}" if value < 0 else trace.mark(self.text, value)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else int.__format__(self, spec)

    def __add__(self, other: int) -> int:
        return _sum(self, other, 1)

    def __radd__(self, other: int) -> int:
        return _sum(other, self, 1)

    def __sub__(self, other: int) -> int:
        return _sum(self, other, -1)

    def __rsub__(self, other: int) -> int:
        return _sum(other, self, -1)

    def __mul__(self, other: int) -> int:
        return _product(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> int:
        return traced(-int(self), _scaled(self.terms, -1))

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __floordiv__(self, other: int) -> int:
        return _quotient(self, other)

    def __rfloordiv__(self, other: int) -> int:
        return _quotient(other, self)

    def __mod__(self, other: int) -> int:
        if not isinstance(other, int) or other == 0:
            return int.__mod__(int(self), other)
        return int.__mod__(int(self), int(other))

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, int.__rmod__(int(self), other)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def traced(value: int, terms: Terms) -> int:
    """A traced integer; a plain one where no name is left or too many terms."""
    terms = {m: c for m, c in terms.items() if c}
    if not any(terms) or len(terms) > MOST_TERMS:
        return value
    made = int.__new__(Traced, value)
    made.terms = terms
    trace = _current.get()
    if trace is not None:
        positive = made.text if value >= 0 else _text(_scaled(terms, -1))
        trace.known.setdefault(abs(value), set()).add(positive)
    return made


def name(value: int, text: str) -> int:
    """A traced integer that has a name."""
    return traced(int(value), {(text,): 1})


def _terms(value: int) -> Terms:
    return value.terms if isinstance(value, Traced) else {(): int(value)}


def _scaled(terms: Terms, factor: int) -> Terms:
    return {m: c * factor for m, c in terms.items()}


def _is_plain(other: object) -> bool:
    return isinstance(other, int)


def _sum(a: int, b: int, sign: int) -> int:
    if not (_is_plain(a) and _is_plain(b)):
        return NotImplemented
    terms = dict(_terms(a))
    for monomial, c in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + sign * c
    return traced(int(a) + sign * int(b), terms)


def _product(a: int, b: int) -> int:
    if not (_is_plain(a) and _is_plain(b)):
        return NotImplemented
    terms: Terms = {}
    for m, c in _terms(a).items():
        for n, d in _terms(b).items():
            both = tuple(sorted((*m, *n), key=_order))
            terms[both] = terms.get(both, 0) + c * d
    return traced(int(a) * int(b), terms)


def _quotient(a: int, b: int) -> int:
    """Exact where the polynomials divide; else `cdiv` (a negative divided is a ceiling), or `//` as it stands."""
    if not (_is_plain(a) and _is_plain(b)):
        return NotImplemented
    value = int(a) // int(b)
    if value == 0 or int(b) == 1:
        return value if value == 0 else a
    left, right = _terms(a), _terms(b)
    if len(right) == 1:
        ((divisor, by),) = right.items()
        exact = {
            _without(m, divisor): c // by for m, c in left.items() if _without(m, divisor) is not None and c % by == 0
        }
        if len(exact) == len(left):
            return traced(value, {m: c for m, c in exact.items() if m is not None})
    if all(c <= 0 for c in left.values()) and b > 0:
        atom = f"cdiv({_text(_scaled(left, -1))},{_text(right)})"
        return traced(value, {(atom,): -1})
    if a < 0 or b <= 0 or value == 1:
        return value
    return traced(value, {(f"({_factor(_text(left))}//{_factor(_text(right))})",): 1})


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _order(atom: str) -> tuple[int, int, str]:
    axis = _AXIS.match(atom)
    return (0, int(axis[1]), atom) if axis else (1, 0, atom)


def _text(terms: Mapping[Monomial, int]) -> str:
    """`2*d1*d2+d3-1`: products by falling degree, a positive one first, the constant last."""
    parts = sorted(terms.items(), key=lambda t: (-len(t[0]), [_order(a) for a in t[0]]))
    parts.sort(key=lambda t: t[1] < 0)
    text = ""
    for monomial, c in parts:
        factors = [*([str(abs(c))] if abs(c) != 1 or not monomial else []), *monomial]
        sign = "-" if c < 0 else "+" if text else ""
        text += sign + "*".join(factors)
    return text.removeprefix("(").removesuffix(")") if len(parts) == 1 and _is_one_group(text) else text


def _is_one_group(text: str) -> bool:
    """Whether the first parenthesis closes at the end."""
    if not text.startswith("("):
        return False
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return n == len(text) - 1
    return False


def _factor(text: str) -> str:
    return f"({text})" if any(c in text for c in "+-*/") else text


def traced_task(task: Task) -> Task:
    """The task with extents that know their names."""
    sizes = tuple(
        replace(s, size=name(s.size, s.name)) if s.size is not None and s.size > 1 else s for s in task.spec.sizes
    )
    assert all(isinstance(s, Size) for s in sizes)
    return replace(task, spec=replace(task.spec, sizes=sizes))


def traced_knobs(knobs: Sequence[tuple[str, Knob]]) -> tuple[tuple[str, Knob], ...]:
    """Knobs whose integers know their names."""
    return tuple(
        (k, name(v, k)) if isinstance(v, int) and not isinstance(v, bool) and v > 1 else (k, v) for k, v in knobs
    )

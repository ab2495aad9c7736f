"""Reader and interpreter of the vendor's pseudo-code, the independent oracle of the opcode tables.

The tinygrad wheel carries the pseudo-code of the public CDNA4 ISA document as data (opcode -> text). `Program` parses
one text with a Lark grammar and runs it on one lane: registers are plain integers, values are `Value`s (a kind and a
width beside the bits), arithmetic is Python integers, floats and rationals, nothing of NumPy's or of the simulator's.
`Unsupported` says that a text needs something that the language as published does not define.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from lark import Lark, Token, Tree

from tests.simulator.isa.pcode_values import (
    FUNCTIONS,
    Unsupported,
    Value,
    assign_as,
    conversion,
    convert_float,
    fields,
    float_binary,
    from_number,
    int_binary,
    read_as,
    truth,
    type_of,
    wave,
    wrap,
)

GRAMMAR = r"""
start: block
block: (statement | ";")*
?statement: assign | conditional | loop | "declare" NAME ":" SIZED ("[" INT "]")? -> declare
          | postfix ASSIGN "lambda" "(" [NAME ("," NAME)*] ")" "(" body ")" -> function
          | "return" expr -> give | "break" -> leave
?body: expr | block
assign: postfix ASSIGN (assign | expr)
conditional: "if" expr "then" block ("elsif" expr "then" block)* ["else" block] "endif"
loop: "for" NAME "in" expr ":" expr "do" block "endfor"
?expr: either | either "?" expr ":" expr -> ternary
?either: both | either OR both -> binary
?both: bit_or | both AND bit_or -> binary
?bit_or: bit_xor | bit_or "|" bit_xor -> bor
?bit_xor: bit_and | bit_xor "^" bit_and -> bxor
?bit_and: equality | bit_and "&" equality -> band
?equality: relation | equality EQUAL relation -> binary
?relation: shift | relation RELATION shift -> binary
?shift: sum | shift SHIFT sum -> binary
?sum: product | sum SIGN product -> binary
?product: unary | product TIMES unary -> binary
?unary: power | (SIGN | INVERT) unary -> prefix
?power: postfix | postfix "**" unary -> power
?postfix: atom | postfix "." NAME -> view | postfix "[" expr "]" -> item
        | postfix "[" expr ":" expr "]" -> slice | postfix "[" expr "+:" expr "]" -> span
?atom: NAME -> name | NUMBER -> number | SIZED_NUMBER -> number | NAME "(" [expr ("," expr)*] ")" -> call
     | SIZED "(" expr ")" -> cast | "(" expr ")" | "{" expr ("," expr)* "}" -> concat
ASSIGN: /[+-]?=(?!=)/
OR: "||"
AND: "&&"
EQUAL.3: "==" | "!=" | "<>"
RELATION.2: /[<>]=?(?![<>])/
SHIFT.3: "<<" | ">>"
SIGN: /[+-](?![=:])/
TIMES: /\*(?!\*)|\/(?!\/)/
INVERT: /~|!(?!=)/
SIZED.2: /\d+'(BF|[IUFB])(?![0-9A-Za-z])/
SIZED_NUMBER.2: /\d+'(0x[0-9a-fA-F]+|\d+(\.\d+)?)(U|I)?/
NUMBER: /0x[0-9a-fA-F]+(ULL|LL|U|L)?|\d+\.\d+F?|\d+(ULL|LL|U|L|F)?/
INT: /\d+/
NAME: /[A-Za-z_][A-Za-z0-9_]*/
COMMENT: /\/\/[^\n]*/
%ignore COMMENT
%ignore /\s+/
"""


# ---- the interpreter ------------------------------------------------------------------------------------------------

_NAMED_FLOATS = {"INF": math.inf, "NAN": math.nan, "PI": math.pi}
_TINY = {32: Fraction(2) ** -150, 64: Fraction(2) ** -1100}
_CONSTANTS = {
    "UNDERFLOW_F32": Value("f", 32, 0), "UNDERFLOW_F64": Value("f", 64, 0),
    "OVERFLOW_F32": Value("f", 32, 0x7F800000), "OVERFLOW_F64": Value("f", 64, 0x7FF0000000000000),
    "ROUND_NEAREST_EVEN": Value("u", 2, 0), "ROUND_TOWARD_ZERO": Value("u", 2, 3),
    "BYTE1": Value("b", 3, 1), "BYTE2": Value("b", 3, 2), "BYTE3": Value("b", 3, 3), "WORD1": Value("b", 3, 5),
}  # fmt: skip


class _Leave(Exception):
    """`break`."""


class _Give(Exception):
    """`return`."""

    def __init__(self, value: Value) -> None:
        self.value = value


def _clean(text: str) -> str:
    """Spellings that are notation rather than language."""
    text = text.replace("VGPR[laneId][VDST.u32]", "D0").replace("VGPR[laneId][SRC0.u32]", "S0")
    text = text.replace("{ INST.OMOD[1 : 0], INST.ABS[2 : 0], INST.NEG[2 : 0] }", "TRUTH_TABLE")
    text = re.sub(r"^declare S : 32'B\[3\];$", "", text, flags=re.M)
    text = re.sub(r"\bS\[i\]", "SOURCE(i)", text)
    return re.sub(r"\bD\.", "D0.", text)


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


class Program:
    """One opcode's text. `run` executes it on named registers and returns them.

    `library` resolves calls of other opcodes (`v_min_f32(...)`), `undefined` calls of functions that the document
    names but does not define (`f32_to_fp8_scale(...)`); both return None for a name they do not know.
    """

    def __init__(
        self,
        text: str,
        library: Callable[[str], Program | None],
        undefined: Callable[[str], Callable[..., Value] | None] = lambda name: None,
    ) -> None:
        self.tree = _parser().parse(_clean(text))
        self.library = library
        self.undefined = undefined

    def run(self, registers: dict[str, Value]) -> dict[str, Value]:
        """`registers` hold S0, S1, ..., D0 (its previous content), SCC, VCC as wide as they are. Lane 0 is run."""
        frame = _Frame(self, registers)
        frame.block(self.tree.children[0])
        return frame.names


class _Frame:
    def __init__(self, program: Program, names: dict[str, Value]) -> None:
        self.program = program
        self.names: dict[str, Any] = {"laneId": Value("u", 32, 0), "ROUND_MODE": Value("u", 2, 0), **names}
        for register in ("OPSEL", "OPSEL_HI", "SDWA_SRC0_SEL"):
            self.names.setdefault(register, Value("b", 4, 0))
        self.functions: dict[str, tuple[list[str], Tree[Any]]] = {}

    # -- statements --

    def block(self, tree: Tree[Any]) -> None:
        for child in tree.children:
            if isinstance(child, Tree):
                getattr(self, "do_" + child.data)(*child.children)

    def do_declare(self, name: Token, sized: Token, count: Token | None = None) -> None:
        width, kind = sized.split("'")
        zero = Value(kind.lower(), int(width), 0)
        self.names[str(name)] = [zero] * int(count) if count else zero

    def do_function(self, name: Tree[Any], _assign: Token, *rest: Any) -> None:
        *parameters, body = rest
        self.functions[str(name.children[0])] = ([str(p) for p in parameters if p is not None], body)

    def do_give(self, tree: Tree[Any]) -> None:
        raise _Give(self.value(tree))

    def do_leave(self) -> None:
        raise _Leave

    def do_conditional(self, *parts: Any) -> None:
        *pairs, otherwise = parts
        for condition, then in zip(pairs[::2], pairs[1::2], strict=True):
            if self.value(condition).bits:
                self.block(then)
                return
        if otherwise is not None:
            self.block(otherwise)

    def do_loop(self, name: Token, first: Tree[Any], last: Tree[Any], body: Tree[Any]) -> None:
        for i in range(self.value(first).bits, self.value(last).bits + 1):
            self.names[str(name)] = Value("i", 32, i)
            try:
                self.block(body)
            except _Leave:
                return

    def do_assign(self, target: Tree[Any], sign: Token, source: Tree[Any]) -> Value:
        value = self.do_assign(*source.children) if source.data == "assign" else self.value(source)
        if sign != "=":
            value = self.binary(sign[0], self.value(target), value)
        self.store(target, value)
        return value

    # -- places --

    def store(self, target: Tree[Any], value: Value) -> None:
        if target.data == "concat":
            bits = value.bits
            for part in reversed(target.children):
                kind, width = type_of(str(part.children[1]))
                self.store(part, Value(kind, width, bits & ((1 << width) - 1)))
                bits >>= width
            return
        name, path = self.place(target)
        if path and path[0][0] == "element":
            self.names[name] = list(self.names[name])
            self.names[name][path[0][1]] = value
            return
        self.names[name] = _stored(self.names.get(name), path, value)

    def place(self, tree: Tree[Any]) -> tuple[str, list[tuple[Any, ...]]]:
        """The variable and the accessors applied to it, outermost first."""
        path: list[tuple[Any, ...]] = []
        while tree.data != "name":
            if tree.data == "view":
                path.insert(0, ("view", *type_of(str(tree.children[1]))))
            elif tree.data == "item":
                index = self.value(tree.children[1]).bits
                inner = tree.children[0]
                listed = inner.data == "name" and isinstance(self.names.get(str(inner.children[0])), list)
                path.insert(0, ("element", index) if listed else ("bits", index, index))
            elif tree.data == "slice":
                path.insert(0, ("bits", self.value(tree.children[1]).bits, self.value(tree.children[2]).bits))
            else:
                raise Unsupported(f"assignment to {tree.data}")
            tree = tree.children[0]
        return str(tree.children[0]), path

    # -- expressions --

    def value(self, tree: Tree[Any]) -> Value:
        return getattr(self, "ev_" + tree.data)(*tree.children)

    def ev_number(self, token: Token) -> Value:
        return _literal(str(token))

    def ev_name(self, token: Token) -> Value:
        name = str(token)
        if name in self.names:
            return self.names[name]
        if name in _NAMED_FLOATS:
            return from_number(64, _NAMED_FLOATS[name])
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise Unsupported(name)

    def ev_view(self, inner: Tree[Any], type_name: Token) -> Value:
        if inner.data == "name" and str(inner.children[0]) == "WAVE_MODE":
            return truth(str(type_name) == "IEEE")
        kind, width = type_of(str(type_name))
        return read_as(self.value(inner), kind, width)

    def ev_item(self, inner: Tree[Any], index: Tree[Any]) -> Value:
        base: Any = self.value(inner)
        at = self.value(index).bits
        return base[at] if isinstance(base, list) else Value("u", 1, base.bits >> at & 1)

    def ev_slice(self, inner: Tree[Any], high: Tree[Any], low: Tree[Any]) -> Value:
        base, top, bottom = self.value(inner), self.value(high).bits, self.value(low).bits
        if top < bottom:
            bits = [base.bits >> i & 1 for i in range(top, bottom + 1)]
            return Value("u", len(bits), int("".join(map(str, bits)), 2))
        width = top - bottom + 1
        return Value("u", width, base.bits >> bottom & ((1 << width) - 1))

    def ev_span(self, inner: Tree[Any], low: Tree[Any], count: Tree[Any]) -> Value:
        width = self.value(count).bits
        return Value("u", width, self.value(inner).bits >> self.value(low).bits & ((1 << width) - 1))

    def ev_concat(self, *parts: Tree[Any]) -> Value:
        bits = width = 0
        for part in map(self.value, parts):
            bits, width = bits << part.width | part.bits, width + part.width
        return Value("b", width, bits)

    def ev_cast(self, sized: Token, inner: Tree[Any]) -> Value:
        width, kind = sized.split("'")
        value = self.value(inner)
        if kind == "F":
            return convert_float(value, int(width)) if value.real else Value("f", int(width), value.bits)
        return wrap(kind.lower(), int(width), value.number if not value.real else value.bits)

    def ev_ternary(self, condition: Tree[Any], then: Tree[Any], otherwise: Tree[Any]) -> Value:
        return self.value(then if self.value(condition).bits else otherwise)

    def ev_binary(self, left: Tree[Any], sign: Token, right: Tree[Any]) -> Value:
        if right.data == "view" and str(right.children[0].children[0]) == "DENORM":
            return self.is_denormal(self.value(left), str(right.children[1]))
        if sign == "||":
            return truth(bool(self.value(left).bits or self.value(right).bits))
        if sign == "&&":
            return truth(bool(self.value(left).bits and self.value(right).bits))
        return self.binary(str(sign), self.value(left), self.value(right))

    def is_denormal(self, value: Value, type_name: str) -> Value:
        """`x == DENORM.f32` means that x is a denormal number of that format."""
        value = convert_float(value, type_of(type_name)[1])
        _, exponent, mantissa = fields(value)
        return truth(exponent == 0 and mantissa != 0)

    def binary(self, sign: str, a: Value, b: Value) -> Value:
        return float_binary(sign, a, b) if a.real or b.real else int_binary(sign, a, b)

    def ev_bor(self, a: Tree[Any], b: Tree[Any]) -> Value:
        return int_binary("|", self.value(a), self.value(b))

    def ev_bxor(self, a: Tree[Any], b: Tree[Any]) -> Value:
        return int_binary("^", self.value(a), self.value(b))

    def ev_band(self, a: Tree[Any], b: Tree[Any]) -> Value:
        return int_binary("&", self.value(a), self.value(b))

    def ev_power(self, base: Tree[Any], power: Tree[Any]) -> Value:
        b, p = self.value(base), self.value(power)
        exponent = max(min(p.number, 5000), -5000)
        return from_number(b.width, Fraction(b.number) ** exponent)

    def ev_prefix(self, sign: Token, inner: Tree[Any]) -> Value:
        v = self.value(inner)
        if sign == "!":
            return truth(not v.bits)
        if sign == "+":
            return v
        if sign == "~":
            return wrap(v.kind, v.width, ~v.bits)
        if v.real:
            return Value(v.kind, v.width, v.bits ^ 1 << (v.width - 1))
        return wrap("i", max(v.width, 32), -v.number)

    def ev_call(self, name: Token, *arguments: Any) -> Value:
        called = str(name)
        values = [self.value(a) for a in arguments if a is not None]
        if called == "SOURCE":
            return self.names[f"S{values[0].bits}"]
        if called in self.functions:
            return self.apply(*self.functions[called], values)
        if called in ("sin", "cos"):
            return wave(called, values[0])
        if called in FUNCTIONS:
            return FUNCTIONS[called](*values)
        program = self.program.library(called)
        if program is not None:
            registers = {f"S{i}": v for i, v in enumerate(values)}
            return program.run(registers)["D0"]
        defined = self.program.undefined(called)
        if defined is not None:
            return defined(*values)
        return conversion(called, values[0], self.names["ROUND_MODE"].bits == 3)

    def apply(self, parameters: list[str], body: Tree[Any], values: list[Value]) -> Value:
        frame = _Frame(self.program, {**self.names, **dict(zip(parameters, values, strict=True))})
        if body.data != "block":
            return frame.value(body)
        try:
            frame.block(body)
        except _Give as given:
            return given.value
        raise Unsupported("function without return")


@cache
def _literal(text: str) -> Value:
    width = 0
    if "'" in text:
        size, text = text.split("'")
        width = int(size)
    if "." in text:
        return from_number(width or (32 if text.endswith("F") else 64), float(text.rstrip("F")))
    match = re.fullmatch(r"(0x[0-9a-fA-F]+|\d+)(ULL|LL|U|L|I|F)?", text)
    if match is None:
        raise Unsupported(text)
    number, suffix = int(match[1], 0), match[2] or ""
    width = width or (64 if suffix in ("ULL", "LL") or number >> 32 else 32)
    return Value("u" if suffix.startswith("U") else "i", width, number)


def _stored(old: Any, path: list[tuple[Any, ...]], value: Value) -> Value:
    """The variable after storing `value` through views and bit ranges."""
    ranges = [step[1:] for step in path if step[0] == "bits"]
    views = [step[1:] for step in path if step[0] == "view"]
    if not ranges:
        stored = assign_as(value, *views[-1]) if views else value
        if isinstance(old, Value) and old.kind == "b" and old.width > stored.width:  # part of a register
            kept = old.bits >> stored.width << stored.width
            return Value("b", old.width, kept | stored.bits)
        return stored
    (high, low), *_ = ranges
    width = high - low + 1
    kind = views[-1][0] if views and path[-1][0] == "view" else "b"
    part = assign_as(value, kind, width).bits & ((1 << width) - 1)
    base = old if isinstance(old, Value) else Value("b", 1024, 0)
    cleared = base.bits & ~(((1 << width) - 1) << low)
    return Value(base.kind, max(base.width, high + 1), cleared | part << low)

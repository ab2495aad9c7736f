"""Reader and interpreter of the vendor's pseudo-code, the independent oracle of the opcode tables.

The tinygrad wheel carries the pseudo-code of the public CDNA4 ISA document as data (opcode -> text). `Program` parses
one text with a Lark grammar and runs it on one lane: registers are plain integers, values are `Value`s (a kind and a
width beside the bits), arithmetic is Python integers, floats and rationals, nothing of NumPy's or of the simulator's.
`Unsupported` says that a text needs something that the language as published does not define.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from lark import Lark, Token, Tree

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


class Unsupported(Exception):
    """The text uses a function or a register that the document does not define."""


@dataclass(frozen=True)
class Value:
    """`bits` of `width` bits, read as kind "u", "i" (two's complement), "f" (IEEE), "bf" (bfloat16) or "b" (raw)."""

    kind: str
    width: int
    bits: int

    @property
    def number(self) -> Any:
        """The value as a Python number."""
        if self.kind == "f":
            return _unpack(self.width, self.bits)
        if self.kind == "bf":
            return _unpack(32, self.bits << 16)
        if self.kind == "i" and self.bits >> (self.width - 1):
            return self.bits - (1 << self.width)
        return self.bits

    @property
    def real(self) -> bool:
        return self.kind in ("f", "bf")


# ---- formats --------------------------------------------------------------------------------------------------------

_LAYOUT = {16: ("<e", "<H", 10, 5), 32: ("<f", "<I", 23, 8), 64: ("<d", "<Q", 52, 11)}


def _unpack(width: int, bits: int) -> float:
    code, raw, *_ = _LAYOUT[width]
    return struct.unpack(code, struct.pack(raw, bits))[0]


def is_nan(width: int, bits: int) -> bool:
    _, _, mantissa, exponent = _LAYOUT[width]
    return (bits >> mantissa) & ((1 << exponent) - 1) == (1 << exponent) - 1 and bits & ((1 << mantissa) - 1) != 0


def round_to(width: int, value: Fraction | float, toward_zero: bool = False) -> int:
    """The bits of `value` rounded once to an IEEE format, to nearest even or towards zero."""
    _, _, mantissa, exponent = _LAYOUT[width]
    top = (1 << exponent) - 1
    sign_bit = 1 << (width - 1)
    if isinstance(value, float):
        if value != value:
            return top << mantissa | 1 << (mantissa - 1)
        sign = math.copysign(1.0, value) < 0
        if math.isinf(value):
            return top << mantissa | (sign_bit if sign else 0)
        value = Fraction(value)
    else:
        sign = value < 0
    size = abs(value)
    if size == 0:
        return sign_bit if sign else 0
    power = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** power > size:
        power -= 1
    lowest = 2 - (1 << (exponent - 1))
    unit = max(power, lowest) - mantissa
    scaled = size / Fraction(2) ** unit
    units = scaled.numerator // scaled.denominator
    rest = scaled - units
    if not toward_zero and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and units & 1)):
        units += 1
    code = units if power < lowest else units + ((max(power, lowest) - lowest) << mantissa)
    if code >= top << mantissa:
        code = (top << mantissa) - 1 if toward_zero else top << mantissa
    return code | (sign_bit if sign else 0)


def _float(width: int, value: float | Fraction) -> Value:
    return Value("f", width, round_to(width, value))


def _convert_float(value: Value, width: int) -> Value:
    """Between IEEE widths; a NaN keeps its payload and stays signalling, because the text asks for it afterwards."""
    if value.kind == "bf":
        value = Value("f", 32, value.bits << 16)
    if value.width == width:
        return Value("f", width, value.bits)
    if not is_nan(value.width, value.bits):
        return _float(width, value.number)
    _, _, have, _ = _LAYOUT[value.width]
    _, _, want, exponent = _LAYOUT[width]
    payload = value.bits & ((1 << have) - 1)
    payload = payload << (want - have) if want > have else payload >> (have - want)
    sign = value.bits >> (value.width - 1)
    return Value("f", width, sign << (width - 1) | ((1 << exponent) - 1) << want | (payload or 1))


def _wrap(kind: str, width: int, number: int) -> Value:
    return Value(kind, width, number & ((1 << width) - 1))


def _bool(condition: bool) -> Value:
    return Value("u", 1, int(condition))


def read_as(value: Value, kind: str, width: int) -> Value:
    """`value.f32` and the like: a view of the low bits, or a conversion between floats."""
    if value.real and kind == "f":
        return _convert_float(value, width)
    return _wrap(kind, width, value.bits)


def assign_as(value: Value, kind: str, width: int) -> Value:
    """What a variable of that type holds after the assignment."""
    if value.real and kind == "f":
        return _convert_float(value, width)
    if value.kind == "i" and kind in ("u", "i", "b"):
        return _wrap(kind, width, value.number)
    return _wrap(kind, width, value.bits)


# ---- operators ------------------------------------------------------------------------------------------------------


def _float_binary(sign: str, a: Value, b: Value) -> Value:
    width = max(a.width, b.width)
    a, b = _convert_float(a, width), _convert_float(b, width)
    x, y = a.number, b.number
    if sign in ("==", "!=", "<>", "<", ">", "<=", ">="):
        # `<>` is "less or greater": false for NaN; Python's other comparisons have IEEE's meaning already.
        table = {"==": x == y, "!=": x != y, "<>": x < y or x > y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}
        return _bool(table[sign])
    if x != x or y != y:
        return a if x != x else b
    if sign in "+-" and not (math.isinf(x) or math.isinf(y)):
        exact = Fraction(x) + (Fraction(y) if sign == "+" else -Fraction(y))
        if exact:
            return _float(width, exact)
    if sign == "*" and x and y and not (math.isinf(x) or math.isinf(y)):
        return _float(width, Fraction(x) * Fraction(y))
    if sign == "/" and x and y and not (math.isinf(x) or math.isinf(y)):
        return _float(width, Fraction(x) / Fraction(y))
    return _float(width, _special(sign, x, y))


def _special(sign: str, x: float, y: float) -> float:
    """Zeros and infinities."""
    if sign == "+":
        return x + y
    if sign == "-":
        return x - y
    if sign == "*":
        return x * y
    if y == 0:
        return math.nan if x == 0 else math.copysign(math.inf, math.copysign(1, x) * math.copysign(1, y))
    return x / y


def _int_binary(sign: str, a: Value, b: Value) -> Value:
    if sign in ("<<", ">>"):
        kind = "i" if a.kind == "i" else "u"
        width = max(a.width, 32)
        moved = a.number << b.bits if sign == "<<" else a.number >> b.bits
        return _wrap(kind, width, moved)
    x, y = a.number, b.number
    if sign in ("==", "!=", "<>", "<", ">", "<=", ">="):
        table = {"==": x == y, "!=": x != y, "<>": x != y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}
        return _bool(table[sign])
    width = max(a.width, b.width, 32)
    # As in C: an operand narrower than 32 bits is promoted to a signed 32-bit one, and unsigned wins at equal width.
    kind = "u" if any(v.kind != "i" and v.width >= 32 for v in (a, b)) else "i"
    result = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}[sign]
    return _wrap(kind, width, result)


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c rounded once, in the widest format of the three."""
    width = max(a.width, b.width, c.width)
    a, b, c = (_convert_float(v, width) for v in (a, b, c))
    x, y, z = a.number, b.number, c.number
    if any(v != v for v in (x, y, z)):
        return next(v for v, n in ((a, x), (b, y), (c, z)) if n != n)
    if any(math.isinf(v) for v in (x, y, z)):
        product = math.nan if (math.isinf(x) and y == 0) or (math.isinf(y) and x == 0) else None
        if product is None:
            signs = math.copysign(1, x) * math.copysign(1, y)
            product = math.copysign(math.inf, signs) if math.isinf(x) or math.isinf(y) else 0.0
        return _float(width, product + z)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact:
        return _float(width, exact)
    if x and y and z:
        return _float(width, 0.0)
    return _float(width, math.copysign(1, x) * math.copysign(1, y) * 0.0 + z)


# ---- functions of the document --------------------------------------------------------------------------------------

_LIMITS = {
    "u8": (0, 255), "u16": (0, 65535), "u32": (0, 2**32 - 1), "i8": (-128, 127),
    "i16": (-(2**15), 2**15 - 1), "i32": (-(2**31), 2**31 - 1),
}  # fmt: skip
_MAGNITUDE = {16: 2, 32: 23, 64: 52}


def _typed(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(bf|fp|[uifb])(\d+)", name)
    if match is None:
        raise Unsupported(name)
    return match[1], int(match[2])


def _fields(v: Value) -> tuple[int, int, int]:
    """Sign, exponent field and mantissa field."""
    _, _, mantissa, exponent = _LAYOUT[v.width]
    return v.bits >> (v.width - 1), (v.bits >> mantissa) & ((1 << exponent) - 1), v.bits & ((1 << mantissa) - 1)


def _whole(v: Value, how: Callable[[float], int]) -> Value:
    """floor or trunc, keeping the sign of zero."""
    x = v.number
    if x != x or math.isinf(x):
        return v
    return _float(v.width, math.copysign(float(how(x)), x) if how(x) == 0 else float(how(x)))


def _mantissa(v: Value) -> Value:
    return v if v.number == 0 else _float(v.width, math.frexp(v.number)[0])


def _scale(v: Value, power: Value) -> Value:
    x = v.number
    if x != x or math.isinf(x) or x == 0:
        return v
    return _float(v.width, Fraction(x) * Fraction(2) ** max(min(power.number, 5000), -5000))


def _root(v: Value) -> Value:
    x = v.number
    if x != x or x == math.inf or x == 0:
        return v
    return _float(v.width, math.sqrt(x) if x > 0 else math.nan)


def _log2(v: Value) -> Value:
    x = v.number
    if x == 0:
        return _float(v.width, -math.inf)
    return _float(v.width, math.nan if x < 0 or x != x else math.inf if math.isinf(x) else math.log2(x))


def _pow(base: Value, power: Value) -> Value:
    width = max(base.width, power.width)
    try:
        return _float(width, math.pow(base.number, power.number))
    except OverflowError:
        return _float(width, math.inf)


def _round_even(x: float, low: int, high: int) -> int:
    return 0 if x != x else round(min(max(x, low), high))


def _exponent(v: Value) -> Value:
    return _wrap("i", 32, _fields(v)[1])


def _quieten(v: Value) -> Value:
    return Value("f", v.width, v.bits | 1 << (_LAYOUT[v.width][2] - 1))


def _signalling(v: Value) -> bool:
    return is_nan(v.width, v.bits) and not v.bits >> (_LAYOUT[v.width][2] - 1) & 1


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "fma": fused,
    "floor": lambda v: _whole(v, math.floor),
    "trunc": lambda v: _whole(v, math.trunc),
    "fract": lambda v: _float_binary("-", v, _whole(v, math.floor)),
    "isEven": lambda v: _bool(math.isfinite(v.number) and v.number % 2 == 0),
    "abs": lambda v: Value(v.kind, v.width, v.bits & ~(1 << (v.width - 1))),
    "sqrt": _root,
    "log2": _log2,
    "pow": _pow,
    "sign": lambda v: _bool(bool(_fields(v)[0])),
    "exponent": _exponent,
    "mantissa": _mantissa,
    "ldexp": _scale,
    "isNAN": lambda v: _bool(is_nan(v.width, v.bits)),
    "isSignalNAN": lambda v: _bool(_signalling(v)),
    "isQuietNAN": lambda v: _bool(is_nan(v.width, v.bits) and not _signalling(v)),
    "cvtToQuietNAN": _quieten,
    "signext": lambda v: Value("i", 64, v.number & (1 << 64) - 1) if v.kind == "i" else v,
    "signext_from_bit": lambda v, n: _sign_from(v, n.bits),
    "f32_to_u8": lambda v: _to_int(v, "u8"),
    "u32_to_u16": lambda v: _clamped(v, "u16"),
    "i32_to_i16": lambda v: _clamped(v, "i16"),
    "bf16_to_f32": lambda v: Value("f", 32, v.bits << 16),
    "f16_to_snorm": lambda v: _wrap("i", 16, _round_even(v.number * 32767, -32767, 32767)),
    "f32_to_snorm": lambda v: _wrap("i", 16, _round_even(v.number * 32767, -32767, 32767)),
    "f16_to_unorm": lambda v: _wrap("u", 16, _round_even(v.number * 65535, 0, 65535)),
    "f32_to_unorm": lambda v: _wrap("u", 16, _round_even(v.number * 65535, 0, 65535)),
}


def _sign_from(v: Value, count: int) -> Value:
    if count == 0:
        return _wrap("i", v.width, 0)
    field = v.bits & ((1 << count) - 1)
    return _wrap("i", v.width, field - (1 << count) if field >> (count - 1) & 1 and count < v.width else field)


def _to_int(v: Value, kind: str) -> Value:
    low, high = _LIMITS[kind]
    x = v.number
    number = 0 if x != x else (high if x > 0 else low) if math.isinf(x) else max(low, min(high, math.trunc(x)))
    return _wrap(kind[0], int(kind[1:]), number)


def _clamped(v: Value, kind: str) -> Value:
    low, high = _LIMITS[kind]
    return _wrap(kind[0], int(kind[1:]), max(low, min(high, v.number)))


def _conversion(name: str, v: Value, toward_zero: bool) -> Value:
    """a_to_b between integers and IEEE floats."""
    match = re.fullmatch(r"([a-z]+\d+)_to_([a-z]+\d+)", name)
    if match is None:
        raise Unsupported(name)
    (from_kind, from_width), (kind, width) = _typed(match[1]), _typed(match[2])
    if from_kind not in "uif" or (kind not in "uif" and kind != "bf"):
        raise Unsupported(name)
    v = read_as(v, from_kind, from_width)
    if from_kind == "f" and kind in "ui":
        return _to_int(v, match[2])
    if kind == "bf":
        return _to_bf16(v)
    if kind == "f":
        if from_kind == "f":
            if toward_zero and not is_nan(v.width, v.bits):
                return Value("f", width, round_to(width, v.number, toward_zero=True))
            return _convert_float(v, width)
        return _float(width, Fraction(v.number))
    return _wrap(kind, width, v.number)


def _to_bf16(v: Value) -> Value:
    if is_nan(32, v.bits):
        return Value("bf", 16, v.bits >> 16 | 0x40)
    units, rest = divmod(v.bits, 1 << 16)
    return Value("bf", 16, units + (rest > 0x8000 or (rest == 0x8000 and units & 1 == 1)))


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
                kind, width = _typed(str(part.children[1]))
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
                path.insert(0, ("view", *_typed(str(tree.children[1]))))
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
            return _float(64, _NAMED_FLOATS[name])
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise Unsupported(name)

    def ev_view(self, inner: Tree[Any], type_name: Token) -> Value:
        if inner.data == "name" and str(inner.children[0]) == "WAVE_MODE":
            return _bool(str(type_name) == "IEEE")
        kind, width = _typed(str(type_name))
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
            return _convert_float(value, int(width)) if value.real else Value("f", int(width), value.bits)
        return _wrap(kind.lower(), int(width), value.number if not value.real else value.bits)

    def ev_ternary(self, condition: Tree[Any], then: Tree[Any], otherwise: Tree[Any]) -> Value:
        return self.value(then if self.value(condition).bits else otherwise)

    def ev_binary(self, left: Tree[Any], sign: Token, right: Tree[Any]) -> Value:
        if right.data == "view" and str(right.children[0].children[0]) == "DENORM":
            return self.is_denormal(self.value(left), str(right.children[1]))
        if sign == "||":
            return _bool(bool(self.value(left).bits or self.value(right).bits))
        if sign == "&&":
            return _bool(bool(self.value(left).bits and self.value(right).bits))
        return self.binary(str(sign), self.value(left), self.value(right))

    def is_denormal(self, value: Value, type_name: str) -> Value:
        """`x == DENORM.f32` means that x is a denormal number of that format."""
        value = _convert_float(value, _typed(type_name)[1])
        _, exponent, mantissa = _fields(value)
        return _bool(exponent == 0 and mantissa != 0)

    def binary(self, sign: str, a: Value, b: Value) -> Value:
        return _float_binary(sign, a, b) if a.real or b.real else _int_binary(sign, a, b)

    def ev_bor(self, a: Tree[Any], b: Tree[Any]) -> Value:
        return _int_binary("|", self.value(a), self.value(b))

    def ev_bxor(self, a: Tree[Any], b: Tree[Any]) -> Value:
        return _int_binary("^", self.value(a), self.value(b))

    def ev_band(self, a: Tree[Any], b: Tree[Any]) -> Value:
        return _int_binary("&", self.value(a), self.value(b))

    def ev_power(self, base: Tree[Any], power: Tree[Any]) -> Value:
        b, p = self.value(base), self.value(power)
        exponent = max(min(p.number, 5000), -5000)
        return _float(b.width, Fraction(b.number) ** exponent)

    def ev_prefix(self, sign: Token, inner: Tree[Any]) -> Value:
        v = self.value(inner)
        if sign == "!":
            return _bool(not v.bits)
        if sign == "+":
            return v
        if sign == "~":
            return _wrap(v.kind, v.width, ~v.bits)
        if v.real:
            return Value(v.kind, v.width, v.bits ^ 1 << (v.width - 1))
        return _wrap("i", max(v.width, 32), -v.number)

    def ev_call(self, name: Token, *arguments: Any) -> Value:
        called = str(name)
        values = [self.value(a) for a in arguments if a is not None]
        if called == "SOURCE":
            return self.names[f"S{values[0].bits}"]
        if called in self.functions:
            return self.apply(*self.functions[called], values)
        if called in ("sin", "cos"):
            return _wave(called, values[0])
        if called in _FUNCTIONS:
            return _FUNCTIONS[called](*values)
        program = self.program.library(called)
        if program is not None:
            registers = {f"S{i}": v for i, v in enumerate(values)}
            return program.run(registers)["D0"]
        defined = self.program.undefined(called)
        if defined is not None:
            return defined(*values)
        return _conversion(called, values[0], self.names["ROUND_MODE"].bits == 3)

    def apply(self, parameters: list[str], body: Tree[Any], values: list[Value]) -> Value:
        frame = _Frame(self.program, {**self.names, **dict(zip(parameters, values, strict=True))})
        if body.data != "block":
            return frame.value(body)
        try:
            frame.block(body)
        except _Give as given:
            return given.value
        raise Unsupported("function without return")


def _wave(name: str, angle: Value) -> Value:
    x = angle.number
    if not math.isfinite(x):
        return _float(angle.width, math.nan)
    return _float(angle.width, getattr(math, name)(x))


@cache
def _literal(text: str) -> Value:
    width = 0
    if "'" in text:
        size, text = text.split("'")
        width = int(size)
    if "." in text:
        return _float(width or (32 if text.endswith("F") else 64), float(text.rstrip("F")))
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

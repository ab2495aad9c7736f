"""The C++ side of emission: types, literals, precedence, names, and a line writer.

Everything here is about spelling; what a kernel computes is decided elsewhere.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvc.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from kvc.functions import FUNCTIONS

#: C++ type of a value in registers, by compute dtype.
COMPUTE_TYPE = {"f64": "double", "f32": "float", "i64": "long long", "i32": "int", "bool": "bool"}

#: C++ type of an element in memory.
STORAGE_TYPE = {
    "f64": "double", "f32": "float", "f16": "__half", "bf16": "__hip_bfloat16", "i64": "long long", "i32": "int",
    "i16": "short", "i8": "signed char", "u8": "unsigned char", "bool": "bool",
    "f8e4m3fn": "unsigned char", "f8e4m3fnuz": "unsigned char",
    "f8e5m2": "unsigned char", "f8e5m2fnuz": "unsigned char",
}  # fmt: skip

#: Template arguments <exponent bits, mantissa bits, bias, is fnuz> of the fp8 helpers.
F8_FORMAT = {
    "f8e4m3fn": "4, 3, 7, false", "f8e4m3fnuz": "4, 3, 8, true",
    "f8e5m2": "5, 2, 15, false", "f8e5m2fnuz": "5, 2, 16, true",
}  # fmt: skip

# Binding strength of C++ operators, strongest first.
ATOM, UNARY, MUL, ADD, SHIFT, RELATION, EQUALITY, BITAND, BITXOR, BITOR, AND, OR, TERNARY = range(13, 0, -1)


@dataclass(frozen=True)
class Val:
    """A C++ expression: its text, its type (a compute dtype) and how strongly its outermost operator binds."""

    text: str
    type: DType
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses where it binds less than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def infix(op: str, a: Val, b: Val, level: int, result: DType | None = None) -> Val:
    """`a op b`, associating to the left."""
    return Val(f"{a.at(level)} {op} {b.at(level + 1)}", result or a.type, level)


def float_literal(value: float, of: DType) -> str:
    """The shortest decimal that reads back as the same f32 or f64, with the suffix of its type."""
    if math.isnan(value):
        return "NAN" if of is F32 else "(double)NAN"
    if of is F32:
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isinf(value):
        text = "INFINITY" if of is F32 else "(double)INFINITY"
        return text if value > 0 else f"-{text}"
    if of is not F32:
        return repr(value)
    digits = next(t for t in (f"{value:.{p}g}" for p in range(1, 10)) if struct.pack("f", float(t)) == _bits(value))
    return (digits if any(c in digits for c in ".e") else digits + ".0") + "f"


def _bits(value: float) -> bytes:
    return struct.pack("f", value)


def literal(value: bool | int | float, of: DType) -> Val:
    """A Python literal as a value of a compute dtype."""
    if of is BOOL:
        return Val("true" if value else "false", BOOL)
    if of.is_float:
        text = float_literal(float(value), of)
        return Val(text, of, UNARY if text[0] in "-(" else ATOM)
    if isinstance(value, float) and not math.isfinite(value):
        value = highest(of) if value > 0 else lowest(of)
    number = int(value) if isinstance(value, bool | float) else value
    text = f"{number}LL" if of is I64 else str(number)
    if number == lowest(of):  # the most negative integer has no literal of its own
        text = f"-{-(number + 1)}{'LL' if of is I64 else ''} - 1"
        return Val(text, of, ADD)
    return Val(text, of, UNARY if number < 0 else ATOM)


def lowest(of: DType) -> int:
    return 0 if of.kind in ("uint", "bool") else -(2 ** (of.bits - 1))


def highest(of: DType) -> int:
    return 1 if of is BOOL else 2 ** (of.bits - (of.kind == "int")) - 1


def identity(op_identity: float | bool | str, of: DType) -> Val:
    """The identity of a combine function in the dtype of its accumulator."""
    kind = of.compute
    if op_identity == "lowest":
        return literal(-math.inf if of.is_float else lowest(of), kind)
    if op_identity == "highest":
        return literal(math.inf if of.is_float else highest(of), kind)
    assert not isinstance(op_identity, str)
    return literal(op_identity, kind)


def convert(v: Val, to: DType) -> Val:
    """A value as another compute dtype, with torch's meaning (float -> int truncates, anything -> bool is != 0)."""
    if v.type is to:
        return v
    if to is BOOL:
        zero = literal(0, v.type).text
        return Val(f"{v.at(EQUALITY)} != {zero}", BOOL, EQUALITY)
    return Val(f"({COMPUTE_TYPE[to.name]}){v.at(UNARY)}", to, UNARY)


def from_storage(text: str, of: DType) -> Val:
    """An element that was read from memory, in its compute type; integers promote by themselves."""
    if of is F16:
        return Val(f"__half2float({text})", F32)
    if of is BF16:
        return Val(f"__bfloat162float({text})", F32)
    if of.name in F8_FORMAT:
        return Val(f"f8_to_float<{F8_FORMAT[of.name]}>({text})", F32)
    return Val(text, of.compute)


def to_storage(v: Val, of: DType) -> Val:
    """A value of compute type `of.compute`, rounded or cut down to an element of dtype `of`."""
    if of is F16:
        return Val(f"__float2half({v.text})", of)
    if of is BF16:
        return Val(f"__float2bfloat16({v.text})", of)
    if of.name in F8_FORMAT:
        return Val(f"float_to_f8<{F8_FORMAT[of.name]}>({v.text})", of)
    if of in (F64, F32, I64, I32, BOOL):
        return v
    return Val(f"({STORAGE_TYPE[of.name]}){v.at(UNARY)}", of, UNARY)


def rounded(v: Val, of: DType) -> Val:
    """The value after a trip through dtype `of`, back in its compute type: what a typed temporary holds."""
    stored = to_storage(v, of)
    if of.is_float:
        return v if stored is v else from_storage(stored.text, of)
    return v if stored is v else Val(stored.text, of.compute, stored.level)


_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr const_cast
    continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto
    if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq threadIdx blockIdx blockDim gridDim warpSize half main std
    """.split()  # noqa: SIM905 - a list of 90 words reads better as words
)

#: Functions that emitted code calls; a local of that name would hide them.
_FUNCTIONS = frozenset(
    """
    maximum minimum floor_div floor_mod float_mod float_floor_div sign absolute square cube int_pow shift_left
    shift_right add_compensated f8_to_float float_to_f8 row_reduce row_best atomic_combine result_row fabs rint fmod
    pow copysign floor max min isnan isinf signbit ldexpf frexpf atomicAdd atomicMax atomicMin atomicCAS Pack
    Fragment Results Operand
    """.split()  # noqa: SIM905 - reads better as words
)


#: Names that the schedules give to loop variables, positions and constants; no parameter or local may hide them.
RESERVED = frozenset(
    """
    i j r v thread lane row chunk column item rest other depth step slot acc task batch m0 n0 k0 wave_m wave_n thread_m
    thread_n a_value a_tile b_tile a_stage b_stage a_part b_part load_a load_b store_a store_b
    M N K BLOCK BLOCK_M BLOCK_N BLOCK_K TILES_M TILES_N WAVES WAVES_M WAVES_N LANES THREADS THREADS_M THREADS_N MI
    MI_DEPTH GROUPS FRAGMENT FRAGMENTS_M FRAGMENTS_N RESULTS MICRO_M MICRO_N A_SLOTS B_SLOTS A_LOADS B_LOADS A_STRIDE
    B_STRIDE ROW_THREADS ROW_LANES ROW_WAVES ROWS WIDTH CHUNKS ITEMS POINTS TAIL LONG SHORT
    SEGMENTS SEGMENT first last SPLIT_K SPLIT_DEPTH RESULTS_ALL FINISH_THREADS split k_first k_last partial
    GROUP_M CHUNK key_tile value_tile key_stage value_stage load_key load_value store_key store_value KEY_SLOTS
    VALUE_SLOTS KEY_LOADS VALUE_LOADS BLOCK_D BLOCK_E D E KEYS DEPTHS STEP E_PARTS q_part query_top query_total
    block_top block_total new_top shift decay score_value block_weights weight part
    """.split()  # noqa: SIM905 - reads better as words
)


def identifier(name: str) -> str:
    """A C++ identifier close to `name`."""
    text = re.sub(r"\W", "_", name)
    if not text or text[0].isdigit() or text[0] == "_" or "__" in text:
        text = "v" + re.sub(r"_+", "_", text)
    is_function = text in _FUNCTIONS or text in FUNCTIONS or text.removesuffix("f") in FUNCTIONS
    return text + "_" if text in _KEYWORDS or is_function else text


def symbol(name: str) -> str:
    """The name of a kernel for a spec: its own, where C++ allows that."""
    return f"{name}_kernel" if name in _KEYWORDS else name


class Names:
    """Unique identifiers within one kernel."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self.taken = set(taken or ())

    def fresh(self, stem: str) -> str:
        """`stem`, or `stem` with the first free number."""
        name = base = identifier(stem)
        joint = "_" if base[-1].isdigit() else ""
        n = 0
        while name in self.taken:
            n += 1
            name = f"{base}{joint}{n}"
        self.taken.add(name)
        return name


class Writer:
    """Lines of C++ with two-space indentation."""

    def __init__(self, indent: int = 0) -> None:
        self.lines: list[str] = []
        self.indent = indent

    def line(self, text: str = "") -> None:
        directive = text.startswith("#") and not text.startswith("#pragma unroll")
        self.lines.append("  " * (0 if directive else self.indent) + text if text else "")

    def extend(self, lines: list[str]) -> None:
        for text in lines:
            self.line(text)

    @contextmanager
    def block(self, header: str = "", footer: str = "}") -> Iterator[None]:
        """`header {` ... `}`."""
        self.line(f"{header} {{" if header else "{")
        self.indent += 1
        try:
            yield
        finally:
            self.indent -= 1
        self.line(footer)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

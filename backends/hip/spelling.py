"""How each function of kvc.functions is spelled in C++, and the device helpers that some need.

Composites are emitted as helpers from their `expand`, once a source and compute type. A helper is a `__device__`
function; a source holds only those it uses, after the helpers that they use themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvc.backends.hip.cxx import (
    ADD,
    AND,
    BITAND,
    BITOR,
    BITXOR,
    EQUALITY,
    MUL,
    OR,
    RELATION,
    TERNARY,
    UNARY,
    Val,
    infix,
    literal,
)
from kvc.dtypes import BOOL, F32, DType


@dataclass(frozen=True)
class Helper:
    """A device function by name; `needs` are helpers that must stand before it."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


_ROUNDING = """\
// {comment}
template <class T>
__device__ __forceinline__ T {name}({params}) {{
{body}
}}
"""


def _template(name: str, comment: str, params: str, body: str, needs: tuple[str, ...] = ()) -> Helper:
    lines = "\n".join("  " + line for line in body.splitlines())
    return Helper(name, _ROUNDING.format(comment=comment, name=name, params=params, body=lines), needs)


HELPERS: dict[str, Helper] = {
    h.name: h
    for h in (
        _template("maximum", "The larger value; NaN wins.", "T a, T b", "return a > b || a != a ? a : b;"),
        _template("minimum", "The smaller value; NaN wins.", "T a, T b", "return a < b || a != a ? a : b;"),
        _template(
            "floor_div", "Integer division that rounds down.", "T a, T b",
            "const T q = a / b;\nreturn a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;",
        ),
        _template(
            "floor_mod", "Remainder with the divisor's sign.", "T a, T b",
            "const T r = a % b;\nreturn r != 0 && (r < 0) != (b < 0) ? r + b : r;",
        ),
        _template(
            "float_mod", "Remainder with the divisor's sign.", "T a, T b",
            "const T r = fmod(a, b);\nreturn r != 0 && (r < 0) != (b < 0) ? r + b : r;",
        ),
        _template(
            "float_floor_div", "Quotient rounded down, exact where a / b is not: (a - fmod(a, b)) / b.", "T a, T b",
            "if (b == 0) return a / b;\n"
            "const T r = fmod(a, b);\n"
            "T q = (a - r) / b;\n"
            "if (r != 0 && (r < 0) != (b < 0)) q -= 1;\n"
            "const T whole = floor(q);\n"
            "return q == 0 ? copysign(T(0), a / b) : q - whole > T(0.5) ? whole + 1 : whole;",
        ),
        _template("sign", "-1, 0 or 1; 0 for NaN.", "T a", "return T(a > 0) - T(a < 0);"),
        _template("absolute", "Absolute value of an integer.", "T a", "return a < 0 ? -a : a;"),
        _template("square", "a^2, correctly rounded.", "T a", "return a * a;"),
        _template("cube", "a^3.", "T a", "return a * a * a;"),
        _template(
            "int_pow", "Integer power by squaring; negative exponents give 0, or +-1 for a base of +-1.", "T a, T n",
            "if (n < 0) return a == 1 ? 1 : a == -1 ? (n % 2 ? -1 : 1) : 0;\n"
            "T result = 1;\n"
            "for (; n; n >>= 1, a *= a)\n"
            "  if (n & 1) result *= a;\n"
            "return result;",
        ),
        _template(
            "shift_left", "a << n, 0 where n is no valid shift.", "T a, T n",
            "return n < 0 || n >= T(8 * sizeof(T)) ? 0 : T(a << n);",
        ),
        _template(
            "shift_right", "a >> n, all sign bits where n is no valid shift.", "T a, T n",
            "return n < 0 || n >= T(8 * sizeof(T)) ? (a < 0 ? -1 : 0) : T(a >> n);",
        ),
        Helper("bessel_i1", """\
// I1 is odd; AMD's fp64 version of it gives NaN below -8.
__device__ __forceinline__ float bessel_i1(float x) { return copysignf(cyl_bessel_i1f(fabsf(x)), x); }
__device__ __forceinline__ double bessel_i1(double x) { return copysign(cyl_bessel_i1(fabs(x)), x); }
"""),
        Helper("add_compensated", """\
// sum += value, with the rounding error carried along (Kahan); infinities and NaN pass through.
template <class T>
__device__ __forceinline__ void add_compensated(T& sum, T& carry, T value) {
  const T corrected = value - carry;
  const T next = sum + corrected;
  carry = next - next == 0 ? (next - sum) - corrected : 0;
  sum = next;
}
"""),
        Helper("f8_to_float", """\
// fp8 (1 sign, E exponent, M mantissa bits) to float, exactly. fnuz formats have no -0 and no infinity.
template <int E, int M, int BIAS, bool FNUZ>
__device__ __forceinline__ float f8_to_float(unsigned char bits) {
  const int exponent = (bits >> M) & ((1 << E) - 1);
  const int mantissa = bits & ((1 << M) - 1);
  if (FNUZ ? bits == 0x80 : M == 3 ? (bits & 0x7f) == 0x7f : exponent == 31 && mantissa != 0) return NAN;
  float value = exponent == 0 ? ldexpf((float)mantissa, 1 - BIAS - M)
                              : ldexpf((float)(mantissa + (1 << M)), exponent - BIAS - M);
  if (!FNUZ && M == 2 && exponent == 31) value = INFINITY;
  return bits & 0x80 ? -value : value;
}
"""),
        Helper("float_to_f8", """\
// float to fp8, to nearest even. Beyond the largest finite value e5m2 gives infinity, fnuz NaN, e4m3fn its largest.
template <int E, int M, int BIAS, bool FNUZ>
__device__ __forceinline__ unsigned char float_to_f8(float value) {
  constexpr int LARGEST = FNUZ ? (1 << (E + M)) - 1 : M == 3 ? 0x7e : 0x7b;  // bits of the largest finite value
  constexpr int BEYOND = M == 3 ? LARGEST : 0x7c;
  const unsigned char sign = signbit(value) ? 0x80 : 0;
  if (value != value) return FNUZ ? 0x80 : sign | 0x7f;
  const float size = fabsf(value);
  if (size >= 65536.0f * (1 << 8)) return FNUZ ? 0x80 : sign | BEYOND;
  int exponent = 0;
  frexpf(size, &exponent);
  exponent = max(exponent - 1, 1 - BIAS);
  // In units of the last place, a tie rounds to even; a carry into the next exponent falls out of the addition.
  const int units = (int)rintf(ldexpf(size, M - exponent));
  const int code = ((exponent + BIAS - 1) << M) + units;
  if (code > LARGEST) return FNUZ ? 0x80 : sign | BEYOND;
  return FNUZ && code == 0 ? 0 : sign | code;
}
"""),
    )
}  # fmt: skip

Spell = Callable[["Helpers", tuple[Val, ...], DType], Val]


class Helpers:
    """The helpers that one source uses, in an order in which each stands after those it needs."""

    def __init__(self) -> None:
        self.used: dict[str, str] = {}

    def use(self, name: str) -> str:
        """Mark a helper of the table as used; its name."""
        helper = HELPERS[name]
        for other in helper.needs:
            self.use(other)
        self.used.setdefault(name, helper.text)
        return name

    def add(self, name: str, text: str) -> str:
        self.used.setdefault(name, text)
        return name

    def call(self, name: str, args: tuple[Val, ...], result: DType) -> Val:
        return Val(f"{self.use(name)}({', '.join(a.text for a in args)})", result)


def _binary(op: str, level: int) -> Spell:
    return lambda h, a, t: infix(op, a[0], a[1], level, t)


def _compare(op: str, level: int) -> Spell:
    return lambda h, a, t: infix(op, a[0], a[1], level, BOOL)


def _libm(name: str) -> Spell:
    """namef for float, name for double."""

    def spell(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
        return Val(f"{name}{'f' if t is F32 else ''}({', '.join(v.text for v in a)})", t)

    return spell


def _helper(name: str) -> Spell:
    return lambda h, a, t: h.call(name, a, t)


def _by_kind(floating: Spell, integer: Spell) -> Spell:
    return lambda h, a, t: (floating if t.is_float else integer)(h, a, t)


def _same(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    return a[0]


def _false(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    return Val("false", BOOL)


def _predicate(name: str) -> Spell:
    return lambda h, a, t: Val(f"{name}({a[0].text})", BOOL)


def _negate(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    # A minus in front of a minus would read as a decrement.
    return Val(f"-({a[0].text})" if a[0].text.startswith("-") else f"-{a[0].at(UNARY)}", t, UNARY)


def _not(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    return Val(f"!{a[0].at(UNARY)}", BOOL, UNARY)


def _bitnot(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    return Val(f"{'!' if t is BOOL else '~'}{a[0].at(UNARY)}", t, UNARY)


def _select(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    return Val(f"{a[0].at(OR)} ? {a[1].at(OR)} : {a[2].at(TERNARY)}", t, TERNARY)


def _bitwise(op: str, level: int, on_bool: str, bool_level: int) -> Spell:
    def spell(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
        return infix(on_bool, a[0], a[1], bool_level, t) if t is BOOL else infix(op, a[0], a[1], level, t)

    return spell


_SMALL_POWERS: dict[float, tuple[str, bool]] = {2.0: ("square", False), 3.0: ("cube", False), -2.0: ("square", True)}


def _pow(h: Helpers, a: tuple[Val, ...], t: DType) -> Val:
    if not t.is_float:
        return h.call("int_pow", a, t)
    suffix = "f" if t is F32 else ""
    exponents = {literal(e, t).text: e for e in (2.0, 3.0, -2.0, -1.0, 0.5, -0.5, 1.0)}
    exponent = exponents.get(a[1].text)
    if exponent is None:
        return _libm("pow")(h, a, t)
    if exponent == 1.0:
        return a[0]
    if abs(exponent) == 0.5:
        return Val(f"{'sqrt' if exponent > 0 else 'rsqrt'}{suffix}({a[0].text})", t)
    one = literal(1.0, t)
    if exponent == -1.0:
        return infix("/", one, a[0], MUL, t)
    name, inverted = _SMALL_POWERS[exponent]
    power = h.call(name, a[:1], t)
    return infix("/", one, power, MUL, t) if inverted else power


_LIBM = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "erfcx", "lgamma", "atan2",
)  # fmt: skip

#: Primitive function -> its spelling, given converted arguments and the type in which it is evaluated.
SPELLINGS: dict[str, Spell] = {
    "add": _binary("+", ADD),
    "sub": _binary("-", ADD),
    "mul": _binary("*", MUL),
    "div": _binary("/", MUL),
    "floordiv": _by_kind(_helper("float_floor_div"), _helper("floor_div")),
    "mod": _by_kind(_helper("float_mod"), _helper("floor_mod")),
    "fmod": _by_kind(_libm("fmod"), _binary("%", MUL)),
    "neg": _negate,
    "abs": _by_kind(_libm("fabs"), _helper("absolute")),
    "sign": _helper("sign"),
    "minimum": _helper("minimum"),
    "maximum": _helper("maximum"),
    "pow": _pow,
    **{name: _libm(name) for name in _LIBM},
    "bessel_i0": _libm("cyl_bessel_i0"),
    "bessel_i1": _helper("bessel_i1"),
    "floor": _by_kind(_libm("floor"), _same),
    "ceil": _by_kind(_libm("ceil"), _same),
    "trunc": _by_kind(_libm("trunc"), _same),
    "round": _by_kind(_libm("rint"), _same),
    "isnan": _by_kind(_predicate("isnan"), _false),
    "isinf": _by_kind(_predicate("isinf"), _false),
    "eq": _compare("==", EQUALITY),
    "ne": _compare("!=", EQUALITY),
    "lt": _compare("<", RELATION),
    "le": _compare("<=", RELATION),
    "gt": _compare(">", RELATION),
    "ge": _compare(">=", RELATION),
    "and": _compare("&&", AND),
    "or": _compare("||", OR),
    "not": _not,
    "bitand": _bitwise("&", BITAND, "&&", AND),
    "bitor": _bitwise("|", BITOR, "||", OR),
    "bitxor": _bitwise("^", BITXOR, "!=", EQUALITY),
    "bitnot": _bitnot,
    "shl": _helper("shift_left"),
    "shr": _helper("shift_right"),
    "where": _select,
}

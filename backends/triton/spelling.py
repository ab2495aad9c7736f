"""How each function of kvc.functions is written in Triton, for AMD and NVIDIA targets alike.

Infix operators are Python's; everything transcendental goes through libdevice (OCML on AMD, libdevice on NVIDIA),
which is accurate to an ulp or two and handles the whole range, where `tl.exp` on AMD is exp2 of a rounded product.
`fast` numerics take Triton's own, cheaper spellings. What neither has is a small helper function, written into the
file of the kernel that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvc.dtypes import BOOL, DType

# Python's binding strengths.
COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, ADD, MUL, UNARY, ATOM = range(1, 10)

#: fn -> (operator, strength), where the operator means the same on every type it is used with.
INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", ADD), "sub": ("-", ADD), "mul": ("*", MUL), "div": ("/", MUL),
    "eq": ("==", COMPARE), "ne": ("!=", COMPARE), "lt": ("<", COMPARE),
    "le": ("<=", COMPARE), "gt": (">", COMPARE), "ge": (">=", COMPARE),
    "and": ("&", BIT_AND), "or": ("|", BIT_OR),
    "bitand": ("&", BIT_AND), "bitor": ("|", BIT_OR), "bitxor": ("^", BIT_XOR), "shl": ("<<", SHIFT),
    "shr": (">>", SHIFT),
}  # fmt: skip

#: On booleans, torch's arithmetic is logic.
_BOOL_INFIX = {
    "add": INFIX["or"],
    "mul": INFIX["and"],
    "maximum": INFIX["or"],
    "minimum": INFIX["and"],
}

_FLOAT: dict[str, str] = {
    name: f"libdevice.{name}({{0}})"
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "erfcx",
        "lgamma", "trunc",
    )
}  # fmt: skip
_FLOAT |= {
    "bessel_i0": "libdevice.cyl_bessel_i0({0})",
    "bessel_i1": "bessel_i1({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libdevice.nearbyint({0})",
    "abs": "tl.abs({0})",
    "sign": "sign({0})",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "pow": "libdevice.pow({0}, {1})",
    "atan2": "libdevice.atan2({0}, {1})",
    "fmod": "libdevice.fmod({0}, {1})",
    "floordiv": "floor_divide({0}, {1})",
    "mod": "remainder({0}, {1})",
    "isinf": 'tl.abs({0}) == float("inf")',
    "isnan": "{0} != {0}",
    "where": "tl.where({0}, {1}, {2})",
}
_FAST = {name: f"tl.{name}({{0}})" for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf")}

_INT: dict[str, str] = {
    "abs": "tl.abs({0})",
    "sign": "sign({0})",
    "minimum": "tl.minimum({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "pow": "int_pow({0}, {1})",
    "fmod": "{0} % {1}",
    "floordiv": "int_floor_divide({0}, {1})",
    "mod": "int_remainder({0}, {1})",
    "floor": "{0}",
    "ceil": "{0}",
    "trunc": "{0}",
    "round": "{0}",
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
    "where": "tl.where({0}, {1}, {2})",
}

#: Strength of the templates that are no call.
_STRENGTH = {"fmod": MUL, "isnan": COMPARE, "isinf": COMPARE}


@dataclass(frozen=True)
class Spelling:
    """A template over argument texts, its binding strength, and the helper functions it calls. `atoms`: every
    argument must be an atom (it stands beside an operator, or more than once)."""

    template: str
    strength: int = ATOM
    helpers: tuple[str, ...] = ()
    atoms: bool = False
    libdevice: bool = False


def spelling(fn: str, dtype: DType, numerics: str = "strict") -> Spelling:
    """How a primitive function that is not infix is called on arguments of compute type `dtype`; KeyError where the
    function has no meaning on that type (a test keeps that set empty for what torch accepts)."""
    if fn == "neg":
        return Spelling("-{0}", UNARY, atoms=True)
    if fn in ("not", "bitnot"):
        return Spelling("~{0}", UNARY, atoms=True)
    if fn == "where":
        return Spelling("tl.where({0}, {1}, {2})")
    table = _FLOAT if dtype.is_float else _INT
    template = table[fn]
    if numerics == "fast" and dtype.is_float:
        template = _FAST.get(fn, template)
    head = template.partition("(")[0]
    strength = ATOM if template.endswith(")") and not template.startswith("{") else _STRENGTH.get(fn, ATOM)
    if strength != ATOM or (fn == "isinf" and dtype.is_float):
        return Spelling(template, _STRENGTH.get(fn, strength), atoms=template.startswith("{"))
    helpers = (head,) if head in HELPERS else ()
    return Spelling(template, strength, helpers, libdevice=head.startswith("libdevice"))


def infix(fn: str, dtype: DType) -> tuple[str, int] | None:
    """Operator and strength, where `fn` is written as one on arguments of compute type `dtype`."""
    if dtype is BOOL and fn in _BOOL_INFIX:
        return _BOOL_INFIX[fn]
    return INFIX.get(fn)


@dataclass(frozen=True)
class Helper:
    """A function written into the kernel file when something in it is used."""

    text: str
    helpers: tuple[str, ...] = ()
    libdevice: bool = False


def _helper(text: str, *helpers: str, libdevice: bool = False) -> Helper:
    return Helper("@triton.jit\n" + text.strip("\n"), helpers, libdevice)


HELPERS: dict[str, Helper] = {
    # x Phi(x) for a result of 11 bits of significand or fewer: Phi(-a) = 2^p(a), where p is the polynomial that comes
    # closest to log2 Phi(-a) on [0, 13.5]. It is off by 5e-5 of Phi(-a), a fifth of what the rounding of the result is,
    # at a third of erf's instructions. From 15 on the power is zero in fp32, as Phi is.
    "gelu_16": _helper("""
def gelu_16(x):
    a = tl.minimum(tl.abs(x), 15.0)
    p = tl.fma(a, 3.899709000165785e-08, -2.304740974068409e-06)
    p = tl.fma(a, p, 5.870432869414799e-05)
    p = tl.fma(a, p, -0.0008549722260795534)
    p = tl.fma(a, p, 0.008024835027754307)
    p = tl.fma(a, p, -0.05257214605808258)
    p = tl.fma(a, p, -0.46027836203575134)
    p = tl.fma(a, p, -1.1503711938858032)
    tail = tl.exp2(tl.fma(a, p, -1.0000678300857544))
    return x * tl.where(x < 0.0, tail, 1.0 - tail)
"""),
    "sign": _helper("""
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
"""),
    "remainder": _helper(
        """
def remainder(a, b):
    # The sign of the divisor, as torch.remainder.
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
        libdevice=True,
    ),
    "floor_divide": _helper(
        """
def floor_divide(a, b):
    # From the exact remainder, since a / b may round up to the next integer.
    r = libdevice.fmod(a, b)
    q = (a - r) / b
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    return tl.where(b == 0, a / b, tl.where(q != 0, whole, 0 * (a / b)))
""",
        libdevice=True,
    ),
    "bessel_i1": _helper(
        """
def bessel_i1(x):
    # I1 is odd; AMD's fp64 version of it gives NaN below -8.
    y = libdevice.cyl_bessel_i1(tl.abs(x))
    return tl.where(x < 0, -y, y)
""",
        libdevice=True,
    ),
    "int_floor_divide": _helper("""
def int_floor_divide(a, b):
    # The hardware's division truncates.
    return a // b - ((a % b != 0) & ((a < 0) != (b < 0))).to(a.dtype)
"""),
    "int_remainder": _helper("""
def int_remainder(a, b):
    # The sign of the divisor; the hardware's has the sign of the dividend.
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
"""),
    "int_pow": _helper("""
def int_pow(base, exponent):
    # Square and multiply, wrapping; a negative exponent leaves only the powers of 1 and -1.
    zero = base * 0 + exponent * 0
    result, factor, left = zero + 1, zero + base, zero + exponent
    for _ in range(factor.dtype.primitive_bitwidth):
        result = tl.where((left > 0) & (left & 1 != 0), result * factor, result)
        factor = factor * factor
        left = left >> 1
    inverse = tl.where(base == 1, 1, tl.where(base == -1, 1 - 2 * (exponent & 1), 0))
    return tl.where(exponent < 0, inverse.to(result.dtype), result)
"""),
    # Combine functions of tl.reduce and tl.associative_scan.
    "add": _helper("""
def add(a, b):
    return a + b
"""),
    "multiply": _helper("""
def multiply(a, b):
    return a * b
"""),
    "maximum": _helper("""
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""),
    "minimum": _helper("""
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""),
    "either": _helper("""
def either(a, b):
    return a | b
"""),
    "both": _helper("""
def both(a, b):
    return a & b
"""),
    "first_max": _helper("""
def first_max(a, i, b, j):
    # NaN beats every number; among equals the smaller index wins.
    a_nan, b_nan = a != a, b != b
    take = (a > b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)
"""),
    "first_min": _helper("""
def first_min(a, i, b, j):
    # NaN beats every number; among equals the smaller index wins.
    a_nan, b_nan = a != a, b != b
    take = (a < b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)
"""),
    "precedes": _helper("""
def precedes(a, i, b, j):
    # Stable ascending order, NaN last.
    a_nan, b_nan = a != a, b != b
    return (a < b) | (~a_nan & b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
"""),
    "precedes_descending": _helper("""
def precedes_descending(a, i, b, j):
    # Stable descending order, NaN first.
    a_nan, b_nan = a != a, b != b
    return (a > b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
"""),
}

#: Combine function of a reduction or scan -> helper.
COMBINE_HELPER: dict[str, str] = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "any": "either", "all": "both",
    "argmax": "first_max", "argmin": "first_min",
}  # fmt: skip

TL: dict[str, str] = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "f8e4m3fn": "tl.float8e4nv", "f8e4m3fnuz": "tl.float8e4b8", "f8e5m2": "tl.float8e5", "f8e5m2fnuz": "tl.float8e5b16",
    "i64": "tl.int64", "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip

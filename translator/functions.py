"""The pointwise functions and combine functions of the index notation, one row each.

A function is either primitive, with a meaning in torch (run in float64 by the oracle) and a spelling in each
backend, or composite: then `expand` gives its meaning in terms of others, and a backend emits it as a helper
function. `result` says what type comes out: "same" (of the promoted arguments), "float", "bool", or "select".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvc.special import bessel_i0e, bessel_i1e, digamma, trigamma


@dataclass(frozen=True)
class Function:
    name: str
    arity: int
    result: str
    torch: str = ""  # the torch function that defines it, "exp" or "special.i1"; "" for composites
    infix: str = ""  # how it prints, when it is an operator
    expand: Callable[..., Any] | None = None  # composite: Expr, ... -> Expr
    commutes: bool = False


@dataclass(frozen=True)
class Combine:
    """A reduction's combine function: associative, with an identity ("lowest"/"highest": of the dtype)."""

    name: str
    identity: float | bool | str
    binary: str  # the pointwise function that combines two partial results; "" for argmax/argmin
    torch: str


def _call(fn: str, *args: Any) -> Any:
    from kvc.kernel import call

    return call(fn, *args)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + _call("erf", x * math.sqrt(0.5)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + _call("tanh", math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def _softplus(x: Any) -> Any:
    # max(x, 0) + log1p(exp(-|x|)) neither overflows nor cancels.
    return _call("maximum", x, 0.0) + _call("log1p", _call("exp", -_call("abs", x)))


def _primitive(
    name: str, arity: int, result: str, torch: str = "", infix: str = "", commutes: bool = False
) -> Function:
    return Function(name, arity, result, torch or name, infix, None, commutes)


def _composite(name: str, arity: int, expand: Callable[..., Any]) -> Function:
    return Function(name, arity, "float", "", "", expand)


_UNARY_FLOAT = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
]
# Function of torch.special that defines each (names of axes, such as i1, stay free).
_SPECIAL = {"erfcx": "erfcx", "bessel_i0": "i0", "bessel_i1": "i1"}

FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        _primitive("add", 2, "same", infix="+", commutes=True),
        _primitive("sub", 2, "same", infix="-"),
        _primitive("mul", 2, "same", infix="*", commutes=True),
        _primitive("div", 2, "float", "true_divide", infix="/"),
        _primitive("floordiv", 2, "same", "floor_divide", infix="//"),
        _primitive("mod", 2, "same", "remainder", infix="%"),  # sign of the divisor, like Python and torch.remainder
        _primitive("fmod", 2, "same"),  # sign of the dividend, like C
        _primitive("neg", 1, "same"),
        _primitive("abs", 1, "same"),
        _primitive("sign", 1, "same"),
        _primitive("minimum", 2, "same", commutes=True),  # NaN propagates
        _primitive("maximum", 2, "same", commutes=True),
        _primitive("pow", 2, "same"),
        _primitive("atan2", 2, "float"),
        *(_primitive(name, 1, "float") for name in _UNARY_FLOAT),
        *(_primitive(name, 1, "float", f"special.{torch}") for name, torch in _SPECIAL.items()),
        _primitive("floor", 1, "same"),
        _primitive("ceil", 1, "same"),
        _primitive("trunc", 1, "same"),
        _primitive("round", 1, "same"),  # half to even
        _primitive("isnan", 1, "bool"),
        _primitive("isinf", 1, "bool"),
        _primitive("eq", 2, "bool", infix="==", commutes=True),
        _primitive("ne", 2, "bool", infix="!=", commutes=True),
        _primitive("lt", 2, "bool", infix="<"),
        _primitive("le", 2, "bool", infix="<="),
        _primitive("gt", 2, "bool", infix=">"),
        _primitive("ge", 2, "bool", infix=">="),
        _primitive("and", 2, "bool", "logical_and", infix="&&", commutes=True),
        _primitive("or", 2, "bool", "logical_or", infix="||", commutes=True),
        _primitive("not", 1, "bool", "logical_not"),
        _primitive("bitand", 2, "same", "bitwise_and", commutes=True),
        _primitive("bitor", 2, "same", "bitwise_or", commutes=True),
        _primitive("bitxor", 2, "same", "bitwise_xor", commutes=True),
        _primitive("bitnot", 1, "same", "bitwise_not"),
        _primitive("shl", 2, "same", "bitwise_left_shift"),
        _primitive("shr", 2, "same", "bitwise_right_shift"),
        _primitive("where", 3, "select"),
        _composite("reciprocal", 1, lambda x: 1.0 / x),
        _composite("sigmoid", 1, lambda x: 1.0 / (1.0 + _call("exp", -x))),
        _composite("silu", 1, lambda x: x / (1.0 + _call("exp", -x))),
        _composite("relu", 1, lambda x: _call("maximum", x, 0.0)),
        _composite("gelu", 1, _gelu),
        _composite("gelu_tanh", 1, _gelu_tanh),
        _composite("softplus", 1, _softplus),
        _composite("mish", 1, lambda x: x * _call("tanh", _call("softplus", x))),
        _composite("hardsigmoid", 1, lambda x: _call("minimum", _call("maximum", x + 3.0, 0.0), 6.0) / 6.0),
        _composite("hardswish", 1, lambda x: x * _call("minimum", _call("maximum", x + 3.0, 0.0), 6.0) / 6.0),
        _composite("digamma", 1, digamma),
        _composite("trigamma", 1, trigamma),
        _composite("bessel_i0e", 1, bessel_i0e),
        _composite("bessel_i1e", 1, bessel_i1e),
    )
}

INFIX: dict[str, str] = {f.infix: f.name for f in FUNCTIONS.values() if f.infix}

COMBINES: dict[str, Combine] = {
    c.name: c
    for c in (
        Combine("sum", 0.0, "add", "sum"),
        Combine("prod", 1.0, "mul", "prod"),
        Combine("max", "lowest", "maximum", "amax"),
        Combine("min", "highest", "minimum", "amin"),
        Combine("any", False, "or", "any"),
        Combine("all", True, "and", "all"),
        Combine("argmax", "lowest", "", "argmax"),
        Combine("argmin", "highest", "", "argmin"),
    )
}

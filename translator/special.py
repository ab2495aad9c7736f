"""Special functions that no device library has, in terms of functions that it has: the `expand` of their rows in
kvc.functions. Accurate to a few ulp of fp64, away from zeros of the function.

Formulas: Abramowitz and Stegun, 6.3 (digamma), 6.4 (trigamma), 9.7.1 (scaled Bessel functions for large arguments).
"""

from __future__ import annotations

import math
from typing import Any

# The recurrence takes an argument up by this much; from there on the asymptotic series holds to fp64.
_SHIFT = 10
# B(2n) / 2n, the coefficients of x^-2n in the series of digamma, and B(2n), those of x^-(2n + 1) in that of trigamma.
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
# Where a scaled Bessel function changes over to its series, and how many terms that takes there.
_LARGE, _TERMS = 64.0, 8


def _call(fn: str, *args: Any) -> Any:
    from kvc.kernel import call

    return call(fn, *args)


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    """c0 + c1 x + c2 x^2 + ..."""
    value: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value = value * x + c
    return value


def _fraction(x: Any) -> Any:
    """What follows the point, with the sign of x: exact, so that pi times it is as good as x."""
    return x - _call("trunc", x)


def digamma(x: Any) -> Any:
    """d/dx log(gamma(x)): minus the sign of zero times infinity at 0, NaN at negative integers, as torch."""
    positive = _call("where", _call("lt", x, 0.0), 1.0 - x, x)
    far = positive + float(_SHIFT)
    inverse = 1.0 / far
    square = inverse * inverse
    series = _call("log", far) - 0.5 * inverse - square * _horner(_DIGAMMA, square)
    for n in range(_SHIFT):
        series = series - 1.0 / (positive + float(n))
    reflected = series - math.pi / _call("tan", math.pi * _fraction(x))
    pole = _call("eq", x, _call("trunc", x))
    left = _call("where", pole, math.nan, reflected)
    return _call("where", _call("eq", x, 0.0), -1.0 / x, _call("where", _call("lt", x, 0.0), left, series))


def trigamma(x: Any) -> Any:
    """The second derivative of log(gamma(x)): infinity at 0 and at negative integers."""
    low = _call("lt", x, 0.5)
    positive = _call("where", low, 1.0 - x, x)
    far = positive + float(_SHIFT)
    inverse = 1.0 / far
    square = inverse * inverse
    series = inverse + 0.5 * square + inverse * square * _horner(_TRIGAMMA, square)
    for n in range(_SHIFT):
        shifted = positive + float(n)
        series = series + 1.0 / (shifted * shifted)
    sine = _call("sin", math.pi * _fraction(x))
    return _call("where", low, (math.pi / sine) * (math.pi / sine) - series, series)


def _scaled_bessel(order: int, x: Any) -> Any:
    """exp(-|x|) I(|x|) for order 0 or 1."""
    size = _call("abs", x)
    near = _call("minimum", size, _LARGE)
    small = _call(f"bessel_i{order}", near) * _call("exp", -near)
    far = _call("maximum", size, _LARGE)
    coefficients, term, mu = [1.0], 1.0, 4.0 * order * order
    for n in range(1, _TERMS):
        term *= -(mu - (2 * n - 1) ** 2) / (8.0 * n)
        coefficients.append(term)
    large = _horner(tuple(coefficients), 1.0 / far) / _call("sqrt", 2.0 * math.pi * far)
    return _call("where", _call("le", size, _LARGE), small, large)


def bessel_i0e(x: Any) -> Any:
    """exp(-|x|) I0(x)."""
    return _scaled_bessel(0, x)


def bessel_i1e(x: Any) -> Any:
    """exp(-|x|) I1(x), which is odd."""
    value = _scaled_bessel(1, x)
    return _call("where", _call("lt", x, 0.0), -value, value)

"""Vector compares: v_cmp_* write a lane mask, v_cmpx_* the mask and EXEC.

Semantics: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", chapter 12.9. The n-forms ("nlt") are true where
an operand is NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache

import numpy as np
from kvc.simulator.isa.bits import Array
from kvc.simulator.isa.table import op

_VC = "12.9 VOPC"
_Compare = Callable[[Array, Array], Array]


def _never(a: Array, b: Array) -> Array:
    return np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b)), np.bool_)


def _always(a: Array, b: Array) -> Array:
    return np.ones(np.broadcast_shapes(np.shape(a), np.shape(b)), np.bool_)


def _less_or_greater(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _ordered(a: Array, b: Array) -> Array:
    return (a == a) & (b == b)


def _negated(fn: _Compare) -> _Compare:
    return lambda a, b: ~fn(a, b)


_INT: dict[str, _Compare] = {
    "f": _never, "lt": np.less, "eq": np.equal, "le": np.less_equal,
    "gt": np.greater, "ne": np.not_equal, "ge": np.greater_equal, "t": _always,
}  # fmt: skip
_FLOAT: dict[str, _Compare] = {
    "f": _never, "lt": np.less, "eq": np.equal, "le": np.less_equal,
    "gt": np.greater, "lg": _less_or_greater, "ge": np.greater_equal, "o": _ordered,
    "u": _negated(_ordered), "nge": _negated(operator.ge), "nlg": _negated(_less_or_greater),
    "ngt": _negated(operator.gt), "nle": _negated(operator.le), "neq": np.not_equal,
    "nlt": _negated(operator.lt), "tru": _always,
}  # fmt: skip


@cache
def _class_ranges(mantissa_bits: int, exponent_bits: int, wanted: int) -> tuple[tuple[int, int], ...]:
    """The ranges (first pattern, length - 1) of raw bits that belong to the classes in `wanted`, neighbours merged.

    Classes by bit: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf. As unsigned integers the
    patterns of each sign run zero, denormals, normals, infinity, signalling NaNs, quiet NaNs.
    """
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    quiet = infinity | 1 << (mantissa_bits - 1)
    bounds = (0, 1, 1 << mantissa_bits, infinity, infinity + 1, quiet, 1 << (mantissa_bits + exponent_bits))
    ranges: list[tuple[int, int]] = []
    for base, bits in ((0, (6, 7, 8, 9, 0, 1)), (bounds[-1], (5, 4, 3, 2, 0, 1))):
        for bit, first, after in zip(bits, bounds, bounds[1:], strict=False):
            if not wanted >> bit & 1:
                continue
            if ranges and ranges[-1][1] == base + first:
                ranges[-1] = (ranges[-1][0], base + after)
            else:
                ranges.append((base + first, base + after))
    return tuple((first, after - first - 1) for first, after in ranges)


def _classify(mantissa_bits: int, exponent_bits: int) -> _Compare:
    """Whether the class of `x` (raw bits) is in the set `wanted`; the set is nearly always one constant."""

    def uniform(x: Array, wanted: int) -> Array:
        result = np.zeros(np.shape(x), np.bool_)
        for first, extent in _class_ranges(mantissa_bits, exponent_bits, wanted):
            result |= (x - first if first else x) <= extent  # unsigned: below the range wraps to above it
        return result

    def run(x: Array, wanted: Array) -> Array:
        sets = np.unique(np.asarray(wanted) & 0x3FF).tolist()
        if len(sets) == 1:
            return np.broadcast_to(uniform(x, sets[0]), np.broadcast_shapes(np.shape(x), np.shape(wanted)))
        result = np.zeros(np.broadcast_shapes(np.shape(x), np.shape(wanted)), np.bool_)
        for bit in range(10):
            result |= uniform(x, 1 << bit) & ((wanted >> bit & 1) != 0)
        return result

    return run


def _and_exec(fn: _Compare) -> Callable[[Array, Array], tuple[Array, Array]]:
    def run(a: Array, b: Array) -> tuple[Array, Array]:
        mask = fn(a, b)
        return mask, mask

    return run


def _both(suffix: str, src: str, fn: _Compare) -> None:
    op(f"v_cmp_{suffix}", "vopc", "mask", src, fn, _VC)
    op(f"v_cmpx_{suffix}", "vopc", "mask exec", src, _and_exec(fn), _VC)


for _name, _fn in _INT.items():
    for _t in ("i16", "u16", "i32", "u32", "i64", "u64"):
        _both(f"{_name}_{_t}", f"{_t} {_t}", _fn)
for _name, _fn in _FLOAT.items():
    for _t in ("f16", "f32", "f64"):
        _both(f"{_name}_{_t}", f"{_t} {_t}", _fn)
# `neg` and `abs` of v_cmp_class act on the number, so the engine must read it as a float; the bits are taken here.
for _t, _bits, _mantissa, _exponent in (("f16", "u2", 10, 5), ("f32", "u4", 23, 8), ("f64", "u8", 52, 11)):
    _by_class = _classify(_mantissa, _exponent)
    _both(f"class_{_t}", f"{_t} b32", lambda x, wanted, f=_by_class, d=_bits: f(np.asarray(x).view(d), wanted))  # type: ignore[misc]

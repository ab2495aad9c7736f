"""Fused multiply-add on operands built to be rounded twice, and the published division sequences end to end."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import kvc.simulator.isa
import numpy as np
import pytest
from kvc.simulator.isa import floats
from kvc.simulator.isa.table import REGISTRY

from tests.simulator.isa.pcode_values import round_to

assert kvc.simulator.isa.__all__
_DTYPES: dict[int, tuple[Any, Any]] = {16: (np.float16, np.uint16), 32: (np.float32, np.uint32)}
_DTYPES[64] = (np.float64, np.uint64)
_FMA = {16: floats.fma_f16, 32: floats.fma_f32, 64: floats.fma_f64}
_MANTISSA = {16: 10, 32: 23, 64: 52}
_EXPONENT = {16: (-24, 12), 32: (-149, 100), 64: (-1074, 900)}


def _near_halfway(width: int, count: int, seed: int) -> tuple[Any, Any, Any]:
    """c, and a product that lies within a hair of half a unit in the last place of c, of any exponent."""
    rng = np.random.default_rng(seed)
    dtype, _ = _DTYPES[width]
    m = _MANTISSA[width]
    low, high = _EXPONENT[width]
    exponent = rng.integers(low + m, high, count)
    exponent[: count // 3] = low + rng.integers(0, m, count // 3)  # denormal results
    c = np.ldexp(1.0 + rng.integers(0, 2**m, count) / 2.0**m, exponent).astype(dtype)
    unit = np.maximum(exponent - m, low)
    # a * b = (half a unit) * (1 + e1) * (1 + e2), with e1 and e2 a few units in the last place of either sign
    split = rng.integers(-8, 8, count)
    step = 2.0**-m
    a = np.ldexp(1 + rng.integers(-2, 3, count) * step, unit - 1 - split) * rng.choice([-1.0, 1.0], count)
    b = np.ldexp(1 + rng.integers(-2, 3, count) * step, split)
    return a.astype(dtype), b.astype(dtype), c * rng.choice(np.array([-1, 1], dtype), count)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_fma_rounds_once_next_to_halfway_points(width: int) -> None:
    a, b, c = _near_halfway(width, 6000, 1)
    with np.errstate(all="ignore"):
        got = _FMA[width](a, b, c).view(_DTYPES[width][1])
    for x, y, z, g in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert g == (round_to(width, exact) if exact else 0), (x.hex(), y.hex(), z.hex())


def test_the_halfway_operands_do_catch_double_rounding() -> None:
    """Without the correction the same operands go wrong: the test above tests something."""
    a, b, c = _near_halfway(32, 6000, 1)
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert np.count_nonzero(twice != floats.fma_f32(a, b, c)) > 10


@pytest.mark.parametrize("width", [16, 32, 64])
def test_fma_on_random_bit_patterns(width: int) -> None:
    rng = np.random.default_rng(2)
    dtype, raw = _DTYPES[width]
    a, b, c = (rng.integers(0, 2**width, 6000, dtype=raw).view(dtype) for _ in range(3))
    with np.errstate(all="ignore"):
        c = np.where(rng.random(6000) < 0.5, -(a * b), c)  # cancellation
        got = _FMA[width](a, b, c).view(raw)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for x, y, z, g in zip(
        a[finite].tolist(), b[finite].tolist(), c[finite].tolist(), got[finite].tolist(), strict=True
    ):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact:
            assert g == round_to(width, exact), (x.hex(), y.hex(), z.hex())


def _divide(kind: str, num: Any, den: Any) -> Any:
    """The sequence that LLVM emits for an IEEE division with denormals on."""
    fn = {name: REGISTRY[f"v_{name}_{kind}"].fn for name in ("div_scale", "rcp", "fma", "mul", "div_fmas", "div_fixup")}
    fma = fn["fma"]
    one = np.ones(1, num.dtype)
    d, _ = fn["div_scale"](den, den, num)
    n, vcc = fn["div_scale"](num, den, num)
    r = fn["rcp"](d)
    r = fma(fma(-d, r, one), r, r)
    if kind == "f64":
        r = fma(fma(-d, r, one), r, r)
        q = fn["mul"](n, r)
        return fn["div_fixup"](fn["div_fmas"](fma(-d, q, n), r, q, vcc), den, num)
    q = fn["mul"](n, r)
    q = fma(fma(-d, q, n), r, q)
    return fn["div_fixup"](fn["div_fmas"](fma(-d, q, n), r, q, vcc), den, num)


@pytest.mark.parametrize(("kind", "count"), [("f32", 1_000_000), ("f64", 20_000)])
def test_division_is_correctly_rounded(kind: str, count: int) -> None:
    """Random bit patterns: every exponent, denormals, infinities, NaN."""
    dtype, raw = _DTYPES[int(kind[1:])]
    rng = np.random.default_rng(3)
    num, den = (rng.integers(0, 2 ** int(kind[1:]), count, dtype=raw).view(dtype) for _ in range(2))
    limits = np.finfo(dtype)
    edges = np.array([0, -0.0, np.inf, 1, 3, limits.max, limits.tiny, limits.smallest_subnormal], dtype)
    num[:64], den[:64] = np.repeat(edges, 8), np.tile(edges, 8)
    with np.errstate(all="ignore"):
        got, want = _divide(kind, num, den), num / den
    number = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~number)
    wrong = np.nonzero(got.view(raw)[number] != want.view(raw)[number])[0]
    assert wrong.size == 0, [(num[number][i].hex(), den[number][i].hex()) for i in wrong[:5]]

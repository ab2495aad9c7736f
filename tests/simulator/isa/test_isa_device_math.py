"""The device math library, compiled for the real chips and run on the simulator, against float64 and exact integers.

OCML promises a few units in the last place; an opcode that is subtly wrong (a flag of v_cmp_class, the scaling of a
division, a bit of 2/pi) shows as a gross error somewhere in these domains.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kvc.arch import CDNA
from kvc.backends.hip.toolchain import compile_hip
from kvc.simulator import Memory, launch, load

N = 512

# name -> (expression of float x and y, reference on float64, units in the last place that the library promises)
_F32: dict[str, tuple[str, Any, float]] = {
    "exp": ("expf(x * 0.1f)", lambda x, y: np.exp(np.float64(np.float32(x) * np.float32(0.1))), 1),
    "exp2": ("exp2f(x * 0.25f)", lambda x, y: np.exp2(x * 0.25), 1),
    "log": ("logf(fabsf(x))", lambda x, y: np.log(np.abs(x)), 2),
    "log1p": ("log1pf(fabsf(x))", lambda x, y: np.log1p(np.abs(x)), 2),
    "sin": ("sinf(x * 1000.0f)", lambda x, y: np.sin(np.float64(np.float32(x) * np.float32(1000))), 4),
    "cos_large": ("cosf(x * 1e20f)", lambda x, y: np.cos(np.float64(np.float32(x) * np.float32(1e20))), 4),
    "tanh": ("tanhf(y)", lambda x, y: np.tanh(y), 5),
    "erf": ("erff(y)", lambda x, y: np.vectorize(math.erf)(y), 16),
    "pow": ("powf(fabsf(y), 2.5f)", lambda x, y: np.abs(y) ** 2.5, 16),
    "div": ("x / y", lambda x, y: x / y, 0.5),
    "sqrt": ("sqrtf(fabsf(x))", lambda x, y: np.sqrt(np.abs(x)), 0.5),
    "rsqrt": ("rsqrtf(fabsf(x))", lambda x, y: 1 / np.sqrt(np.abs(x)), 2),
    "cbrt": ("cbrtf(x)", lambda x, y: np.cbrt(x), 2),
    "fma": ("fmaf(x, y, 1.0f)", lambda x, y: x * y + 1, 0.5),
    "fmod": ("fmodf(x, y)", lambda x, y: np.fmod(x, y), 0),
    "rint": (
        "rintf(x) + floorf(y) + ceilf(y) + truncf(x)",
        lambda x, y: np.rint(x) + np.floor(y) + np.ceil(y) + np.trunc(x),
        0,
    ),
    "ldexp": ("ldexpf(y, (int)x % 120)", lambda x, y: np.ldexp(y, np.fmod(np.trunc(x), 120).astype(int)), 0),
}
_F64: dict[str, tuple[str, Any, float]] = {
    "div": ("x / y", lambda x, y: x / y, 0.5),
    "sqrt": ("sqrt(fabs(x))", lambda x, y: np.sqrt(np.abs(x)), 0.5),
    "exp": ("exp(y)", lambda x, y: np.exp(y), 2),
    "log": ("log(fabs(x))", lambda x, y: np.log(np.abs(x)), 2),
    "sin": ("sin(x * 1e10)", lambda x, y: np.sin(x * 1e10), 3),
    "fma": ("fma(x, y, -1.0)", None, 0.5),
}
_INT: dict[str, tuple[str, Any]] = {
    "div": ("a / b", lambda a, b: _trunc(a, b)),
    "mod": ("a % b", lambda a, b: a - b * _trunc(a, b)),
    "mul": ("a * b", lambda a, b: a * b),
    "shift": ("(a >> (b & 63)) ^ (a << (b & 31))", lambda a, b: (a >> (b & 63)) ^ (a << (b & 31))),
    "clz": (
        "(long long)__builtin_clzll(a | 1) * 64 + __builtin_popcountll(b)",
        lambda a, b: (64 - ((a | 1) % 2**64).bit_length()) * 64 + (b % 2**64).bit_count(),
    ),
    "brev": ("(long long)__builtin_bitreverse64(a)", lambda a, b: int(f"{a % 2**64:064b}"[::-1], 2)),
}


def _trunc(p: int, q: int) -> int:
    return abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)


def _kernel(name: str, kind: str, body: str, operands: str = "xy") -> str:
    first, second = operands
    return f"""extern "C" __global__ void {name}(const {kind}* p, const {kind}* q, {kind}* out) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  {kind} {first} = p[i], {second} = q[i];
  out[i] = {body};
}}
"""


def _source() -> str:
    kernels = [_kernel(f"f32_{name}", "float", body) for name, (body, *_) in _F32.items()]
    kernels += [_kernel(f"f64_{name}", "double", body) for name, (body, *_) in _F64.items()]
    kernels += [_kernel(f"int_{name}", "long long", body, "ab") for name, (body, _) in _INT.items()]
    return "#include <hip/hip_runtime.h>\n" + "".join(kernels)


class _Device:
    """The compiled kernels of one chip."""

    def __init__(self, chip: str) -> None:
        code = compile_hip(_source(), chip)
        self.chip = chip
        self.program = load(code.asm, chip, code.binary)

    def run(self, kernel: str, first: Any, second: Any) -> Any:
        mem = Memory(self.chip)
        p, q, out = mem.upload(first), mem.upload(second), mem.alloc(first.nbytes)
        launch(self.program, kernel, grid=(N // 256, 1, 1), block=(256, 1, 1), args=[p, q, out], mem=mem)
        return out.view(first.dtype)[:N].copy()


@pytest.fixture(scope="module", params=CDNA)
def device(request: pytest.FixtureRequest) -> _Device:
    return _Device(request.param)


def _floats(dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(N) * np.exp2(rng.uniform(-12, 8, N))).astype(dtype)
    y = (rng.standard_normal(N) * 2).astype(dtype)
    return x, y


def _ulps(got: Any, want: Any, dtype: Any) -> float:
    """Largest error in units in the last place of the reference (rounded to the format)."""
    unit = np.spacing(np.abs(want).astype(dtype)).astype(np.longdouble)
    return float(np.max(np.abs(got.astype(np.longdouble) - want) / unit))


def test_float_functions(device: _Device) -> None:
    x, y = _floats(np.float32)
    failures = []
    for name, (_, reference, bound) in _F32.items():
        want = reference(x.astype(np.float64), y.astype(np.float64))
        error = _ulps(device.run(f"f32_{name}", x, y), want, np.float32)
        if not error <= bound + 0.01:
            failures.append(f"{name}: {error:.2f} ulp, {bound} promised")
    assert not failures, failures


def test_double_functions(device: _Device) -> None:
    from fractions import Fraction

    x, y = _floats(np.float64)
    failures = []
    for name, (_, reference, bound) in _F64.items():
        got = device.run(f"f64_{name}", x, y)
        if reference is None:  # fma, in rationals
            want = np.array([float(Fraction(a) * Fraction(b) - 1) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
        else:
            want = reference(x, y)
        error = _ulps(got, want, np.float64)
        if not error <= bound + 0.51:  # the reference is itself rounded
            failures.append(f"{name}: {error:.2f} ulp, {bound} promised")
    assert not failures, failures


def test_long_integers(device: _Device) -> None:
    rng = np.random.default_rng(6)
    a = rng.integers(-(2**63), 2**63, N) >> rng.integers(0, 60, N)
    b = rng.integers(-(2**63), 2**63, N) >> rng.integers(0, 60, N)
    b[b == 0] = 1
    a[0], b[0] = -(2**63) + 1, -1
    for name, (_, reference) in _INT.items():
        got = device.run(f"int_{name}", a, b).tolist()
        want = [reference(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
        assert [v % 2**64 for v in got] == [v % 2**64 for v in want], name

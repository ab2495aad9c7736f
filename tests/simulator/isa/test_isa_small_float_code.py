"""fp8, bf8, fp6 and fp4 conversions as the compiler emits them, byte and half selections included, on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kvc.arch import ARCHS, CDNA
from kvc.backends.hip.toolchain import compile_hip
from kvc.simulator import Memory, launch, load

from tests.simulator.isa.minifloats import mini, noise

LANES = 64
_HEAD = """#include <hip/hip_runtime.h>
typedef float f2 __attribute__((ext_vector_type(2)));
typedef float f16v __attribute__((ext_vector_type(16)));
typedef unsigned u6 __attribute__((ext_vector_type(6)));
#define KERNEL extern "C" __global__ void
"""
_FP8 = """
KERNEL pack(const float* x, const float* y, unsigned* out) {
  int i = threadIdx.x, r = 0;
  r = __builtin_amdgcn_cvt_pk_fp8_f32(x[i], y[i], r, false);
  out[i] = __builtin_amdgcn_cvt_pk_bf8_f32(x[i], y[i], r, true);
}
KERNEL unpack(const unsigned* x, float* out) {
  int i = threadIdx.x; unsigned v = x[i]; float* o = out + i * 8;
  o[0] = __builtin_amdgcn_cvt_f32_fp8(v, 0); o[1] = __builtin_amdgcn_cvt_f32_fp8(v, 1);
  o[2] = __builtin_amdgcn_cvt_f32_bf8(v, 2); o[3] = __builtin_amdgcn_cvt_f32_bf8(v, 3);
  f2 p = __builtin_amdgcn_cvt_pk_f32_fp8(v, true), q = __builtin_amdgcn_cvt_pk_f32_bf8(v, false);
  o[4] = p.x; o[5] = p.y; o[6] = q.x; o[7] = q.y;
}
KERNEL stochastic(const float* x, const unsigned* random, unsigned* out) {
  int i = threadIdx.x, r = 0;
  r = __builtin_amdgcn_cvt_sr_fp8_f32(x[i], random[i], r, 1);
  out[i] = __builtin_amdgcn_cvt_sr_bf8_f32(x[i], random[i], r, 3);
}
"""
_SCALED = """
KERNEL scaled(const unsigned* x, const float* s, float* out) {
  int i = threadIdx.x; float* o = out + i * 6;
  o[0] = __builtin_amdgcn_cvt_scalef32_f32_fp8(x[i], s[i], 0);
  o[1] = __builtin_amdgcn_cvt_scalef32_f32_fp8(x[i], s[i], 1);
  o[2] = __builtin_amdgcn_cvt_scalef32_f32_fp8(x[i], s[i], 2);
  o[3] = __builtin_amdgcn_cvt_scalef32_f32_bf8(x[i], s[i], 3);
  f2 p = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x[i], s[i], 2);
  o[4] = p.x; o[5] = p.y;
}
KERNEL pack4(const float* x, const float* y, const float* s, unsigned* out) {
  int i = threadIdx.x; unsigned r = 0;
  r = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(r, x[i], y[i], s[i], 0);
  out[i] = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(r, x[i], y[i], s[i], 3);
}
KERNEL pack6(const f16v* x, const f16v* y, const float* s, unsigned* out) {
  int i = threadIdx.x; u6 r = __builtin_amdgcn_cvt_scalef32_2xpk16_fp6_f32(x[i], y[i], s[i]);
  for (int k = 0; k < 6; k++) out[i * 6 + k] = r[k];
}
KERNEL integers(const unsigned* x, const unsigned* y, unsigned* out) {
  int i = threadIdx.x; unsigned a = x[i], b = y[i], c = a * 3 + b;
  out[i * 3] = (a & b) ^ (~c | a);
  out[i * 3 + 1] = __builtin_amdgcn_prng_b32(a);
  out[i * 3 + 2] = __builtin_amdgcn_ashr_pk_u8_i32(a, b, 5);
}
"""
_CHIPS = [name for name in CDNA if ARCHS[name].fp8 != "none"]
_SCALED_CHIPS = [name for name in CDNA if ARCHS[name].fp8 == "ocp"]
_PROGRAMS: dict[str, Any] = {}


def _run(chip: str, kernel: str, inputs: list[Any], count: int, dtype: Any) -> Any:
    if chip not in _PROGRAMS:
        code = compile_hip(_HEAD + _FP8 + (_SCALED if chip in _SCALED_CHIPS else ""), chip)
        _PROGRAMS[chip] = load(code.asm, chip, code.binary)
    mem = Memory(chip)
    arguments = [mem.upload(np.ascontiguousarray(a)) for a in inputs]
    out = mem.alloc(count * LANES * 4)
    launch(_PROGRAMS[chip], kernel, grid=(1, 1, 1), block=(LANES, 1, 1), args=[*arguments, out], mem=mem)
    return out.view(dtype).reshape(LANES, count).copy()


def _values() -> tuple[Any, Any, Any, Any]:
    """Two vectors of floats over the range of the formats, random words, and powers of two."""
    rng = np.random.default_rng(1)
    x, y = ((rng.standard_normal(LANES) * np.exp2(rng.uniform(-8, 8, LANES))).astype(np.float32) for _ in range(2))
    words = rng.integers(0, 2**32, LANES, dtype=np.uint32)
    return x, y, words, np.exp2(rng.integers(-5, 5, LANES)).astype(np.float32)


def _bytes(words: Any) -> list[list[int]]:
    return [[int(w) >> 8 * k & 255 for k in range(4)] for w in words]


@pytest.mark.parametrize("chip", _CHIPS)
def test_fp8_pack_unpack_and_stochastic(chip: str) -> None:
    x, y, words, _ = _values()
    f8, b8 = mini("fp8", ARCHS[chip].fp8), mini("bf8", ARCHS[chip].fp8)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    want = [f8.encode(a) | f8.encode(b) << 8 | b8.encode(a) << 16 | b8.encode(b) << 24 for a, b in pairs]
    assert _run(chip, "pack", [x, y], 1, np.uint32)[:, 0].tolist() == want

    order = ((f8, 0), (f8, 1), (b8, 2), (b8, 3), (f8, 2), (f8, 3), (b8, 0), (b8, 1))
    decoded = [[fmt.decode(b[i]) for fmt, i in order] for b in _bytes(words)]
    np.testing.assert_array_equal(_run(chip, "unpack", [words], 8, np.float32), np.array(decoded, np.float32))

    randoms = zip(x.tolist(), words.tolist(), strict=True)
    want = [f8.encode(a, noise(r, 20)) << 8 | b8.encode(a, noise(r, 21)) << 24 for a, r in randoms]
    assert _run(chip, "stochastic", [x, words], 1, np.uint32)[:, 0].tolist() == want


@pytest.mark.parametrize("chip", _SCALED_CHIPS)
def test_scaled_conversions(chip: str) -> None:
    x, y, words, scale = _values()
    f8, b8, f6, f4 = (mini(name, "ocp") for name in ("fp8", "bf8", "fp6", "fp4"))
    decoded = [
        [f8.decode(b[0]), f8.decode(b[1]), f8.decode(b[2]), b8.decode(b[3]), f4.decode(b[2] & 15), f4.decode(b[2] >> 4)]
        for b in _bytes(words)
    ]
    want = np.array(decoded, np.float32) * scale[:, None]
    np.testing.assert_array_equal(_run(chip, "scaled", [words, scale], 6, np.float32), want)

    scaled = zip((x / scale).tolist(), (y / scale).tolist(), strict=True)
    codes = [f4.encode(a) | f4.encode(b) << 4 for a, b in scaled]
    assert _run(chip, "pack4", [x, y, scale], 1, np.uint32)[:, 0].tolist() == [c | c << 24 for c in codes]

    rng = np.random.default_rng(2)
    first, second = (rng.standard_normal((LANES, 16)).astype(np.float32) * 3 for _ in range(2))
    got = _run(chip, "pack6", [first, second, scale], 6, np.uint32)
    both = np.stack([first, second], axis=-1).reshape(LANES, 32) / scale[:, None]
    for lane in range(LANES):
        packed = sum(f6.encode(v) << 6 * k for k, v in enumerate(both[lane].tolist()))
        assert sum(int(w) << 32 * k for k, w in enumerate(got[lane])) == packed


@pytest.mark.parametrize("chip", _SCALED_CHIPS)
def test_new_integer_instructions(chip: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2**32, LANES, dtype=np.uint32) for _ in range(2))
    got = _run(chip, "integers", [a, b], 3, np.uint32)
    c = a * np.uint32(3) + b
    assert np.array_equal(got[:, 0], (a & b) ^ (~c | a))
    assert np.array_equal(got[:, 1], (a << np.uint32(1)) ^ ((a >> np.uint32(31)) * np.uint32(197)))
    low, high = (np.clip(v.view(np.int32) >> 5, 0, 255).astype(np.uint32) for v in (a, b))
    assert np.array_equal(got[:, 2], low | high << np.uint32(8))

"""What the names of kvc's device header mean, executed on the simulator and compared with NumPy and torch."""

import numpy as np
import pytest
import torch
from kvc.arch import arch
from kvc.backends.hip.toolchain import compile_hip
from kvc.executor import LaunchPlan
from kvc.simulator.executor import SimExecutor

LANES = 64


def run(body: str, kind: str, inputs: dict[str, np.ndarray], count: int, chip: str = "gfx942") -> np.ndarray:
    """`count` rows of 64 results: the body fills r[0] .. r[count - 1] of each lane from a, b, c."""
    ctype = {np.int32: "int", np.uint32: "unsigned int", np.float32: "float", np.uint16: "unsigned short",
             np.uint64: "unsigned long long", np.int64: "long long", np.float64: "double"}  # fmt: skip
    parameters = ", ".join(f"const {ctype[array.dtype.type]}* {name}_in" for name, array in inputs.items())
    loads = " ".join(f"auto {name} = {name}_in[lane];" for name in inputs)
    source = f"""#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>
extern "C" __global__ void k({parameters}, {kind}* out) {{
  int lane = threadIdx.x;
  {loads}
  {kind} r[{count}];
  {body}
  for (int i = 0; i < {count}; ++i) out[i * {LANES} + lane] = r[i];
}}
"""
    code = compile_hip(source, chip)
    args = tuple(("buffer", name) for name in (*inputs, "out"))
    plan = LaunchPlan(code.binary, code.asm, "k", (1, 1, 1), (LANES, 1, 1), 0, args)
    dtype = next(key for key, value in ctype.items() if value == kind)
    out = np.empty((count, LANES), dtype)
    return SimExecutor(arch(chip)).run([plan], {**inputs, "out": out}, outputs=("out",))["out"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_integer_intrinsics(rng: np.random.Generator) -> None:
    a = rng.integers(0, 1 << 32, LANES, dtype=np.uint32)
    b = rng.integers(0, 1 << 32, LANES, dtype=np.uint32)
    a[:3], b[:3] = (0, 1, 0x80000000), (0xFFFFFFFF, 0, 2)
    body = """
  r[0] = __popc(a); r[1] = __clz((int)a); r[2] = __ffs(a); r[3] = __brev(a); r[4] = __umulhi(a, b);
  r[5] = (unsigned int)__mulhi((int)a, (int)b); r[6] = __ffsll((unsigned long long)a << 20);
  r[7] = __clzll((long long)a); r[8] = __popcll(((unsigned long long)a << 32) | b); r[9] = (unsigned int)__mul24(a, b);
  r[10] = min((int)a, (int)b); r[11] = max(a, b); r[12] = (unsigned int)__brevll(a);
"""
    got = run(body, "unsigned int", {"a": a, "b": b}, 13)
    bits = [f"{value:032b}" for value in a.tolist()]
    low = [value.rfind("1") for value in bits]
    signed_a, signed_b = a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64)
    mul24 = ((signed_a << 40) >> 40) * ((signed_b << 40) >> 40)
    expected = [
        [value.count("1") for value in bits],
        [32 - int(value).bit_length() for value in a],
        [32 - place if place >= 0 else 0 for place in low],
        [int(value[::-1], 2) for value in bits],
        (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32),
        ((signed_a * signed_b) >> 32) & 0xFFFFFFFF,
        [52 - place if place >= 0 else 0 for place in low],
        [64 - int(value).bit_length() for value in a],
        [int(x).bit_count() + int(y).bit_count() for x, y in zip(a, b, strict=True)],
        mul24 & 0xFFFFFFFF,
        np.minimum(signed_a, signed_b) & 0xFFFFFFFF,
        np.maximum(a, b),
        np.zeros(LANES),
    ]
    np.testing.assert_array_equal(got, np.array(expected, np.uint64).astype(np.uint32))


SIXTEEN_BITS = [("__half", "half", torch.float16), ("__hip_bfloat16", "bfloat16", torch.bfloat16)]


def sixteen_bit(
    rng: np.random.Generator, kind: str, prefix: str, dtype: torch.dtype, results: list[str]
) -> tuple[list[torch.Tensor], np.ndarray]:
    """Random x, y, z of a 16-bit type, and the bits of the results computed from them."""
    values = [torch.from_numpy(rng.standard_normal(LANES) * 3).to(dtype) for _ in range(3)]
    loads = ", ".join(f"{to} = __ushort_as_{prefix}({name})" for to, name in zip("xyz", "abc", strict=True))
    rows = "\n".join(f"  r[{row}] = {text};" for row, text in enumerate(results)).replace(
        "bits", f"__{prefix}_as_ushort"
    )
    inputs = {name: value.view(torch.uint16).numpy() for name, value in zip("abc", values, strict=True)}
    return values, run(f"{kind} {loads};\n{rows}", "unsigned short", inputs, len(results))


@pytest.mark.parametrize(("kind", "prefix", "dtype"), SIXTEEN_BITS)
def test_sixteen_bit_arithmetic(rng: np.random.Generator, kind: str, prefix: str, dtype: torch.dtype) -> None:
    results = [
        "bits(x + y)", "bits(x - y)", "bits(x * y)", "bits(x / y)", "bits(-x)", "bits(__hmax(x, y))", "bits(__habs(x))",
        "x < y", "__hge(x, y)", "bits((x += y, x *= z, x))",
    ]  # fmt: skip
    (a, b, c), got = sixteen_bit(rng, kind, prefix, dtype, results)
    expected = [a + b, a - b, a * b, a / b, -a, torch.maximum(a, b), a.abs(), a < b, a >= b, (a + b) * c]
    for text, row, value in zip(results, got, expected, strict=True):
        wanted = value.view(torch.uint16) if value.dtype == dtype else value.to(torch.uint16)
        np.testing.assert_array_equal(row, wanted.numpy(), err_msg=text)


@pytest.mark.parametrize(("kind", "prefix", "dtype"), SIXTEEN_BITS)
def test_sixteen_bit_fma(rng: np.random.Generator, kind: str, prefix: str, dtype: torch.dtype) -> None:
    (a, b, c), got = sixteen_bit(rng, kind, prefix, dtype, ["bits(__hfma(x, y, z))"])
    exact = a.double() * b.double() + c.double()
    fused = (exact.float() if dtype == torch.bfloat16 else exact).to(dtype)
    np.testing.assert_array_equal(got[0], fused.view(torch.uint16).numpy())


def test_wide_shuffles_and_votes(rng: np.random.Generator) -> None:
    a = rng.integers(0, 1 << 64, LANES, dtype=np.uint64)
    body = """
  r[0] = __shfl_xor(a, 33); r[1] = __shfl(a, lane + 1); r[2] = __shfl_down(a, 7); r[3] = __shfl_up(a, 7, 32);
  r[4] = __ballot(a & 1); r[5] = __any(a == 0) * 2 + __all(a != 0); r[6] = __activemask(); r[7] = __lane_id();
  r[8] = 0;
  if (lane % 3 == 0) r[8] = __ballot(a & 1);
"""
    got = run(body, "unsigned long long", {"a": a}, 9)
    lane = np.arange(LANES)
    odd = (a & np.uint64(1)).astype(bool)

    def mask(where: np.ndarray) -> int:
        return sum(1 << int(index) for index in np.flatnonzero(where))

    expected = [
        a[lane ^ 33], a[(lane + 1) % 64], a[np.where(lane + 7 < 64, lane + 7, lane)],
        a[np.where(lane % 32 >= 7, lane - 7, lane)], [mask(odd)] * LANES, [1] * LANES, [(1 << 64) - 1] * LANES, lane,
        np.where(lane % 3 == 0, np.uint64(mask(odd & (lane % 3 == 0))), np.uint64(0)),
    ]  # fmt: skip
    np.testing.assert_array_equal(got, np.array([list(map(int, row)) for row in expected], np.uint64))


def test_rounding_of_conversions(rng: np.random.Generator) -> None:
    a = (rng.standard_normal(LANES) * 100).astype(np.float32)
    a[:6] = (0.5, 1.5, -0.5, -2.5, 2.4999998, -7.5)
    body = """
  r[0] = __float2int_rn(a); r[1] = __float2int_rz(a); r[2] = __float2int_rd(a); r[3] = __float2int_ru(a);
  r[4] = (int)rintf(a); r[5] = (int)roundf(a); r[6] = (int)truncf(a); r[7] = __float_as_int(__int_as_float(lane));
"""
    got = run(body, "int", {"a": a}, 8)
    away = np.trunc(a + np.copysign(np.float32(0.5), a)).astype(np.int32)
    away[4] = 2  # 2.4999998 + 0.5 rounds up to 3 in fp32
    expected = [np.rint(a), np.trunc(a), np.floor(a), np.ceil(a), np.rint(a), away, np.trunc(a), np.arange(LANES)]
    np.testing.assert_array_equal(got, np.array(expected, np.int32))


def test_functions_of_doubles(rng: np.random.Generator) -> None:
    a = rng.uniform(0.1, 5.0, LANES)
    body = """
  r[0] = exp(a); r[1] = log(a); r[2] = tanh(a); r[3] = erf(a); r[4] = sqrt(a); r[5] = pow(a, 1.5); r[6] = fma(a, a, -a);
  r[7] = sin(a); r[8] = fmod(a, 0.7); r[9] = rsqrt(a); r[10] = a / 3.0; double w; r[11] = modf(a, &w); r[11] += 8 * w;
"""
    got = run(body, "double", {"a": a}, 12)
    t = torch.from_numpy(a)
    expected = [
        t.exp(), t.log(), t.tanh(), t.erf(), t.sqrt(), t.pow(1.5), t * t - t, t.sin(), t.fmod(0.7), t.rsqrt(), t / 3,
        t.frac() + 8 * t.trunc(),
    ]  # fmt: skip
    np.testing.assert_allclose(got, torch.stack(expected).numpy(), rtol=1e-14, atol=1e-14)


def test_special_values() -> None:
    a = np.resize(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3.0, -3.0], np.float32), LANES)
    body = """
  r[0] = isnan(a); r[1] = isinf(a); r[2] = isfinite(a); r[3] = signbit(a); r[4] = fmaxf(a, 1.0f) == 1.0f;
  r[5] = __float_as_int(a + 0.0f) == __float_as_int(a) || isnan(a); r[6] = max(a, 2.0f) == fmaxf(a, 2.0f);
"""
    got = run(body, "int", {"a": a}, 7)
    np.testing.assert_array_equal(got[0], np.isnan(a))
    np.testing.assert_array_equal(got[1], np.isinf(a))
    np.testing.assert_array_equal(got[2], np.isfinite(a))
    np.testing.assert_array_equal(got[3][1:8], np.signbit(a)[1:8])
    np.testing.assert_array_equal(got[4], np.fmax(a, 1.0) == 1.0)
    assert got[5][5] == 1, "denormals are kept"
    assert got[6].all()


def test_grid_coordinates() -> None:
    source = """#include <hip/hip_runtime.h>
extern "C" __global__ void k(int* out) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int threads = blockDim.x * blockDim.y * blockDim.z;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * threads + thread] = block * 1000 + thread + (warpSize == KVC_WAVE_SIZE ? 0 : 1);
}
"""
    code = compile_hip(source, "gfx942")
    plan = LaunchPlan(code.binary, code.asm, "k", (3, 2, 2), (5, 4, 3), 0, (("buffer", "out"),))
    got = SimExecutor(arch("gfx942")).run([plan], {"out": np.empty((12, 60), np.int32)}, outputs=("out",))["out"]
    np.testing.assert_array_equal(got, np.arange(12)[:, None] * 1000 + np.arange(60))

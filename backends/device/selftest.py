"""A few HIP kernels with known answers, for any executor: a device somebody has just plugged in, or the simulator.

Each case is one source that AMD's and NVIDIA's compilers both take, run on small data and compared with NumPy in
float64. Together they touch what generated kernels rely on: lanes, barriers, LDS beyond 48 KiB, 16-bit rounding,
correctly rounded division and square root, libm, atomics, vector loads and the guard bands.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from kvc.arch import ArchSpec
from kvc.arch import arch as arch_row
from kvc.backends.device.executor import DeviceExecutor
from kvc.backends.hip.toolchain import CodeObject
from kvc.diagnostics import KvcError
from kvc.executor import Argument, Executor, LaunchPlan

Compile = Callable[[str, str], CodeObject]
Buffers = dict[str, np.ndarray]

_HEADER = "#include <hip/hip_runtime.h>\n"


@dataclass(frozen=True)
class Case:
    """`expected` maps output buffers to float64 or integer references; `tolerance` is relative to their magnitude and 0
    means bit for bit. `scalars` follow the buffers, in the order of `inputs` then `outputs`, as kernel arguments."""

    name: str
    source: str
    inputs: Buffers
    expected: Buffers
    outputs: Buffers
    grid: int
    block: int = 256
    dynamic_lds: int = 0
    tolerance: float = 0.0
    scalars: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class CaseResult:
    name: str
    passed: bool
    error: float  # the largest, relative to the magnitude of the reference
    tolerance: float
    message: str = ""
    median_ms: float | None = None
    log: str = field(default="", repr=False)


def cases() -> list[Case]:
    rng = np.random.default_rng(7)
    makers = (_axpy, _softmax, _rounding, _division, _libm, _transpose, _histogram, _lanes)
    return [make(rng) for make in makers]


def source_of_all() -> str:
    """Every case's kernel in one file."""
    return _HEADER + "".join(case.source for case in cases())


def _axpy(rng: np.random.Generator) -> Case:
    source = """
extern "C" __global__ void axpy(const float* __restrict__ x, float* __restrict__ y, int n, float a) {
  int first = 4 * (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (first + 3 < n) {
    float4 v = *(const float4*)(x + first);
    *(float4*)(y + first) = v * a + make_float4(1.0f, 2.0f, 3.0f, 4.0f);
  } else {
    for (int i = first; i < n; ++i) y[i] = x[i] * a + (float)(i % 4 + 1);
  }
}
"""
    n = 4099
    x = rng.standard_normal(n).astype(np.float32)
    expected = x.astype(np.float64) * 2.5 + np.arange(n) % 4 + 1
    scalars: tuple[Argument, ...] = (("i32", n), ("f32", 2.5))
    return Case(
        "axpy",
        source,
        {"x": x},
        {"y": expected},
        {"y": np.empty(n, np.float32)},
        grid=5,
        tolerance=1e-6,
        scalars=scalars,
    )


def _softmax(rng: np.random.Generator) -> Case:
    source = """
extern "C" __global__ void __launch_bounds__(256) softmax(const float* x, float* y, int cols) {
  constexpr int waves = 256 / KVC_WAVE_SIZE;
  __shared__ float part[waves];
  int wave = threadIdx.x / KVC_WAVE_SIZE;
  const float* in = x + (long)blockIdx.x * cols;
  float high = -INFINITY;
  for (int c = threadIdx.x; c < cols; c += 256) high = fmaxf(high, in[c]);
  for (int d = KVC_WAVE_SIZE / 2; d > 0; d /= 2) high = fmaxf(high, __shfl_xor(high, d));
  part[wave] = high;
  __syncthreads();
  for (int w = 0; w < waves; ++w) high = fmaxf(high, part[w]);
  __syncthreads();
  float sum = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 256) sum += expf(in[c] - high);
  for (int d = KVC_WAVE_SIZE / 2; d > 0; d /= 2) sum += __shfl_xor(sum, d);
  part[wave] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int w = 0; w < waves; ++w) sum += part[w];
  for (int c = threadIdx.x; c < cols; c += 256) y[(long)blockIdx.x * cols + c] = expf(in[c] - high) / sum;
}
"""
    x = (rng.standard_normal((6, 1000)) * 4 + 50).astype(np.float32)
    wide = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    expected = wide / wide.sum(axis=1, keepdims=True)
    return Case(
        "softmax",
        source,
        {"x": x},
        {"y": expected},
        {"y": np.empty_like(x)},
        grid=6,
        tolerance=2e-6,
        scalars=(("i32", 1000),),
    )


def _rounding(rng: np.random.Generator) -> Case:
    source = """
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>
extern "C" __global__ void rounding(const float* x, unsigned short* half_bits, unsigned short* bf16_bits) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  half_bits[i] = __half_as_ushort(__float2half(x[i]));
  bf16_bits[i] = __bfloat16_as_ushort(__float2bfloat16(x[i]));
}
"""
    bits = rng.integers(0, 1 << 32, 2048, dtype=np.uint32)
    bits[:8] = (0, 0x80000000, 0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x33000000)
    x = bits.view(np.float32)
    x[np.isnan(x)] = 1.0009765625  # NaN payloads are the hardware's own affair
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16).view(np.uint16)
    wide = x.view(np.uint32).astype(np.uint64)
    bfloats = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
    outputs = {"half_bits": np.empty(2048, np.uint16), "bf16_bits": np.empty(2048, np.uint16)}
    return Case("rounding", source, {"x": x}, {"half_bits": halves, "bf16_bits": bfloats}, outputs, grid=8)


def _division(rng: np.random.Generator) -> Case:
    source = """
extern "C" __global__ void division(const float* a, const float* b, float* quotient, float* root) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  quotient[i] = a[i] / b[i];
  root[i] = sqrtf(fabsf(a[i]));
}
"""
    a, b = (rng.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32) for _ in range(2))
    a[np.isnan(a)], b[np.isnan(b)] = 1.5, 3.0
    b[b == 0] = 1.0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        quotient, root = a / b, np.sqrt(np.abs(a))
    bad = np.isnan(quotient)  # inf / inf
    a[bad] = 1.0
    with np.errstate(over="ignore", under="ignore"):
        quotient, root = a / b, np.sqrt(np.abs(a))
    outputs = {"quotient": np.empty_like(a), "root": np.empty_like(a)}
    return Case("division", source, {"a": a, "b": b}, {"quotient": quotient, "root": root}, outputs, grid=16)


_LIBM: tuple[tuple[str, Callable[[np.ndarray], np.ndarray]], ...] = (
    ("expf", np.exp),
    ("logf", np.log),
    ("tanhf", np.tanh),
    ("sinf", np.sin),
    ("cosf", np.cos),
    ("log1pf", np.log1p),
    ("expm1f", np.expm1),
    ("exp2f", np.exp2),
    ("log2f", np.log2),
    ("rsqrtf", lambda x: 1 / np.sqrt(x)),
    ("erff", np.vectorize(math.erf, otypes=[np.float64])),
)


def _libm(rng: np.random.Generator) -> Case:
    calls = "\n".join(f"  y[{k} * n + i] = {name}(x[i]);" for k, (name, _) in enumerate(_LIBM))
    source = f"""
extern "C" __global__ void libm(const float* x, float* y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
{calls}
}}
"""
    x = rng.uniform(0.01, 10.0, 700).astype(np.float32)
    expected = np.stack([function(x.astype(np.float64)) for _, function in _LIBM])
    out = {"y": np.empty(expected.shape, np.float32)}
    return Case("libm", source, {"x": x}, {"y": expected}, out, grid=3, tolerance=1e-6, scalars=(("i32", 700),))


def _transpose(rng: np.random.Generator) -> Case:
    source = """
extern "C" __global__ void transpose(const unsigned int* x, unsigned int* y) {
  HIP_DYNAMIC_SHARED(unsigned int, tile)
  for (int i = threadIdx.x; i < 120 * 120; i += blockDim.x) tile[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 120 * 120; i += blockDim.x) y[i] = tile[i % 120 * 120 + i / 120];
}
"""
    x = rng.integers(0, 1 << 32, (120, 120), dtype=np.uint32)
    return Case(
        "transpose", source, {"x": x}, {"y": x.T.copy()}, {"y": np.empty_like(x)}, grid=1, dynamic_lds=120 * 120 * 4
    )


def _histogram(rng: np.random.Generator) -> Case:
    source = """
extern "C" __global__ void histogram(const int* x, int* counts, float* sums, unsigned long long* wide, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&counts[x[i]], 1);
  unsafeAtomicAdd(&sums[x[i]], 0.5f);
  atomicMax(&wide[x[i]], (unsigned long long)i << 32);
}
"""
    n = 1000
    x = rng.integers(0, 7, n).astype(np.int32)
    counts = np.bincount(x, minlength=7)
    wide = np.array([np.flatnonzero(x == k).max() << 32 for k in range(7)], np.uint64)
    inputs: Buffers = {
        "x": x,
        "counts": np.zeros(7, np.int32),
        "sums": np.zeros(7, np.float32),
        "wide": np.zeros(7, np.uint64),
    }
    expected: Buffers = {"counts": counts.astype(np.int32), "sums": (counts * 0.5).astype(np.float32), "wide": wide}
    return Case("histogram", source, inputs, expected, {}, grid=4, scalars=(("i32", n),))


def _lanes(rng: np.random.Generator) -> Case:
    source = """
extern "C" __global__ void lanes(const int* x, int* y) {
  int i = threadIdx.x, v = x[i];
  unsigned long long odd = __ballot(v & 1);
  y[i] = __shfl_up(v, 1, 16);
  y[256 + i] = __shfl_down(v, 3, 16);
  y[512 + i] = __shfl(v, 5, 8);
  y[768 + i] = __shfl_xor(v, 9, 16);
  int seen = __any(v == x[0]);  // asked of every wave; wave 0 is at least 32 lanes on any chip
  y[1024 + i] = (int)((odd >> __lane_id()) & 1ULL) + (i < 32 ? 2 * seen : 0);
}
"""
    x = rng.integers(0, 1 << 30, 256).astype(np.int32)
    lane = np.arange(256)
    up = np.where(lane % 16 >= 1, lane - 1, lane)
    down = np.where(lane % 16 + 3 < 16, lane + 3, lane)
    rows = [x[up], x[down], x[lane // 8 * 8 + 5], x[lane ^ 9]]
    votes = (x & 1) + 2 * (lane < 32)
    expected = np.concatenate([*rows, votes]).astype(np.int32)
    return Case("lanes", source, {"x": x}, {"y": expected}, {"y": np.empty(1280, np.int32)}, grid=1)


# ---- running -------------------------------------------------------------------------------------------------------


def plan(case: Case, code: CodeObject) -> LaunchPlan:
    names = [*case.inputs, *case.outputs]
    args: tuple[Argument, ...] = (*(("buffer", name) for name in names), *case.scalars)
    return LaunchPlan(code.binary, code.asm, case.name, (case.grid, 1, 1), (case.block, 1, 1), case.dynamic_lds, args)


def run_case(case: Case, executor: Executor, compile_source: Compile, arch: ArchSpec) -> CaseResult:
    code = compile_source(_HEADER + case.source, arch.name)
    launch = plan(case, code)
    buffers = {**case.inputs, **case.outputs}
    results = executor.run([launch], buffers, outputs=tuple(case.outputs))
    changed = [name for name in case.inputs if name not in case.expected and _differs(results[name], case.inputs[name])]
    if changed:
        return CaseResult(case.name, False, math.inf, case.tolerance, f"inputs changed: {', '.join(changed)}")
    error = max(_error(results[name], reference) for name, reference in case.expected.items())
    timed = (
        executor.time([launch], buffers, outputs=tuple(case.outputs)) if isinstance(executor, DeviceExecutor) else None
    )
    return CaseResult(
        case.name,
        bool(error <= case.tolerance),
        error,
        case.tolerance,
        "",
        timed.median_ms if timed else None,
        code.log,
    )


def _differs(left: np.ndarray, right: np.ndarray) -> bool:
    return left.tobytes() != np.ascontiguousarray(right).tobytes()


def _error(result: np.ndarray, reference: np.ndarray) -> float:
    """0.0 where every bit agrees (dtypes equal) or the largest error relative to max(|reference|, 1)."""
    if result.dtype == reference.dtype:
        return 0.0 if not _differs(result, reference) else math.inf
    scale = np.maximum(np.abs(reference), 1.0)
    error = np.abs(result.astype(np.float64) - reference) / scale
    return float(error.max()) if np.isfinite(error).all() else math.inf


def run_selftest(executor: DeviceExecutor, compile_source: Compile, arch: str | None = None) -> dict[str, Any]:
    """Every case on the first device that has a row in `arch.py`: a JSON-able record.

    Its `status` is "passed", "failed" or "no device".
    """
    problem = executor.available()
    if problem is not None:
        return {"status": "no device", "reason": str(problem), "results": []}
    try:
        row = arch_row(arch or executor.devices()[0].name)
        facts = executor.select(row)
    except KvcError as error:
        return {"status": "no device", "reason": str(error), "results": []}
    results = []
    for case in cases():
        try:
            results.append(run_case(case, executor, compile_source, row))
        except KvcError as error:
            results.append(CaseResult(case.name, False, math.inf, case.tolerance, str(error)))
    results.append(_guard_case(executor, compile_source, row))
    passed = all(result.passed for result in results)
    return {
        "status": "passed" if passed else "failed",
        "device": asdict(facts),
        "results": [asdict(r) for r in results],
    }


def _guard_case(executor: DeviceExecutor, compile_source: Compile, arch: ArchSpec) -> CaseResult:
    """A kernel that writes one element too far must be reported as KVC0704."""
    source = (
        _HEADER
        + 'extern "C" __global__ void overrun(int* y, int n) { if ((int)threadIdx.x <= n) y[threadIdx.x] = 1; }\n'
    )
    code = compile_source(source, arch.name)
    args: Sequence[Argument] = (("buffer", "y"), ("i32", 16))
    launch = LaunchPlan(code.binary, code.asm, "overrun", (1, 1, 1), (64, 1, 1), 0, tuple(args))
    try:
        executor.run([launch], {"y": np.zeros(16, np.int32)})
    except KvcError as error:
        return CaseResult("guard bands", error.code == "KVC0704", 0.0, 0.0, str(error))
    return CaseResult("guard bands", False, math.inf, 0.0, "a write past the end was not seen")


def report(record: dict[str, Any], json_path: str | None = None) -> int:
    """Print a self-test's record, write it as JSON when a path is given; 0 passed, 1 failed, 2 no device."""
    if json_path:
        Path(json_path).write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")
    if record["status"] == "no device":
        print(record["reason"])
        return 2
    print(f"{record['device']['label']} ({record['device']['name']})")
    for result in record["results"]:
        mark = "ok  " if result["passed"] else "FAIL"
        timed = f"  {result['median_ms'] * 1e3:8.1f} us" if result["median_ms"] is not None else ""
        print(f"  {mark} {result['name']:<12} error {result['error']:.2e} of {result['tolerance']:.0e}{timed}")
        if result["message"] and not result["passed"]:
            print(f"       {result['message']}")
    print(record["status"])
    return 0 if record["status"] == "passed" else 1


def command(executor: DeviceExecutor, compile_source: Compile, arguments: list[str] | None = None) -> int:
    """The command line of an executor's module: `--selftest [--json FILE]`. Exit codes as `report`."""
    parser = argparse.ArgumentParser(prog=f"python -m kvc.backends.device.{executor.name}")
    parser.add_argument("--selftest", action="store_true", help="run kernels with known answers on the device")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON too")
    options = parser.parse_args(arguments)
    if options.selftest:
        return report(run_selftest(executor, compile_source), options.json)
    parser.print_help()
    return 0

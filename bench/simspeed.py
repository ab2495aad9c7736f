"""Speed of the simulator: CPU seconds of one launch in each tier, and their ratio. No pass or fail.

    python -m kvc.bench.simspeed [--arch gfx942] [--only NAME]

Times are `LaunchReport.cpu_seconds` of the second launch; "first" is the compiled tier's first one, which makes the
program into records. Set OPENBLAS_NUM_THREADS=1: NumPy's matrix products otherwise count the time of idle threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvc.arch import DEFAULT_ARCH

_HIP = r"""#include <hip/hip_runtime.h>
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef float float4v __attribute__((ext_vector_type(4)));

extern "C" __global__ void gelu(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 0.5f * in[i] * (1.0f + erff(in[i] * 0.70710678f));
}

extern "C" __global__ void softmax(float* out, const float* in, int n) {
  __shared__ float part[4];
  const float* x = in + (size_t)blockIdx.x * n;
  float m = -INFINITY, t = 0;
  for (int i = threadIdx.x; i < n; i += 256) m = fmaxf(m, x[i]);
  for (int o = 32; o; o >>= 1) m = fmaxf(m, __shfl_xor(m, o));
  if ((threadIdx.x & 63) == 0) part[threadIdx.x >> 6] = m;
  __syncthreads();
  m = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 256) t += expf(x[i] - m);
  for (int o = 32; o; o >>= 1) t += __shfl_xor(t, o);
  if ((threadIdx.x & 63) == 0) part[threadIdx.x >> 6] = t;
  __syncthreads();
  t = part[0] + part[1] + part[2] + part[3];
  for (int i = threadIdx.x; i < n; i += 256) out[(size_t)blockIdx.x * n + i] = expf(x[i] - m) / t;
}

// C[M,N] = A[M,K] B[N,K]^T: 64 x 64 of C in a workgroup of four waves, 32 x 32 each, 16 of K at a time through LDS
extern "C" __global__ void gemm(float* c, const _Float16* a, const _Float16* b, int n, int k) {
  __shared__ _Float16 ta[64][20], tb[64][20];
  int wave = threadIdx.x >> 6, lane = threadIdx.x & 63, row = threadIdx.x >> 2, at = (threadIdx.x & 3) * 4;
  int r0 = blockIdx.y * 64, c0 = blockIdx.x * 64, wr = (wave >> 1) * 32, wc = (wave & 1) * 32;
  float4v acc[2][2] = {};
  for (int k0 = 0; k0 < k; k0 += 16) {
    *(half4*)&ta[row][at] = *(const half4*)&a[(size_t)(r0 + row) * k + k0 + at];
    *(half4*)&tb[row][at] = *(const half4*)&b[(size_t)(c0 + row) * k + k0 + at];
    __syncthreads();
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 2; j++) {
        half4 x = *(half4*)&ta[wr + i * 16 + (lane & 15)][(lane >> 4) * 4];
        half4 y = *(half4*)&tb[wc + j * 16 + (lane & 15)][(lane >> 4) * 4];
        acc[i][j] = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, acc[i][j], 0, 0, 0);
      }
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int q = 0; q < 4; q++)
        c[(size_t)(r0 + wr + i * 16 + (lane >> 4) * 4 + q) * n + c0 + wc + j * 16 + (lane & 15)] = acc[i][j][q];
}

// 3 x 3 convolution with zero padding; the bounds of each tap are a branch
extern "C" __global__ void conv(float* out, const float* in, const float* w, int channels, int size) {
  int x = blockIdx.x * 16 + (threadIdx.x & 15), y = blockIdx.y * 16 + (threadIdx.x >> 4), o = blockIdx.z;
  if (x >= size || y >= size) return;
  float acc = 0;
  for (int c = 0; c < channels; c++)
    for (int dy = -1; dy <= 1; dy++)
      for (int dx = -1; dx <= 1; dx++) {
        int px = x + dx, py = y + dy;
        if (px < 0 || py < 0 || px >= size || py >= size) continue;
        acc += in[(c * size + py) * size + px] * w[((o * channels + c) * 3 + dy + 1) * 3 + dx + 1];
      }
  out[(o * size + y) * size + x] = acc;
}
"""


@dataclass(frozen=True)
class Case:
    """A launch: `buffers` in the order of the parameters, the output first; `sample` workgroups, 0 for all."""

    name: str
    kernel: str
    grid: tuple[int, int, int]
    buffers: Callable[[np.random.Generator], list[Any]]
    scalars: tuple[int, ...]
    sample: int = 0


def _floats(out: int, *sizes: int, dtype: Any = np.float32) -> Callable[[np.random.Generator], list[Any]]:
    return lambda rng: [out, *(rng.standard_normal(size, dtype=np.float32).astype(dtype) for size in sizes)]


def _gemm(size: int, sample: int = 0) -> Case:
    tiles = size // 64
    area = size * size
    name = f"GEMM {size}^3 fp16" + (f", {sample} of {tiles * tiles} workgroups" if sample else "")
    return Case(name, "gemm", (tiles, tiles, 1), _floats(4 * area, area, area, dtype=np.float16), (size, size), sample)


CASES = (
    Case("GELU 1M fp32", "gelu", (4096, 1, 1), _floats(4 << 20, 1 << 20), (1 << 20,)),
    Case("softmax 1024 x 4096", "softmax", (1024, 1, 1), _floats(4 << 22, 1 << 22), (4096,)),
    _gemm(512),
    _gemm(1024),
    _gemm(4096, sample=8),
    Case("conv 3x3, 8 to 8 of 40^2", "conv", (3, 3, 8), _floats(4 * 8 * 1600, 8 * 1600, 8 * 8 * 9), (8, 40)),
)


def measure(case: Case, code: Any, arch: str) -> dict[str, float]:
    """CPU seconds: "numpy", "c" (a second launch), "first" (load, records and the first launch), and instructions."""
    from kvc.simulator import Memory, SimOptions, launch, load, sample_workgroups

    out: dict[str, float] = {}
    for tier in ("numpy", "c"):
        started = time.process_time()
        program = load(code.asm, arch, code.binary)
        for attempt in range(2):
            size, *arrays = case.buffers(np.random.default_rng(0))
            if not attempt:
                started = time.process_time()
            memory = Memory(arch)
            args = [memory.alloc(size, name="out"), *map(memory.upload, arrays), *map(np.int32, case.scalars)]
            chosen = sample_workgroups(case.grid, 0, case.sample) if case.sample else None
            report = launch(
                program, case.kernel, case.grid, (256, 1, 1), args, memory, workgroups=chosen,
                options=SimOptions(tier=tier),
            )  # fmt: skip
            if not attempt and tier == "c":
                out["first"] = time.process_time() - started
        out[tier] = report.cpu_seconds
        out["instructions"] = report.counters.instructions
    return out


def main() -> None:
    from kvc.backends.hip.toolchain import compile_hip
    from kvc.simulator.native.build import library

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", default=DEFAULT_ARCH)
    parser.add_argument("--only", default="", help="part of a case's name")
    options = parser.parse_args()
    library()
    code = compile_hip(_HIP, options.arch)
    print(f"{'':34}{'numpy s':>9}{'c s':>9}{'first s':>9}{'ratio':>8}{'M wave-instr/s':>16}")
    for case in (item for item in CASES if options.only in item.name):
        row = measure(case, code, options.arch)
        speed = row["instructions"] / row["c"] / 1e6
        print(f"{case.name:34}{row['numpy']:9.3f}{row['c']:9.3f}{row['first']:9.3f}"
              f"{row['numpy'] / row['c']:8.1f}{speed:16.1f}")  # fmt: skip


if __name__ == "__main__":
    main()

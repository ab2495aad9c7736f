"""The CDNA bench: loops are found, widths and conflicts are counted, bars say what they miss."""

from __future__ import annotations

import pytest
from kvc.arch import arch
from kvc.backends.hip.toolchain import compile_hip
from kvc.bench.cdna import Request, markdown, run
from kvc.bench.cdna_loop import MainLoop, main_loop
from kvc.simulator import Memory, launch, load

LOOP = """#include <hip/hip_runtime.h>
extern "C" __global__ void __launch_bounds__(64) walk(float* out, const float4* in, int n) {
  __shared__ float tile[64 * 32];
  float total = 0;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const float4 x = in[i * 64 + threadIdx.x];
    tile[threadIdx.x * STRIDE % (64 * 32)] = x.x + x.y + x.z + x.w;
    __syncthreads();
    total += tile[(threadIdx.x + 1) % 64 * STRIDE % (64 * 32)];
    __syncthreads();
  }
  out[threadIdx.x] = total;
}
"""


def walked(stride: int) -> MainLoop:
    built = compile_hip(LOOP.replace("STRIDE", str(stride)), "gfx942", name="walk.hip")
    program, memory = load(built.asm, "gfx942", built.binary), Memory("gfx942")
    out, data = memory.alloc(256, fill=b"\0"), memory.alloc(16 * 64 * 20, fill=b"\0")
    launch(program, "walk", (1, 1, 1), (64, 1, 1), [out, data, 20], memory)
    loop = main_loop(program, arch("gfx942"))
    assert loop is not None
    return loop


def test_the_loop_is_found_and_counted() -> None:
    loop = walked(1)
    assert loop.passes == 20
    assert (loop.matrix, loop.global_accesses, loop.wide_share) == (0, 20, 1.0)
    assert loop.lds_accesses == 40 and loop.conflicts == 0
    assert loop.mfma_share == 0


def test_conflicts_are_seen() -> None:
    assert walked(32).conflicts > 20 * 30


@pytest.mark.parametrize("target", ["hip", "triton"])
def test_a_memory_case_meets_its_bars(target: str) -> None:
    result = run(Request((target,), ("gfx942",), ("row_sum",)), lambda line: None)
    (row,) = result["rows"]
    assert row["missed"] == [] and result["missed"] == 0
    assert row["spills"] == 0 and 1.0 <= row["bytes_ratio"] <= 1.05
    assert "row_sum" in markdown(result)


def test_gemm_has_its_operands_from_lds_without_conflicts() -> None:
    result = run(Request(("hip",), ("gfx942",), ("gemm_bf16_4096",), workgroups=1), lambda line: None)
    loop = result["rows"][0]["loop"]
    assert loop["matrix"] and loop["conflicts"] == 0 and loop["wide_share"] == 1.0
    assert loop["mfma_share"] >= 0.5

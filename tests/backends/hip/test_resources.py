"""Resources read from assembly text, and the launches that do not fit."""

import pytest
from kvc.arch import arch
from kvc.backends.hip.resources import Resources, check, occupancy, parse
from kvc.backends.hip.toolchain import compile_hip
from kvc.diagnostics import KvcError
from kvc.executor import LaunchPlan

SOURCE = """#include <hip/hip_runtime.h>
typedef float f16 __attribute__((ext_vector_type(16)));
extern "C" __global__ void __launch_bounds__(256) small(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(64) matrix(float* x) {
  __shared__ float tile[512];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  f16 c = {};
  for (int i = 0; i < 8; ++i) c = __builtin_amdgcn_mfma_f32_32x32x2f32(tile[i], tile[i + 8], c, 0, 0, 0);
  for (int i = 0; i < 16; ++i) x[i] = c[i];
}
extern "C" __global__ void __launch_bounds__(1024, 8) crowded(float* x) {
  float v[160];
  for (int i = 0; i < 160; ++i) v[i] = x[threadIdx.x + i * 64];
  __syncthreads();
  for (int i = 0; i < 160; ++i) x[threadIdx.x * 160 + i] = v[159 - i] * v[i];
}
"""


@pytest.fixture(scope="module")
def kernels() -> dict[str, Resources]:
    return parse(compile_hip(SOURCE, "gfx90a").asm)


def plan(block: tuple[int, int, int] = (64, 1, 1), lds: int = 0, grid: tuple[int, int, int] = (1, 1, 1)) -> LaunchPlan:
    return LaunchPlan(b"", "", "k", grid, block, lds)


def test_figures_of_each_kernel(kernels: dict[str, Resources]) -> None:
    assert list(kernels) == ["small", "matrix", "crowded"]
    small, matrix, crowded = kernels.values()
    assert (small.lds_bytes, small.max_threads, small.wave_size, small.spills) == (0, 256, 64, 0)
    assert small.waves_per_simd == 8 and small.matrix_instructions == 0
    assert matrix.lds_bytes == 2048 and matrix.matrix_instructions == 8 and matrix.max_threads == 64
    assert matrix.vgprs_total >= matrix.vgprs + matrix.agprs - 4
    assert crowded.vgprs_total <= 64 and crowded.vgpr_spills > 0 and crowded.scratch_bytes > 0


def test_fitting_launch(kernels: dict[str, Resources]) -> None:
    assert check(kernels["matrix"], arch("gfx90a"), plan((64, 1, 1), lds=65536 - 2048)) == []


@pytest.mark.parametrize(
    ("launch", "rule", "words"),
    [
        (plan(lds=98304), "lds", "LDS 100,352 B of 65,536 B (2,048 static + 98,304 dynamic)"),
        (plan((64, 4, 1)), "launch_bounds", "64 x 4 x 1 = 256 threads a workgroup, compiled for 64"),
        (plan(grid=(0, 1, 1)), "empty", "empty launch"),
    ],
)
def test_launches_that_do_not_fit(kernels: dict[str, Resources], launch: LaunchPlan, rule: str, words: str) -> None:
    (found,) = check(kernels["matrix"], arch("gfx90a"), launch)
    assert found.code == "KVC0402" and found.details["rule"] == rule and words in found.message and found.hint


def test_threads_over_the_device_limit(kernels: dict[str, Resources]) -> None:
    found = check(kernels["matrix"], arch("gfx90a"), plan((64, 32, 1)))
    assert {item.details["rule"] for item in found} == {"threads", "launch_bounds"}


def test_lds_of_a_newer_chip_is_larger(kernels: dict[str, Resources]) -> None:
    launch = plan(lds=98304)
    assert check(kernels["matrix"], arch("gfx950"), launch) == []


def test_occupancy(kernels: dict[str, Resources]) -> None:
    row, small = arch("gfx90a"), kernels["small"]
    assert occupancy(small, row, 256) == 8
    assert occupancy(small, row, 256, dynamic_lds=32768) == 2  # two workgroups of 4 waves on 4 SIMDs
    assert occupancy(small, row, 256, dynamic_lds=65537) == 0


def test_triton_text_reads_the_same() -> None:
    text = """
k:
\ts_endpgm
; TotalNumSgprs: 18
; NumVgprs: 44
; NumAgprs: 0
; TotalNumVgprs: 44
; Occupancy: 8
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .name:           x
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: 0
    .kernarg_segment_size: 40
    .max_flat_workgroup_size: 256
    .name:           'k'
    .private_segment_fixed_size: 0
    .sgpr_count:     18
    .sgpr_spill_count: 0
    .vgpr_count:     44
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.version:
  - 1
  - 2
...
\t.end_amdgpu_metadata
"""
    (found,) = parse(text).values()
    assert (found.kernel, found.vgprs, found.sgprs, found.kernarg_bytes) == ("k", 44, 18, 40)


def test_text_without_metadata() -> None:
    with pytest.raises(KvcError) as caught:
        parse("s_endpgm\n")
    assert caught.value.code == "KVC0901"

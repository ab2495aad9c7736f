"""Compiled kernels end to end: Triton's and HIP's code for the three chips against float64, with every check on."""

import numpy as np
import pytest
from kvc.arch import CDNA
from kvc.simulator import Memory, SimFault, SimOptions, launch, load, sample_workgroups

from tests.simulator.triton_cases import CASES, SCALED, Launcher, compiled

HIP = """#include <hip/hip_runtime.h>
__constant__ float table[4] = {1.0f, 10.0f, 100.0f, 1000.0f};
__device__ __noinline__ float twice(float v, int n) { return n > 1000 ? v : v * 2.0f; }
extern "C" __global__ void softmax_rows(float* out, const float* in, int n) {
  __shared__ float part[4];
  const float* x = in + (size_t)blockIdx.x * n;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < n; i += 256) m = fmaxf(m, x[i]);
  for (int o = 32; o; o >>= 1) m = fmaxf(m, __shfl_xor(m, o));
  if ((threadIdx.x & 63) == 0) part[threadIdx.x >> 6] = m;
  __syncthreads();
  m = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  __syncthreads();
  float t = 0;
  for (int i = threadIdx.x; i < n; i += 256) t += expf(x[i] - m);
  for (int o = 32; o; o >>= 1) t += __shfl_xor(t, o);
  if ((threadIdx.x & 63) == 0) part[threadIdx.x >> 6] = t;
  __syncthreads();
  t = part[0] + part[1] + part[2] + part[3];
  for (int i = threadIdx.x; i < n; i += 256) out[(size_t)blockIdx.x * n + i] = expf(x[i] - m) / t;
}
extern "C" __global__ void mixed(float* out, const float* in, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  volatile float local[16];
  for (int j = 0; j < 16; ++j) local[j] = in[i] * (float)j;
  double d = 0;
  for (int j = 0; j < k; ++j) d += (double)local[(i * 7 + j) & 15] * 1e-3;
  out[i] = table[i & 3] * twice(in[i], k) + (float)d + (float)(i % k);
  atomicAdd(out + n, 1.0f);
}
"""


def check(go: Launcher, case: str, seed: int = 0) -> None:
    got, expected, tolerance = CASES[case].run(go, np.random.default_rng(seed))
    assert np.abs(got.astype(float) - expected).max() <= tolerance


@pytest.mark.parametrize("case", SCALED)
def test_scaled_products_of_small_floats(case: str) -> None:
    check(Launcher(case, "gfx950"), case)


@pytest.mark.parametrize("arch", CDNA)
@pytest.mark.parametrize("case", [name for name in CASES if name not in SCALED])
def test_triton_kernel(case: str, arch: str) -> None:
    check(Launcher(case, arch), case)


@pytest.mark.parametrize("seed", [1, 2])
def test_order_of_waves_does_not_matter(seed: int) -> None:
    go = Launcher("flash", "gfx942", batch_waves=8)
    go.seed = seed
    check(go, "flash")


@pytest.mark.parametrize("case", ["softmax", "gemm_f16", "layernorm"])
def test_each_deleted_barrier_or_wait_is_caught(case: str) -> None:
    """Every s_barrier, and every s_waitcnt, of these kernels is needed by the path that the launch takes."""
    reference = Launcher(case, "gfx942")
    check(reference, case)
    assert reference.report is not None
    lines = reference.code.text.split("\n")
    guards = [
        ins
        for ins in reference.program.assembly.code
        if ins.name in ("s_barrier", "s_waitcnt") and ins.index in reference.report.executed
    ]
    assert sum(ins.name == "s_barrier" for ins in guards) >= 2
    for ins in guards:
        text = "\n".join([*lines[: ins.line - 1], "", *lines[ins.line :]])
        with pytest.raises(SimFault) as caught:
            check(Launcher(case, "gfx942", text), case)
        assert caught.value.code in ("KVC0905", "KVC0906", "KVC0907"), ins.text


def test_descriptor_from_text_is_that_of_the_code_object() -> None:
    for case in ("flash", "gelu"):
        code = compiled(case, "gfx90a")
        one = code.program("gfx90a").kernels[code.name].descriptor
        two = load(code.text, "gfx90a").kernels[code.name].descriptor
        for name in one.__dataclass_fields__:
            if name != "vgprs":  # the code object rounds it up
                assert getattr(one, name) == getattr(two, name), name


@pytest.mark.parametrize("arch", CDNA)
def test_hip_kernels(arch: str) -> None:
    from kvc.backends.hip.toolchain import compile_hip

    code = compile_hip(HIP, arch)
    program = load(code.asm, arch, code.binary)
    assert not program.decode_all()
    rng = np.random.default_rng(1)
    mem = Memory(arch)
    x = rng.standard_normal((3, 700)).astype(np.float32)
    out = mem.alloc(x.nbytes, name="out")
    launch(program, "softmax_rows", (3, 1, 1), (256, 1, 1), [out, mem.upload(x), 700], mem)
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    assert np.abs(out.view(np.float32, x.shape) - e / e.sum(1, keepdims=True)).max() < 1e-6
    n, k = 500, 5
    out = mem.upload(np.zeros(n + 1, np.float32))
    x = x.reshape(-1)[:n]
    report = launch(program, "mixed", (2, 1, 1), (256, 1, 1), [out, mem.upload(x), n, k], mem)
    i = np.arange(n)
    total = sum((x * ((i * 7 + j & 15).astype(np.float32))).astype(float) * 1e-3 for j in range(k))
    expected = np.array([1, 10, 100, 1000])[i & 3] * 2.0 * x + total + i % k
    got = out.view(np.float32)
    assert np.abs(got[:n] - expected).max() < 2e-3 and got[n] == n
    # The compiler adds up within a wave first: at least one atomic for each of the 8 waves.
    assert 8 <= report.counters.atomics <= n and program.kernels["mixed"].scratch > 0


def test_sampled_workgroups_write_what_the_whole_grid_writes() -> None:
    code = compiled("gelu", "gfx942")
    x = np.random.default_rng(3).standard_normal(64 * 1024).astype(np.float32)
    results = []
    for workgroups in (None, sample_workgroups((64, 1, 1), 0, 8)):
        mem = Memory("gfx942")
        out = mem.alloc(x.nbytes, fill=b"\xcd", name="out")
        report = launch(
            code.program("gfx942"), code.name, (64, 1, 1), (256, 1, 1), [out, mem.upload(x), x.size], mem,
            workgroups=workgroups,
        )  # fmt: skip
        results.append((out.view(np.uint32).reshape(64, 1024).copy(), report))
    (whole, _), (part, report) = results
    ran = np.isin(np.arange(64), report.workgroups)
    assert report.sampled and len(report.workgroups) == 8 and {0, 63} <= set(report.workgroups)
    assert (part[ran] == whole[ran]).all() and (part[~ran] == 0xCDCDCDCD).all()


def test_sampling_takes_corners_and_repeats_by_seed() -> None:
    grid = (32, 32, 2)
    one, two = sample_workgroups(grid, 7, 24), sample_workgroups(grid, 7, 24)
    assert one == two and len(one) == 24 and sample_workgroups((2, 2, 1), 0, 8) == [0, 1, 2, 3]
    corners = {x + 32 * (y + 32 * z) for x in (0, 31) for y in (0, 31) for z in (0, 1)}
    assert corners <= set(one) and sample_workgroups(grid, 8, 24) != one


def test_counters_of_a_known_kernel() -> None:
    go = Launcher("gemm_bf16", "gfx942")
    check(go, "gemm_bf16")
    assert go.report is not None
    counters = go.report.counters
    # 64 x 130 x 96 on tiles of 64 x 64 x 32: three tiles wide, 64 x 192 x 96 multiply-adds.
    assert counters.mfma_flops == 2 * 64 * 192 * 96
    assert counters.workgroups == 3 and counters.waves == 12
    assert counters.global_write_bytes == 64 * 130 * 4
    assert counters.by_class["barrier"] == counters.barriers > 0
    assert counters.instructions == sum(counters.by_class.values())


def test_argument_errors() -> None:
    go = Launcher("gelu", "gfx942")
    mem, name = Memory("gfx942"), go.code.name
    for grid, block, args in [
        ((1, 1, 1), (2048, 1, 1), [None, None, 1]),
        ((0, 1, 1), (256, 1, 1), [None, None, 1]),
        ((1, 1, 1), (256, 1, 1), [None, None]),
        ((1, 1, 1), (256, 1, 1), [None, None, np.int64(1)]),
        ((1, 1, 1), (256, 1, 1), [None, None, "x"]),
    ]:
        with pytest.raises(Exception, match="KVC0603"):
            launch(go.program, name, grid, block, args, mem)
    with pytest.raises(Exception, match="KVC0603"):
        launch(go.program, "nothing", (1, 1, 1), (64, 1, 1), [], mem, options=SimOptions())

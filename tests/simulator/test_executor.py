"""The simulator behind the executor interface: results, evidence, and faults on real compiled kernels."""

import numpy as np
import pytest
from kvc.arch import CDNA, arch
from kvc.backends.device import selftest
from kvc.backends.hip.toolchain import compile_hip
from kvc.diagnostics import KvcError
from kvc.executor import LaunchPlan
from kvc.simulator import executor as executor_module
from kvc.simulator import load
from kvc.simulator.executor import SimExecutor

TOP = "#include <hip/hip_runtime.h>\n"
SCALE = (
    TOP
    + """
extern "C" __global__ void scale(const float* x, float* y, int n, float a, long long b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * a + (float)b;
}
"""
)


def plan(source: str, kernel: str, args: tuple, chip: str = "gfx942", grid: int = 1, block: int = 64) -> LaunchPlan:
    code = compile_hip(source, chip)
    return LaunchPlan(code.binary, code.asm, kernel, (grid, 1, 1), (block, 1, 1), 0, args)


def scale(n: int = 200) -> LaunchPlan:
    args = (("buffer", "x"), ("buffer", "y"), ("i32", n), ("f32", 0.5), ("i64", 1 << 33))
    return plan(SCALE, "scale", args, grid=4)


@pytest.mark.parametrize("chip", CDNA)
def test_selftest_kernels(chip: str) -> None:
    executor = SimExecutor(arch(chip))
    for case in selftest.cases():
        result = selftest.run_case(case, executor, compile_hip, arch(chip))
        assert result.passed, f"{case.name}: error {result.error}"


def test_results_and_evidence() -> None:
    x = np.arange(200, dtype=np.float32).reshape(10, 20)
    given = {"x": x, "y": np.zeros((20, 10), np.float32)}
    done = SimExecutor(arch("gfx942"), seed=3).execute([scale(), scale()], given, outputs=("y",))
    np.testing.assert_array_equal(done.buffers["y"].ravel(), x.ravel() * np.float32(0.5) + np.float32(1 << 33))
    assert done.buffers["y"].shape == (20, 10) and not given["y"].any()
    assert (done.evidence["executor"], done.evidence["arch"], done.evidence["seed"]) == ("sim", "gfx942", 3)
    assert [item["kernel"] for item in done.evidence["launches"]] == ["scale", "scale"]
    assert done.evidence["launches"][0]["counters"]


def test_unwritten_output_is_nan() -> None:
    given = {"x": np.ones(200, np.float32), "y": np.zeros(200, np.float32)}
    y = SimExecutor(arch("gfx942")).run([scale(150)], given, outputs=("y",))["y"]
    assert np.isfinite(y[:150]).all() and np.isnan(y[150:]).all()


@pytest.mark.parametrize(
    ("body", "outputs", "code"),
    [
        ("x[threadIdx.x + 1] = 1.0f;", (), "KVC0903"),
        ("x[threadIdx.x] = x[threadIdx.x] + 1.0f;", ("x",), "KVC0905"),
    ],
)
def test_faults(body: str, outputs: tuple[str, ...], code: str) -> None:
    source = TOP + f'extern "C" __global__ void k(float* x) {{ {body} }}\n'
    with pytest.raises(KvcError) as caught:
        SimExecutor(arch("gfx942")).run(
            [plan(source, "k", (("buffer", "x"),))], {"x": np.ones(64, np.float32)}, outputs=outputs
        )
    assert caught.value.code == code


def test_refusals() -> None:
    problem = SimExecutor(arch("sm_90")).available()
    assert problem is not None and problem.code == "KVC0601"
    assert SimExecutor(arch("gfx950")).available() is None
    with pytest.raises(KvcError, match="which was not given"):
        SimExecutor(arch("gfx942")).run([scale()], {"x": np.ones(200, np.float32)})


def test_decoded_programs_are_kept_by_what_they_take() -> None:
    """A deep model has more kernels than a fixed number of places, and they run in turn, several times over."""
    codes = [compile_hip(SCALE.replace("* a", f"* a * {n}.0f"), "gfx942") for n in range(1, 7)]
    sizes = [len(load(code.asm, "gfx942").assembly.code) for code in codes]
    programs = executor_module._Programs(sum(sizes[:4]))
    first = [programs(code.asm, "gfx942", b"") for code in codes[:4]]
    assert [programs(code.asm, "gfx942", b"") for code in codes[:4]] == first
    known, again = set(map(id, first)), 0
    for _ in range(8):
        turn = [programs(code.asm, "gfx942", b"") for code in codes]
        again += sum(id(p) in known for p in turn)
        known = set(map(id, turn))
        assert len(programs._kept) <= 4
    assert again >= 8  # the ones that ran longest ago making room, it would be none


def test_a_program_larger_than_all_the_room_is_kept_while_it_runs() -> None:
    code = compile_hip(SCALE, "gfx942")
    programs = executor_module._Programs(1)
    assert programs(code.asm, "gfx942", b"") is programs(code.asm, "gfx942", b"")


BRANCHES = (
    TOP
    + """
extern "C" __global__ void branches(const float* x, float* y) {
  int i = threadIdx.x;
  float v = x[i];
"""
    + "".join(f"  if (x[i] > {n}.5f) {{ v = v * v + {n}.0f; y[i + {n}] = v; }}\n" for n in range(24))
    + "  y[i] = v;\n}\n"
)


@pytest.mark.parametrize(("source", "kernel", "tier"), [(SCALE, "scale", "numpy"), (BRANCHES, "branches", "c")])
def test_small_launches_of_long_code_are_compiled(source: str, kernel: str, tier: str) -> None:
    """A wave parts at each branch, which costs the NumPy tier more than it takes to make records of the code."""
    given = {"x": np.zeros(256, np.float32), "y": np.zeros(256, np.float32)}
    args: tuple = (("buffer", "x"), ("buffer", "y"))
    launched = plan(source, kernel, args) if kernel == "branches" else scale()
    done = SimExecutor(arch("gfx942")).execute([launched], given, outputs=("y",))
    assert done.evidence["launches"][0]["tier"] == tier

"""The AMD executor against a stand-in driver library, built for the test with the bundled clang."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kvc.arch import arch
from kvc.backends.device.amdgpu import AmdGpuExecutor, main
from kvc.diagnostics import KvcError
from kvc.executor import LaunchPlan

CHIP = "gfx942:sramecc+:xnack-"

Setup = Callable[..., AmdGpuExecutor]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("hip") / "libstandin.so"
    source = Path(__file__).with_name("standin_hip.c")
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture
def setup(library: Path) -> Setup:
    handle = ctypes.CDLL(str(library))

    def configure(
        devices: int = 1, name: str = "gfx942:sramecc+:xnack-", lds: int = 65536, wave: int = 64, fail: str = ""
    ):
        handle.standin_setup(devices, name.encode(), lds, wave, fail.encode())
        return AmdGpuExecutor([str(library)])

    return configure


def calls(library: Path) -> list[str]:
    handle = ctypes.CDLL(str(library))
    handle.standin_calls.restype = ctypes.c_char_p
    return handle.standin_calls().decode().split()


def plan(kernel: str = "scale", n: int = 100, grid: int = 1) -> LaunchPlan:
    args = (("buffer", "x"), ("buffer", "y"), ("i32", n), ("f32", 0.5), ("i64", 1 << 33))
    return LaunchPlan(b"\x7fELF", "", kernel, (grid, 1, 1), (128, 1, 1), 512, args)


def buffers(n: int = 100) -> dict[str, np.ndarray]:
    return {"x": np.arange(n, dtype=np.float32), "y": np.zeros(n, np.float32)}


def test_missing_library_says_what_to_do() -> None:
    problem = AmdGpuExecutor(["libkvc-no-such-driver.so"]).available(arch("gfx942"))
    assert problem is not None and problem.code == "KVC0601"
    assert "libkvc-no-such-driver.so" in problem.message and "simulator" in problem.hint


@pytest.mark.parametrize(("options", "words"), [({"devices": 0}, "no ROCm-capable"), ({"fail": "hipInit"}, "719")])
def test_no_device(setup: Setup, options: dict, words: str) -> None:
    executor = setup(**options)
    problem = executor.available(arch("gfx942"))
    assert problem is not None and problem.code == "KVC0601" and words in problem.message
    assert executor.devices() == ()
    with pytest.raises(KvcError) as caught:
        executor.run([plan()], buffers())
    assert caught.value.code == "KVC0601"


def test_device_of_another_chip(setup: Setup) -> None:
    problem = setup(name="gfx90a").available(arch("gfx942"))
    assert problem is not None and problem.code == "KVC0601" and "found: gfx90a" in problem.message


@pytest.mark.parametrize(("options", "words"), [({"lds": 32768}, "LDS 32,768 B"), ({"wave": 32}, "wave size 32")])
def test_device_unlike_its_row(setup: Setup, options: dict, words: str) -> None:
    problem = setup(**options).available(arch("gfx942"))
    assert problem is not None and problem.code == "KVC0602" and words in problem.message


def test_chip_named_at_construction(setup: Setup, library: Path) -> None:
    setup(name="gfx90a")
    executor = AmdGpuExecutor([str(library)], arch=arch("gfx942"))
    with pytest.raises(KvcError, match="no gfx942 device"):
        executor.run([plan()], buffers())


def test_facts_of_a_device(setup: Setup) -> None:
    executor = setup()
    assert executor.available(arch("gfx942")) is None
    (facts,) = executor.devices()
    assert (facts.name, facts.label) == ("gfx942", "gfx942:sramecc+:xnack-")
    assert (facts.wave_size, facts.max_threads, facts.lds_bytes, facts.compute_units) == (64, 1024, 65536, 304)


def test_arguments_and_results(setup: Setup, library: Path) -> None:
    given = buffers()
    with setup() as executor:
        executor.select(arch("gfx942"))
        done = executor.execute([plan()], given, outputs=("y",))
    expected = given["x"] * np.float32(0.5) + np.float32(1 << 33)
    np.testing.assert_array_equal(done.buffers["y"], expected)
    np.testing.assert_array_equal(done.buffers["x"], given["x"])
    assert not given["y"].any(), "the caller's arrays stay as they were"
    assert done.evidence["arch"] == "gfx942" and done.evidence["launches"] == 1
    assert ctypes.CDLL(str(library)).standin_shared() == 512
    assert ctypes.CDLL(str(library)).standin_live() == 0
    made = calls(library)
    assert made.count("hipModuleLoadData") == made.count("hipModuleUnload") == 1
    assert made.index("hipModuleLaunchKernel") < made.index("hipDeviceSynchronize") < made.index("hipMemcpyDtoH")


def test_output_that_no_kernel_writes_is_nan(setup: Setup) -> None:
    result = setup().run([plan(n=60)], buffers(), outputs=("y",))["y"]
    assert np.isfinite(result[:60]).all() and np.isnan(result[60:]).all()


def test_write_past_the_end(setup: Setup, library: Path) -> None:
    with pytest.raises(KvcError) as caught:
        setup().run([plan("overrun")], buffers())
    assert caught.value.code == "KVC0704" and "after buffer 'y'" in caught.value.diagnostic.message
    assert caught.value.diagnostic.details["offset"] >= 400
    assert ctypes.CDLL(str(library)).standin_live() == 0, "memory is freed after a failure too"


@pytest.mark.parametrize("kernel", ["scale", "missing"])
def test_failing_calls_name_themselves(setup: Setup, kernel: str) -> None:
    fail = "hipModuleLaunchKernel" if kernel == "scale" else ""
    with pytest.raises(KvcError) as caught:
        setup(fail=fail).run([plan(kernel)], buffers())
    assert caught.value.code == "KVC0603"
    assert caught.value.diagnostic.details["call"] == (fail or "hipModuleGetFunction")


def test_unknown_buffer_and_kind(setup: Setup) -> None:
    executor = setup()
    with pytest.raises(KvcError, match="'x', which was not given"):
        executor.run([plan()], {"y": np.zeros(100, np.float32)})
    odd = LaunchPlan(b"\x7fELF", "", "scale", (1, 1, 1), (64, 1, 1), 0, (("u7", 1),))
    with pytest.raises(KvcError, match="unknown argument kind"):
        executor.run([odd], buffers())


def test_timing(setup: Setup, library: Path) -> None:
    executor = setup()
    timing = executor.time([plan()], buffers(), outputs=("y",), repeats=4, warmup=1, flush_bytes=1024)
    assert timing.device_ms == (0.25,) * 4 and len(timing.host_ms) == 4 and timing.median_ms == 0.25
    assert np.isfinite(timing.buffers["y"]).all()
    assert calls(library).count("hipModuleLaunchKernel") == 5
    assert ctypes.CDLL(str(library)).standin_live() == 0


def test_one_launch_in_place(setup: Setup) -> None:
    x, y = np.ones(100, np.float32), np.zeros(100, np.float32)
    setup().launch(b"\x7fELF", "scale", (1, 1, 1), (128, 1, 1), [x, y, ("i32", 100), ("f32", 2.0), ("i64", 1)])
    assert (y == 3).all() and (x == 1).all()


def test_empty_buffer(setup: Setup) -> None:
    result = setup().run([plan(n=0)], {"x": np.zeros(0, np.float32), "y": np.zeros((0, 3), np.float32)}, outputs=("y",))
    assert result["y"].shape == (0, 3)


@pytest.mark.skipif(AmdGpuExecutor().available() is None, reason="there is a GPU here")
def test_selftest_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--selftest"]) == 2
    assert "KVC0601" in capsys.readouterr().out

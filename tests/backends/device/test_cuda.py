"""HIP source for NVIDIA, as far as it can be seen without a GPU."""

import pytest
from kvc.arch import arch
from kvc.backends.device import selftest
from kvc.backends.device.cuda import CudaExecutor, compile_for_cuda, main
from kvc.backends.device.nvrtc import discover
from kvc.diagnostics import KvcError

needs_compiler = pytest.mark.skipif(not discover(), reason="no CUDA compiler on this machine")


@needs_compiler
def test_the_same_source_compiles_for_nvidia() -> None:
    code = compile_for_cuda(selftest.source_of_all(), "sm_90")
    assert code.binary[:4] == b"\x7fELF" and code.log == ""


@needs_compiler
def test_error_has_a_line() -> None:
    with pytest.raises(KvcError) as caught:
        compile_for_cuda("#include <hip/hip_runtime.h>\n\nint x = y;\n", "sm_90")
    assert caught.value.code == "KVC0502" and str(caught.value.diagnostic.location) == "kernel.hip:3"


def test_amd_rows_are_refused() -> None:
    with pytest.raises(KvcError) as caught:
        compile_for_cuda("", "gfx942")
    assert caught.value.code == "KVC0105"


def test_no_driver_says_what_to_do() -> None:
    problem = CudaExecutor(["libkvc-no-such-driver.so"]).available(arch("sm_90"))
    assert problem is not None and problem.code == "KVC0601" and problem.hint


@pytest.mark.skipif(CudaExecutor().available() is None, reason="there is a GPU here")
def test_selftest_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--selftest"]) == 2
    assert "KVC0601" in capsys.readouterr().out

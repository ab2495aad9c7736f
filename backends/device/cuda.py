"""The NVIDIA executor: cubins on a CUDA device, through libcuda alone.

Triton's cubins run as they are; HIP source comes here by way of `compile_for_cuda`. `python -m kvc.backends.device.cuda
--selftest` runs a few kernels on the GPU and compares them with NumPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from kvc.arch import ArchSpec
from kvc.backends.device.driver import DeviceFacts, Driver, DriverApi
from kvc.backends.device.executor import DeviceExecutor
from kvc.backends.device.nvrtc import compile_for_cuda
from kvc.executor import LaunchPlan

__all__ = ["CUDA_API", "CudaExecutor", "compile_for_cuda"]

#: Attribute numbers: CUdevice_attribute of cuda.h. `lds_bytes` is the opt-in maximum of a block.
CUDA_API = DriverApi(
    vendor="nvidia",
    libraries=("libcuda.so.1", "libcuda.so"),
    init="cuInit",
    driver_version="cuDriverGetVersion",
    device_count="cuDeviceGetCount",
    device_attribute="cuDeviceGetAttribute",
    module_load="cuModuleLoadData",
    module_unload="cuModuleUnload",
    module_function="cuModuleGetFunction",
    malloc="cuMemAlloc_v2",
    free="cuMemFree_v2",
    copy_in="cuMemcpyHtoD_v2",
    copy_out="cuMemcpyDtoH_v2",
    fill="cuMemsetD8_v2",
    launch="cuLaunchKernel",
    synchronize="cuCtxSynchronize",
    event_create="cuEventCreate",
    event_record="cuEventRecord",
    event_synchronize="cuEventSynchronize",
    event_elapsed="cuEventElapsedTime",
    event_destroy="cuEventDestroy_v2",
    error_string="cuGetErrorString",
    attributes={
        "max_threads": 1,
        "wave_size": 10,
        "compute_units": 16,
        "capability_major": 75,
        "capability_minor": 76,
        "lds_bytes": 97,
    },
    install_hint="install NVIDIA's driver on a machine with a GPU; elsewhere verify on the simulator (--executor sim)",
)

_STATIC_LIMIT_BYTES = 48 << 10  # dynamic shared memory over this has to be asked for, function by function
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaExecutor(DeviceExecutor):
    """Runs cubins (or PTX text, which the driver compiles). What it sees never counts as evidence for a gfx kernel."""

    name = "cuda"
    device_nodes = ("/dev/nvidia*",)  # what a confined worker needs of /dev
    api = CUDA_API

    def __init__(self, libraries: Sequence[str] = (), arch: ArchSpec | None = None) -> None:
        super().__init__(libraries, arch)
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def _device_facts(self, driver: Driver, device: int) -> DeviceFacts:
        major, minor = driver.attribute("capability_major", device), driver.attribute("capability_minor", device)
        label = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", label, ctypes.c_int(len(label)), ctypes.c_int(device))
        return DeviceFacts(
            index=device,
            name=f"sm_{major}{minor}",
            label=label.value.decode(errors="replace"),
            wave_size=driver.attribute("wave_size", device),
            max_threads=driver.attribute("max_threads", device),
            lds_bytes=driver.attribute("lds_bytes", device),
            compute_units=driver.attribute("compute_units", device),
        )

    def _select_device(self, driver: Driver, device: int) -> None:
        # The primary context is the one torch uses too. It is retained once and kept for the life of the process:
        # releasing the last hold would destroy what others in the process may still refer to.
        if device not in self._contexts:
            context = ctypes.c_void_p()
            driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
            self._contexts[device] = context
        driver.call("cuCtxSetCurrent", self._contexts[device])

    def _before_launch(self, driver: Driver, function: int, plan: LaunchPlan) -> None:
        if plan.dynamic_lds > _STATIC_LIMIT_BYTES:
            driver.call(
                "cuFuncSetAttribute",
                ctypes.c_void_p(function),
                ctypes.c_int(_MAX_DYNAMIC_SHARED),
                ctypes.c_int(plan.dynamic_lds),
            )


def main(arguments: list[str] | None = None) -> int:
    """`--selftest` runs the self-test and returns 0 (passed), 1 (failed) or 2 (no device)."""
    from kvc.backends.device.selftest import command

    return command(CudaExecutor(), compile_for_cuda, arguments)


if __name__ == "__main__":
    raise SystemExit(main())

"""The AMD executor: code objects on a ROCm device, through libamdhip64 alone.

`python -m kvc.backends.device.amdgpu --selftest` runs a few kernels on the GPU and compares them with NumPy.
"""

from __future__ import annotations

import ctypes
import re

from kvc.backends.device.driver import DeviceFacts, Driver, DriverApi
from kvc.backends.device.executor import DeviceExecutor
from kvc.diagnostics import KvcError

#: Attribute numbers: hipDeviceAttribute_t of hip_runtime_api.h, unchanged since ROCm 5.
HIP_API = DriverApi(
    vendor="amd",
    libraries=(
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "/opt/rocm/lib/libamdhip64.so",  # where ROCm's own packages put it, often off the loader's path
    ),
    init="hipInit",
    driver_version="hipRuntimeGetVersion",
    device_count="hipGetDeviceCount",
    device_attribute="hipDeviceGetAttribute",
    module_load="hipModuleLoadData",
    module_unload="hipModuleUnload",
    module_function="hipModuleGetFunction",
    malloc="hipMalloc",
    free="hipFree",
    copy_in="hipMemcpyHtoD",
    copy_out="hipMemcpyDtoH",
    fill="hipMemsetD8",
    launch="hipModuleLaunchKernel",
    synchronize="hipDeviceSynchronize",
    event_create="hipEventCreateWithFlags",
    event_record="hipEventRecord",
    event_synchronize="hipEventSynchronize",
    event_elapsed="hipEventElapsedTime",
    event_destroy="hipEventDestroy",
    error_string="hipGetErrorString",
    attributes={"max_threads": 56, "lds_bytes": 74, "wave_size": 87, "compute_units": 63},
    install_hint=(
        "on a machine with an AMD GPU install ROCm (libamdhip64.so on the loader's path, user in the group `render`); "
        "anywhere else verify on the simulator (--executor sim)"
    ),
)

# hipDeviceProp_t has changed its layout (1,472 bytes in ROCm 6 and 7) and `gcnArchName` its offset with it, but the
# name looks like nothing else in the structure. The buffer leaves room for growth.
_PROPERTY_CALLS = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
_PROPERTY_BYTES = 16384
_ARCH_NAME = re.compile(rb"gfx[0-9a-f]{3,5}(?::[a-z]+[+-])*(?=\0)")


class AmdGpuExecutor(DeviceExecutor):
    """Runs gfx9 code objects. `available(arch)` is KVC0601 without a device of that chip, KVC0602 where the device
    offers less than its row in `arch.py` says."""

    name = "amdgpu"
    device_nodes = ("/dev/kfd", "/dev/dri")  # what a confined worker needs of /dev
    api = HIP_API

    def _device_facts(self, driver: Driver, device: int) -> DeviceFacts:
        properties = _properties(driver, device)
        match = _ARCH_NAME.search(properties)
        if match is None:
            raise KvcError("KVC0602", f"device {device} does not tell its gfx name", hint="use ROCm 5 or newer")
        label = match[0].decode()
        return DeviceFacts(
            index=device,
            name=label.split(":")[0],
            label=label,
            wave_size=driver.attribute("wave_size", device),
            max_threads=driver.attribute("max_threads", device),
            lds_bytes=driver.attribute("lds_bytes", device),
            compute_units=driver.attribute("compute_units", device),
        )

    def _select_device(self, driver: Driver, device: int) -> None:
        driver.call("hipSetDevice", ctypes.c_int(device))


def _properties(driver: Driver, device: int) -> bytes:
    buffer = ctypes.create_string_buffer(_PROPERTY_BYTES)
    call = next((name for name in _PROPERTY_CALLS if driver.has(name)), _PROPERTY_CALLS[-1])
    driver.call(call, buffer, ctypes.c_int(device))
    return buffer.raw


def main(arguments: list[str] | None = None) -> int:
    """`--selftest` runs the self-test and returns 0 (passed), 1 (failed) or 2 (no device)."""
    from kvc.backends.device.selftest import command
    from kvc.backends.hip.toolchain import compile_hip

    return command(AmdGpuExecutor(), compile_hip, arguments)


if __name__ == "__main__":
    raise SystemExit(main())

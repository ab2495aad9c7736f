"""One ctypes binding for two drivers: AMD's libamdhip64 and NVIDIA's libcuda.

HIP's module API was made in the image of CUDA's driver API, so the calls an executor needs have the same shape in both
and differ in name alone. `DriverApi` is that table of names; `Driver` is the binding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kvc.diagnostics import Diagnostic, KvcError


@dataclass(frozen=True)
class DriverApi:
    """Names of one vendor's driver calls. `attributes` maps kvc's names of device facts to the driver's numbers."""

    vendor: str
    libraries: tuple[str, ...]  # file names to try, newest first
    init: str
    driver_version: str
    device_count: str
    device_attribute: str
    module_load: str
    module_unload: str
    module_function: str
    malloc: str
    free: str
    copy_in: str
    copy_out: str
    fill: str
    launch: str
    synchronize: str
    event_create: str
    event_record: str
    event_synchronize: str
    event_elapsed: str
    event_destroy: str
    error_string: str
    attributes: Mapping[str, int]
    install_hint: str


@dataclass(frozen=True)
class DeviceFacts:
    """What the driver says of one device. `name` is the compiler's name of the chip (an `arch.py` key), `label` the
    vendor's longer one; `lds_bytes` is per workgroup."""

    index: int
    name: str
    label: str
    wave_size: int
    max_threads: int
    lds_bytes: int
    compute_units: int


class Driver:
    """A loaded driver library. Every failing call raises KVC0603 with the driver's own words."""

    def __init__(self, api: DriverApi, library: ctypes.CDLL) -> None:
        self.api = api
        self._library = library

    @classmethod
    def open(cls, api: DriverApi, names: Sequence[str] = ()) -> Driver | Diagnostic:
        """Load the library and initialise it; KVC0601 as a value where there is no library or it finds no device."""
        tried = tuple(names) or api.libraries
        library = next((found for name in tried if (found := _load(name)) is not None), None)
        if library is None:
            return Diagnostic("KVC0601", f"no driver library ({', '.join(tried)})", hint=api.install_hint)
        missing = [name for name in _symbols(api) if not hasattr(library, name)]
        if missing:
            text = f"{library._name} lacks {', '.join(missing)}"
            return Diagnostic("KVC0601", text, hint=api.install_hint)
        driver = cls(api, library)
        try:
            driver.call(api.init, ctypes.c_uint(0))
            count = driver.device_count()
        except KvcError as error:
            return Diagnostic("KVC0601", error.diagnostic.message, hint=api.install_hint)
        if count == 0:
            return Diagnostic("KVC0601", f"{library._name} reports 0 devices", hint=api.install_hint)
        return driver

    # ---- calls ------------------------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._library, name)(*arguments))
        if status != 0:
            self._fail(name, status)

    def _fail(self, name: str, status: int) -> NoReturn:
        text = self._error_text(status)
        raise KvcError("KVC0603", f"{name} returned {status} ({text})", call=name, status=status)

    def _error_text(self, status: int) -> str:
        function = getattr(self._library, self.api.error_string)
        if self.api.vendor == "amd":  # const char* hipGetErrorString(hipError_t)
            function.restype = ctypes.c_char_p
            text = function(ctypes.c_int(status))
        else:  # CUresult cuGetErrorString(CUresult, const char**)
            pointer = ctypes.c_char_p()
            function(ctypes.c_int(status), ctypes.byref(pointer))
            text = pointer.value
        return text.decode(errors="replace") if text else "unknown error"

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def version(self) -> int:
        value = ctypes.c_int(0)
        self.call(self.api.driver_version, ctypes.byref(value))
        return value.value

    def device_count(self) -> int:
        count = ctypes.c_int(0)
        self.call(self.api.device_count, ctypes.byref(count))
        return count.value

    def attribute(self, fact: str, device: int) -> int:
        value = ctypes.c_int(0)
        self.call(
            self.api.device_attribute,
            ctypes.byref(value),
            ctypes.c_int(self.api.attributes[fact]),
            ctypes.c_int(device),
        )
        return value.value

    def load(self, binary: bytes) -> int:
        module = ctypes.c_void_p()
        image = ctypes.create_string_buffer(binary, len(binary) + 1)  # a PTX text must end in a zero byte
        self.call(self.api.module_load, ctypes.byref(module), image)
        return _handle(module)

    def unload(self, module: int) -> None:
        self.call(self.api.module_unload, ctypes.c_void_p(module))

    def function(self, module: int, kernel: str) -> int:
        function = ctypes.c_void_p()
        self.call(
            self.api.module_function, ctypes.byref(function), ctypes.c_void_p(module), ctypes.c_char_p(kernel.encode())
        )
        return _handle(function)

    def malloc(self, nbytes: int) -> int:
        pointer = ctypes.c_void_p()
        self.call(self.api.malloc, ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return _handle(pointer)

    def free(self, address: int) -> None:
        self.call(self.api.free, ctypes.c_void_p(address))

    def copy_in(self, address: int, source: int, nbytes: int) -> None:
        self.call(self.api.copy_in, ctypes.c_void_p(address), ctypes.c_void_p(source), ctypes.c_size_t(nbytes))

    def copy_out(self, target: int, address: int, nbytes: int) -> None:
        self.call(self.api.copy_out, ctypes.c_void_p(target), ctypes.c_void_p(address), ctypes.c_size_t(nbytes))

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self.call(self.api.fill, ctypes.c_void_p(address), ctypes.c_ubyte(byte), ctypes.c_size_t(nbytes))

    def bind(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: Sequence[Any],
    ) -> Callable[[], None]:
        """A call that queues this launch on the default stream; everything that takes time in Python is done here.

        `arguments` are ctypes values; the driver reads them through pointers at the time of the launch.
        """
        kept = tuple(arguments)
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*(ctypes.addressof(value) for value in kept))
        extents = [ctypes.c_uint(value) for value in (*grid, *block, shared_bytes)]
        call = getattr(self._library, self.api.launch)
        handle = ctypes.c_void_p(function)

        def launch(keep_alive: tuple[Any, ...] = kept) -> None:
            status = call(handle, *extents, None, pointers, None)
            if status != 0:
                self._fail(self.api.launch, int(status))

        return launch

    def synchronize(self) -> None:
        self.call(self.api.synchronize)

    def event(self) -> int:
        event = ctypes.c_void_p()
        self.call(self.api.event_create, ctypes.byref(event), ctypes.c_uint(0))
        return _handle(event)

    def record(self, event: int) -> None:
        self.call(self.api.event_record, ctypes.c_void_p(event), None)

    def elapsed_ms(self, start: int, stop: int) -> float:
        """Milliseconds of device time between two recorded events; waits for the second."""
        value = ctypes.c_float(0.0)
        self.call(self.api.event_synchronize, ctypes.c_void_p(stop))
        self.call(self.api.event_elapsed, ctypes.byref(value), ctypes.c_void_p(start), ctypes.c_void_p(stop))
        return value.value

    def destroy_event(self, event: int) -> None:
        self.call(self.api.event_destroy, ctypes.c_void_p(event))


def _handle(pointer: ctypes.c_void_p) -> int:
    return int(pointer.value or 0)


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _symbols(api: DriverApi) -> list[str]:
    skipped = ("vendor", "libraries", "attributes", "install_hint")
    return [str(value) for key, value in vars(api).items() if key not in skipped]

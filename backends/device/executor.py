"""The executor that AMD and NVIDIA share: buffers between guard bands, launches in order, timing by events."""

from __future__ import annotations

import ctypes
import hashlib
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from kvc.arch import ArchSpec
from kvc.backends.device.driver import DeviceFacts, Driver, DriverApi
from kvc.diagnostics import Diagnostic, KvcError
from kvc.executor import UNWRITTEN_BYTE, Argument, Execution, LaunchPlan

GUARD_BYTES = 4096  # on either side of a buffer; keeps the alignment that the driver gave
GUARD_BYTE = 0xA5

_SCALARS: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each repeat, and the buffers after the last one (to be checked again).

    `device_ms` is between the events around the launches. `span_ms` (device) and `host_ms` (host clock) both cover the
    whole repeat, from an idle device to an idle device, the emptying of the caches included.
    """

    device_ms: tuple[float, ...]
    span_ms: tuple[float, ...]
    host_ms: tuple[float, ...]
    buffers: dict[str, np.ndarray]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.device_ms)

    @property
    def hidden_work(self) -> bool:
        """True when the device was busy for much longer than its events say: work on another stream looks like that."""
        return statistics.median(self.host_ms) > 2 * statistics.median(self.span_ms) + 1.0


@dataclass
class _DeviceBuffer:
    base: int  # address of the leading guard
    nbytes: int
    array: np.ndarray  # the host's copy: shape, dtype and, for inputs, the values

    @property
    def address(self) -> int:
        return self.base + GUARD_BYTES


class DeviceExecutor:
    """Runs launch plans on the first device whose chip is `arch` (the first device of all without one).

    Subclasses give the driver's table (`api`) and read a device's facts. The driver is opened on first use and kept;
    `close` (or leaving a `with` block) unloads the modules. Not thread-safe: one executor a thread or process.
    """

    name = "device"
    api: DriverApi

    def __init__(self, libraries: Sequence[str] = (), arch: ArchSpec | None = None) -> None:
        self._libraries = tuple(libraries)
        self._arch = arch
        self._driver: Driver | None = None
        self._facts: tuple[DeviceFacts, ...] = ()
        self._modules: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}

    def _device_facts(self, driver: Driver, device: int) -> DeviceFacts:
        raise NotImplementedError

    def _select_device(self, driver: Driver, device: int) -> None:
        raise NotImplementedError

    def _before_launch(self, driver: Driver, function: int, plan: LaunchPlan) -> None:
        """Hook for what a driver wants to be told of a function before it is launched."""

    # ---- devices ----------------------------------------------------------------------------------------------------

    def _open(self) -> Driver | Diagnostic:
        if self._driver is None:
            opened = Driver.open(self.api, self._libraries)
            if isinstance(opened, Diagnostic):
                return opened
            try:
                self._facts = tuple(self._device_facts(opened, index) for index in range(opened.device_count()))
            except KvcError as error:
                return error.diagnostic
            self._driver = opened
        return self._driver

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Every device that the driver shows; empty where there is none."""
        return () if isinstance(self._open(), Diagnostic) else self._facts

    def available(self, arch: ArchSpec | None = None) -> Diagnostic | None:
        """None when kernels (for `arch`, when given) can run here; KVC0601 or KVC0602 with the reason otherwise."""
        opened = self._open()
        if isinstance(opened, Diagnostic):
            return opened
        if arch is None:
            return None
        matching = [facts for facts in self._facts if facts.name == arch.name]
        if not matching:
            present = ", ".join(facts.name for facts in self._facts)
            hint = f"compile for {self._facts[0].name}, or run {arch.name} code on the simulator (--executor sim)"
            return Diagnostic("KVC0601", f"no {arch.name} device here (found: {present})", hint=hint)
        return check_facts(matching[0], arch)

    def select(self, arch: ArchSpec | None = None) -> DeviceFacts:
        """Make the first fitting device current, for later runs too. Raises what `available` returns."""
        self._arch = arch = arch or self._arch
        problem = self.available(arch)
        if problem is not None:
            raise KvcError(problem.code, problem.message, hint=problem.hint, **problem.details)
        facts = next(facts for facts in self._facts if arch is None or facts.name == arch.name)
        self._select_device(self._require(), facts.index)  # each time: other libraries of the process choose too
        return facts

    def _require(self) -> Driver:
        opened = self._open()
        if isinstance(opened, Diagnostic):
            raise KvcError(opened.code, opened.message, hint=opened.hint)
        return opened

    def close(self) -> None:
        driver, self._driver = self._driver, None
        modules, self._modules, self._functions = self._modules, {}, {}
        if driver is not None:
            for module in modules.values():
                driver.unload(module)

    def __enter__(self) -> DeviceExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- running ----------------------------------------------------------------------------------------------------

    def run(
        self, launches: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray], *, outputs: Collection[str] = ()
    ) -> dict[str, np.ndarray]:
        return self.execute(launches, buffers, outputs=outputs).buffers

    def execute(
        self, launches: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray], *, outputs: Collection[str] = ()
    ) -> Execution:
        """See `kvc.executor.Executor`. KVC0704 when a kernel wrote into a guard band, with the buffer and offset."""
        facts = self.select()
        driver = self._require()
        with self._uploaded(driver, buffers, outputs) as device:
            for launch in [self._bind(driver, plan, device) for plan in launches]:
                launch()
            driver.synchronize()
            results = {name: self._download(driver, name, buffer) for name, buffer in device.items()}
        evidence = {
            "executor": self.name,
            "device": facts.label,
            "arch": facts.name,
            "driver": driver.version(),
            "launches": len(launches),
            "guard_bytes": GUARD_BYTES,
        }
        return Execution(results, evidence)

    def launch(
        self,
        code_object: bytes,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[np.ndarray | tuple[str, int | float]],
        dynamic_lds: int = 0,
    ) -> None:
        """One launch on plain arrays, for interactive use: arrays are copied in and back out in place.

        Scalars are pairs such as ("i32", 7).
        """
        arrays = {f"arg{i}": value for i, value in enumerate(args) if isinstance(value, np.ndarray)}
        plan_args: list[Argument] = []
        for i, value in enumerate(args):
            plan_args.append(("buffer", f"arg{i}") if isinstance(value, np.ndarray) else cast(Argument, value))
        plan = LaunchPlan(code_object, "", kernel, grid, block, dynamic_lds, tuple(plan_args))
        for name, result in self.run([plan], arrays).items():
            arrays[name][...] = result

    def time(
        self,
        launches: Sequence[LaunchPlan],
        buffers: Mapping[str, np.ndarray],
        *,
        outputs: Collection[str] = (),
        repeats: int = 20,
        warmup: int = 3,
        flush_bytes: int = 256 << 20,
        copies: int = 2,
    ) -> Timing:
        """Time the whole sequence of launches.

        Each repeat runs on the next of `copies` sets of buffers, so that a result replayed by address shows. Before it
        the device writes `flush_bytes`, which empties the caches (0: runs the launches once more, which warms them);
        the host queues the timed launches meanwhile, so that its own time is not in the figure. Outputs are poisoned
        again once warm-up is over: the returned buffers are the timed runs' own.
        """
        self.select()
        driver = self._require()
        samples: list[tuple[float, float, float]] = []
        with ExitStack() as stack:
            events = [driver.event() for _ in range(3)]
            for event in events:
                stack.callback(driver.destroy_event, event)
            scratch = driver.malloc(flush_bytes) if flush_bytes else 0
            if scratch:
                stack.callback(driver.free, scratch)
            sets = [stack.enter_context(self._uploaded(driver, buffers, outputs)) for _ in range(max(copies, 1))]
            bound = [[self._bind(driver, plan, device) for plan in launches] for device in sets]
            for index in range(warmup + repeats):
                if index == warmup:
                    for device in sets:
                        self._poison(driver, device, outputs)
                flush = (lambda byte=index & 0xFF: driver.fill(scratch, byte, flush_bytes)) if scratch else None
                samples.append(_timed(driver, events, bound[index % len(sets)], flush))
            last = sets[(warmup + repeats - 1) % len(sets)]
            results = {name: self._download(driver, name, buffer) for name, buffer in last.items()}
        device_ms, span_ms, host_ms = (tuple(column) for column in zip(*samples[warmup:], strict=True))
        return Timing(device_ms, span_ms, host_ms, results)

    @contextmanager
    def contestants(
        self,
        plans: Mapping[str, Sequence[LaunchPlan]],
        buffers: Mapping[str, np.ndarray],
        *,
        outputs: Collection[str] = (),
        flush_bytes: int = 256 << 20,
    ) -> Iterator[Callable[[str], float]]:
        """A call that runs one of `plans` by its name and gives the device's milliseconds, caches emptied before. All
        share the buffers, which are not copied back."""
        self.select()
        driver = self._require()
        with ExitStack() as stack:
            events = [driver.event() for _ in range(3)]
            for event in events:
                stack.callback(driver.destroy_event, event)
            scratch = driver.malloc(flush_bytes)
            stack.callback(driver.free, scratch)
            device = stack.enter_context(self._uploaded(driver, buffers, outputs))
            bound = {name: [self._bind(driver, plan, device) for plan in launches] for name, launches in plans.items()}
            yield lambda name: _timed(
                driver, events, bound[name], lambda: driver.fill(scratch, UNWRITTEN_BYTE, flush_bytes)
            )[0]

    def _function(self, driver: Driver, plan: LaunchPlan) -> int:
        digest = hashlib.sha256(plan.binary).hexdigest()
        if digest not in self._modules:
            self._modules[digest] = driver.load(plan.binary)
        key = (digest, plan.kernel)
        if key not in self._functions:
            self._functions[key] = driver.function(self._modules[digest], plan.kernel)
        return self._functions[key]

    def _bind(self, driver: Driver, plan: LaunchPlan, device: Mapping[str, _DeviceBuffer]) -> Callable[[], None]:
        arguments = [_argument(kind, value, device) for kind, value in plan.args]
        function = self._function(driver, plan)
        self._before_launch(driver, function, plan)
        return driver.bind(function, plan.grid, plan.block, plan.dynamic_lds, arguments)

    # ---- buffers ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _uploaded(
        self, driver: Driver, buffers: Mapping[str, np.ndarray], outputs: Collection[str]
    ) -> Iterator[dict[str, _DeviceBuffer]]:
        device: dict[str, _DeviceBuffer] = {}
        try:
            for name, array in buffers.items():
                base = driver.malloc(array.nbytes + 2 * GUARD_BYTES)
                device[name] = buffer = _DeviceBuffer(base, array.nbytes, np.ascontiguousarray(array))
                driver.fill(base, GUARD_BYTE, GUARD_BYTES)
                driver.fill(buffer.address + buffer.nbytes, GUARD_BYTE, GUARD_BYTES)
                if buffer.nbytes and name not in outputs:
                    driver.copy_in(buffer.address, buffer.array.ctypes.data, buffer.nbytes)
            self._poison(driver, device, outputs)
            yield device
        finally:
            for buffer in device.values():
                driver.free(buffer.base)

    def _poison(self, driver: Driver, device: Mapping[str, _DeviceBuffer], outputs: Collection[str]) -> None:
        for name in outputs:
            if device[name].nbytes:
                driver.fill(device[name].address, UNWRITTEN_BYTE, device[name].nbytes)

    def _download(self, driver: Driver, name: str, buffer: _DeviceBuffer) -> np.ndarray:
        raw = np.empty(buffer.nbytes + 2 * GUARD_BYTES, dtype=np.uint8)
        driver.copy_out(raw.ctypes.data, buffer.base, raw.nbytes)
        for first, where in ((0, "before"), (GUARD_BYTES + buffer.nbytes, "after")):
            damaged = np.flatnonzero(raw[first : first + GUARD_BYTES] != GUARD_BYTE)
            if damaged.size:
                offset = int(damaged[0]) + first - GUARD_BYTES
                text = (
                    f"{damaged.size} bytes {where} buffer {name!r} were overwritten, the first at byte offset {offset}"
                )
                raise KvcError("KVC0704", text, hint="mask the stores of the last tile", buffer=name, offset=offset)
        data = raw[GUARD_BYTES : GUARD_BYTES + buffer.nbytes].copy()
        return data.view(buffer.array.dtype).reshape(buffer.array.shape)


def _timed(
    driver: Driver, events: Sequence[int], launches: Sequence[Callable[[], None]], flush: Callable[[], None] | None
) -> tuple[float, float, float]:
    """One repeat: device time of the launches, device time and host time from idle to idle (milliseconds)."""
    begin, start, stop = events
    driver.synchronize()
    began = time.perf_counter()
    driver.record(begin)
    if flush is not None:
        flush()
    else:
        for launch in launches:
            launch()
    driver.record(start)
    for launch in launches:
        launch()
    driver.record(stop)
    driver.synchronize()
    host = (time.perf_counter() - began) * 1e3
    return driver.elapsed_ms(start, stop), driver.elapsed_ms(begin, stop), host


def _argument(kind: str, value: object, device: Mapping[str, _DeviceBuffer]) -> Any:
    if kind == "buffer":
        name = str(value)
        if name not in device:
            raise KvcError("KVC0603", f"launch names the buffer {name!r}, which was not given", given=sorted(device))
        return ctypes.c_uint64(device[name].address)
    if kind not in _SCALARS:
        raise KvcError("KVC0603", f"unknown argument kind {kind!r}", hint=f"one of: buffer, {', '.join(_SCALARS)}")
    return _SCALARS[kind](value)


def check_facts(facts: DeviceFacts, arch: ArchSpec) -> Diagnostic | None:
    """KVC0602 where a device has another wave size than its row, or less of something than kernels may use."""
    differing = []
    if facts.wave_size != arch.wave_size:
        differing.append(f"wave size {facts.wave_size}, table {arch.wave_size}")
    if facts.max_threads < arch.max_threads:
        differing.append(f"{facts.max_threads:,} threads a workgroup, table {arch.max_threads:,}")
    if facts.lds_bytes < arch.lds_bytes:
        differing.append(f"LDS {facts.lds_bytes:,} B a workgroup, table {arch.lds_bytes:,} B")
    if not differing:
        return None
    hint = "report this device: its row in arch.py is wrong for it"
    return Diagnostic("KVC0602", f"{facts.label} ({arch.name}): {'; '.join(differing)}", hint=hint)

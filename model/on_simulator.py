"""Runs a Python script whose Triton kernels go to the simulator: a GPU by name, the CPU's memory, gfx assembly.

    python -P -m kvc.model.on_simulator POLICY ARCH script NAME
    python -P -m kvc.model.on_simulator POLICY ARCH pytest NAME

Triton itself specialises and compiles, for the GPU named; its driver is replaced by one that executes the assembly
(kvc.simulator) on copies of the tensors and writes them back. `POLICY` confines the process first (kvc.verify.sandbox),
as scripts hold what a model wrote. On stdin comes the source, as one line of JSON; the end of stdin is the end of the
process. On stdout stands one line of JSON: what the script printed, and the values that it left in its `result...`
variables.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

#: Exit code of a script that needs what is not here, with the reason on stderr after MARK.
NOT_RUN = 78
MARK = "kvc-not-run:"
#: Instead of a GPU's name: the GPU of this machine, by Triton's own driver.
NATIVE = "native"
#: Modules of a suite's harness that its tests import and that a test of correctness never calls.
_HARNESS = "geak_eval"
#: Tests of correctness, by pytest's -k.
_CORRECTNESS = "not performance and not save"
_MOST_PRINTED = 1 << 20


class NotHere(Exception):
    """What a script needs beyond launches of kernels: the reason why it is not run."""


@dataclass(frozen=True)
class _Function:
    """A kernel as the driver knows it after loading."""

    name: str
    asm: str
    binary: bytes
    shared: int


class SimulatorDriver:
    """A Triton driver (triton.backends.driver.DriverBase by its methods) whose device is the simulator."""

    def __init__(self, arch_name: str) -> None:
        from kvc.arch import arch

        self.arch = arch(arch_name)
        self.utils = self
        self._assembly = ""

    # ------------------------------------------------------------ what Triton asks its driver
    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return _Launcher(self, source, metadata)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("hip", self.arch.name, self.arch.wave_size)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def is_active(self) -> bool:
        return True

    def get_benchmarker(self) -> Any:
        return lambda call, *args, **kwargs: [0.0, 0.0, 0.0]  # the first configuration of an autotuner is taken

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.zeros(1)

    def clear_cache(self, cache: Any) -> None:
        pass

    # ------------------------------------------------------------ what it asks of the driver's utilities
    def get_device_properties(self, device: int) -> dict[str, Any]:
        return {
            "max_shared_mem": self.arch.lds_bytes, "multiprocessor_count": self.arch.cu_count, "arch": self.arch.name,
            "warpSize": self.arch.wave_size, "max_num_regs": 512, "sm_clock_rate": 0, "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }  # fmt: skip

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, _Function, int, int, int]:
        return object(), _Function(name, self._assembly, binary, shared), 0, 0, self.arch.max_threads

    def unload_module(self, module: Any) -> None:
        pass

    def before_load(self, module: Any, function: Any, name: str, files: Mapping[str, str], digest: str) -> None:
        """Triton's hook: the only place where a driver sees a kernel's assembly text."""
        path = next((p for n, p in files.items() if n.endswith(".amdgcn")), None)
        if path is None:
            raise NotHere("this Triton keeps no assembly text of its kernels")
        self._assembly = Path(path).read_text()


class _Launcher:
    def __init__(self, driver: SimulatorDriver, source: Any, metadata: Any) -> None:
        self._driver = driver
        self._kinds = [str(kind) for kind in source.signature.values()]
        self._threads = metadata.num_warps * driver.arch.wave_size

    def __call__(self, x: int, y: int, z: int, stream: int, function: _Function, *rest: Any) -> None:
        # Between the function and the arguments stand metadata and hooks, whose number changes between versions.
        given = rest[len(rest) - len(self._kinds) :]
        simulate(self._driver.arch.name, function, (x, y, z), self._threads, list(zip(self._kinds, given, strict=True)))


def simulate(
    arch_name: str, function: _Function, grid: tuple[int, int, int], threads: int, args: Sequence[tuple[str, Any]]
) -> None:
    """Execute one launch; tensors are changed in place. Raises SimFault (KVC09xx), NotHere for arguments of a kind that
    the simulator cannot be given."""
    import numpy as np
    from kvc.simulator import Memory, SimOptions, launch, load

    memory = Memory(arch_name)
    placed: dict[int, tuple[Any, Any]] = {}
    packed: list[Any] = []
    for kind, value in args:
        if kind == "constexpr":
            continue
        if kind.startswith("*"):
            packed.append(_pointer(memory, placed, value))
        elif kind.startswith(("tensordesc", "(", "tuple")):
            raise NotHere(f"a kernel takes a {kind.split('<')[0]}")
        else:
            packed.append(float(value) if kind.startswith(("fp", "bf")) else int(value))
    if min(grid) < 1:
        return
    options = SimOptions()
    program = load(function.asm, arch_name, function.binary)
    launch(
        program, function.name, grid=grid, block=(threads, 1, 1), args=packed, mem=memory,
        dynamic_lds=0 if _has_static_lds(program, function) else function.shared, options=options,
    )  # fmt: skip
    for buffer, storage in placed.values():
        storage[:] = np.asarray(buffer.bytes[: len(storage)])


def _has_static_lds(program: Any, function: _Function) -> bool:
    kernel = program.kernels.get(function.name)
    return kernel is not None and kernel.lds >= function.shared


def _pointer(memory: Any, placed: dict[int, tuple[Any, Any]], value: Any) -> int:
    """The address of a tensor's first element on the device; its whole storage is there once."""
    import numpy as np
    import torch

    if value is None:
        return 0
    if hasattr(value, "base") and not isinstance(value, torch.Tensor):  # triton.reinterpret
        value = value.base
    if not isinstance(value, torch.Tensor):
        raise NotHere(f"a kernel is given a {type(value).__name__} as a pointer")
    storage = value.untyped_storage()
    start = storage.data_ptr()
    if storage.nbytes() == 0:
        return 0
    if start not in placed:
        view = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).numpy()
        buffer = memory.alloc(storage.nbytes(), fill=b"\0", name=f"tensor{len(placed)}")
        buffer.bytes[: len(view)] = view.view(np.uint8)
        placed[start] = buffer, view
    return int(placed[start][0].addr) + value.data_ptr() - start


def _mode() -> Any:
    """A mode in which there is a GPU by name and every tensor is on the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def here(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type in ("cuda", "hip") else value
        if isinstance(value, str) and value.split(":")[0] in ("cuda", "hip"):
            return "cpu"
        return value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, owner = getattr(func, "__name__", ""), getattr(func, "__self__", None)
            if name == "__get__" and getattr(owner, "__name__", "") == "is_cuda":
                return True
            if name == "cuda":
                return args[0]
            return func(*map(here, args), **{k: here(v) for k, v in (kwargs or {}).items()})

    return OnCpu()


@contextlib.contextmanager
def simulated(arch_name: str) -> Iterator[SimulatorDriver]:
    """Within: launches of Triton kernels in this process run on the simulator. For a process that is thrown away."""
    import torch
    import triton
    from triton import knobs
    from triton.runtime import driver

    made = SimulatorDriver(arch_name)
    driver.set_active(made)
    hook = knobs.runtime.kernel_load_start_hook
    if hasattr(hook, "add"):
        hook.add(made.before_load)
    else:
        knobs.runtime.kernel_load_start_hook = made.before_load
    stream = SimpleNamespace(cuda_stream=0)
    properties = SimpleNamespace(
        name=arch_name, multi_processor_count=made.arch.cu_count, gcnArchName=arch_name, total_memory=1 << 36, major=9,
        minor=4, warp_size=made.arch.wave_size, shared_memory_per_block=made.arch.lds_bytes,
    )  # fmt: skip
    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "set_device": lambda *_: None, "synchronize": lambda *_: None, "current_stream": lambda *_: stream,
        "empty_cache": lambda: None, "get_device_capability": lambda *_: (9, 4),
        "get_device_name": lambda *_: arch_name,
        "get_device_properties": lambda *_: properties, "device": lambda *_: contextlib.nullcontext(),
        "manual_seed": lambda *_: None, "manual_seed_all": lambda *_: None,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, value)
    torch.set_num_threads(1)
    assert triton
    with _mode():
        yield made


class _Anything:
    """Whatever a harness is asked for: callable, with every attribute, and of no effect."""

    def __call__(self, *args: Any, **kwargs: Any) -> _Anything:
        return self

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Harness(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a suite's measuring harness as nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != _HARNESS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _Anything().__getattr__(name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        pass


def left_by(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors and numbers of the variables that begin with "result": [shape, float64 as base64], by a path."""
    import numpy as np
    import torch

    found: dict[str, Any] = {}

    def visit(path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().double().numpy()
        if isinstance(value, bool | int | float | np.ndarray | np.generic):
            array = np.ascontiguousarray(value, np.float64)
            found[path] = [list(np.shape(value)), base64.b64encode(array.tobytes()).decode()]
        elif isinstance(value, Mapping):
            for key, member in value.items():
                visit(f"{path}/{key}", member)
        elif isinstance(value, list | tuple):
            for number, member in enumerate(value):
                visit(f"{path}/{number}", member)

    for name, value in scope.items():
        if name.startswith("result"):
            visit(name, value)
    return found


def _printed(file: IO[str]) -> str:
    sys.stdout.flush()
    file.seek(0)
    return file.read()[-_MOST_PRINTED:]


def main(arguments: Sequence[str]) -> int:
    """Entry of the process; gives its exit code."""
    from kvc.verify.confine import enter
    from kvc.verify.sandbox import Policy

    rules = Policy.from_json(arguments[0])
    arch_name, kind, name = arguments[1:]
    enter(rules)
    source = json.loads(sys.stdin.readline())
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="kvc-script-") as folder, tempfile.TemporaryFile("w+") as printed:
        os.dup2(printed.fileno(), 1)
        os.chdir(folder)
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        file = Path(folder) / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        sys.argv = [str(file)]
        sys.path.insert(0, folder)
        sys.meta_path.append(_Harness())
        try:
            with simulated(arch_name) if arch_name != NATIVE else contextlib.nullcontext():
                left, code = _run(kind, file)
        except NotHere as reason:
            print(f"{MARK} {reason}", file=sys.stderr)
            return NOT_RUN
        reply.write(json.dumps({"printed": _printed(printed), "values": left}) + "\n")
        reply.flush()
        return code


def _run(kind: str, file: Path) -> tuple[dict[str, Any], int]:
    """What the script left, and its exit code."""
    if kind == "pytest":
        import pytest

        return {}, int(pytest.main(["-q", "-p", "no:cacheprovider", "-k", _CORRECTNESS, str(file)]))
    return left_by(runpy.run_path(str(file), run_name="__main__")), 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A translation that runs on an NVIDIA GPU, for timing: the module that kvc writes, with its launch function going to
the CUDA driver. What runs here is compiled for the NVIDIA chip from the same emitters; it is no evidence for gfx code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import ArchSpec
from kvc.arch import arch as arch_row
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, CodeObject, Compiled, Target, Task
from kvc.pipeline import Attempt, Options, Translation, failure
from kvc.verify.verdict import Artifact, Evidence, Rejected, Verified

if TYPE_CHECKING:
    import torch
    from kvc.frontends.fx.capture import Captured
    from kvc.frontends.fx.load import Loaded
    from kvc.plan import Plan

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ASK_ABOVE = 48 << 10


def device_row() -> ArchSpec:
    """The table's row of the first CUDA device. KVC0601 where there is none."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise KvcError("KVC0601", "no CUDA device", hint="run --stage time on a machine with an NVIDIA GPU")
    major, minor = torch.cuda.get_device_capability()
    return arch_row(f"sm_{major}{minor}")


def translation(captured: Captured, plan: Plan, target: Target, row: ArchSpec, seed: int) -> Translation:
    """Every kernel by the first emitter whose candidate compiles for the NVIDIA chip. KVC0401 where none does."""
    artifacts = tuple(_artifact(Task(spec, row), target, seed) for spec in plan.kernels)
    return Translation(captured, plan, target, row, Options("cuda", seed=seed), artifacts)


def _artifact(task: Task, target: Target, seed: int) -> Artifact:
    attempts = []
    for emitter in target.emitters():
        support = emitter.supports(task)
        if not support.ok:
            attempts.append(Attempt(emitter.name, "", None, support.reason))
            continue
        for candidate in emitter.propose(task, emitter.space(task).default, [], seed):
            try:
                compiled = compiled_for(candidate, target, task.arch)
            except KvcError as error:
                if error.code != "KVC0502":
                    raise
                attempts.append(Attempt(emitter.name, candidate.schedule, Rejected("compile", error.diagnostic)))
                continue
            return Artifact(candidate, Verified(Evidence("none", task.arch.name, seed, (), (), ()), compiled))
    raise failure(task.spec.name, attempts)


def compiled_for(candidate: Candidate, target: Target, row: ArchSpec) -> Compiled:
    """Triton compiles for the chip by itself; HIP source goes through the device header and NVIDIA's compiler."""
    if target.suffix != ".hip":
        return target.compile(candidate)
    from kvc.backends.device.nvrtc import compile_for_cuda

    made = compile_for_cuda(candidate.source, row.name)
    code = CodeObject(made.asm, made.binary, (), made.log)
    return Compiled({launch.kernel: code for launch in candidate.launches})


@contextmanager
def module_on_cuda(folder: Path, done: Translation, loaded: Loaded) -> Iterator[torch.nn.Module]:
    """The written module on the GPU, with the original's weights."""
    from kvc.interface import interface_of, stored_constants
    from kvc.package import write_files
    from kvc.verify.model import written_module

    folder.mkdir()
    assert done.captured is not None
    interface = interface_of(done.captured, loaded.name, "", loaded.init)
    constants = {name: t.cpu() for name, t in stored_constants(done.captured).items()}
    write_files(folder, done, interface, constants)
    with written_module(folder) as written:
        written._launch = _Launcher(folder)  # type: ignore[attr-defined]
        model: torch.nn.Module = written.Model().cuda()
        model.load_state_dict(done.captured.module.state_dict())
        yield model


class Driven:
    """The CUDA driver, and functions of code objects ready to be launched. KVC0601 without a driver."""

    def __init__(self) -> None:
        from kvc.backends.device.cuda import CUDA_API
        from kvc.backends.device.driver import Driver

        opened = Driver.open(CUDA_API)
        if isinstance(opened, Diagnostic):
            raise KvcError(opened.code, opened.message, hint=opened.hint)
        self.driver = opened

    def function(self, binary: bytes, symbol: str, shared: int) -> ctypes.c_void_p:
        """A function of a code object, allowed so many bytes of shared memory."""
        found = ctypes.c_void_p(self.driver.function(self.driver.load(binary), symbol))
        if shared > _ASK_ABOVE:
            self.driver.call("cuFuncSetAttribute", found, ctypes.c_int(_DYNAMIC_SHARED), ctypes.c_int(shared))
        return found


class _Launcher:
    """Stands in for `_launch` of a written module. Arguments are packed anew in each call, as its own launcher does."""

    def __init__(self, folder: Path) -> None:
        self.driven = Driven()
        self.driver = self.driven.driver
        self.folder = folder
        self.functions: dict[tuple[str, str], ctypes.c_void_p] = {}
        self.count = 0

    def __call__(self, kernel: Any, call: Any, args: tuple[Any, ...]) -> None:
        function = self.functions.get((kernel.file, kernel.symbol)) or self._load(kernel)
        base = call.arena.data_ptr()
        addresses = [a if type(a) is int else a.data_ptr() if hasattr(a, "data_ptr") else base + a.offset for a in args]
        addresses += [0] * kernel.padding
        values = (ctypes.c_uint64 * len(addresses))(*addresses)
        start = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(addresses))(*range(start, start + 8 * len(addresses), 8))
        self.count += 1
        self.driver.call(
            "cuLaunchKernel", function, *kernel.grid, *kernel.block, kernel.lds, ctypes.c_void_p(call.stream),
            pointers, None,
        )  # fmt: skip

    def _load(self, kernel: Any) -> ctypes.c_void_p:
        function = self.driven.function((self.folder / kernel.file).read_bytes(), kernel.symbol, kernel.lds)
        self.functions[kernel.file, kernel.symbol] = function
        return function

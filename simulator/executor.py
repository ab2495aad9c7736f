"""The simulator as an executor: runs launch plans from their assembly text, and says what was checked."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError
from kvc.executor import UNWRITTEN_BYTE, Execution, LaunchPlan

if TYPE_CHECKING:
    from kvc.simulator import Buffer, LaunchReport, Memory, Program, SimOptions

#: Decoded programs that a process keeps, in instructions of all of them (about 4 KB each): the same code runs on many
#: input sets, and the kernels of a deep model one after the other, several times over.
INSTRUCTIONS_KEPT = 400_000


class SimExecutor:
    """Executes gfx code on the CPU. `seed` orders the waves; `options` are the simulator's checks.

    Every buffer is an allocation of its own with unmapped space on either side, so that an access outside faults on the
    spot (KVC0903) and needs no guard pattern. Outputs start as never written: a read of one before its write faults
    (KVC0905), and what no kernel wrote comes back as UNWRITTEN_BYTE.
    """

    name = "sim"

    def __init__(self, arch: ArchSpec, seed: int = 0, options: SimOptions | None = None) -> None:
        self.arch = arch
        self.seed = seed
        self.options = options

    @staticmethod
    def make_ready() -> None:
        """Build the compiled tier where it is missing: a worker may read it, and not write it."""
        from kvc.simulator.native.build import Unavailable, library

        with contextlib.suppress(Unavailable):  # the executor says so in its notes
            library()

    def available(self, arch: ArchSpec | None = None) -> Diagnostic | None:
        row = arch or self.arch
        if row.vendor == "amd":
            return None
        return Diagnostic(
            "KVC0601", f"the simulator runs CDNA code, not {row.name}", hint="use --executor cuda on a GPU"
        )

    def run(
        self, launches: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray], *, outputs: Collection[str] = ()
    ) -> dict[str, np.ndarray]:
        return self.execute(launches, buffers, outputs=outputs).buffers

    def execute(
        self, launches: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray], *, outputs: Collection[str] = ()
    ) -> Execution:
        """See `kvc.executor.Executor`. Raises SimFault (KVC09xx) where a kernel misbehaves.

        The evidence holds the arch, the seed and for each launch its counters and hazards.
        """
        problem = self.available()
        if problem is not None:
            raise KvcError(problem.code, problem.message, hint=problem.hint)
        from kvc.simulator import Memory

        memory = Memory(self.arch.name)
        device: dict[str, Buffer] = {}
        for name, array in sorted(buffers.items(), key=lambda item: _part(item[0])):
            device[name] = _place(memory, device, name, array, name in outputs)
        reports = [self._launch(memory, device, plan) for plan in launches]
        results = {
            name: device[name].view(np.uint8)[: array.nbytes].copy().view(array.dtype).reshape(array.shape)
            for name, array in buffers.items()
        }
        evidence = {
            "executor": self.name,
            "arch": self.arch.name,
            "seed": self.seed,
            "launches": [_evidence(plan, report) for plan, report in zip(launches, reports, strict=True)],
        }
        return Execution(results, evidence)

    def _launch(self, memory: Memory, device: Mapping[str, Buffer], plan: LaunchPlan) -> LaunchReport:
        from kvc.simulator import SimOptions, launch

        return launch(
            _program(plan.asm, self.arch.name, plan.binary),
            plan.kernel,
            grid=plan.grid,
            block=plan.block,
            args=[_argument(kind, value, device) for kind, value in plan.args],
            mem=memory,
            dynamic_lds=plan.dynamic_lds,
            seed=self.seed,
            options=self.options or SimOptions(),
        )


class _Programs:
    """Programs that ran, up to `limit` instructions together; one that is larger stays alone. What makes room is drawn:
    the kernels of a model run in turn, and of those that ran longest ago the next one is due."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[tuple[str, str, bytes], Program] = {}
        self._draw = Random(0)

    def __call__(self, asm: str, arch: str, binary: bytes) -> Program:
        from kvc.simulator import load

        key = (asm, arch, binary)
        program = self._kept.get(key)
        if program is None:
            program = load(asm, arch, binary or None)
            room = self.limit - len(program.assembly.code)
            size = sum(len(p.assembly.code) for p in self._kept.values())
            while self._kept and size > room:
                size -= len(self._kept.pop(self._draw.choice(list(self._kept))).assembly.code)
            self._kept[key] = program
        return program


_program = _Programs(INSTRUCTIONS_KEPT)


def _part(name: str) -> tuple[str, int]:
    """The buffer that an array is a part of and its offset in bytes: "x@4096" stands 4,096 bytes into "x", and between
    the parts there is nothing (kvc.verify.buffers)."""
    base, _, offset = name.partition("@")
    return base, int(offset or 0)


def _place(memory: Memory, device: Mapping[str, Buffer], name: str, array: np.ndarray, is_output: bool) -> Buffer:
    base, offset = _part(name)
    fill = None if is_output else b"\0"
    if offset:
        buffer = memory.alloc_at(device[base].addr + offset, array.nbytes, fill, name)
    else:
        buffer = memory.alloc(array.nbytes, fill=fill, name=name)
    if is_output:  # what is seen where nothing is written; the simulator still counts it as unwritten
        buffer.bytes[:] = UNWRITTEN_BYTE
    else:
        buffer.bytes[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer


def _argument(kind: str, value: object, device: Mapping[str, Buffer]) -> Any:
    if kind == "buffer":
        if value not in device:
            raise KvcError("KVC0603", f"launch names the buffer {value!r}, which was not given", given=sorted(device))
        return device[str(value)]
    scalars = {"i32": np.int32, "i64": np.int64, "f32": np.float32}
    if kind not in scalars:
        raise KvcError("KVC0603", f"unknown argument kind {kind!r}", hint=f"one of: buffer, {', '.join(scalars)}")
    return scalars[kind](value)  # type: ignore[arg-type]


def _evidence(plan: LaunchPlan, report: LaunchReport) -> dict[str, Any]:
    return {
        "kernel": plan.kernel,
        "counters": report.counters.to_json(),
        "hazards": [hazard.message for hazard in report.hazards],
        "tier": report.tier,
        "notes": report.notes,
    }

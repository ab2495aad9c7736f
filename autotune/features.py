"""From a compiled candidate to its estimated time: the work of each launch, and the model applied to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvc.arch import ArchSpec
from kvc.autotune import gcn, ptx
from kvc.autotune.model import FITTED, Constants, Timed, launch_time, total_us
from kvc.autotune.work import Work, with_counters
from kvc.dtypes import dtype
from kvc.emitter import Candidate, Compiled
from kvc.kernel import KernelSpec


@dataclass(frozen=True)
class Features:
    """One launch: its work, and the bytes of the buffers that it is given."""

    work: Work
    footprint: int

    def to_json(self) -> dict[str, Any]:
        work = {k: round(v, 3) if isinstance(v, float) else v for k, v in self.work.to_json().items()}
        return {"footprint": self.footprint, **work}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Features:
        rest = dict(data)
        return Features(footprint=rest.pop("footprint"), work=Work.from_json(rest))


def buffer_bytes(candidate: Candidate) -> dict[str, int]:
    """Bytes of every operand and scratch buffer."""
    spec: KernelSpec = candidate.task.spec
    sizes = {o.name: math.prod(spec.shape_of(o.name)) * o.dtype.bytes for o in (*spec.inputs, *spec.outputs)}
    return sizes | {s.name: s.numel * dtype(s.dtype).bytes for s in candidate.workspace}


def features(
    candidate: Candidate, compiled: Compiled, counters: Mapping[str, Any] | None = None
) -> tuple[Features, ...]:
    """The launches of a candidate, from its code and, where the simulator ran it, the evidence's `counters`. KVC0901
    where the code cannot be read."""
    arch = candidate.task.arch
    sizes = buffer_bytes(candidate)
    entries = (counters or {}).get("launches")  # a device executor gives only their number
    counted = [entry.get("counters", {}) for entry in entries] if isinstance(entries, list) else []
    found = []
    for number, launch in enumerate(candidate.launches):
        code = compiled.objects[launch.kernel]
        if arch.vendor == "amd":
            # What Triton needs of LDS stands in its metadata only, what HIP declares in the text.
            dynamic = launch.dynamic_lds + code.lds_bytes
            work = gcn.work_of(code.asm, launch.kernel, arch, launch.grid, launch.block, dynamic)
        else:
            work = ptx.work_of(
                code.asm, code.binary, launch.kernel, launch.grid, launch.block, code.lds_bytes + launch.dynamic_lds
            )
        if number < len(counted):
            work = with_counters(work, counted[number])
        found.append(Features(work, sum(sizes.get(name, 0) for name in set(launch.args))))
    return tuple(found)


def estimate_launches(found: tuple[Features, ...], arch: ArchSpec, constants: Constants = FITTED) -> tuple[Timed, ...]:
    """The model's estimate of each launch."""
    return tuple(launch_time(f.work, arch, f.footprint, constants) for f in found)


def estimated_us(candidate: Candidate, compiled: Compiled, counters: Mapping[str, Any] | None = None) -> float:
    """Microseconds of all launches of a candidate: an estimate, never a measurement."""
    return total_us(estimate_launches(features(candidate, compiled, counters), candidate.task.arch))

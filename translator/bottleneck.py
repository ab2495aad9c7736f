"""What limits a kernel: the time that each part of the GPU would need alone, from the spec, the code and the counters.

An estimate, never a measurement. Each part works at its peak of the ArchSpec, on as many compute units as the launch
has workgroups for; the slowest part is the limit. What it leaves out (dependent latencies inside a wave, cache misses)
makes every figure a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvc.arch import ArchSpec
from kvc.cost import bytes_moved, flops
from kvc.estimate import LAUNCH_US, counted_bytes, peak_flops
from kvc.kernel import KernelSpec

LDS_BANK_BYTES = 4  # that a bank serves a clock (CDNA ISA documents, "Local data share")


@dataclass(frozen=True)
class Part:
    """A part of the GPU, the microseconds it needs alone, and what was counted."""

    name: str
    us: float
    why: str


@dataclass(frozen=True)
class Limit:
    """`parts`, slowest first. `workgroups` of the largest launch, for `units` compute units."""

    parts: tuple[Part, ...]
    workgroups: int
    units: int

    @property
    def busy(self) -> float:
        """The share of compute units that have a workgroup."""
        return min(1.0, self.workgroups / self.units)

    @property
    def name(self) -> str:
        return self.parts[0].name


def limit_of(
    spec: KernelSpec, arch: ArchSpec, launches: Sequence[Mapping[str, Any]], counters: Mapping[str, Any] | None = None
) -> Limit:
    """What limits a kernel. `launches` are those of the lock ("grid"), `counters` what the simulator counted, if it
    did."""
    counted = [launch.get("counters", {}) for launch in (counters or {}).get("launches", ())]
    workgroups = max((math.prod(launch["grid"]) for launch in launches), default=1)
    busy = min(1.0, workgroups / arch.cu_count)
    traffic = counted_bytes(counters or {})
    moved = max(traffic, bytes_moved(spec))
    count = max(len(launches), 1)
    source = "counted" if traffic else "least that the spec allows"
    parts = [
        Part(
            "memory", moved / (arch.hbm_gbps * 1e3) / busy, f"{moved:,} bytes ({source}) at {arch.hbm_gbps:,.0f} GB/s"
        ),
        Part("latency", LAUNCH_US * count, f"{count} launch{'es' if count > 1 else ''} of about {LAUNCH_US:g} us each"),
    ]
    matrix = sum(c.get("mfma_flops", 0) for c in counted)
    peak = peak_flops(spec, arch)
    vector = arch.peak("f32_vector") * 1e12
    if matrix:
        parts.append(Part("MFMA", matrix / peak * 1e6 / busy, f"{matrix:,} operations at {peak / 1e12:,.0f} TFLOP/s"))
    else:
        done = flops(spec)
        parts.append(Part("ALU", done / vector * 1e6 / busy, f"{done:,} operations at {vector / 1e12:,.0f} TFLOP/s"))
    lds = sum(c.get("lds_bytes", 0) for c in counted)
    if lds:
        conflicts = sum(c.get("lds_conflict_cycles", 0) for c in counted)
        rate = arch.lds_banks * LDS_BANK_BYTES * arch.cu_count * arch.clock_ghz * 1e3  # bytes a microsecond
        us = lds / rate + conflicts / arch.cu_count / (arch.clock_ghz * 1e3)
        parts.append(Part("LDS", us / busy, f"{lds:,} bytes, {conflicts:,} cycles of bank conflicts"))
    return Limit(tuple(sorted(parts, key=lambda p: -p.us)), workgroups, arch.cu_count)

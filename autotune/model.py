"""How long a launch takes: a model of what limits it, from its Work and a row of the architecture table. An estimate.

A compute unit that has most workgroups to run ends the launch. Each of its parts (matrix cores, vector units, LDS, the
path to L2) is busy for as long as its share of the work takes at the part's rate; device memory serves all units. A
wave that waits for memory, barriers or its own results leaves the unit to the other waves that registers, LDS and the
workgroup limit let in; where these are too few, the waits themselves add up, round after round. The times of the parts
are joined by a p-norm: overlap is good, but not perfect.

Rates come from the ArchSpec. What no data sheet gives are the `Constants`; they were fitted on measured times of an
H200 (docs/tuning.md says on which, and how well the model orders kernels it was not fitted on). They are in cycles and
shares, so that they carry over to another row, where they are as good as the likeness of the two machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.arch import ArchSpec
from kvc.autotune.work import Work


@dataclass(frozen=True)
class Constants:
    """Latencies in cycles of the compute unit, costs relative to a vector instruction, shares of peak rates. The
    defaults are what the literature on such machines leads one to expect; the fit starts there."""

    memory_latency: float = 700.0
    barrier: float = 40.0
    dependent: float = 6.0  # cycles from a vector instruction to the next one of the same wave
    lds_latency: float = 25.0
    matrix_latency: float = 20.0
    special: float = 4.0
    scalar: float = 0.5
    workgroup: float = 160.0  # from the start of one on a compute unit to that of the next
    access: float = 1.0  # a look-up in the first-level cache
    atomic: float = 50.0
    spill: float = 800.0  # bytes a lane that double the vector work
    spill_power: float = 1.6
    memory_share: float = 0.9  # of the data sheet's bandwidth
    l2_share: float = 0.6
    lds_share: float = 0.9
    vector_share: float = 0.8
    matrix_share: float = 0.75
    again: float = 0.15  # of what is read more than once, what memory serves again
    norm: float = 3.0
    launch_us: float = 2.5


#: `kvc bench ranking --fit` on bench/ranking_sm_90.json, the specs with an even number.
FITTED = Constants(
    memory_latency=697.0,
    barrier=85.7,
    dependent=4.6,
    lds_latency=7.15,
    matrix_latency=5.37,
    special=10.3,
    scalar=0.619,
    workgroup=40.0,
    access=1.83,
    atomic=32.1,
    spill=2010.0,
    spill_power=1.76,
    memory_share=0.903,
    l2_share=0.892,
    lds_share=1.0,
    vector_share=1.0,
    matrix_share=0.999,
    again=0.0406,
    norm=3.27,
    launch_us=4.7,
)


@dataclass(frozen=True)
class Timed:
    """A launch's estimated microseconds, the parts' own times, and the waves that a SIMD holds."""

    us: float
    parts: Mapping[str, float]
    occupancy: float

    @property
    def bound(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def resident(work: Work, arch: ArchSpec) -> int:
    """Workgroups that a compute unit holds at once; at least 1, even where the compiler's figures say none."""
    waves = max(work.waves, 1)
    registers = -(-max(work.registers, 1) // arch.vgpr_granule) * arch.vgpr_granule
    by_registers = arch.register_file // registers * arch.simds_per_cu // waves
    by_waves = arch.max_waves_per_simd * arch.simds_per_cu // waves
    by_lds = arch.lds_bytes // work.lds_bytes if work.lds_bytes else arch.max_workgroups
    return max(1, min(by_registers, by_waves, by_lds, arch.max_workgroups))


def launch_time(work: Work, arch: ArchSpec, footprint: int, constants: Constants = FITTED) -> Timed:
    """The time of one launch. `footprint`: bytes of all buffers that it is given."""
    c = constants
    most = -(-work.workgroups // arch.cu_count)  # workgroups of the unit that has most
    together = min(resident(work, arch), most)
    waves = most * work.waves
    spilled = 1 + (work.scratch_bytes / c.spill) ** c.spill_power
    per_us = arch.clock_ghz * 1e3  # cycles
    lanes = arch.peak("f32_vector") * 1e3 / (2 * arch.cu_count * arch.simds_per_cu * arch.clock_ghz)
    issue = work.vector * spilled + c.special * work.special + c.scalar * (work.scalar + work.memory + work.lds)
    # Fewer waves than SIMDs leave some of them idle.
    simds = min(arch.simds_per_cu, together * work.waves)
    vector = waves * issue * arch.wave_size / lanes / simds / c.vector_share
    rate = arch.peak(work.matrix_type) * 1e3 / (arch.cu_count * arch.clock_ghz) * work.matrix_rate  # operations a cycle
    matrix = waves * work.matrix_flops / rate * arch.simds_per_cu / simds / c.matrix_share
    total = work.workgroups * work.waves
    moved = total * work.moved_bytes
    memory = (min(moved, footprint) + c.again * max(moved - footprint, 0.0)) / (arch.hbm_gbps * 1e3 * c.memory_share)
    alone = (
        work.exposed * c.memory_latency
        + work.barriers * c.barrier
        + (work.vector * spilled + work.scalar) * c.dependent
        + work.special * c.dependent * c.special / 2
        + work.lds * c.lds_latency
        + work.matrix * c.matrix_latency
        + work.atomics * c.atomic
    )
    parts = {
        "memory": memory,
        "L2": waves * work.moved_bytes / (arch.l2_bytes_per_clock * c.l2_share) / per_us,
        "L1": waves * work.access_cycles * c.access / per_us,
        "LDS": waves * work.lds_cycles / c.lds_share / per_us,
        "vector": vector / per_us,
        "matrix": matrix / per_us,
        "latency": (most / together) * alone / per_us,
        "dispatch": most * c.workgroup / per_us,
    }
    joined = sum(t**c.norm for t in parts.values()) ** (1 / c.norm)
    occupancy = together * work.waves / arch.simds_per_cu
    return Timed(joined + c.launch_us, parts, occupancy)


def total_us(timed: Sequence[Timed]) -> float:
    """Microseconds of launches that run one after the other."""
    return math.fsum(t.us for t in timed)

"""What one launch asks of a GPU, in the same terms for every vendor: the model's only input beside the ArchSpec.

Counts are those of one average wave, over the whole of its life; they come from the compiled text (kvc.autotune.ptx,
kvc.autotune.gcn) and, where the simulator ran the code, from its counters, which replace what was only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Work:
    """One launch. Instructions are counted a wave; `*_bytes` a wave too, but for `lds_bytes` (static and dynamic, a
    workgroup) and `scratch_bytes` (spills, a lane).

    `moved_bytes` is what global accesses move between L2 and the compute unit, what a sector holds in vain included;
    `access_cycles` are look-ups of the first-level cache. `lds_cycles` are cycles of the LDS, bank conflicts included.
    `exposed` counts the times that a wave waits for global memory, `flight_bytes` what it has asked for at such a time;
    `depth` is how many of the waits of a software-pipelined loop overlap. `matrix_type` is the operand type of its
    matrix instructions (a key of `ArchSpec.peak_tflops`), `matrix_rate` the share of that peak that they can reach.
    """

    workgroups: int
    waves: int
    registers: int
    lds_bytes: int = 0
    scratch_bytes: int = 0
    vector: float = 0.0
    special: float = 0.0
    scalar: float = 0.0
    matrix: float = 0.0
    matrix_flops: float = 0.0
    matrix_type: str = "f32"
    matrix_rate: float = 1.0
    lds: float = 0.0
    lds_cycles: float = 0.0
    memory: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    moved_bytes: float = 0.0
    access_cycles: float = 0.0
    atomics: float = 0.0
    barriers: float = 0.0
    exposed: float = 0.0
    flight_bytes: float = 0.0
    depth: float = 1.0

    @property
    def instructions(self) -> float:
        """Instructions that a wave issues."""
        return self.vector + self.special + self.scalar + self.matrix + self.lds + self.memory + self.barriers

    def to_json(self) -> dict[str, Any]:
        """As JSON, zeros and ones left out."""
        plain = Work(0, 0, 0)
        return {k: v for k, v in asdict(self).items() if v != getattr(plain, k)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Work:
        return Work(**{"workgroups": 0, "waves": 0, "registers": 0, **data})


def with_counters(work: Work, counters: Mapping[str, Any]) -> Work:
    """`work` with what the simulator counted of that launch in the place of what was read from its text. What the
    counters do not know (waits for memory) is scaled as the memory instructions are."""
    waves = counters.get("waves", 0)
    if not waves:
        return work
    kinds = counters["by_class"]
    memory = (kinds.get("vmem", 0) + kinds.get("flat", 0)) / waves
    scale = memory / work.memory if work.memory else 1.0
    asked = (counters["global_read_bytes"] + counters["global_write_bytes"]) / waves
    accesses = kinds.get("lds", 0) / waves
    # A conflict-free access takes a pass for every 128 bytes (CDNA ISA documents, "Local data share").
    passes = counters["lds_bytes"] / waves / 128
    return replace(
        work,
        vector=max(kinds.get("valu", 0) / waves - work.special - _matrix(kinds, waves), 0.0),
        scalar=(kinds.get("salu", 0) + kinds.get("smem", 0) + kinds.get("branch", 0)) / waves,
        matrix=_matrix(kinds, waves),
        matrix_flops=counters["mfma_flops"] / waves,
        lds=accesses,
        lds_cycles=passes + counters["lds_conflict_cycles"] / waves,
        memory=memory,
        read_bytes=counters["global_read_bytes"] / waves,
        write_bytes=counters["global_write_bytes"] / waves,
        moved_bytes=max(asked, 64 * counters["global_transactions_64b"] / waves),
        access_cycles=max(counters["global_transactions_64b"] / waves, memory),
        atomics=counters["atomics"] / waves,
        barriers=counters["barriers"] / waves,
        exposed=work.exposed * scale,
    )


def _matrix(kinds: Mapping[str, int], waves: int) -> float:
    return kinds.get("mfma", 0) / waves

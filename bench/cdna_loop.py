"""The main loop of a kernel that the simulator ran: what it issued, how it used LDS and global memory.

The main loop is the innermost loop that did most matrix work, most instructions where none did. Counts are exact but
for bank conflicts, which are sampled (kvc.simulator.counters). Cycles are an estimate: matrix instructions at the peak
of the ArchSpec, any other instruction one issue slot of a SIMD, LDS 128 bytes and L2 `l2_bytes_per_clock` a clock of
the compute unit. Latencies are taken as covered; no instruction of another wave is taken to issue beside a matrix
instruction. The first makes the estimate a lower bound of the time, the second pulls the other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvc.arch import ArchSpec

if TYPE_CHECKING:
    from kvc.simulator import Program
    from kvc.simulator.program import Block
    from kvc.simulator.step import Step

ISSUE_CYCLES = 4  # of a wave's instruction on a SIMD of 16 lanes (CDNA ISA documents)
LDS_BYTES_A_CLOCK = 128  # 32 banks of 4 bytes
WIDE_BYTES = 16

_TYPE = re.compile(r"_\d+x\d+x\d+_?(?:\d+b_)?(bf16|f16|f32|f64|xf32|fp8|bf8|i8)?")
_SEGMENT = re.compile(r"(?:dwordx(\d))|_b(\d+)(?:_|$)")


@dataclass(frozen=True)
class MainLoop:
    """Totals over the waves that ran. `*_cycles` are of one compute unit; `wide_share` counts global accesses of 16
    bytes a lane among all, None where the loop has none; `conflicts` are cycles (estimate)."""

    passes: int  # wave-iterations
    instructions: int
    matrix: int
    global_accesses: int
    wide_share: float | None
    lds_accesses: int
    conflicts: float
    matrix_cycles: float
    issue_cycles: float
    lds_cycles: float
    memory_cycles: float

    @property
    def mfma_share(self) -> float:
        """Cycles of matrix instructions, of those that the loop takes at least."""
        whole = max(self.matrix_cycles + self.issue_cycles, self.lds_cycles, self.memory_cycles)
        return self.matrix_cycles / whole if whole else 0.0

    @property
    def bound(self) -> str:
        """What the loop waits for by this account: "issue", "LDS" or "L2"."""
        parts = {
            "issue": self.matrix_cycles + self.issue_cycles, "LDS": self.lds_cycles, "L2": self.memory_cycles
        }  # fmt: skip
        return max(parts, key=lambda name: parts[name])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mfma_share": self.mfma_share, "bound": self.bound}


def main_loop(program: Program, arch: ArchSpec) -> MainLoop | None:
    """The main loop of the last launch of `program`; None where no loop was run."""
    ran = {pc: block for pc, block in program.blocks.items() if block.waves}
    best: tuple[float, int, list[Block]] | None = None
    for body in _innermost(_loops(program, ran)):
        blocks = [ran[pc] for pc in sorted(body)]
        flops = sum(block.waves * step.stats.get("flops", 0) for block in blocks for step in block.steps)
        found = (flops, sum(block.waves * _length(block) for block in blocks), blocks)
        if best is None or found[:2] > best[:2]:
            best = found
    return _summed(best[2], arch) if best is not None else None


def _length(block: Block) -> int:
    return len(block.steps) + (block.end is not None)


def _successors(program: Program, block: Block) -> list[int]:
    if block.end is None:
        return [block.following]
    name, operands = block.end.ins.name, block.end.ins.operands
    jump = [program.assembly.labels[operands[-1]]] if operands and operands[-1] in program.assembly.labels else []
    ends = name.startswith(("s_branch", "s_endpgm", "s_setpc"))
    return jump if ends else [*jump, block.following]


def _loops(program: Program, ran: dict[int, Block]) -> list[frozenset[int]]:
    """The natural loops of the blocks that ran: from each edge back to a block on the way to it (depth first), all
    that reaches its start without passing its end. Loops with one header are one."""
    after = {pc: [n for n in _successors(program, block) if n in ran] for pc, block in ran.items()}
    before: dict[int, list[int]] = {pc: [] for pc in ran}
    for pc, nexts in after.items():
        for n in nexts:
            before[n].append(pc)
    bodies: dict[int, set[int]] = {}
    for start, header in _back_edges(after, sorted(pc for pc in ran if not before[pc]) or sorted(ran)[:1]):
        body = bodies.setdefault(header, {header})
        queue = [start]
        while queue:
            pc = queue.pop()
            if pc not in body:
                body.add(pc)
                queue += before[pc]
    return [frozenset(body) for body in bodies.values()]


def _back_edges(after: dict[int, list[int]], entries: list[int]) -> Iterator[tuple[int, int]]:
    seen: set[int] = set()
    path: dict[int, None] = {}
    for entry in entries:
        stack: list[tuple[int, Iterator[int]]] = [(entry, iter(after[entry]))]
        seen.add(entry)
        path[entry] = None
        while stack:
            pc, nexts = stack[-1]
            n = next(nexts, None)
            if n is None:
                stack.pop()
                del path[pc]
            elif n in path:
                yield pc, n
            elif n not in seen:
                seen.add(n)
                path[n] = None
                stack.append((n, iter(after[n])))


def _innermost(loops: list[frozenset[int]]) -> list[frozenset[int]]:
    return [body for body in loops if not any(other < body for other in loops)]


def _summed(blocks: list[Block], arch: ArchSpec) -> MainLoop:
    simds = arch.simds_per_cu
    matrix = issue = accesses = wide = lds_accesses = total = 0
    matrix_cycles = lds_bytes = conflicts = moved = 0.0
    ran = [(s, block.waves) for block in blocks for s in (*block.steps, *([block.end] if block.end else []))]
    for step, waves in ran:
        total += waves
        stats = step.stats
        if step.kind == "mfma":
            matrix += waves
            matrix_cycles += waves * _matrix_cycles(step, arch)
            continue
        issue += waves
        if step.kind in ("vmem", "flat"):
            accesses += waves
            wide += waves * (_bytes_a_lane(step.ins.name) >= WIDE_BYTES)
            moved += stats.get("read", 0) + stats.get("written", 0)
        if step.kind == "lds":
            lds_accesses += waves
        lds_bytes += stats.get("lds_bytes", 0)
        if stats.get("conflict_samples"):
            conflicts += stats["conflicts"] / stats["conflict_samples"] * waves
    return MainLoop(
        passes=max(block.waves for block in blocks),
        instructions=total,
        matrix=matrix,
        global_accesses=accesses,
        wide_share=wide / accesses if accesses else None,
        lds_accesses=lds_accesses,
        conflicts=conflicts,
        matrix_cycles=matrix_cycles / simds,
        issue_cycles=ISSUE_CYCLES * issue / simds,
        lds_cycles=lds_bytes / LDS_BYTES_A_CLOCK + conflicts,
        memory_cycles=moved / arch.l2_bytes_per_clock,
    )


def _matrix_cycles(step: Step, arch: ArchSpec) -> float:
    """Cycles of one matrix instruction on its SIMD: its operations at the peak of the row."""
    named = _TYPE.search(step.ins.name)
    kind = (named[1] if named else None) or "f32"
    peaks = dict(arch.peak_tflops)
    # 8-bit operands: twice the rate of 16 bits on every chip that has them (white papers).
    peak = peaks.get(kind) or (2 * peaks["bf16"] if kind in ("fp8", "bf8", "i8") else peaks["f32"])
    a_simd = peak * 1e3 / (arch.cu_count * arch.simds_per_cu * arch.clock_ghz)
    return step.stats.get("flops", 0) / a_simd


def _bytes_a_lane(opcode: str) -> int:
    """Width of a global access by its opcode; 4 where the name says none that is wider."""
    found = _SEGMENT.search(opcode)
    if not found:
        return 4
    return 4 * int(found[1]) if found[1] else int(found[2]) // 8


__all__ = ["MainLoop", "main_loop"]

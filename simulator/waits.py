"""The s_waitcnt scoreboard: which registers have a memory operation outstanding, in which in-order counter.

Source: "AMD Instinct CDNA3 Instruction Set Architecture", section 4.4. VM_CNT counts vector memory operations, which
return in order; LGKM_CNT counts LDS operations (in order among themselves), scalar loads (in any order) and flat
operations (which count in both).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvc.simulator.faults import Trap
from kvc.simulator.poison import register_name
from kvc.simulator.state import Group, Queue
from kvc.simulator.step import Step, read_mask


class Pending(NamedTuple):
    """One outstanding operation: registers it will write, "load" "store" "ds" "ds_write" "smem" "flat" "dma", pc."""

    registers: int
    tag: str
    pc: int


class Waits:
    """`enabled` off makes every method free of effect. `dma` holds LDS bytes that loads into LDS still have to write."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.pc = 0  # of the running step; the machine keeps it only for memory instructions

    def vm(self, g: Group, registers: int, tag: str = "load") -> None:
        if self.enabled:
            self._append(g, 0, Pending(registers, tag, self.pc))

    def lds(self, g: Group, registers: int, tag: str = "ds") -> None:
        if self.enabled:
            self._append(g, 1, Pending(registers, tag, self.pc))

    def smem(self, g: Group, registers: int) -> None:
        if self.enabled:
            self._append(g, 1, Pending(registers, "smem", self.pc))

    def flat(self, g: Group, registers: int) -> None:
        if self.enabled:
            self._append(g, 0, Pending(registers, "flat", self.pc))
            self._append(g, 1, Pending(registers, "flat", self.pc))

    def _append(self, g: Group, counter: int, entry: Pending) -> None:
        for queue in g.queues:
            queue[counter].append(entry)
        if entry.registers:
            g.busy |= entry.registers
            g.watch |= entry.registers

    def wait(self, g: Group, vm: int | None, lgkm: int | None) -> int:
        """s_waitcnt. Returns how many loads into LDS have landed (in every queue)."""
        landed = 0
        for queue in g.queues:
            if vm is not None and len(queue[0]) > vm:
                done = queue[0][: len(queue[0]) - vm]
                del queue[0][: len(queue[0]) - vm]
                landed = max(landed, sum(entry.tag == "dma" for entry in done))
            if lgkm is not None and len(queue[1]) > lgkm:
                if lgkm == 0:
                    queue[1].clear()
                elif not any(entry.tag in ("smem", "flat") for entry in queue[1]):
                    del queue[1][: len(queue[1]) - lgkm]
        self.refresh(g)
        return landed

    def refresh(self, g: Group) -> None:
        """Recompute `busy` from the queues and drop queues that have become equal."""
        if len(g.queues) > 1:
            distinct: list[Queue] = []
            for queue in g.queues:
                if queue not in distinct:
                    distinct.append(queue)
            g.queues = distinct
        busy = 0
        for vm, lgkm in g.queues:
            for entry in vm:
                busy |= entry.registers
            for entry in lgkm:
                busy |= entry.registers
        g.busy = busy
        g.watch = g.pmask | busy

    def check(self, g: Group, step: Step) -> None:
        """KVC0907 when the step touches a register that an outstanding operation will write."""
        read = read_mask(step.sources)
        for queue in g.queues:
            for counter, order in ((0, "vm"), (1, "ds")):
                for entry in queue[counter]:
                    same = step.in_order == order and entry.tag not in ("smem", "flat")
                    overlap = entry.registers & (read if same else read | step.write_mask)
                    if overlap:
                        self._fail(overlap, entry, counter)

    def barrier(self, g: Group) -> None:
        """KVC0907 when an LDS write is outstanding as other waves are let past the barrier."""
        for queue in g.queues:
            for entry in queue[1]:
                if entry.tag == "ds_write":
                    raise Trap(
                        "KVC0907",
                        f"s_barrier while the LDS write at instruction {entry.pc} may be outstanding",
                        hint="s_waitcnt lgkmcnt(0) belongs before the barrier",
                    )

    def _fail(self, overlap: int, entry: Pending, counter: int) -> None:
        first = (overlap & -overlap).bit_length() - 1
        name = ("vmcnt", "lgkmcnt")[counter]
        raise Trap(
            "KVC0907",
            f"{register_name(first)} is used before the {entry.tag} of instruction {entry.pc} has returned",
            hint=f"an s_waitcnt {name} is missing or too weak",
        )


Flight = tuple[np.ndarray, int, Any, int]  # LDS byte addresses [n] in the batch, bytes each, values or None, pc


class DmaTracker:
    """Loads from global memory into LDS in flight: per wave a list of the LDS bytes each will write, oldest first.

    A wave that touches such bytes before its own wait gets KVC0907; other
    waves are the race tracker's business: the write counts in every epoch from its issue to its wait.
    """

    def __init__(self) -> None:
        self.flights: dict[int, list[Flight]] = {}

    def issue(self, wave: int, flight: Flight) -> None:
        self.flights.setdefault(wave, []).append(flight)

    def land(self, wave: int, keep: int) -> list[Flight]:
        """All but the newest `keep` flights of a wave have landed: return them."""
        flights = self.flights.get(wave, [])
        done, self.flights[wave] = flights[: len(flights) - keep], flights[len(flights) - keep :]
        if not self.flights[wave]:
            del self.flights[wave]
        return done

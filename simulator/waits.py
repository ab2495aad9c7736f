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
from kvc.simulator.step import Step


class Pending(NamedTuple):
    """Operations outstanding at one place of an in-order counter: registers they will write, what they are, a pc.

    It stands for several operations where waves that took different paths have joined.
    """

    registers: int
    tags: frozenset[str]
    pc: int


_TAGS = {tag: frozenset({tag}) for tag in ("load", "store", "ds", "ds_write", "smem", "flat", "dma")}
_LIMITS = (63, 15)  # VM_CNT has 6 bits, LGKM_CNT 4
_UNORDERED = frozenset({"smem", "flat"})


class Waits:
    """The scoreboard of a batch; `enabled` off makes every method free of effect.

    Waves of a group share one queue per counter. Where groups with different histories join, queues are laid over each
    other from their newest entry, as the compiler's own analysis does: an entry is waited for when every path says so.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.pc = 0  # the running instruction

    def vm(self, g: Group, registers: int, tag: str = "load") -> None:
        if self.enabled:
            self._append(g, 0, registers, tag)

    def lds(self, g: Group, registers: int, tag: str = "ds") -> None:
        if self.enabled:
            self._append(g, 1, registers, tag)

    def smem(self, g: Group, registers: int) -> None:
        if self.enabled:
            self._append(g, 1, registers, "smem")

    def flat(self, g: Group, registers: int) -> None:
        if self.enabled:
            self._append(g, 0, registers, "flat")
            self._append(g, 1, registers, "flat")

    def _append(self, g: Group, counter: int, registers: int, tag: str) -> None:
        entries = g.queue[counter]
        entries.append(Pending(registers, _TAGS[tag], self.pc))
        if len(entries) > _LIMITS[counter] and not any(entry.tags & _UNORDERED for entry in entries):
            # The counter cannot go higher: the hardware held this operation back until the oldest had returned.
            del entries[0]
            self.refresh(g)
        if registers:
            g.busy |= registers
            g.watch |= registers

    def wait(self, g: Group, vm: int | None, lgkm: int | None) -> None:
        """s_waitcnt: at most `vm` and `lgkm` operations stay outstanding."""
        vms, lgkms = g.queue
        if vm is not None and len(vms) > vm:
            del vms[: len(vms) - vm]
        if lgkm == 0:
            lgkms.clear()
        elif lgkm is not None and len(lgkms) > lgkm and not any(entry.tags & _UNORDERED for entry in lgkms):
            del lgkms[: len(lgkms) - lgkm]
        self.refresh(g)

    def refresh(self, g: Group) -> None:
        """Recompute which registers are outstanding."""
        busy = 0
        for entries in g.queue:
            for entry in entries:
                busy |= entry.registers
        g.busy = busy
        g.watch = g.pmask | busy | g.lazy

    @staticmethod
    def merge(queues: list[Queue]) -> Queue:
        """Queues of groups that join."""
        out: Queue = ([], [])
        for counter in (0, 1):
            lists = [queue[counter] for queue in queues]
            if all(entries == lists[0] for entries in lists):
                out[counter].extend(lists[0])
                continue
            for back in range(max(map(len, lists)), 0, -1):
                present = [entries[-back] for entries in lists if len(entries) >= back]
                registers = 0
                for entry in present:
                    registers |= entry.registers
                tags = frozenset().union(*(entry.tags for entry in present))
                out[counter].append(Pending(registers, tags, max(entry.pc for entry in present)))
        return out

    def check(self, g: Group, step: Step) -> None:
        """KVC0907 when the step touches a register that an outstanding operation will write."""
        read = step.read_mask
        for counter, order in ((0, "vm"), (1, "ds")):
            for entry in g.queue[counter]:
                same = step.in_order == order and not entry.tags & _UNORDERED
                overlap = entry.registers & (read if same else read | step.write_mask)
                if overlap:
                    self._fail(overlap, entry, counter)

    def barrier(self, g: Group) -> None:
        """KVC0907 when an LDS write is outstanding as other waves are let past the barrier."""
        for entry in g.queue[1]:
            if "ds_write" in entry.tags:
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
            f"{register_name(first)} is used before the {'/'.join(sorted(entry.tags))} of instruction {entry.pc} has"
            " returned",
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

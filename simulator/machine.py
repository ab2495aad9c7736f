"""The scheduler: batches of workgroups run in lockstep, grouped by program counter.

Groups part at divergent branches and join again when they stand at the same instruction. The group at the lowest
program counter goes first, which joins them soonest; one that has waited long goes before it, so that waves that spin
on a flag do not starve the wave that sets it. A seed other than 0 perturbs the order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kvc.diagnostics import Location
from kvc.simulator.faults import Hazard, SimFault, Trap
from kvc.simulator.memory import Buffer, Memory
from kvc.simulator.program import Program
from kvc.simulator.races import Lds, RaceFound
from kvc.simulator.state import VECTORS, Group, join
from kvc.simulator.step import Step
from kvc.simulator.waits import DmaTracker, Waits

_PATIENCE = 256  # blocks that a runnable group waits before it goes first
_RELEASE_DELAY = 64  # blocks that a complete barrier waits for other groups to join it


@dataclass(frozen=True)
class SimOptions:
    """What is checked. `max_instructions` bounds the instructions that one batch of workgroups issues (KVC0909).

    `race`: LDS races. `waits`: missing s_waitcnt. `uninit`: values never written. `collect`: report races, missing
    waits in `LaunchReport.hazards` and go on, where the default is to fault. `batch_waves`: waves simulated together.
    `tier`: "numpy" for the machine of this module, "c" for the compiled one, "auto" for the compiled one where it is
    there and knows the program. Whatever the compiled tier finds is judged by the NumPy tier, which runs the launch
    again.
    """

    race: bool = True
    waits: bool = True
    uninit: bool = True
    collect: bool = False
    max_instructions: int = 20_000_000
    batch_waves: int = 256
    tier: str = "auto"


@dataclass
class Batch:
    """Workgroups that run together, and what their waves share."""

    program: Program
    kernel: str
    memory: Memory
    options: SimOptions
    lds: Lds
    workgroups: list[tuple[int, int, int]]
    waves_per_group: int
    scratch: Buffer | None
    scratch_bytes: int
    lds_banks: int
    seed: int
    hazards: list[Hazard] = field(default_factory=list)
    atomics_seen: bool = False
    retired: int = 0

    def __post_init__(self) -> None:
        count = len(self.workgroups)
        self.wave_wg = np.repeat(np.arange(count), self.waves_per_group)
        self.lds_stride = self.lds.stride
        self.waits = Waits(self.options.waits)
        self.dma = DmaTracker()
        self.dma_owner = np.zeros(0, np.int32)
        self.registers = self.program.register_numbers
        self.register_set = sum(1 << register for register in self.registers)
        self.alive = np.full(count, self.waves_per_group)
        self.alive_total = count * self.waves_per_group
        self.rng = np.random.default_rng(self.seed)

    # ---- services for instructions

    def wait(self, g: Group, vm: int | None, lgkm: int | None) -> None:
        if not self.options.waits:
            if vm is not None and self.dma.flights:
                self._land(g, vm)
            return
        self.waits.wait(g, vm, lgkm)
        if self.dma.flights:
            self._land(g, sum("dma" in entry.tags for entry in g.queue[0]))

    def _land(self, g: Group, keep: int) -> None:
        for wave in g.waves.tolist():
            for address, width, values, pc in self.dma.land(wave, keep):
                owner = self.dma_owner[self._granules(address, width)]
                owner[owner == wave + 1] = 0
                self.dma_owner[self._granules(address, width)] = owner
                if self.lds.race:
                    self.lds.note_flat("write", address, np.full(address.size, wave), width, values, pc)

    def _granules(self, address: np.ndarray, width: int) -> np.ndarray:
        shift = self.lds.granule.bit_length() - 1
        return (address[:, None] >> shift) + np.arange(max(width // self.lds.granule, 1))

    def start_dma(self, g: Group, address: np.ndarray, width: int, pc: int) -> None:
        """A load into LDS at byte addresses [n] of the active lanes is on its way."""
        self.waits.vm(g, 0, "dma")
        if not self.dma_owner.size:
            self.dma_owner = np.zeros(self.lds.valid.size // self.lds.granule, np.int32)
        self.lds.note(g, "write", address, width, None, pc) if self.lds.race else None
        if not self.options.waits:
            return
        counts = np.bitwise_count(g.exec64).tolist()
        at = 0
        for wave, count in zip(g.waves.tolist(), counts, strict=True):
            own = address[at : at + count]
            at += count
            self.dma.issue(wave, (own, width, None, pc))
            self.dma_owner[self._granules(own, width)] = wave + 1

    def check_dma(self, g: Group, address: np.ndarray, width: int) -> None:
        """KVC0907 when a wave touches LDS bytes that its own load is still to write."""
        flat = address.reshape(-1)
        owner = self.dma_owner[self._granules(flat, width)]
        waves = np.repeat(g.waves, np.bitwise_count(g.exec64))
        bad = (owner == (waves + 1)[:, None]).any(axis=1)
        if bad.any():
            lanes = np.zeros((g.W, 64), bool)
            lanes[g.execb] = bad
            raise Trap("KVC0907", "LDS bytes are used before the load that writes them has returned", lanes)


class Machine:
    """Runs one batch to the end."""

    def __init__(self, batch: Batch, start: Group) -> None:
        self.batch = batch
        self.program = batch.program
        self.ready = [start]
        self.parked: list[Group] = []
        self.issued = 0
        self.delay = 0

    def run(self) -> None:
        """Until all waves have ended. Raises SimFault."""
        while True:
            if self.parked and (not self.ready or self.delay > _RELEASE_DELAY):
                self._release()
            if not self.ready:
                break
            group = self._choose()
            self._advance(group)
        self._end_epoch(None, [])

    # ---- choosing

    def _choose(self) -> Group:
        ready = self.ready
        if len(ready) == 1:
            return ready.pop()
        chosen = min(ready, key=lambda group: group.pc)
        oldest = max(ready, key=lambda group: group.age)
        if oldest.age > _PATIENCE:
            chosen = oldest
        elif self.batch.seed and self.batch.rng.random() < 0.25:
            chosen = ready[int(self.batch.rng.integers(len(ready)))]
        same = [group for group in ready if group.pc == chosen.pc]
        self.ready = [group for group in ready if group.pc != chosen.pc]
        for group in self.ready:
            group.age += 1
        chosen = join(same, Waits.merge, self.batch.waits.refresh) if len(same) > 1 else chosen
        chosen.age = 0
        return chosen

    # ---- running

    def _advance(self, g: Group) -> None:
        """Run blocks of one group until it parts, parks, ends, or another group could go."""
        program, waits = self.program, self.batch.waits
        limit = self.batch.options.max_instructions
        while True:
            block = program.block(g.pc)
            block.waves += g.W
            self.issued += len(block.steps) + 1
            self.batch.retired = self.issued
            if self.issued > limit:
                self._stuck(g)
            step: Any = None
            try:
                for step in block.steps:
                    if g.watch & step.regs:
                        self._careful(g, step)
                    waits.pc = step.ins.index
                    step.run(g)
                step = block.end
                if step is None:
                    g.pc = block.following
                    parted = None
                else:
                    if g.watch & step.regs:
                        self._careful(g, step)
                    if step.ins.name == "s_endpgm":
                        self._finish(g)
                        return
                    if step.ins.name == "s_barrier":
                        if self._barrier(g, step, block.following):
                            continue
                        return
                    parted = step.run(g)
            except Trap as trap:
                raise self._locate(g, step, trap) from None
            if parted is not None:
                self.ready += parted
                return
            self.delay += bool(self.parked)
            if self.ready or self.delay > _RELEASE_DELAY:
                self.ready.append(g)
                return

    def _careful(self, g: Group, step: Step) -> None:
        """The step touches a register that is shared with another group, outstanding, or has bits never written."""
        if g.lazy & step.regs:
            only_written = step.write_mask & ~step.read_mask
            g.forget(only_written if g.full else only_written & ~VECTORS)
            g.settle(step.regs)
        if g.busy & step.regs:
            try:
                self.batch.waits.check(g, step)
            except Trap as trap:
                self._hazard(g, step, trap)
        if g.pmask & step.regs:
            step.taint(g, step)

    def _hazard(self, g: Group, step: Step, trap: Trap) -> None:
        """Fault, or note the finding once for an instruction and go on."""
        if not self.batch.options.collect:
            raise trap
        hazards = self.batch.hazards
        if not any(item.pc == step.ins.index and item.code == trap.code for item in hazards):
            wave = int(g.waves[trap.wave])
            workgroup = self.batch.workgroups[int(self.batch.wave_wg[wave])]
            number = wave % self.batch.waves_per_group
            hazards.append(
                Hazard(trap.code, trap.message, step.ins.index, step.ins.line, step.ins.text, workgroup, number)
            )

    # ---- barriers and ends

    def _barrier(self, g: Group, step: Step, following: int) -> bool:
        """True when the group may go on at once; else it is parked."""
        batch = self.batch
        if batch.waves_per_group > 1:
            try:
                batch.waits.barrier(g)
            except Trap as trap:
                self._hazard(g, step, trap)
        if g.W == batch.alive_total == len(batch.wave_wg):
            g.pc = following
            self._end_epoch(None, [g])
            return True
        g.pc = following
        self.parked.append(g)
        return False

    def _release(self) -> None:
        """Let workgroups go whose waves all wait. KVC0908 when a workgroup can never be complete."""
        batch = self.batch
        self.delay = 0
        arrived = np.zeros(len(batch.workgroups), np.int64)
        place = np.full(len(batch.workgroups), -1)
        for group in self.parked:
            np.add.at(arrived, group.wg, 1)
            other = (place[group.wg] >= 0) & (place[group.wg] != group.pc)
            if other.any():
                trap = Trap("KVC0908", "waves of one workgroup wait at different barriers", other)
                raise self._locate(group, self.program.block(group.pc).steps or None, trap, barrier=True)
            place[group.wg] = group.pc
        complete = (arrived > 0) & (arrived == batch.alive)
        short = complete & (batch.alive != batch.waves_per_group)
        if short.any() or (not self.ready and not complete.any()):
            group = next(item for item in self.parked if not short.any() or short[item.wg].any())
            where = short[group.wg] if short.any() else np.ones(group.W, bool)
            trap = Trap(
                "KVC0908", "waves wait at a barrier that other waves of its workgroup ended without reaching", where,
                hint="all threads of a workgroup must reach the same barrier: do not return before it",
            )  # fmt: skip
            raise self._locate(group, None, trap, barrier=True)
        if not complete.any():
            return
        waiting, self.parked = self.parked, []
        going = [group for group in waiting if complete[group.wg].any()]
        for group in waiting:
            go = complete[group.wg]
            if go.all():
                self.ready.append(group)
                continue
            if go.any():
                self.ready.append(group.take(go))
                group = group.take(~go)
            self.parked.append(group)
        self._end_epoch(complete, going)

    def _end_epoch(self, passing: np.ndarray | None, going: list[Group]) -> None:
        """Check the LDS accesses of workgroups that pass a barrier (all of them when `passing` is None).

        `going` are the groups that do: reads they have not waited for still happen after the barrier.
        """
        batch = self.batch
        lds = batch.lds
        lds.settle()
        if not lds.race:
            return
        try:
            outstanding = {entry.pc for group in going for entry in group.queue[1] if "ds" in entry.tags}
            lds.check(passing, batch.wave_wg, frozenset(outstanding))
        except RaceFound as race:
            step = Step(self.program.assembly.code[race.pc], "lds", lambda g: None, [], [], lambda g, s: None)
            fault = self._fault(step, race.trap, race.wave, None)
            if not batch.options.collect:
                raise fault from None
            details = fault.diagnostic.details
            batch.hazards.append(
                Hazard("KVC0906", race.trap.message, race.pc, step.ins.line, step.ins.text, details["workgroup"],
                       details["wave"])
            )  # fmt: skip
        for wave, flights in batch.dma.flights.items():
            if passing is None or passing[batch.wave_wg[wave]]:
                for address, width, values, pc in flights:
                    lds.note_flat("write", address, np.full(address.size, wave), width, values, pc)

    def _finish(self, g: Group) -> None:
        np.subtract.at(self.batch.alive, g.wg, 1)
        self.batch.alive_total -= g.W

    # ---- faults

    def _stuck(self, g: Group) -> None:
        trap = Trap(
            "KVC0909", f"the batch has issued {self.issued} instructions",
            hint="a spin-wait that nothing ends, or raise SimOptions.max_instructions",
        )  # fmt: skip
        raise self._locate(g, self.program.block(g.pc).end, trap)

    def _locate(self, g: Group, step: Any, trap: Trap, barrier: bool = False) -> SimFault:
        if barrier:
            ins = self.program.assembly.code[g.pc - 1]
            step = Step(ins, "barrier", lambda g: None, [], [], lambda g, s: None)
        return self._fault(step, trap, int(g.waves[min(trap.wave, g.W - 1)]), trap.lane)

    def _fault(self, step: Step | None, trap: Trap, wave: int, lane: int | None) -> SimFault:
        batch = self.batch
        workgroup = batch.workgroups[int(batch.wave_wg[wave])]
        number = wave % batch.waves_per_group
        text, pc, line = ("", -1, 0) if step is None else (step.ins.text, step.ins.index, step.ins.line)
        where = f"workgroup {workgroup}, wave {number}" + ("" if lane is None else f", lane {lane}")
        return SimFault(
            trap.code, f"{trap.message} (kernel {batch.kernel}, instruction {pc} `{text}`, {where})",
            Location(self.program.file, line), trap.hint,
            kernel=batch.kernel, pc=pc, line=line, instruction=text, workgroup=workgroup, wave=number, lane=lane,
        )  # fmt: skip

"""What an emitted kernel did, wave by wave, and whether one of its instructions mattered: criteria of their own.

The simulator's scoreboard and race tracker judge a *changed* kernel. Where they let a change pass, this module asks the
*unchanged* kernel's trace whether that is right, with a second, simpler account of the same rules: a queue for each
wave and counter instead of queues shared by groups, a search over all pairs of accesses instead of marks, and for any
other instruction whether its result ever reaches an address, a branch or memory. Everything holds for the paths that
ran; which ones those are is decided by the inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from kvc.diagnostics import KvcError
from kvc.executor import UNWRITTEN_BYTE, LaunchPlan
from kvc.simulator import Memory, Program, load
from kvc.simulator.control import counters
from kvc.simulator.launch import launch
from kvc.simulator.machine import Machine, SimOptions
from kvc.simulator.races import Lds
from kvc.simulator.state import LANES, N_VECTOR, U32, Group
from kvc.simulator.step import Step

_UNORDERED = ("s_load", "s_buffer_load", "flat_")


@dataclass(frozen=True)
class LdsAccess:
    """LDS bytes [address, address + width) that a wave touched, after its `epoch`-th barrier."""

    workgroup: int
    wave: int
    epoch: int
    is_write: bool
    address: np.ndarray
    width: int


@dataclass
class Trace:
    """`waves` maps each distinct sequence of instruction numbers to how many waves ran it; `barriers` the barriers of
    each workgroup in order; `shared` are buffers that the launch both reads and writes."""

    program: Program
    waves: dict[tuple[int, ...], int] = field(default_factory=dict)
    lds: list[LdsAccess] = field(default_factory=list)
    barriers: dict[int, list[int]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def index_of(self, line: int) -> int:
        """The instruction on a line of the text."""
        return next(ins.index for ins in self.program.assembly.code if ins.line == line)

    def line_of(self, index: int) -> int:
        return self.program.assembly.code[index].line


class _Recorder:
    """Hooks that follow the waves of one launch on the NumPy tier."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.batches: dict[int, int] = {}
        self.kept: list[Any] = []  # batches stay alive, or their ids would be used again
        self.steps: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.epochs: dict[tuple[int, int], int] = defaultdict(int)
        self.batch: Any = None

    def number(self, batch: Any) -> int:
        if id(batch) not in self.batches:
            self.batches[id(batch)] = len(self.batches)
            self.kept.append(batch)
        return self.batches[id(batch)]

    def ran(self, g: Group, index: int, barrier: bool = False) -> None:
        self.batch = g.batch
        batch = self.number(g.batch)
        for wave in g.waves.tolist():
            self.steps[batch, wave].append(index)
            if barrier:
                self.epochs[batch, wave] += 1
                if wave % g.batch.waves_per_group == 0:
                    self.trace.barriers.setdefault(self.workgroup(batch, wave), []).append(index)

    def workgroup(self, batch: int, wave: int) -> int:
        return batch << 20 | wave // self.kept[batch].waves_per_group

    def access(self, lds: Lds, kind: str, address: np.ndarray, waves: np.ndarray, width: int) -> None:
        batch = self.number(self.batch)
        every = np.broadcast_to(waves, address.shape).reshape(-1)
        flat = address.reshape(-1) % lds.stride
        for wave in np.unique(every).tolist():
            mine = np.unique(flat[every == wave])
            at = LdsAccess(self.workgroup(batch, wave), wave, self.epochs[batch, wave], kind != "read", mine, width)
            self.trace.lds.append(at)


def record(plan: LaunchPlan, chip: str, memory: Memory, device: Mapping[str, Any], seed: int = 0) -> Trace:
    """Run one launch and follow every wave. Raises as `launch` does."""
    program = load(plan.asm, chip, plan.binary)
    trace = Trace(program)
    recorder = _Recorder(trace)
    _wrap(program, lambda g, step: recorder.ran(g, step.ins.index))
    plain_barrier, plain_note = Machine._barrier, Lds.note_flat
    plain_load, plain_store, plain_locate = Memory.load, Memory.store, Memory.locate
    touched: dict[str, set[str]] = {"read": set(), "write": set()}

    def barrier(self: Machine, g: Group, step: Step, following: int) -> bool:
        recorder.ran(g, step.ins.index, barrier=True)
        return plain_barrier(self, g, step, following)

    def note(self: Lds, kind: str, address: Any, waves: Any, width: int, values: Any, pc: int) -> None:
        recorder.access(self, kind, address, waves, width)
        plain_note(self, kind, address, waves, width, values, pc)

    def touch(kind: str, plain: Any) -> Any:
        def method(self: Memory, addr: np.ndarray, *rest: Any) -> Any:
            touched[kind] |= {buffer.name for buffer, _ in self._split(addr, rest[-1])}
            return plain(self, addr, *rest)

        return method

    with (
        mock.patch.object(Machine, "_barrier", barrier),
        mock.patch.object(Lds, "note_flat", note),
        mock.patch.object(Memory, "load", touch("read", plain_load)),
        mock.patch.object(Memory, "store", touch("write", plain_store)),
        mock.patch.object(Memory, "locate", touch("write", plain_locate)),
    ):
        _run(program, plan, memory, device, seed)
    for steps in recorder.steps.values():
        trace.waves[tuple(steps)] = trace.waves.get(tuple(steps), 0) + 1
    trace.shared = touched["read"] & touched["write"]
    return trace


def _wrap(program: Program, before: Any) -> None:
    """Call `before(group, step)` ahead of every instruction."""
    for ins in program.assembly.code:
        step = program.step(ins.index)
        plain = step.run

        def run(g: Group, plain: Any = plain, step: Step = step) -> Any:
            before(g, step)
            return plain(g)

        step.run = run


def _run(program: Program, plan: LaunchPlan, memory: Memory, device: Mapping[str, Any], seed: int) -> None:
    args = [device[str(value)] if kind == "buffer" else value for kind, value in plan.args]
    launch(
        program, plan.kernel, plan.grid, plan.block, args, mem=memory, dynamic_lds=plan.dynamic_lds, seed=seed,
        options=SimOptions(tier="numpy"),
    )  # fmt: skip


def place(chip: str, buffers: Mapping[str, np.ndarray], fresh: set[str]) -> tuple[Memory, dict[str, Any]]:
    """Buffers on a simulated device, as kvc.simulator.executor places them."""
    memory = Memory(chip)
    device: dict[str, Any] = {}
    for name, array in buffers.items():
        if name in fresh:
            device[name] = memory.alloc(array.nbytes, name=name)
            device[name].bytes[:] = UNWRITTEN_BYTE
        else:
            device[name] = memory.upload(array, name)
    return memory, device


# ---------------------------------------------------------------- waits


@dataclass(frozen=True)
class WaitFinding:
    """Whether anything goes wrong without a wait: `hazard` names it ("" for nothing), `pending` counts executions at
    which the wait had something to wait for, `retired` the lines of the later waits that did its work."""

    hazard: str
    executions: int
    pending: int
    retired: tuple[int, ...]


def without_wait(trace: Trace, index: int, weaker: tuple[int | None, int | None] = (None, None)) -> WaitFinding:
    """Follow every wave with the wait `index` gone (or as weak as `weaker`: vmcnt, lgkmcnt)."""
    executions = pending = 0
    retired: set[int] = set()
    for steps, count in trace.waves.items():
        board = _Board(trace.program, index, weaker)
        for number, step in enumerate(steps):
            problem = board.step(step)
            if problem:
                return WaitFinding(f"{problem} (step {number} of {count} waves)", executions, pending, ())
        executions += board.executions
        pending += board.pending
        retired |= {trace.line_of(i) for i in board.retired}
    return WaitFinding("", executions, pending, tuple(sorted(retired)))


class _Board:
    """The outstanding operations of one wave, in two queues, newest last; `loose` are those that only the deleted wait
    had waited for."""

    def __init__(self, program: Program, deleted: int, weaker: tuple[int | None, int | None]) -> None:
        self.program, self.deleted, self.weaker = program, deleted, weaker
        self.vm: list[tuple[int, int]] = []  # (registers, instruction)
        self.lgkm: list[tuple[int, int]] = []
        self.loose: set[int] = set()
        self.retired: set[int] = set()
        self.executions = self.pending = 0

    def step(self, index: int) -> str:
        ins, step = self.program.assembly.code[index], self.program.step(index)
        name = ins.name
        if name == "s_waitcnt":
            self._wait(index, *counters(ins))
            return ""
        if name == "s_barrier":
            writes = [i for _, i in self.lgkm if self.program.assembly.code[i].name.startswith("ds_write")]
            return f"LDS write of line {self._line(writes[0])} outstanding at a barrier" if writes else ""
        for queue in (self.vm, self.lgkm):
            for registers, source in queue:
                other = self.program.assembly.code[source].name
                same = step.in_order and self._kind(other) == self._kind(name) and not other.startswith(_UNORDERED)
                if registers & (step.read_mask if same else step.read_mask | step.write_mask):
                    return f"line {ins.line} touches what line {self._line(source)} has yet to write"
        kind = self._kind(name)
        if kind in ("vm", "flat"):
            self.vm.append((step.write_mask, index))
        if kind in ("lgkm", "flat"):
            self.lgkm.append((step.write_mask, index))
        for queue, limit in ((self.vm, 63), (self.lgkm, 15)):
            if len(queue) > limit and not self._unordered(queue):
                del queue[0]
        return ""

    def _line(self, index: int) -> int:
        return self.program.assembly.code[index].line

    @staticmethod
    def _kind(name: str) -> str:
        if name.startswith(("global_load", "global_store", "global_atomic", "buffer_load", "buffer_store")):
            return "vm"
        if name.startswith(("buffer_atomic", "scratch_")):
            return "vm"
        if name.startswith(("ds_", "s_load", "s_buffer_load")):
            return "lgkm"
        return "flat" if name.startswith("flat_") else ""

    def _unordered(self, queue: list[tuple[int, int]]) -> bool:
        return any(self.program.assembly.code[i].name.startswith(_UNORDERED) for _, i in queue)

    def _wait(self, index: int, vm: int | None, lgkm: int | None) -> None:
        if index == self.deleted:
            self.executions += 1
            before = {i for _, i in self._due(self.vm, vm) + self._due(self.lgkm, lgkm)}
            vm, lgkm = self.weaker
            loose = before - {i for _, i in self._due(self.vm, vm) + self._due(self.lgkm, lgkm)}
            self.pending += bool(loose)
            self.loose |= loose
        for queue, allowed in ((self.vm, vm), (self.lgkm, lgkm)):
            due = self._due(queue, allowed)
            if index != self.deleted and any(i in self.loose for _, i in due):
                self.retired.add(index)
                self.loose -= {i for _, i in due}
            del queue[: len(due)]

    def _due(self, queue: list[tuple[int, int]], allowed: int | None) -> list[tuple[int, int]]:
        """What a wait for `allowed` outstanding operations takes off a queue."""
        if allowed is None or (allowed and self._unordered(queue)):
            return []
        return queue[: max(len(queue) - allowed, 0)]


# ---------------------------------------------------------------- barriers


def conflicts_without_barrier(trace: Trace, index: int) -> str:
    """Two waves of a workgroup that touch one LDS byte, one of them writing, with only the barrier `index` between
    them; "" where there are none. Buffers that a launch both reads and writes may carry data between waves too."""
    if trace.shared:
        return f"{', '.join(sorted(trace.shared))} is both read and written"
    merged: dict[int, list[int]] = {}
    for workgroup, passed in trace.barriers.items():
        joined, number = [0], 0
        for barrier in passed:
            number += barrier != index
            joined.append(number)
        merged[workgroup] = joined
    groups: dict[tuple[int, int], list[LdsAccess]] = defaultdict(list)
    for access in trace.lds:
        joined = merged.get(access.workgroup, [0])
        groups[access.workgroup, joined[min(access.epoch, len(joined) - 1)]].append(access)
    for accesses in groups.values():
        writers: dict[int, int] = {}
        for access in (a for a in accesses if a.is_write):
            for byte in _bytes(access):
                if writers.setdefault(byte, access.wave) != access.wave:
                    return f"two waves write LDS byte {byte}"
        for access in accesses:
            for byte in _bytes(access):
                if writers.get(byte, access.wave) != access.wave:
                    return f"a wave touches LDS byte {byte} that another writes"
    return ""


def _bytes(access: LdsAccess) -> list[int]:
    return (access.address[:, None] + np.arange(access.width)).reshape(-1).tolist()


# ---------------------------------------------------------------- values


def value_is_dead(
    plan: LaunchPlan, chip: str, memory: Memory, device: Mapping[str, Any], line: int, seed: int = 0
) -> bool:
    """Whether nothing that counts depends on what the instruction on `line` writes: it is marked as never written
    each time, and the run does not fault (KVC0905) where such a value reaches an address, a branch or memory."""
    program = load(plan.asm, chip, plan.binary)
    step = program.step(next(ins.index for ins in program.assembly.code if ins.line == line))
    plain = step.run

    def run(g: Group) -> Any:
        out = plain(g)
        for register in step.targets:
            if register < N_VECTOR:
                g.set_vector_poison(register, np.full((g.W, LANES), 0xFFFF_FFFF, U32))
            else:
                g.set_poison(register, np.full(g.W, 0xFFFF_FFFF, U32))
        return out

    if not step.targets:
        return False
    step.run = run
    try:
        _run(program, plan, memory, device, seed)
    except KvcError:
        return False
    return True

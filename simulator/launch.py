"""Launching a kernel: kernel arguments, starting registers, batches, sampling of workgroups, the report."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.simulator.abi import Descriptor, KernelArg, KernelInfo
from kvc.simulator.asm import DATA_BASE
from kvc.simulator.counters import Counters, total
from kvc.simulator.faults import Hazard
from kvc.simulator.machine import Batch, Machine, SimOptions
from kvc.simulator.memory import Buffer, Memory
from kvc.simulator.program import Program
from kvc.simulator.races import Lds
from kvc.simulator.state import EXEC, LANES, N_SCALAR, SCALAR_BIT, U32, VCC, Group

Dim3 = tuple[int, int, int]

_ADD_TID = 1 << 23
_ONES = 0xFFFF_FFFF
_GARBAGE = 0xDEAD_BEEF


@dataclass
class LaunchReport:
    """`seconds` is wall-clock time of the simulation, `cpu_seconds` processor time. `executed` are the
    numbers of the instructions that some wave ran, `workgroups` the flat numbers of those that were run, `sampled`
    whether that is not all of them. `tier` is what ran it: "numpy" or "c"; `notes` say why not the compiled one.
    """

    kernel: str
    counters: Counters
    seconds: float
    cpu_seconds: float
    hazards: list[Hazard]
    workgroups: list[int]
    sampled: bool
    executed: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    tier: str = "numpy"


def sample_workgroups(grid: Dim3, seed: int, n: int) -> list[int]:
    """Flat numbers (x fastest) of workgroups worth running: all corners, the middle of each edge, then a seeded random
    part of the interior up to `n` in all; every workgroup when there are no more than `n`. At least the corners.
    """
    count = grid[0] * grid[1] * grid[2]
    if count <= n:
        return list(range(count))

    def flat(x: int, y: int, z: int) -> int:
        return x + grid[0] * (y + grid[1] * z)

    ends = [sorted({0, size - 1}) for size in grid]
    chosen = {flat(x, y, z) for z in ends[2] for y in ends[1] for x in ends[0]}
    middles = [size // 2 for size in grid]
    for axis in range(3):
        if grid[axis] > 2 and len(chosen) < n:
            for end in ends[(axis + 1) % 3]:
                place = [end if i == (axis + 1) % 3 else 0 for i in range(3)]
                place[axis] = middles[axis]
                if len(chosen) < n:
                    chosen.add(flat(*place))
    rng = np.random.default_rng(seed)
    while len(chosen) < n:
        chosen.add(int(rng.integers(count)))
    return sorted(chosen)


def launch(
    program: Program,
    kernel_name: str,
    grid: Dim3,
    block: Dim3,
    args: list[Any],
    mem: Memory,
    dynamic_lds: int = 0,
    seed: int = 0,
    workgroups: list[int] | None = None,
    options: SimOptions | None = None,
) -> LaunchReport:
    """Run a kernel on `grid` workgroups of `block` threads.

    `args`: Buffers, Python or NumPy numbers, bytes for structures, None for a null pointer, in the order of the
    kernel's parameters; missing trailing pointers are null. `dynamic_lds` in bytes, beyond the kernel's own.
    `workgroups` restricts the run to those flat numbers. Raises SimFault (KVC09xx), KvcError KVC0603 for a launch that
    the hardware would refuse.
    """
    options = options or SimOptions()
    if kernel_name not in program.kernels:
        raise KvcError("KVC0603", f"no kernel {kernel_name!r}", hint=f"one of: {', '.join(program.kernels)}")
    kernel = program.kernels[kernel_name]
    row = arch_row(program.arch)
    threads = block[0] * block[1] * block[2]
    lds_bytes = kernel.lds + dynamic_lds
    _admit(kernel, row.lds_bytes, grid, block, lds_bytes)
    started, processor = time.perf_counter(), time.process_time()
    program.reset_counters()
    pointers, constants = _launch_buffers(program, kernel, args, mem, grid, block, dynamic_lds)
    waves = (threads + LANES - 1) // LANES
    every = grid[0] * grid[1] * grid[2]
    flat = list(range(every)) if workgroups is None else sorted(set(workgroups))
    if flat and not 0 <= flat[0] <= flat[-1] < every:
        raise KvcError("KVC0603", f"workgroup numbers outside 0..{every - 1}")
    # The hardware promises no order of workgroups: another seed starts them in another.
    order = flat if seed == 0 else np.random.default_rng(seed).permutation(np.array(flat, np.int64)).tolist()
    counters = Counters(waves=len(flat) * waves, workgroups=len(flat))
    hazards: list[Hazard] = []
    notes: list[str] = []
    per_batch = _workgroups_per_batch(len(flat), max(options.batch_waves // waves, 1))
    try:
        why = _compiled(program, kernel, mem, options, order, grid, block, lds_bytes, seed, pointers)
        tier = "numpy" if why else "c"
        if why and options.tier != "numpy" and why != _TOO_SMALL:
            notes.append(f"NumPy tier: {why}")
        with np.errstate(all="ignore"):
            for at in range(0, len(flat) if why else 0, per_batch):
                part = order[at : at + per_batch]
                batch = _run_batch(program, kernel, mem, options, part, grid, block, lds_bytes, seed, pointers, hazards)
                if batch.atomics_seen and len(flat) < every:
                    notes.append("atomics of a sampled grid: what they update is a part of the whole")
                if batch.lds.partial:
                    notes.append("an epoch without barrier was checked for races in parts")
    finally:
        for buffer in (*pointers, *constants):
            mem.unmap(buffer)
    total(program.blocks.values(), counters)
    return LaunchReport(
        kernel_name, counters, time.perf_counter() - started, time.process_time() - processor, hazards, flat,
        len(flat) < every, program.executed(),
        list(dict.fromkeys(notes)), tier,
    )  # fmt: skip


# Up to which code that does not loop runs faster than it is made into records. Longer code has branches at which waves
# part, and parting is dear in the NumPy tier.
_FEW_WAVES, _SHORT = 64, 128
_TOO_SMALL = "a launch too small to prepare the compiled tier for"
_STATE_WAVES = 1024  # waves whose starting registers are made together for the compiled tier


def _compiled(
    program: Program,
    kernel: KernelInfo,
    mem: Memory,
    options: SimOptions,
    flat: list[int],
    grid: Dim3,
    block: Dim3,
    lds_bytes: int,
    seed: int,
    pointers: tuple[Buffer, Buffer],
) -> str:
    """Run the launch in the compiled tier: "" when it is done, else why the NumPy tier has to run it."""
    if options.tier == "numpy":
        return "asked for"
    if options.tier not in ("auto", "c"):
        raise KvcError("KVC0603", f"no simulator tier {options.tier!r}", hint="one of: auto, numpy, c")
    from kvc.simulator.native.run import Start, Task, attempt

    waves = (block[0] * block[1] * block[2] + LANES - 1) // LANES
    each = max(_STATE_WAVES // waves, 1)

    def chunks() -> Iterator[Start]:
        for at in range(0, len(flat), each):
            places = _places(flat[at : at + each], grid)
            lds = Lds(len(places), 0, program.lds_granule, waves, False, False)
            batch = Batch(
                program, kernel.name, mem, options, lds, places, waves, None, 0, arch_row(program.arch).lds_banks, seed
            )
            g = _start(batch, kernel, block, pointers)
            ids = np.broadcast_to(g.R[0], (g.W, LANES))
            yield Start(np.stack([array.view(U32) for array in g.S], axis=1), ids, g.exec64, g.pmask)

    short = not program.loops and len(program.assembly.code) <= _SHORT
    if options.tier == "auto" and program.native is None and short and len(flat) * waves <= _FEW_WAVES:
        return _TOO_SMALL
    if kernel.scratch:
        why = "the kernel has scratch memory"
    else:
        banks = arch_row(program.arch).lds_banks
        why = attempt(program, Task(kernel, mem, options, waves, lds_bytes, banks, seed, chunks))
    if why and options.tier == "c":
        raise KvcError("KVC0902", f"the compiled tier cannot run {kernel.name}: {why}", hint="tier='auto' or 'numpy'")
    return why


def _places(flat: list[int], grid: Dim3) -> list[Dim3]:
    return [(n % grid[0], n // grid[0] % grid[1], n // (grid[0] * grid[1])) for n in flat]


def _workgroups_per_batch(workgroups: int, most: int) -> int:
    """About `most`, in batches of equal size: a small last batch would take as many steps as a large one."""
    batches = max(round(workgroups / most), 1)
    return max(-(-workgroups // batches), 1)


def _admit(kernel: KernelInfo, lds_limit: int, grid: Dim3, block: Dim3, lds_bytes: int) -> None:
    threads = block[0] * block[1] * block[2]
    if min(*grid, *block) < 1:
        raise KvcError("KVC0603", f"grid {grid} and block {block} must be at least 1 each way")
    if threads > kernel.max_flat_workgroup:
        raise KvcError("KVC0603", f"{threads} threads, {kernel.name} is compiled for {kernel.max_flat_workgroup}")
    if kernel.required_block and tuple(kernel.required_block) != tuple(block):
        raise KvcError("KVC0603", f"{kernel.name} requires blocks of {kernel.required_block}, not {block}")
    if lds_bytes > lds_limit:
        raise KvcError("KVC0603", f"{lds_bytes} bytes of LDS, the chip has {lds_limit} per workgroup")


def _launch_buffers(
    program: Program, kernel: KernelInfo, args: list[Any], mem: Memory, grid: Dim3, block: Dim3, dynamic_lds: int
) -> tuple[tuple[Buffer, Buffer], list[Buffer]]:
    """Kernel arguments and dispatch packet, and the program's data: they live as long as the launch."""
    packed = pack_arguments(kernel, args, grid, block, dynamic_lds)
    kernarg = mem.alloc(max(kernel.kernarg_bytes, 8) + 64, fill=b"\0", name="kernel arguments")
    kernarg.bytes[: len(packed)] = np.frombuffer(packed, np.uint8)
    packet = mem.alloc(64, fill=b"\0", name="dispatch packet")
    packet.bytes[:64] = np.frombuffer(_packet(kernel, grid, block, kernel.lds + dynamic_lds, kernarg.addr), np.uint8)
    return (kernarg, packet), _map_constants(program, mem)


def _map_constants(program: Program, mem: Memory) -> list[Buffer]:
    """Data sections of the program. Addresses in it are fixed, so one program at a time is mapped."""
    data = bytes(program.assembly.data_bytes)
    return [mem.map_at(DATA_BASE, data, "constant data")] if data else []


# ---- arguments


def pack_arguments(kernel: KernelInfo, args: list[Any], grid: Dim3, block: Dim3, dynamic_lds: int) -> bytes:
    """The kernarg segment. KVC0603 when the arguments do not fit the kernel's parameters."""
    if len(args) > len(kernel.args):
        raise KvcError("KVC0603", f"{len(args)} arguments, {kernel.name} has {len(kernel.args)} parameters")
    out = bytearray(max(kernel.kernarg_bytes, max((arg.offset + arg.size for arg in kernel.args), default=0)))
    for i, parameter in enumerate(kernel.args):
        if i >= len(args) and parameter.kind != "global_buffer":
            raise KvcError("KVC0603", f"argument {i} ({parameter.name}) of {kernel.name} is missing")
        value = args[i] if i < len(args) else None
        out[parameter.offset : parameter.offset + parameter.size] = _pack(parameter, value, i)
    hidden = _hidden_values(grid, block, dynamic_lds)
    for kind, parameter in kernel.hidden.items():
        value = hidden.get(kind, 0)
        out[parameter.offset : parameter.offset + parameter.size] = value.to_bytes(parameter.size, "little")
    return bytes(out)


def _pack(parameter: KernelArg, value: Any, position: int) -> bytes:
    size = parameter.size
    if value is None:
        return bytes(size)
    if isinstance(value, Buffer):
        raw = struct.pack("<Q", value.addr)
    elif isinstance(value, (bytes, bytearray)):
        raw = bytes(value)
    elif isinstance(value, np.generic):
        raw = value.tobytes()
    elif isinstance(value, float):
        raw = np.array(value, f"f{size}" if size in (2, 4, 8) else "f8").tobytes()
    elif isinstance(value, int):
        raw = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    else:
        raise KvcError("KVC0603", f"argument {position}: a {type(value).__name__} cannot be passed to a kernel")
    if len(raw) != size:
        raise KvcError("KVC0603", f"argument {position} ({parameter.name}): {len(raw)} bytes where {size} belong")
    return raw


def _hidden_values(grid: Dim3, block: Dim3, dynamic_lds: int) -> dict[str, int]:
    out: dict[str, int] = {"hidden_grid_dims": 1 + (grid[1] * block[1] > 1) + (grid[2] * block[2] > 1)}
    for axis, name in enumerate("xyz"):
        out[f"hidden_block_count_{name}"] = grid[axis]
        out[f"hidden_group_size_{name}"] = block[axis]
        out[f"hidden_remainder_{name}"] = 0
        out[f"hidden_global_offset_{name}"] = 0
    out["hidden_dynamic_lds_size"] = dynamic_lds
    return out


def _packet(kernel: KernelInfo, grid: Dim3, block: Dim3, lds_bytes: int, kernarg: int) -> bytes:
    """The AQL kernel dispatch packet (HSA runtime specification 2.9.6)."""
    sizes = [grid[i] * block[i] for i in range(3)]
    return struct.pack(
        "<HHHHHHIIIIIQQQQ", 0, 3, *block, 0, *sizes, kernel.scratch, lds_bytes, 0, kernarg, 0, 0
    )  # fmt: skip


# ---- starting state


def _run_batch(
    program: Program,
    kernel: KernelInfo,
    mem: Memory,
    options: SimOptions,
    flat: list[int],
    grid: Dim3,
    block: Dim3,
    lds_bytes: int,
    seed: int,
    pointers: tuple[Buffer, Buffer],
    hazards: list[Hazard],
) -> Batch:
    threads = block[0] * block[1] * block[2]
    waves = (threads + LANES - 1) // LANES
    places = _places(flat, grid)
    lds = Lds(len(flat), lds_bytes, program.lds_granule, waves, options.race and waves > 1, options.uninit)
    scratch = None
    if kernel.scratch:
        fill = None if options.uninit else b"\0"
        scratch = mem.alloc(len(flat) * waves * LANES * kernel.scratch, fill=fill, name="scratch")
    batch = Batch(
        program, kernel.name, mem, options, lds, places, waves, scratch, kernel.scratch,
        arch_row(program.arch).lds_banks, seed, hazards,
    )  # fmt: skip
    group = _start(batch, kernel, block, pointers)
    try:
        Machine(batch, group).run()
    finally:
        if scratch is not None:
            mem.unmap(scratch)
    return batch


def _start(batch: Batch, kernel: KernelInfo, block: Dim3, pointers: tuple[Buffer, Buffer]) -> Group:
    registers = batch.program.registers
    every = np.arange(len(batch.wave_wg))
    g = Group(batch, every, kernel.entry)
    garbage, stale = np.full((g.W, 1), _GARBAGE, U32), np.full((g.W, 1), _ONES, U32)
    zero, some = np.zeros((g.W, 1), U32), np.full(g.W, _GARBAGE, U32)
    g.R = [zero] * (256 + registers.agprs if registers.agprs else registers.vgprs)
    g.S = [np.zeros(g.W, U32)] * N_SCALAR
    descriptor = kernel.descriptor
    vectors = [*range(max(registers.vgprs, 1)), *range(256, 256 + registers.agprs)]
    for register in vectors:
        g.R[register] = garbage
    for register in [*range(registers.sgprs), VCC, VCC + 1]:
        g.S[register] = some
    if batch.options.uninit:
        scalars = [SCALAR_BIT + register for register in [*range(registers.sgprs), VCC, VCC + 1]]
        for register in vectors:
            g.poison[register] = stale
            g.pmask |= 1 << register
        for register in scalars:
            g.poison[register] = stale[:, 0]
            g.pmask |= 1 << register
        g.watch = g.pmask
    for register, value in _scalar_state(batch, descriptor, pointers).items():
        g.S[register] = np.broadcast_to(np.asarray(value, U32), g.W).copy()
        g.set_poison(SCALAR_BIT + register, None)
    assert VCC < EXEC
    threads = block[0] * block[1] * block[2]
    lane = np.arange(batch.waves_per_group * LANES).reshape(-1, LANES)  # of one workgroup: all are alike
    x, rest = lane % block[0], lane // block[0]
    y, z = rest % block[1], rest // block[1]
    workgroups = len(batch.workgroups)
    g.R[0] = np.tile((x | y << 10 | z << 20).astype(U32), (workgroups, 1))
    g.set_poison(0, None)
    if threads % LANES:
        active = np.packbits(lane < threads, axis=1, bitorder="little").view(np.uint64)[:, 0]
        g.set_exec(np.tile(active, workgroups))
    return g


def _scalar_state(batch: Batch, d: Descriptor, pointers: tuple[Buffer, Buffer]) -> dict[int, Any]:
    """Scalar registers that are set when a wave starts, in the order of the usage guide. Preloaded arguments stay
    stale: the compatibility prologue in front of the kernel loads them.
    """
    kernarg, packet = pointers
    scratch = batch.scratch.addr if batch.scratch else 0
    items: list[Any] = []

    def pointer(value: int) -> None:
        items.extend([value & _ONES, value >> 32])

    if d.private_segment_buffer:
        items += [scratch & _ONES, scratch >> 32 & 0xFFFF, _ONES, _ADD_TID]
    if d.dispatch_ptr:
        pointer(packet.addr)
    if d.queue_ptr:
        pointer(0)
    if d.kernarg_ptr:
        pointer(kernarg.addr)
    if d.dispatch_id:
        pointer(0)
    if d.flat_scratch_init:
        pointer(scratch)
    if d.private_segment_size:
        items.append(d.scratch_bytes)
    out = dict(enumerate(items))
    at = d.user_sgprs
    places = np.array(batch.workgroups)[batch.wave_wg]
    for axis in range(3):
        if d.workgroup_id[axis]:
            out[at] = places[:, axis]
            at += 1
    if d.workgroup_info:
        out[at] = batch.waves_per_group
        at += 1
    if d.enable_private_segment and (d.private_segment_buffer or d.flat_scratch_init):
        out[at] = 0
    return out

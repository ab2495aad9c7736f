"""Vector memory: global, flat, scratch and buffer instructions, loads into LDS, atomics.

Source: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", sections 9 (buffers), 10 (flat, global, scratch).
Addresses: global `v[0:1], off` or `v0, s[0:1]`; buffer base + soffset + voffset + offset with the raw range check
`voffset + offset < num_records - soffset`; scratch per lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from kvc.simulator.asm import Assembly, Instruction
from kvc.simulator.atomics import GLOBAL, Atomic, apply
from kvc.simulator.counters import transactions
from kvc.simulator.faults import Trap
from kvc.simulator.lds import (
    active_only,
    demand_address,
    expand_active,
    gather_data,
    merge_half,
    stale_lanes,
    widen,
    write_loaded,
)
from kvc.simulator.memory import CARRIER, Misaligned, OutOfBounds
from kvc.simulator.operands import (
    PRIVATE_APERTURE,
    SHARED_APERTURE,
    Operand,
    parse_operand,
    raw_scalar,
    refuse,
    set_bits,
)
from kvc.simulator.poison import names
from kvc.simulator.state import LANES, M0, SCALAR_BIT, U32, U64, Group
from kvc.simulator.step import Step, full


class Form(NamedTuple):
    """What a load or store moves: `width` bytes; `signed`; `half` for d16; `high` for the upper half."""

    width: int
    signed: bool = False
    half: bool = False
    high: bool = False


_LOADS = {
    "ubyte": Form(1), "sbyte": Form(1, True), "ushort": Form(2), "sshort": Form(2, True), "dword": Form(4),
    "dwordx2": Form(8), "dwordx3": Form(12), "dwordx4": Form(16), "ubyte_d16": Form(1, half=True),
    "ubyte_d16_hi": Form(1, half=True, high=True), "sbyte_d16": Form(1, True, True),
    "sbyte_d16_hi": Form(1, True, True, True), "short_d16": Form(2, half=True),
    "short_d16_hi": Form(2, half=True, high=True),
}  # fmt: skip
_STORES = {
    "byte": Form(1), "byte_d16_hi": Form(1, high=True), "short": Form(2), "short_d16_hi": Form(2, high=True),
    "dword": Form(4), "dwordx2": Form(8), "dwordx3": Form(12), "dwordx4": Form(16),
}  # fmt: skip
_NAME = re.compile(r"^(global|flat|scratch|buffer)_(load|store|atomic)_(.+)$")
_CACHE = frozenset(["glc", "slc", "sc0", "sc1", "nt"])
_MODS = {
    "global": _CACHE | {"offset"}, "flat": _CACHE | {"offset"}, "scratch": _CACHE | {"offset"},
    "buffer": _CACHE | {"offset", "offen", "idxen", "lds"},
}  # fmt: skip
_MASK48 = np.uint64((1 << 48) - 1)
_ADD_TID = 1 << 23
_FLAT_FENCES = frozenset(["buffer_wbl2", "buffer_inv", "buffer_wbinvl1", "buffer_wbinvl1_vol", "buffer_invl2"])


class Where(NamedTuple):
    """Addresses of an access. `addr` uint64 [W, 64] or [W, 1] (all lanes equal) under a full selection, else [n];
    `chosen` None for all lanes, else bool [W, 64] of those that access memory (active and in range).
    """

    addr: np.ndarray
    chosen: np.ndarray | None


Address = Callable[[Group], Where]


def is_vmem(name: str) -> bool:
    return bool(_NAME.match(name)) or name in _FLAT_FENCES


def decode(ins: Instruction, assembly: Assembly) -> Step:
    """Any vector memory instruction. KVC0902 for what is not known."""
    if ins.name in _FLAT_FENCES:
        return Step(ins, "vmem", lambda g: g.batch.waits.vm(g, 0, "store"), [], [], lambda g, step: None, "vm")
    match = _NAME.match(ins.name)
    if match is None:
        raise refuse(ins, f"opcode {ins.name!r}")
    space, action, rest = match.groups()
    unknown = [name for name in ins.mods if name not in _MODS[space]]
    if unknown:
        raise refuse(ins, f"modifier {unknown[0]!r}")
    into_lds = rest.startswith("lds_") or "lds" in ins.mods
    rest = rest.removeprefix("lds_")
    if action == "load" and rest in _LOADS:
        return _lds_load(ins, space, _LOADS[rest], assembly) if into_lds else _load(ins, space, _LOADS[rest], assembly)
    if action == "store" and rest in _STORES:
        return _store(ins, space, _STORES[rest], assembly)
    if action == "atomic" and rest in GLOBAL and space != "scratch":
        return _atomic(ins, space, GLOBAL[rest], assembly)
    raise refuse(ins, f"opcode {ins.name!r}")


# ---- addresses


def _address(
    ins: Instruction, space: str, operands: list[Operand], width: int, assembly: Assembly
) -> tuple[Address, list[tuple[int, int]]]:
    """The address computation of an instruction and the registers it reads."""
    if space == "buffer":
        return _buffer_address(ins, operands, width, assembly)
    offset = int(ins.mods.get("offset", 0))
    if space == "scratch":
        return _scratch_address(ins, operands, offset)
    address = operands[0]
    base = operands[1] if len(operands) > 1 else Operand("special", name="off")
    delta = np.uint64(offset & 0xFFFF_FFFF_FFFF_FFFF)
    register = address.register
    if base.kind == "s":
        scalar = base.register

        def compute_saddr(g: Group) -> np.ndarray:
            return g.R[register].view(U32).astype(U64) + (g.spair(scalar) + delta)[:, None]

        compute = compute_saddr
        sources = full([register, *set_bits(base, 2)])
    else:

        def compute_pair(g: Group) -> np.ndarray:
            return g.pair(register) + delta if offset else g.pair(register)

        compute = compute_pair
        sources = full([register, register + 1])

    def where(g: Group) -> Where:
        addr = compute(g)
        if g.full:
            return Where(addr, None)
        chosen = g.execb
        return Where(np.broadcast_to(addr, (g.W, LANES))[chosen], chosen)

    return where, sources


def _buffer_address(
    ins: Instruction, operands: list[Operand], width: int, assembly: Assembly
) -> tuple[Address, list[tuple[int, int]]]:
    vaddr, resource, soffset = operands
    immediate = int(ins.mods.get("offset", 0))
    offen, idxen = "offen" in ins.mods, "idxen" in ins.mods
    register, desc = vaddr.register, resource.register
    scalar = raw_scalar(soffset, "u32", ins, assembly)
    sources = full(set_bits(vaddr, offen + idxen) + set_bits(resource, 4) + set_bits(soffset, 1))

    def where(g: Group) -> Where:
        flags = int(np.bitwise_or.reduce(g.S[desc + 3].view(U32)))
        if flags & _ADD_TID:
            raise Trap("KVC0902", "buffer resource with ADD_TID outside of scratch")
        base = g.spair(desc) & _MASK48
        stride = (g.S[desc + 1].view(U32) >> 16) & 0x3FFF
        records = g.S[desc + 2].view(U32).astype(np.int64)
        extra = np.broadcast_to(scalar(g), g.W).astype(np.int64)
        offset = (
            g.R[register + idxen].view(U32).astype(np.int64) + immediate
            if offen
            else np.full((g.W, 1), immediate, np.int64)
        )
        if (g.S[desc + 1].view(U32) >> 31).any():
            raise Trap("KVC0902", "swizzled buffer resource")
        if idxen:
            index = g.R[register].view(U32).astype(np.int64)
            inside = index < records[:, None]
            offset = offset + index * stride[:, None]
        else:
            inside = offset + (width - 1) < (records - extra)[:, None]
        addr = offset.view(U64) + (base + extra.view(U64))[:, None]
        if g.full and inside.all():
            return Where(addr, None)
        chosen = np.broadcast_to(inside, (g.W, LANES))
        if not g.full:
            chosen = chosen & g.execb
        return Where(np.broadcast_to(addr, (g.W, LANES))[chosen], chosen)

    return where, sources


def _scratch_address(ins: Instruction, operands: list[Operand], offset: int) -> tuple[Address, list[tuple[int, int]]]:
    vaddr, saddr = operands
    sources = full(set_bits(vaddr, 1) + set_bits(saddr, 1))

    def where(g: Group) -> Where:
        own = np.full((g.W, 1), offset, np.int64)
        if vaddr.kind == "v":
            own = own + g.R[vaddr.register].view(np.int32)
        if saddr.kind == "s":
            own = own + g.S[saddr.register].view(np.int32)[:, None]
        return _lane_memory(g, np.broadcast_to(own, (g.W, LANES)))

    return where, sources


def _lane_memory(g: Group, own: np.ndarray) -> Where:
    """Offsets in a lane's private memory to addresses of the batch's scratch buffer."""
    size = g.batch.scratch_bytes
    bad = g.execb & ((own < 0) | (own >= size))
    if bad.any():
        first = int(own.reshape(-1)[int(bad.argmax())])
        raise Trap("KVC0903", f"scratch access at {first:#x}, a lane has {size} bytes", bad)
    start = g.batch.scratch.addr + (g.waves[:, None] * LANES + np.arange(LANES)) * size
    addr = (start + own).astype(U64)
    return Where(addr, None) if g.full else Where(addr[g.execb], g.execb)


def _is_scratch_resource(g: Group, desc: int) -> bool:
    return bool(int(g.S[desc + 3].view(U32)[0]) & _ADD_TID)


def _buffer_or_scratch(
    ins: Instruction, operands: list[Operand], width: int, assembly: Assembly
) -> tuple[Address, list[tuple[int, int]]]:
    """Buffer addressing, or the swizzled per-lane form where the resource in use is that of scratch (gfx90a)."""
    plain, sources = _buffer_address(ins, operands, width, assembly)
    vaddr, resource, soffset = operands
    offset, offen = int(ins.mods.get("offset", 0)), "offen" in ins.mods
    scalar = raw_scalar(soffset, "u32", ins, assembly)
    desc = resource.register

    def where(g: Group) -> Where:
        if not _is_scratch_resource(g, desc):
            return plain(g)
        own = np.full((g.W, 1), offset, np.int64) + np.broadcast_to(scalar(g), g.W).astype(np.int64)[:, None]
        # s_mov s32-style stack pointers count bytes of the whole wave: 64 lanes.
        own = own if not offen else own + g.R[vaddr.register].view(np.int32)
        return _lane_memory(g, np.broadcast_to(own, (g.W, LANES)))

    return where, sources


def _bound(
    ins: Instruction, space: str, texts: tuple[str, ...], width: int, assembly: Assembly
) -> tuple[Address, list[tuple[int, int]]]:
    operands = [parse_operand(text, ins) for text in texts]
    if space == "buffer":
        if len(operands) != 3:
            raise refuse(ins, "operands")
        return _buffer_or_scratch(ins, operands, width, assembly)
    return _address(ins, space, operands, width, assembly)


def _address_taint(step_sources: list[tuple[int, int]], clear: bool) -> Callable[[Group, Step], None]:
    vectors = [register for register, _ in step_sources if register < SCALAR_BIT]
    scalars = [register for register, _ in step_sources if register >= SCALAR_BIT]

    def taint(g: Group, step: Step) -> None:
        for register in vectors:
            demand_address(g, step, register, 1, "an address")
        for register in scalars:
            bits = g.poison.get(register)
            if bits is not None and ((bits != 0) & (g.exec64 != 0)).any():
                raise Trap("KVC0905", f"an address was never written: {names(g, step)}", bits != 0)
        if clear:
            for register in step.targets:
                g.set_vector_poison(register, None)

    return taint


# ---- loads


def _load(ins: Instruction, space: str, form: Form, assembly: Assembly) -> Step:
    target = parse_operand(ins.operands[0], ins).register
    where, sources = _bound(ins, space, ins.operands[1:], form.width, assembly)
    count = max(form.width // 4, 1)
    registers = sum(1 << target + i for i in range(count))

    def run(g: Group) -> None:
        at = where(g)
        if space == "flat":
            values, stale = _flat_load(g, at, form.width)
        else:
            values, stale = fetch(g, at, form.width)
        _account(g, step, at, form.width, "read")
        if at.chosen is not None and space == "buffer":
            values, stale = _zero_filled(g, at, values, stale)
        elif at.chosen is None and values.shape[:2] == (g.W, 1) and form.width > 4:
            values = np.repeat(values, LANES, axis=1)
            stale = None if stale is None else np.broadcast_to(stale, (g.W, LANES))
        if form.width < 4:
            values = widen(values, form.signed)
            if form.half:
                if values.ndim == 2 and values.shape[1] == 1:
                    values = np.broadcast_to(values, (g.W, LANES))
                shaped = values if not g.full else values.reshape(g.W, LANES)
                old_shape = shaped.reshape(-1)
                merged, stale = merge_half(
                    g, target, old_shape, None if stale is None else stale.reshape(-1), form.high
                )
                values = merged.reshape(shaped.shape)
        write_loaded(g, target, values, form.width, stale)
        _pend(g, space, registers, "load")

    targets = list(range(target, target + count))
    own = full([target]) if form.half else []
    step = Step(
        ins,
        "flat" if space == "flat" else "vmem",
        run,
        sources + own,
        targets,
        _address_taint(sources, not form.half),
        "vm",
    )
    return step


def _pend(g: Group, space: str, registers: int, tag: str) -> None:
    if space == "flat":
        g.batch.waits.flat(g, registers)
    else:
        g.batch.waits.vm(g, registers, tag)


def fetch(g: Group, at: Where, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Values at the addresses, carrier-typed, and a mask of stale ones; faults say which lane."""
    if not at.addr.size:
        shape = (0, 3) if width == 12 else (0,)
        return np.zeros(shape, CARRIER[4 if width == 12 else width]), None
    try:
        values, stale = g.batch.memory.load(at.addr, width)
    except (OutOfBounds, Misaligned) as trap:
        raise Trap(trap.code, trap.message, _lanes_of(g, at, trap.mask)) from None
    return values, stale if g.batch.options.uninit else None


def _lanes_of(g: Group, at: Where, mask: np.ndarray) -> np.ndarray:
    if at.chosen is None:
        return np.broadcast_to(mask, (g.W, mask.shape[1])) if mask.ndim == 2 else mask
    out = np.zeros((g.W, LANES), bool)
    out[at.chosen] = mask
    return out


def _zero_filled(
    g: Group, at: Where, values: np.ndarray, stale: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Out-of-range lanes of a buffer load read zero: values for all active lanes."""
    assert at.chosen is not None
    out = np.zeros((g.W, LANES, *values.shape[1:]), values.dtype)
    out[at.chosen] = values
    if stale is not None:
        lanes = np.zeros((g.W, LANES), bool)
        lanes[at.chosen] = stale
        stale = lanes if g.full else lanes[g.execb]
    return (out if g.full else out[g.execb]), stale


def _account(g: Group, step: Step, at: Where, width: int, key: str) -> None:
    lanes = g.W * LANES if at.chosen is None else at.addr.size
    step.count(key, lanes * width)
    if at.chosen is None:
        transactions(g, step, at.addr, width)


def _apertures(addr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = addr >> np.uint64(32)
    return high == SHARED_APERTURE, high == PRIVATE_APERTURE


def _flat_load(g: Group, at: Where, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """A generic address may lie in LDS or in scratch; a mixture within one instruction is taken apart."""
    shared, private = _apertures(at.addr)
    if not shared.any() and not private.any():
        return fetch(g, at, width)
    flat = _as_flat(g, at)
    shape = (flat.addr.size, 3) if width == 12 else (flat.addr.size,)
    out = np.zeros(shape, CARRIER[4 if width == 12 else width])
    stale: np.ndarray = np.zeros(flat.addr.size, bool)
    for chosen, where in _spaces(g, flat):
        if where is None:
            address = _lds_addresses(g, flat, chosen, width)
            values, bad = g.batch.lds.read(address, width)
            if g.batch.lds.race:
                g.batch.lds.note_flat("read", address, _waves_of(g, flat)[chosen], width, None, g.batch.waits.pc)
        else:
            values, bad = g.batch.memory.load(where, width)
        out[chosen] = values
        if bad is not None:
            stale[chosen] = bad
    if at.chosen is None:
        out = out.reshape(g.W, LANES, *out.shape[1:])
        stale = stale.reshape(g.W, LANES)
    return out, stale if stale.any() else None


def _as_flat(g: Group, at: Where) -> Where:
    if at.chosen is not None:
        return at
    return Where(np.broadcast_to(at.addr, (g.W, LANES)).reshape(-1), None)


def _waves_of(g: Group, flat: Where) -> np.ndarray:
    every = np.broadcast_to(g.waves[:, None], (g.W, LANES))
    return every.reshape(-1) if flat.chosen is None else every[flat.chosen]


def _spaces(g: Group, flat: Where) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """[(selection [n], global addresses, or None for LDS)]."""
    shared, private = _apertures(flat.addr)
    out: list[tuple[np.ndarray, np.ndarray | None]] = []
    if shared.any():
        out.append((shared, None))
    if private.any():
        lanes = np.broadcast_to(g.waves[:, None] * LANES + np.arange(LANES), (g.W, LANES))
        lanes = lanes.reshape(-1) if flat.chosen is None else lanes[flat.chosen]
        offset = (flat.addr & np.uint64(0xFFFF_FFFF))[private]
        if (offset >= g.batch.scratch_bytes).any():
            raise Trap("KVC0903", f"flat access past the {g.batch.scratch_bytes} bytes of a lane's scratch")
        start = g.batch.scratch.addr + lanes[private] * g.batch.scratch_bytes
        out.append((private, start.astype(U64) + offset))
    rest = ~(shared | private)
    if rest.any():
        out.append((rest, flat.addr[rest]))
    return out


def _lds_addresses(g: Group, flat: Where, chosen: np.ndarray, width: int) -> np.ndarray:
    own = (flat.addr[chosen] & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    if (own + width > g.batch.lds.limit).any():
        raise Trap("KVC0903", f"flat access past the {g.batch.lds.limit} bytes of LDS")
    base = np.broadcast_to(g.lds_base, (g.W, LANES))
    base = base.reshape(-1) if flat.chosen is None else base[flat.chosen]
    return own + base[chosen]


def _lds_load(ins: Instruction, space: str, form: Form, assembly: Assembly) -> Step:
    """Loads that go to LDS at M0 + offset + lane * width; lanes out of a buffer's range write zero."""
    where, sources = _bound(ins, space, ins.operands, form.width, assembly)
    offset, width = int(ins.mods.get("offset", 0)), max(form.width, 4)

    def run(g: Group) -> None:
        at = where(g)
        values, stale = fetch(g, at, form.width)
        _account(g, step, at, form.width, "read")
        if at.chosen is not None and space == "buffer":
            values, stale = _zero_filled(g, at, values, stale)
        elif at.chosen is None and values.shape[:2] == (g.W, 1):
            values = np.repeat(values, LANES, axis=1)
            stale = None if stale is None else np.broadcast_to(stale, (g.W, LANES))
        if form.width < 4:
            values = widen(values, form.signed)
        base = g.S[M0].view(U32).astype(np.int64) + offset
        own = base[:, None] + np.arange(LANES) * width
        if int(own.max()) + width > g.batch.lds.limit:
            raise Trap("KVC0903", f"load to LDS byte {int(own.max())}, the workgroup has {g.batch.lds.limit} bytes")
        target = active_only(g, own + g.lds_base)
        flat_values = values.reshape(-1, *values.shape[2:]) if g.full else values
        flat_stale = None if stale is None else stale.reshape(-1)
        g.batch.lds.write(target, flat_values, width, flat_stale)
        step.count("lds_bytes", target.size * width)
        g.batch.start_dma(g, target, width, ins.index)

    every = sources + full([SCALAR_BIT + M0])
    step = Step(ins, "vmem", run, every, [], _address_taint(every, False), "vm")
    return step


# ---- stores


def _store(ins: Instruction, space: str, form: Form, assembly: Assembly) -> Step:
    texts = list(ins.operands)
    data = parse_operand(texts.pop(1 if space in ("global", "flat", "scratch") else 0), ins).register
    if space == "scratch" and parse_operand(ins.operands[0], ins).kind == "special" and len(texts) == 1:
        raise refuse(ins, "operands")
    where, sources = _bound(ins, space, tuple(texts), form.width, assembly)
    count, shift = max(form.width // 4, 1), 16 if form.high else 0
    field = ((1 << 8 * min(form.width, 4)) - 1) << shift

    def run(g: Group) -> None:
        at = where(g)
        _account(g, step, at, form.width, "written")
        stale = stale_lanes(g, list(range(data, data + count)), field) if g.pmask & step.regs else None
        private = space == "scratch" or (space == "buffer" and at.addr.size and _in_scratch(g, at))
        if stale is not None and not private:
            _refuse_stale(g, step, at, stale)
        values = gather_data(g, data, form.width, shift)
        if at.chosen is not None and space == "buffer" and at.chosen is not g.execb:
            picked = at.chosen.reshape(-1) if g.full else at.chosen[g.execb]
            values = values[picked]
        put(g, at, values, form.width, space)
        _pend(g, space, 0, "store")

    own = [(data + i, field) for i in range(count)]
    step = Step(
        ins, "flat" if space == "flat" else "vmem", run, sources + own, [], _address_taint(sources, False), "vm"
    )
    return step


def _in_scratch(g: Group, at: Where) -> bool:
    buffer = g.batch.scratch
    return buffer is not None and buffer.addr <= int(at.addr.reshape(-1)[0]) < buffer.end


def _refuse_stale(g: Group, step: Step, at: Where, stale: np.ndarray) -> None:
    lanes = expand_active(g, stale) if not g.full else stale.reshape(g.W, LANES)
    if at.chosen is not None:
        lanes = lanes & at.chosen
    if lanes.any():
        raise Trap("KVC0905", f"a value never written is stored to global memory: {names(g, step)}", lanes)


def put(g: Group, at: Where, values: np.ndarray, width: int, space: str = "global") -> None:
    """Store [n] values at the addresses."""
    if not at.addr.size:
        return
    flat = _as_flat(g, at)
    if space == "flat" and any(part.any() for part in _apertures(flat.addr)):
        for chosen, where in _spaces(g, flat):
            if where is None:
                address = _lds_addresses(g, flat, chosen, width)
                g.batch.lds.write(address, values[chosen], width)
                if g.batch.lds.race:
                    waves = _waves_of(g, flat)[chosen]
                    g.batch.lds.note_flat("write", address, waves, width, values[chosen], g.batch.waits.pc)
            else:
                g.batch.memory.store(where, values[chosen], width)
        return
    try:
        g.batch.memory.store(flat.addr, values, width)
    except (OutOfBounds, Misaligned) as trap:
        mask = trap.mask.reshape(g.W, LANES) if at.chosen is None else trap.mask
        raise Trap(trap.code, trap.message, _lanes_of(g, at, mask)) from None


# ---- atomics


def _atomic(ins: Instruction, space: str, atomic: Atomic, assembly: Assembly) -> Step:
    texts = list(ins.operands)
    returns = "sc0" in ins.mods or "glc" in ins.mods
    if space == "buffer":
        data = parse_operand(texts.pop(0), ins).register
        target = data if returns else -1
    else:
        target = parse_operand(texts.pop(0), ins).register if returns else -1
        data = parse_operand(texts.pop(1), ins).register
    where, sources = _bound(ins, space, tuple(texts), atomic.width, assembly)
    count = atomic.width // 4

    def run(g: Group) -> None:
        at = where(g)
        flat = _as_flat(g, at)
        step.count("atomics", flat.addr.size)
        g.batch.atomics_seen = True
        values = [gather_data(g, data + i * count, atomic.width) for i in range(1 + atomic.compares)]
        if at.chosen is not None and at.chosen is not g.execb:
            picked = at.chosen.reshape(-1) if g.full else at.chosen[g.execb]
            values = [value[picked] for value in values]
        before = _update(g, at, flat, atomic, [value.view(atomic.dtype) for value in values], returns)
        if returns and before is not None:
            _return(g, at, target, before.view(CARRIER[atomic.width]), atomic.width)
        _pend(g, space, sum(1 << target + i for i in range(count)) if returns else 0, "load" if returns else "store")

    operands = full([data + i for i in range(count * (1 + atomic.compares))])
    targets = list(range(target, target + count)) if returns else []

    def taint(g: Group, step: Step) -> None:
        _address_taint(sources, False)(g, step)
        for register, _ in operands:
            demand_address(g, step, register, 1, "the operand of an atomic")
        for register in targets:
            g.set_vector_poison(register, None)

    step = Step(ins, "flat" if space == "flat" else "vmem", run, sources + operands, targets, taint, "vm")
    return step


def _return(g: Group, at: Where, target: int, before: np.ndarray, width: int) -> None:
    if at.chosen is None:
        write_loaded(g, target, before.reshape(g.W, LANES), width, None)
        return
    out = np.zeros((g.W, LANES), before.dtype)
    out[at.chosen] = before
    write_loaded(g, target, out if g.full else out[g.execb], width, None)


def _update(
    g: Group, at: Where, flat: Where, atomic: Atomic, values: list[np.ndarray], returns: bool
) -> np.ndarray | None:
    before = np.zeros(flat.addr.size, atomic.dtype) if returns else None
    if not flat.addr.size:
        return before
    shared, private = _apertures(flat.addr)
    if shared.any() or private.any():
        raise Trap("KVC0902", "flat atomic on LDS or scratch")
    try:
        parts = g.batch.memory.locate(flat.addr, atomic.width)
    except (OutOfBounds, Misaligned) as trap:
        mask = trap.mask.reshape(g.W, LANES) if at.chosen is None else trap.mask
        raise Trap(trap.code, trap.message, _lanes_of(g, at, mask)) from None
    for buffer, chosen, index in parts:
        if buffer.written is not None and not buffer.written.take(index * atomic.width).all():
            raise Trap("KVC0905", f"an atomic on bytes never written of buffer {buffer.name!r}")
        picked = slice(None) if chosen is None else chosen
        compare = values[1][picked] if atomic.compares else None
        memory = buffer.typed[atomic.width].view(atomic.dtype)
        old = apply(memory, index, atomic, values[0][picked], compare, returns)
        if before is not None and old is not None:
            before[picked] = old
    return before

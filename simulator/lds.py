"""LDS instructions: reads and writes of every width, two-address forms, transposing reads, atomics.

Source: "AMD Instinct CDNA3 / CDNA4 Instruction Set Architecture", sections 11 and 12.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from kvc.simulator.asm import Assembly, Instruction
from kvc.simulator.atomics import DS, Atomic, apply
from kvc.simulator.counters import bank_conflicts
from kvc.simulator.faults import Trap
from kvc.simulator.memory import CARRIER, Misaligned
from kvc.simulator.operands import parse_operand, refuse
from kvc.simulator.poison import any_source, names
from kvc.simulator.state import LANES, U32, U64, Group
from kvc.simulator.step import Step, full

Addresses = Callable[[Group], np.ndarray]

_READ = re.compile(r"^ds_read_(u8|i8|u16|i16)(_d16)?(_hi)?$")
_READ_WORDS = {"ds_read_b32": 4, "ds_read_b64": 8, "ds_read_b96": 12, "ds_read_b128": 16}
_WRITE = {"ds_write_b8": 1, "ds_write_b16": 2, "ds_write_b32": 4, "ds_write_b64": 8, "ds_write_b96": 12,
          "ds_write_b128": 16, "ds_write_b8_d16_hi": 1, "ds_write_b16_d16_hi": 2}  # fmt: skip
_TWO = re.compile(r"^ds_(read|write)2(st64)?_b(32|64)$")
_TRANSPOSE = {"ds_read_b64_tr_b16": 16, "ds_read_b64_tr_b8": 8, "ds_read_b64_tr_b4": 4}
_MODS = frozenset({"offset", "offset0", "offset1"})


def access_width(name: str) -> int | None:
    """Bytes of the smallest unit an LDS instruction touches, or None where it is no LDS access."""
    if name in _READ_WORDS:
        return min(_READ_WORDS[name], 4)
    if name in _WRITE:
        return min(_WRITE[name], 4)
    match = _READ.match(name)
    if match:
        return 1 if match[1].endswith("8") else 2
    return 4 if _TWO.match(name) or name in _TRANSPOSE or name in DS or "_lds" in name else None


def decode(ins: Instruction, assembly: Assembly) -> Step:
    """Any LDS access. KVC0902 for what is not known."""
    unknown = [name for name in ins.mods if name not in _MODS]
    if unknown:
        raise refuse(ins, f"modifier {unknown[0]!r}")
    match = _TWO.match(ins.name)
    if match:
        return _two(ins, match[1] == "read", int(match[3]) // 8, 64 if match[2] else 1)
    if ins.name in _READ_WORDS or _READ.match(ins.name) or ins.name in _TRANSPOSE:
        return _read(ins)
    if ins.name in _WRITE:
        return _write(ins)
    if ins.name in DS:
        return _atomic(ins, DS[ins.name])
    raise refuse(ins, f"opcode {ins.name!r}")


# ---- addresses


def addresses(g: Group, register: int, offset: int, width: int) -> np.ndarray:
    """Byte addresses in the batch's LDS: [W, 64] under a full EXEC, else [n] of the active lanes. KVC0903 outside. Base
    and offset add up modulo 2^32: compilers put negative bases into the register."""
    lds = g.batch.lds
    own = g.vector(register)
    if offset:
        own = own + np.uint32(offset)
    limit = lds.limit - width
    if g.full:
        if limit < 0 or int(own.max()) > limit:
            raise _outside(g, own, width, limit)
        return own + g.lds_base
    active = g.execb
    chosen = own[active]
    if chosen.size and (limit < 0 or int(chosen.max()) > limit):
        raise _outside(g, own, width, limit)
    return chosen + np.broadcast_to(g.lds_base, (g.W, LANES))[active]


def _outside(g: Group, own: np.ndarray, width: int, limit: int) -> Trap:
    bad = g.execb & (own.astype(np.int64) > limit)
    first = int(own.reshape(-1)[int(bad.argmax())])
    return Trap(
        "KVC0903", f"LDS access of {width} bytes at {first:#x}, the workgroup has {g.batch.lds.limit} bytes", bad
    )


def expand_active(g: Group, values: np.ndarray) -> np.ndarray:
    """Values of active lanes [n, ...] back to [W, 64, ...]; as they are under a full EXEC."""
    if g.full:
        return values
    out = np.zeros((g.W, LANES, *values.shape[1:]), values.dtype)
    out[g.execb] = values
    return out


def active_only(g: Group, values: np.ndarray) -> np.ndarray:
    """[W, 64, ...] to the active lanes [n, ...], flattened under a full EXEC too."""
    return values.reshape(-1, *values.shape[2:]) if g.full else values[g.execb]


def write_loaded(g: Group, register: int, values: np.ndarray, width: int, stale: np.ndarray | None) -> None:
    """Bind what a load returned (carrier-typed, [W, 64] or [n]) to registers, and mark stale lanes."""
    values = expand_active(g, values)
    count = max(width // 4, 1)
    if width <= 4:
        g.write(register, values)
    elif width == 8:
        g.write_pair(register, values)
    else:
        words = values if width == 12 else values[..., None].view(U32)
        g.write_words(register, words)
        if g.full and width == 16:
            g.fragments[register, "b128"] = (g.R[register : register + 4], values)
    if stale is not None:
        lanes = expand_active(g, stale) * np.uint32(0xFFFF_FFFF)
        for i in range(count):
            g.set_vector_poison(register + i, lanes)


def demand_address(g: Group, step: Step, register: int, count: int, what: str) -> None:
    """KVC0905 when an address register is stale in an active lane."""
    for number in range(register, register + count):
        bits = g.poison.get(number)
        if bits is not None:
            lanes = (bits != 0) & g.execb
            if lanes.any():
                raise Trap("KVC0905", f"{what} was never written: {names(g, step)}", lanes)


def stale_lanes(g: Group, registers: list[int], mask: int = 0xFFFF_FFFF) -> np.ndarray | None:
    """Active lanes in which one of the vector registers is stale, as stored order [n], or None."""
    out: np.ndarray | None = None
    for register in registers:
        bits = g.poison.get(register)
        if bits is not None:
            lanes = np.broadcast_to((bits & np.uint32(mask)) != 0, (g.W, LANES))
            out = lanes if out is None else out | lanes
    if out is None:
        return None
    chosen = active_only(g, out)
    return chosen if chosen.any() else None


def _load_taint(address: int, keep: bool) -> Callable[[Group, Step], None]:
    def taint(g: Group, step: Step) -> None:
        demand_address(g, step, address, 1, "an LDS address")
        if not keep:
            for register in step.targets:
                g.set_vector_poison(register, None)

    return taint


def _located(g: Group, trap: Misaligned) -> Trap:
    return Trap(trap.code, trap.message, expand_active(g, trap.mask))


# ---- reads


def _read(ins: Instruction) -> Step:
    target, address = (parse_operand(text, ins).register for text in ins.operands[:2])
    offset = int(ins.mods.get("offset", 0))
    match = _READ.match(ins.name)
    transpose = _TRANSPOSE.get(ins.name)
    width = 8 if transpose else _READ_WORDS.get(ins.name) or (1 if match and match[1].endswith("8") else 2)
    signed = bool(match and match[1].startswith("i"))
    high, half = bool(match and match[3]), bool(match and match[2])
    count = max(width // 4, 1)
    registers = sum(1 << target + i for i in range(count))

    def run(g: Group) -> None:
        where = addresses(g, address, offset, width)
        values, stale = _fetch(g, where, width, ins)
        step.count("lds_bytes", values.shape[0] * (LANES if g.full else 1) * width)
        bank_conflicts(g, step, where, width)
        if transpose is not None:
            values, stale = _transposed(g, values, stale, transpose)
        if match:
            values = widen(values, signed)
            if half:
                values, stale = merge_half(g, target, values, stale, high)
        write_loaded(g, target, values, width, stale)
        g.batch.waits.lds(g, registers)

    sources = full([address]) + (full([target]) if half else [])
    targets = list(range(target, target + count))
    step = Step(ins, "lds", run, sources, targets, _load_taint(address, half), in_order="ds")
    return step


def _fetch(g: Group, where: np.ndarray, width: int, ins: Instruction) -> tuple[np.ndarray, np.ndarray | None]:
    lds = g.batch.lds
    if g.batch.dma.flights:
        g.batch.check_dma(g, where, width)
    try:
        values, stale = lds.read(where, width)
    except Misaligned as trap:
        raise _located(g, trap) from None
    if lds.race:
        lds.note(g, "read", where, width, None, ins.index)
    return values, stale


def widen(values: np.ndarray, signed: bool) -> np.ndarray:
    """8 or 16 bits to a dword."""
    if signed:
        return values.view(np.dtype(f"i{values.dtype.itemsize}")).astype(np.int32).view(U32)
    return values.astype(U32)


def merge_half(
    g: Group, target: int, values: np.ndarray, stale: np.ndarray | None, high: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """d16 loads write one half and keep the other. Also clears or sets the poison of that half."""
    old = active_only(g, g.vector(target)).reshape(values.shape)
    field = np.uint32(0xFFFF_0000 if high else 0xFFFF)
    merged = (old & ~field) | (values << np.uint32(16) if high else values & field)
    bits = g.poison.get(target)
    if bits is not None or stale is not None:
        kept = np.zeros((1, 1), U32) if bits is None else bits & ~field
        fresh = np.zeros((1, 1), U32) if stale is None else expand_active(g, stale) * field
        g.set_vector_poison(target, kept | fresh)
    return merged, None


def _transposed(
    g: Group, values: np.ndarray, stale: np.ndarray | None, bits: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """ds_read_b64_tr_*: in each block of 16 lanes a matrix of rows of 16 elements, row r in lanes r * 16/n ..., n
    elements to a lane; lane i receives column i.
    """
    if not g.full:
        raise Trap("KVC0902", "transposing LDS read with inactive lanes is not defined")
    count = 64 // bits
    per_row = 16 // count
    if bits == 4:
        nibbles = values[..., None].view(np.uint8)
        elements = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(g.W, 4, 16, 16)
        columns = np.ascontiguousarray(elements.transpose(0, 1, 3, 2))
        out = (columns[..., 0::2] | columns[..., 1::2] << 4).astype(np.uint8).view(U64)
    else:
        elements = values[..., None].view(np.dtype(f"u{bits // 8}")).reshape(g.W, 4, count, per_row * count)
        out = np.ascontiguousarray(elements.transpose(0, 1, 3, 2)).view(U64)
    if stale is not None:
        blocks = stale.reshape(g.W, 4, 16).any(axis=2)
        stale = np.repeat(blocks, 16, axis=1)
    return out.reshape(g.W, LANES), stale


def _two(ins: Instruction, is_read: bool, width: int, scale: int) -> Step:
    """read2 and write2: two accesses at offsets that count elements (64 of them with st64)."""
    offsets = [int(ins.mods.get(key, 0)) * width * scale for key in ("offset0", "offset1")]
    count = width // 4
    numbers = [parse_operand(text, ins).register for text in ins.operands]
    if is_read:
        target, address = numbers[:2]
        registers = sum(1 << target + i for i in range(2 * count))

        def read(g: Group) -> None:
            loaded = []
            for offset in offsets:
                where = addresses(g, address, offset, width)
                loaded.append(_fetch(g, where, width, ins))
                bank_conflicts(g, step, where, width)
            step.count("lds_bytes", loaded[0][0].size * 2 * width)
            for i, (values, stale) in enumerate(loaded):
                write_loaded(g, target + i * count, values, width, stale)
            g.batch.waits.lds(g, registers)

        targets = list(range(target, target + 2 * count))
        step = Step(ins, "lds", read, full([address]), targets, _load_taint(address, False), in_order="ds")
        return step
    address, *data = numbers

    def write(g: Group) -> None:
        for offset, register in zip(offsets, data, strict=True):
            _put(g, step, address, offset, register, width, 0)
        g.batch.waits.lds(g, 0, "ds_write")

    sources = full([address] + [register + i for register in data for i in range(count)])
    step = Step(ins, "lds", write, sources, [], _store_taint(address))
    return step


# ---- writes


def _store_taint(address: int) -> Callable[[Group, Step], None]:
    return lambda g, step: demand_address(g, step, address, 1, "an LDS address")


def gather_data(g: Group, register: int, width: int, shift: int = 0) -> np.ndarray:
    """Store data of the active lanes, flattened, carrier-typed (uint32 [n, 3] for 12 bytes)."""
    if width <= 4:
        words = active_only(g, g.vector(register))
        return (words >> np.uint32(shift) if shift else words).astype(CARRIER[width])
    if width == 8:
        pair = g.pair(register)
        return active_only(g, pair if pair.shape[1] == LANES else np.broadcast_to(pair, (g.W, LANES)))
    known = g.fragments.get((register, "b128"))
    if (
        known is not None
        and width == 16
        and all(a is b for a, b in zip(known[0], g.R[register : register + 4], strict=True))
    ):
        return active_only(g, known[1])
    words = np.empty((g.W, LANES, width // 4), U32)
    for i in range(width // 4):
        words[..., i] = g.vector(register + i)
    return active_only(g, words if width == 12 else words.view(CARRIER[16])[..., 0])


def _put(g: Group, step: Step, address: int, offset: int, register: int, width: int, shift: int) -> None:
    lds = g.batch.lds
    where = addresses(g, address, offset, width)
    bank_conflicts(g, step, where, width)
    where = where.reshape(-1)
    if not where.size:
        return
    values = gather_data(g, register, width, shift)
    step.count("lds_bytes", where.size * width)
    field = ((1 << 8 * min(width, 4)) - 1) << shift
    stale = stale_lanes(g, list(range(register, register + max(width // 4, 1))), field) if g.pmask & step.regs else None
    if g.batch.dma.flights:
        g.batch.check_dma(g, where, width)
    try:
        lds.write(where, values, width, stale)
    except Misaligned as trap:
        raise _located(g, trap) from None
    if lds.race:
        lds.note(g, "write", where, width, values, step.ins.index)


def _write(ins: Instruction) -> Step:
    address, data = (parse_operand(text, ins).register for text in ins.operands[:2])
    offset, width = int(ins.mods.get("offset", 0)), _WRITE[ins.name]
    shift = 16 if ins.name.endswith("_hi") else 0

    def run(g: Group) -> None:
        _put(g, step, address, offset, data, width, shift)
        g.batch.waits.lds(g, 0, "ds_write")

    field = ((1 << 8 * min(width, 4)) - 1) << shift
    sources = [*full([address]), *((data + i, field) for i in range(max(width // 4, 1)))]
    step = Step(ins, "lds", run, sources, [], _store_taint(address))
    return step


def _atomic(ins: Instruction, atomic: Atomic) -> Step:
    returns = "_rtn_" in ins.name or "wrxchg" in ins.name
    registers = [parse_operand(text, ins).register for text in ins.operands]
    target = registers.pop(0) if returns else -1
    address, *data = registers
    offset, width, count = int(ins.mods.get("offset", 0)), atomic.width, atomic.width // 4

    def run(g: Group) -> None:
        lds = g.batch.lds
        where = addresses(g, address, offset, width).reshape(-1)
        step.count("atomics", where.size)
        if lds.race and where.size:
            lds.note(g, "atomic", where, width, None, ins.index)
        index, unit = lds.index(where, width)
        if unit != width:
            raise Trap("KVC0904", f"LDS atomic of {width} bytes is not aligned")
        operands = [gather_data(g, register, width).view(atomic.dtype) for register in data]
        # ds_cmpst names the comparand first, then the new value.
        value, compare = (operands[1], operands[0]) if atomic.compares else (operands[0], None)
        if not lds.all_valid and where.size:
            _, stale = lds.read(where, width)
            if stale is not None:
                raise Trap("KVC0905", "an LDS atomic on bytes never written", expand_active(g, stale))
        before = apply(lds.typed[width].view(atomic.dtype), index, atomic, value, compare, returns)
        if returns and before is not None:
            shaped = before.view(CARRIER[width])
            write_loaded(g, target, shaped.reshape(g.W, LANES) if g.full else shaped, width, None)
        g.batch.waits.lds(
            g, sum(1 << target + i for i in range(count)) if returns else 0, "ds" if returns else "ds_write"
        )

    def taint(g: Group, step: Step) -> None:
        lanes = any_source(g, step)
        if lanes is not None and (lanes & g.execb).any():
            raise Trap("KVC0905", f"an LDS atomic reads {names(g, step)}, never written", lanes & g.execb)
        for register in step.targets:
            g.set_vector_poison(register, None)

    sources = full([address] + [register + i for register in data for i in range(count)])
    targets = list(range(target, target + count)) if returns else []
    step = Step(ins, "lds", run, sources, targets, taint, in_order="ds")
    return step

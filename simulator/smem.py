"""Scalar memory: s_load and s_buffer_load of 1 to 16 dwords, and the cache and clock instructions of that unit.

Source: "AMD Instinct CDNA3 Instruction Set Architecture", section 8.
"""

from __future__ import annotations

import re

import numpy as np
from kvc.simulator.asm import Assembly, Instruction
from kvc.simulator.faults import Trap
from kvc.simulator.memory import Misaligned, OutOfBounds
from kvc.simulator.operands import Operand, parse_operand, raw_scalar, refuse, set_bits
from kvc.simulator.poison import clear, names
from kvc.simulator.state import EXEC, U32, U64, Group
from kvc.simulator.step import Step, full

_LOAD = re.compile(r"^s_(buffer_)?load_dword(?:x(\d+))?$")
_IGNORED = frozenset(["s_dcache_inv", "s_dcache_wb", "s_dcache_inv_vol", "s_dcache_wb_vol"])
_CLOCKS = frozenset({"s_memtime", "s_memrealtime"})


def is_smem(name: str) -> bool:
    return bool(_LOAD.match(name)) or name in _IGNORED or name in _CLOCKS


def decode(ins: Instruction, assembly: Assembly) -> Step:
    """Any scalar memory instruction. KVC0902 for what is not known."""
    if ins.name in _IGNORED:
        return Step(ins, "smem", lambda g: None, [], [], lambda g, step: None)
    if ins.name in _CLOCKS:
        return _clock(ins)
    unknown = [name for name in ins.mods if name not in ("offset", "glc")]
    if unknown:
        raise refuse(ins, f"modifier {unknown[0]!r}")
    match = _LOAD.match(ins.name)
    assert match is not None
    count = int(match[2] or 1)
    target, base, *rest = (parse_operand(text, ins) for text in ins.operands)
    parts = [raw_scalar(operand, "u32", ins, assembly) for operand in rest]
    extra = int(ins.mods.get("offset", 0))
    buffer = bool(match[1])
    first = target.register

    def offset(g: Group) -> np.ndarray:
        total = np.full(g.W, extra, np.int64)
        for operand, part in zip(rest, parts, strict=True):
            value = part(g)
            total = total + (value.view(np.int32) if operand.kind == "int" else value)
        return total

    def run(g: Group) -> None:
        address = g.spair(base.register)
        delta = offset(g)
        zero = None
        if buffer:
            address = address & np.uint64((1 << 48) - 1)
            zero = delta + 4 * count > g.S[base.register + 2].view(U32)
        address = (address + delta.view(U64)) & np.uint64(0xFFFF_FFFF_FFFF_FFFC)
        words = _fetch(g, step, address, count, zero)
        for i in range(count):
            g.S[first + i] = words[:, i]
        step.count("read", 4 * count * g.W)
        g.batch.waits.smem(g, registers)

    sources = full(set_bits(base, 4 if buffer else 2) + [bit for operand in rest for bit in set_bits(operand, 1)])
    targets = set_bits(Operand("s", first), count)
    registers = sum(1 << bit for bit in targets)
    if first + count > EXEC:
        raise refuse(ins, "target")
    step = Step(ins, "smem", run, sources, targets, _taint)
    return step


def _fetch(g: Group, step: Step, address: np.ndarray, count: int, zero: np.ndarray | None) -> np.ndarray:
    """Dwords [W, count]; one load when all waves ask for the same address. Stale dwords become poison."""
    same = g.W == 1 or bool((address == address[0]).all())
    asked = address[:1] if same else address
    skip = None if zero is None else zero[: len(asked)]
    each = asked[:, None] + np.arange(count, dtype=U64) * np.uint64(4)
    if skip is not None and skip.any():
        words = np.zeros((len(asked), count), U32)
        stale = None
        if not skip.all():
            words[~skip], stale = g.batch.memory.load(each[~skip], 4)
    else:
        try:
            words, stale = g.batch.memory.load(each, 4)
        except (OutOfBounds, Misaligned) as trap:
            where = np.broadcast_to(trap.mask.any(axis=1), g.W)
            raise Trap(trap.code, trap.message, where) from None
    if stale is not None and g.batch.options.uninit:
        for i, register in enumerate(step.targets):
            lanes = np.broadcast_to(stale[:, i], g.W)
            g.set_poison(register, lanes * np.uint32(0xFFFF_FFFF))
    return np.repeat(words, g.W, axis=0) if same else words


def _taint(g: Group, step: Step) -> None:
    for register, _ in step.sources:
        bits = g.poison.get(register)
        if bits is not None and bits.any():
            raise Trap("KVC0905", f"a scalar address was never written: {names(g, step)}", bits != 0)
    for register in step.targets:
        g.set_poison(register, None)


def _clock(ins: Instruction) -> Step:
    """s_memtime and s_memrealtime: instructions retired so far stand for time."""
    target = parse_operand(ins.operands[0], ins)
    bits = set_bits(target, 2)
    registers = sum(1 << bit for bit in bits)

    def run(g: Group) -> None:
        g.swrite_pair(target.register, np.full(g.W, g.batch.retired, U64))
        g.batch.waits.smem(g, registers)

    return Step(ins, "smem", run, [], bits, clear)

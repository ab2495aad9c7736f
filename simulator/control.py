"""Control flow, EXEC manipulation and the SOPP instructions.

Source: "AMD Instinct CDNA3 Instruction Set Architecture", sections 4 and 12.5. A terminator returns None to go on with
`g.pc`, or a list of groups that part here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from kvc.simulator.asm import CODE_BASE, INSTRUCTION_BYTES, Assembly, Instruction
from kvc.simulator.faults import Trap
from kvc.simulator.operands import parse_operand, refuse, scalar_reader, set_bits
from kvc.simulator.poison import demand
from kvc.simulator.state import EXEC, SCALAR_BIT, SCC_BIT, U64, VCC, Group
from kvc.simulator.step import Step, full

_SAVEEXEC = re.compile(r"^s_(and|or|xor|andn1|andn2|orn1|orn2|nand|nor|xnor)_(saveexec|wrexec)_b64$")
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda s, e: s & e, "or": lambda s, e: s | e, "xor": lambda s, e: s ^ e, "andn1": lambda s, e: ~s & e,
    "andn2": lambda s, e: s & ~e, "orn1": lambda s, e: ~s | e, "orn2": lambda s, e: s | ~e,
    "nand": lambda s, e: ~(s & e), "nor": lambda s, e: ~(s | e), "xnor": lambda s, e: ~(s ^ e),
}  # fmt: skip
_CONDITIONS: dict[str, Callable[[Group], np.ndarray]] = {
    "s_cbranch_scc0": lambda g: ~g.scc,
    "s_cbranch_scc1": lambda g: g.scc,
    "s_cbranch_vccz": lambda g: g.spair(VCC) == 0,
    "s_cbranch_vccnz": lambda g: g.spair(VCC) != 0,
    "s_cbranch_execz": lambda g: g.exec64 == 0,
    "s_cbranch_execnz": lambda g: g.exec64 != 0,
}
_IDLE = frozenset(
    [
        "s_nop",
        "s_setprio",
        "s_sleep",
        "s_inst_prefetch",
        "s_set_gpr_idx_off",
        "s_icache_inv",
        "s_sethalt",
        "s_incperflevel",
        "s_decperflevel",
        "s_ttracedata",
        "s_wakeup",
        "s_clause",
    ]
)
TERMINATORS = frozenset(
    [*_CONDITIONS, "s_branch", "s_endpgm", "s_barrier", "s_setpc_b64", "s_swappc_b64", "s_call_b64", "s_trap"]
)
_COUNTER = re.compile(r"^(vmcnt|expcnt|lgkmcnt)\((\d+)\)$")


def decode(ins: Instruction, assembly: Assembly) -> Step | None:
    """A step of this unit, or None when the instruction is not its own. Terminators have no `run` of their own."""
    match = _SAVEEXEC.match(ins.name)
    if match:
        return _saveexec(ins, match[1], match[2] == "wrexec", assembly)
    if ins.name in TERMINATORS:
        return _terminator(ins, assembly)
    if ins.name == "s_waitcnt":
        return _waitcnt(ins)
    if ins.name == "s_getpc_b64":
        return _getpc(ins)
    if ins.name in _IDLE or (ins.name == "v_nop"):
        return Step(ins, "misc", lambda g: None, [], [], lambda g, step: None)
    if ins.name in ("s_getreg_b32", "s_setreg_b32", "s_setreg_imm32_b32"):
        return _hardware_register(ins, assembly)
    return None


def _saveexec(ins: Instruction, kind: str, writes_result: bool, assembly: Assembly) -> Step:
    """sdst = old EXEC (wrexec: the new one); EXEC = combination of source and EXEC; SCC = EXEC is not zero."""
    target, source = (parse_operand(text, ins) for text in ins.operands)
    read = scalar_reader(source, "b64", ins, assembly)
    combine = _COMBINE[kind]

    def run(g: Group) -> None:
        old = g.exec64
        new = combine(read(g), old)
        if new.shape[0] != g.W:
            new = np.repeat(new, g.W)
        mask = None
        if kind == "and" and source.kind == "s" and source.register != EXEC:
            mask = g.mask(source.register)
            if not g.full:
                mask = mask & g.execb
        old_mask = g._execb
        g.set_exec(new)
        if mask is not None:
            g._execb = mask
        g.swrite_pair(target.register, new if writes_result else old)
        if old_mask is not None and not writes_result and target.register != EXEC:
            g.masks[target.register] = (g.S[target.register], g.S[target.register + 1], old_mask)
        g.scc = new != 0

    def taint(g: Group, step: Step) -> None:
        _demand_active(g, set_bits(source, 2), kind)
        for register in step.targets:
            g.set_poison(register, None)

    return Step(ins, "salu", run, full(set_bits(source, 2)), [*set_bits(target, 2), SCC_BIT], taint)


def _demand_active(g: Group, registers: list[int], kind: str) -> None:
    """KVC0905 when a stale bit of a mask belongs to a lane that is active: others are cleared by the combination."""
    for i, register in enumerate(registers):
        bits = g.poison.get(register)
        if bits is None:
            continue
        half = (g.exec64 >> np.uint64(32 * i)).astype(np.uint32)
        stale = bits & half if kind in ("and", "andn1") else bits
        if stale.any():
            wave = int((stale != 0).argmax())
            lane = 32 * i + int(stale[wave] & -stale[wave]).bit_length() - 1
            raise Trap("KVC0905", "EXEC depends on a value never written", stale != 0, lane=lane)


def counters(ins: Instruction) -> tuple[int | None, int | None]:
    """What s_waitcnt lets stay outstanding: vmcnt and lgkmcnt, None for a counter it does not wait for."""
    vm: int | None = None
    lgkm: int | None = None
    for part in ins.operands:
        match = _COUNTER.match(part)
        if match:
            vm = int(match[2]) if match[1] == "vmcnt" else vm
            lgkm = int(match[2]) if match[1] == "lgkmcnt" else lgkm
        elif re.match(r"^(0x[0-9a-f]+|\d+)$", part):
            code = int(part, 0)
            vm, lgkm = (code & 15) | (code >> 10 & 0x30), code >> 8 & 15
            vm, lgkm = (None if vm == 63 else vm), (None if lgkm == 15 else lgkm)
        elif part != "&":
            raise refuse(ins, f"counter {part!r}")
    return vm, lgkm


def _waitcnt(ins: Instruction) -> Step:
    vm, lgkm = counters(ins)

    def run(g: Group) -> None:
        g.batch.wait(g, vm, lgkm)

    return Step(ins, "wait", run, [], [], lambda g, step: None)


def _getpc(ins: Instruction) -> Step:
    target = parse_operand(ins.operands[0], ins)
    value = np.array([CODE_BASE + (ins.index + 1) * INSTRUCTION_BYTES], U64)
    bits = set_bits(target, 2)

    def taint(g: Group, step: Step) -> None:
        for bit in bits:
            g.set_poison(bit, None)

    return Step(ins, "salu", lambda g: g.swrite_pair(target.register, value), [], bits, taint)


def _hardware_register(ins: Instruction, assembly: Assembly) -> Step:
    """s_setreg of the MODE register is accepted where it says what kvc assumes: denormals on."""
    text = " ".join(ins.operands)
    if ins.name == "s_setreg_imm32_b32" and re.match(r"^hwreg\(HW_REG_MODE,\s*4,\s*(2|4)\)", text.replace(" ", "")):
        value = parse_operand(ins.operands[-1], ins)
        if value.kind == "int" and int(value.value) in (3, 15):
            return Step(ins, "salu", lambda g: None, [], [], lambda g, step: None)
    if ins.name == "s_getreg_b32" and "HW_REG_XCC_ID" in text:
        target = parse_operand(ins.operands[0], ins)
        return Step(
            ins, "salu", lambda g: g.swrite(target.register, np.zeros(1, np.uint32)), [], set_bits(target, 1),
            lambda g, step: g.set_poison(set_bits(target, 1)[0], None),
        )  # fmt: skip
    raise refuse(ins, "hardware register")


# ---- terminators


def _terminator(ins: Instruction, assembly: Assembly) -> Step:
    kind = "barrier" if ins.name == "s_barrier" else "branch" if "branch" in ins.name or "pc" in ins.name else "misc"
    if ins.name in _CONDITIONS:
        return _conditional(ins, assembly)
    if ins.name == "s_branch":
        target = _target(ins, assembly)
        return Step(ins, kind, lambda g: _jump(g, target), [], [], lambda g, step: None)
    if ins.name in ("s_setpc_b64", "s_swappc_b64", "s_call_b64"):
        return _indirect(ins, assembly)
    if ins.name == "s_trap":
        return Step(ins, kind, _trap, [], [], lambda g, step: None)
    return Step(ins, kind, lambda g: None, [], [], lambda g, step: None)


def _trap(g: Group) -> None:
    raise Trap("KVC0603", "the kernel executed s_trap (a failed assertion or unreachable code)")


def _target(ins: Instruction, assembly: Assembly) -> int:
    label = ins.operands[-1]
    if label not in assembly.labels:
        raise refuse(ins, f"branch target {label!r}")
    return assembly.labels[label]


def _jump(g: Group, target: int) -> None:
    g.pc = target


def _conditional(ins: Instruction, assembly: Assembly) -> Step:
    target, condition, following = _target(ins, assembly), _CONDITIONS[ins.name], ins.index + 1

    def run(g: Group) -> list[Group] | None:
        taken = condition(g)
        count = int(np.count_nonzero(taken))
        if count == g.W:
            g.pc = target
            return None
        if count == 0:
            g.pc = following
            return None
        jumping, staying = g.take(taken), g.take(~taken)
        jumping.pc, staying.pc = target, following
        return [jumping, staying]

    sources: list[int] = []
    if "scc" in ins.name:
        sources = [SCC_BIT]
    elif "vcc" in ins.name:
        sources = [SCALAR_BIT + VCC, SCALAR_BIT + VCC + 1]
    return Step(ins, "branch", run, full(sources), [], demand("a branch"))


def _indirect(ins: Instruction, assembly: Assembly) -> Step:
    """Jumps to a register pair; s_swappc and s_call leave the return address."""
    operands = [parse_operand(text, ins) for text in ins.operands[: 1 if ins.name == "s_call_b64" else 2]]
    source = operands[-1]
    link = operands[0] if len(operands) == 2 or ins.name == "s_call_b64" else None
    fixed = _target(ins, assembly) if ins.name == "s_call_b64" else None
    back = np.array([CODE_BASE + (ins.index + 1) * INSTRUCTION_BYTES], U64)

    def run(g: Group) -> list[Group] | None:
        if fixed is not None:
            g.swrite_pair(source.register, back)
            g.pc = fixed
            return None
        address = g.spair(source.register)
        if link is not None:
            g.swrite_pair(link.register, back)
        groups = []
        for value in np.unique(address):
            index, rest = divmod(int(value) - CODE_BASE, INSTRUCTION_BYTES)
            if rest or not 0 <= index < len(assembly.code):
                raise Trap("KVC0903", f"jump to {int(value):#x}, which is no code", address == value)
            groups.append((index, address == value))
        if len(groups) == 1:
            g.pc = groups[0][0]
            return None
        parted = []
        for index, chosen in groups:
            part = g.take(chosen)
            part.pc = index
            parted.append(part)
        return parted

    targets = set_bits(link, 2) if link is not None else []
    sources = full([] if fixed is not None else set_bits(source, 2))
    return Step(ins, "branch", run, sources, targets, demand("a jump"))

"""Cross-lane data movement: DPP and SDWA operand handling, readlane and its kin, permutes and swaps.

Source: "AMD Instinct CDNA3 Instruction Set Architecture", sections 6.4 (SDWA), 6.5 (DPP), 11 (DS permutes), 12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvc.simulator.asm import Assembly, Instruction
from kvc.simulator.faults import Trap
from kvc.simulator.operands import Operand, parse_operand, raw_scalar, raw_vector, refuse, set_bits
from kvc.simulator.poison import ONES, any_source, names
from kvc.simulator.state import LANES, SCALAR_BIT, U32, Group
from kvc.simulator.step import FULL, Step, full

_LANE = np.arange(LANES)


# ---- DPP


@dataclass(frozen=True)
class Dpp:
    """Lane i reads lane `index[i]` where `valid[i]`; lanes outside `write` keep their old value."""

    index: np.ndarray
    valid: np.ndarray
    write: np.ndarray
    zero_fill: bool


def dpp_control(ins: Instruction) -> Dpp:
    """The DPP modifiers of an instruction. KVC0902 when none or an unknown one is written."""
    index, valid = _dpp_lanes(ins)
    rows, banks = ins.mods.get("row_mask", 15), ins.mods.get("bank_mask", 15)
    write = (rows >> (_LANE >> 4) & 1).astype(bool) & (banks >> (_LANE >> 2 & 3) & 1).astype(bool)
    return Dpp(np.where(valid, index, 0), valid, write, "bound_ctrl" in ins.mods)


def _dpp_lanes(ins: Instruction) -> tuple[np.ndarray, np.ndarray]:
    mods, row, inside = ins.mods, _LANE & ~15, _LANE & 15
    always = np.ones(LANES, bool)
    if "quad_perm" in mods:
        return (_LANE & ~3) | np.array(mods["quad_perm"])[_LANE & 3], always
    if "row_shl" in mods:
        return _LANE + mods["row_shl"], inside + mods["row_shl"] < 16
    if "row_shr" in mods:
        return _LANE - mods["row_shr"], inside >= mods["row_shr"]
    if "row_ror" in mods:
        return row | (inside - mods["row_ror"]) % 16, always
    if "wave_shl" in mods:
        return _LANE + 1, _LANE < 63
    if "wave_shr" in mods:
        return _LANE - 1, _LANE > 0
    if "wave_rol" in mods:
        return (_LANE + 1) % 64, always
    if "wave_ror" in mods:
        return (_LANE - 1) % 64, always
    if "row_mirror" in mods:
        return row | (15 - inside), always
    if "row_half_mirror" in mods:
        return (_LANE & ~7) | (7 - (_LANE & 7)), always
    if mods.get("row_bcast") == 15:
        return row - 1, _LANE >= 16
    if mods.get("row_bcast") == 31:
        return np.full(LANES, 31), _LANE >= 32
    if "row_newbcast" in mods or "row_share" in mods:
        return row | int(mods.get("row_newbcast", mods.get("row_share", 0))), always
    raise refuse(ins, "DPP control")


def dpp_source(control: Dpp) -> Callable[[Group, np.ndarray], np.ndarray]:
    """The permutation of src0; lanes without a source (out of range, or inactive) read zero."""
    index, valid = control.index, control.valid
    everywhere = bool(valid.all())

    def change(g: Group, words: np.ndarray) -> np.ndarray:
        if words.shape[1] != LANES:
            words = np.broadcast_to(words, (g.W, LANES))
        out = words.take(index, axis=1)
        if not g.full:
            out &= g.em.take(index, axis=1)
        if not everywhere:
            out *= valid
        return out

    return change


def dpp_run(control: Dpp, run: Callable[[Group], Any], registers: list[int]) -> Callable[[Group], Any]:
    """Run under the present EXEC, then give `registers` (vector targets) back their old value in lanes that DPP does
    not write: masked rows and banks, and without bound_ctrl lanes whose source is out of range or inactive.
    """
    allowed = control.write if control.zero_fill else control.write & control.valid
    everywhere = bool(allowed.all())

    def narrowed(g: Group) -> None:
        if everywhere and (g.full or control.zero_fill):
            run(g)
            return
        keep = ~allowed
        if not g.full and not control.zero_fill:
            keep = keep | ~g.execb.take(control.index, axis=1)
        before = [g.vector(register) for register in registers]
        run(g)
        bits = np.broadcast_to(keep, (g.W, LANES)) * ONES
        for register, old in zip(registers, before, strict=True):
            words = g.vector(register)
            g.R[register] = words ^ ((words ^ old) & bits)

    return narrowed


def dpp_taint(control: Dpp, register: int, inner: Callable[[Group, Step], None]) -> Callable[[Group, Step], None]:
    """Propagate poison through the permutation of register `register` (src0)."""
    change = dpp_source(control)

    def rule(g: Group, step: Step) -> None:
        own = g.poison.get(register)
        saved = dict(g.poison)
        if own is not None:
            g.poison[register] = change(g, own)
        before = {target: g.poison.get(target) for target in step.targets}
        inner(g, step)
        allowed = control.write if control.zero_fill else control.write & control.valid
        if not allowed.all():
            keep = ~allowed * ONES
            zero = np.zeros((1, 1), U32)
            for target, old in before.items():
                new = g.poison.get(target, zero)
                if new.ndim == 2:
                    old = zero if old is None else old if old.ndim == 2 else old[:, None]
                    if target == register and own is not None:
                        old = own
                    g.set_poison(target, new ^ ((new ^ old) & keep))
        if own is not None and register not in step.targets:
            g.set_poison(register, saved[register])

    return rule


# ---- SDWA

_SELECT = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8), "WORD_0": (0, 16),
           "WORD_1": (16, 16), "DWORD": (0, 32)}  # fmt: skip


def sdwa_bits(ins: Instruction, position: int) -> int:
    """The bits of a source that its selection reads."""
    shift, width = _SELECT[ins.mods.get(f"src{position}_sel", "DWORD")]
    return ((1 << width) - 1) << shift


def sdwa_source(ins: Instruction, position: int, operand: Operand) -> Callable[[Group, np.ndarray], np.ndarray] | None:
    """The selection of a byte or half of source `position`, sign-extended where written sext()."""
    name = ins.mods.get(f"src{position}_sel", "DWORD")
    if name not in _SELECT:
        raise refuse(ins, f"selection {name!r}")
    shift, width = _SELECT[name]
    if width == 32:
        return None
    left = np.int32(32 - width - shift)
    if operand.sext:
        return lambda g, words: (words.view(np.int32) << left >> np.int32(32 - width)).view(U32)
    mask = np.uint32((1 << width) - 1)
    return lambda g, words: (words >> np.uint32(shift)) & mask


def sdwa_field(ins: Instruction) -> int:
    """The bits of the target that dst_sel names."""
    shift, width = _SELECT[ins.mods.get("dst_sel", "DWORD")]
    return ((1 << width) - 1) << shift


def sdwa_target(ins: Instruction, register: int) -> Callable[[Group, np.ndarray], np.ndarray] | None:
    """Placement of a 32-bit result by dst_sel and dst_unused."""
    name, unused = ins.mods.get("dst_sel", "DWORD"), ins.mods.get("dst_unused", "UNUSED_PAD")
    if name not in _SELECT or unused not in ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"):
        raise refuse(ins, f"selection {name!r} {unused!r}")
    shift, width = _SELECT[name]
    if width == 32:
        return None
    field = np.uint32(((1 << width) - 1) << shift)

    def place(g: Group, words: np.ndarray) -> np.ndarray:
        words = words.view(U32)
        if unused == "UNUSED_SEXT":
            return (words.view(np.int32) << np.int32(32 - width) >> np.int32(32 - width - shift)).view(U32)
        moved = (words << np.uint32(shift)) & field
        if unused == "UNUSED_PRESERVE":
            return moved | (g.R[register].view(U32) & ~field)
        return moved

    return place


# ---- instructions


def _lane_number(operand: Operand, ins: Instruction, assembly: Assembly) -> Callable[[Group], np.ndarray]:
    raw = raw_scalar(operand, "u32", ins, assembly)
    return lambda g: np.broadcast_to(raw(g) & np.uint32(63), g.W).astype(np.intp)


def _scalar_from_lane(ins: Instruction, assembly: Assembly) -> Step:
    """v_readlane_b32 and v_readfirstlane_b32 (lane 0 when EXEC is zero)."""
    target, source = (parse_operand(text, ins) for text in ins.operands[:2])
    raw = raw_vector(source, "b32", ins, assembly)
    sources = full(set_bits(source, 1))
    chooser: Callable[[Group], np.ndarray] | None = None
    if ins.name == "v_readlane_b32":
        selector = parse_operand(ins.operands[2], ins)
        chooser = _lane_number(selector, ins, assembly)
        sources = sources + full(set_bits(selector, 1))

    def lane(g: Group) -> np.ndarray:
        if chooser is not None:
            return chooser(g)
        return np.zeros(g.W, np.intp) if g.full else g.execb.argmax(axis=1)

    def pick(g: Group, words: np.ndarray) -> np.ndarray:
        if words.shape[1] == 1:
            return np.ascontiguousarray(np.broadcast_to(words, (g.W, 1))[:, 0])
        if chooser is None and g.full:
            return np.ascontiguousarray(words[:, 0])
        return words[np.arange(g.W), lane(g)]

    def run(g: Group) -> None:
        g.swrite(target.register, pick(g, raw(g)))

    def taint(g: Group, step: Step) -> None:
        register = step.sources[0][0] if step.sources else -1
        bits = g.poison.get(register)
        if bits is not None and bits.ndim == 2:
            bits = pick(g, bits)
        g.set_poison(SCALAR_BIT + target.register, bits)

    return Step(ins, "valu", run, sources, set_bits(target, 1), taint)


def _writelane(ins: Instruction, assembly: Assembly) -> Step:
    """v_writelane_b32: one lane, whatever EXEC says."""
    target, source, selector = (parse_operand(text, ins) for text in ins.operands)
    value = raw_scalar(source, "b32", ins, assembly)
    lane = _lane_number(selector, ins, assembly)
    register = target.register

    def run(g: Group) -> None:
        words = g.vector(register).copy()
        words[np.arange(g.W), lane(g)] = value(g)
        g.R[register] = words

    def taint(g: Group, step: Step) -> None:
        bits = g.poison.get(register)
        out = np.zeros((g.W, LANES), U32) if bits is None else np.broadcast_to(bits, (g.W, LANES)).copy()
        own = [g.poison[r] for r, _ in step.sources if r >= SCALAR_BIT and r in g.poison]
        out[np.arange(g.W), lane(g)] = own[0] if own else 0
        g.set_poison(register, out)

    sources = full(set_bits(source, 1) + set_bits(selector, 1) + set_bits(target, 1))
    return Step(ins, "valu", run, sources, set_bits(target, 1), taint)


def _swap(ins: Instruction, assembly: Assembly) -> Step:
    """v_swap_b32, v_permlane16_swap_b32 (odd rows of the first with even rows of the second), v_permlane32_swap_b32."""
    one, two = (parse_operand(text, ins).register for text in ins.operands)
    half = {"v_permlane16_swap_b32": 16, "v_permlane32_swap_b32": 32}.get(ins.name)
    if half is not None and (ins.mods or ins.suffix == "e64"):
        raise refuse(ins, "modifier")
    upper = None if half is None else (_LANE & half) != 0

    def exchange(g: Group, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if upper is None:
            return b, a
        new_a, new_b = a.copy(), b.copy()
        new_a[:, upper], new_b[:, ~upper] = b[:, ~upper], a[:, upper]
        return new_a, new_b

    def run(g: Group) -> None:
        new_one, new_two = exchange(g, g.vector(one), g.vector(two))
        g.write(one, new_one)
        g.write(two, new_two)

    def taint(g: Group, step: Step) -> None:
        zero = np.zeros((g.W, LANES), U32)
        a, b = (np.broadcast_to(g.poison.get(register, zero), (g.W, LANES)) for register in (one, two))
        new_a, new_b = exchange(g, a, b)
        g.set_vector_poison(one, new_a)
        g.set_vector_poison(two, new_b)

    return Step(ins, "valu", run, full([one, two]), [one, two], taint)


def _bpermute(ins: Instruction, assembly: Assembly) -> Step:
    """ds_bpermute_b32 (pull) and ds_permute_b32 (push): addresses in bytes, modulo 256; inactive sources give zero."""
    target, address, data = (parse_operand(text, ins) for text in ins.operands)
    offset = np.uint32(ins.mods.get("offset", 0))
    push = ins.name == "ds_permute_b32"

    def move(g: Group, words: np.ndarray) -> np.ndarray:
        lane = ((g.vector(address.register) + offset) >> np.uint32(2) & np.uint32(63)).astype(np.intp)
        rows = np.arange(0, g.W * LANES, LANES)[:, None]
        if not g.full:
            words = words & g.em
        if not push:
            return np.ascontiguousarray(words).reshape(-1).take(lane + rows)
        out = np.zeros(g.W * LANES, U32)
        flat = (lane + rows).reshape(-1)
        if g.full:
            out[flat] = words.reshape(-1)
        else:
            active = g.execb.reshape(-1)
            out[flat[active]] = words.reshape(-1)[active]
        return out.reshape(g.W, LANES)

    def run(g: Group) -> None:
        g.write(target.register, move(g, g.vector(data.register)))
        g.batch.waits.lds(g, 1 << target.register)

    def taint(g: Group, step: Step) -> None:
        bits = g.poison.get(address.register)
        if bits is not None and (bits & g.em).any():
            raise Trap("KVC0905", f"the lane of a permute was never written: {names(g, step)}", bits & g.em)
        stale = g.poison.get(data.register)
        if stale is not None:
            stale = move(g, np.broadcast_to(stale, (g.W, LANES)))
        g.set_vector_poison(target.register, stale)

    sources = full([address.register, data.register])
    return Step(ins, "lds", run, sources, [target.register], taint, in_order="ds")


def _swizzle(ins: Instruction, assembly: Assembly) -> Step:
    """ds_swizzle_b32 in quad-permute and bit-mask mode."""
    target, data = (parse_operand(text, ins).register for text in ins.operands[:2])
    code = ins.mods.get("offset", 0)
    index = _swizzle_lanes(code, ins)

    def move(g: Group, words: np.ndarray) -> np.ndarray:
        out = words.take(index, axis=1)
        return out if g.full else out & g.em.take(index, axis=1)

    def run(g: Group) -> None:
        g.write(target, move(g, g.vector(data)))
        g.batch.waits.lds(g, 1 << target)

    def taint(g: Group, step: Step) -> None:
        stale = g.poison.get(data)
        g.set_vector_poison(target, None if stale is None else move(g, np.broadcast_to(stale, (g.W, LANES))))

    return Step(ins, "lds", run, full([data]), [target], taint, in_order="ds")


def _swizzle_lanes(code: Any, ins: Instruction) -> np.ndarray:
    if isinstance(code, str):
        kind, _, rest = code.removeprefix("swizzle(").rstrip(")").partition(",")
        parts = [part.strip() for part in rest.split(",")]
        if kind == "QUAD_PERM":
            return (_LANE & ~3) | np.array([int(part, 0) for part in parts])[_LANE & 3]
        if kind == "BITMASK_PERM":
            out = np.zeros(LANES, np.intp)
            for bit, char in enumerate(reversed(parts[0].strip('"'))):
                own = _LANE >> bit & 1
                value = {"0": 0 * own, "1": 0 * own + 1, "p": own, "i": 1 - own}[char]
                out |= value << bit
            return out | (_LANE & 32)
        numbers = [int(part, 0) for part in parts]
        group = numbers[0]
        if kind == "SWAP":
            return _LANE ^ group
        if kind == "REVERSE":
            return _LANE ^ (group - 1)
        if kind == "BROADCAST":
            return (_LANE & ~(group - 1)) | numbers[1]
        raise refuse(ins, f"swizzle {code!r}")
    if code & 0x8000:
        if code & 0x6000:
            raise refuse(ins, f"swizzle offset {code:#x}")
        return (_LANE & ~3) | np.array([code >> 2 * i & 3 for i in range(4)])[_LANE & 3]
    low = _LANE & 31
    return (_LANE & 32) | ((low & (code & 31)) | (code >> 5 & 31)) ^ (code >> 10 & 31)


def _mbcnt(ins: Instruction, assembly: Assembly) -> Step:
    """v_mbcnt_lo_u32_b32 and v_mbcnt_hi_u32_b32: set bits of the mask below this lane, plus src1."""
    target, mask, base = (parse_operand(text, ins) for text in ins.operands)
    raw, add = raw_vector(mask, "b32", ins, assembly), raw_vector(base, "b32", ins, assembly)
    if ins.name == "v_mbcnt_lo_u32_b32":
        below = np.where(_LANE < 32, (1 << np.minimum(_LANE, 32)) - 1, FULL).astype(U32)
    else:
        below = np.where(_LANE < 32, 0, (1 << np.maximum(_LANE - 32, 0)) - 1).astype(U32)

    def run(g: Group) -> None:
        g.write(target.register, np.bitwise_count(raw(g) & below).astype(U32) + add(g))

    def taint(g: Group, step: Step) -> None:
        lanes = any_source(g, step)
        g.set_vector_poison(target.register, None if lanes is None else lanes * ONES)

    return Step(ins, "valu", run, full(set_bits(mask, 1) + set_bits(base, 1)), [target.register], taint)


DECODERS: dict[str, Callable[[Instruction, Assembly], Step]] = {
    "v_readlane_b32": _scalar_from_lane,
    "v_readfirstlane_b32": _scalar_from_lane,
    "v_writelane_b32": _writelane,
    "v_swap_b32": _swap,
    "v_permlane16_swap_b32": _swap,
    "v_permlane32_swap_b32": _swap,
    "ds_bpermute_b32": _bpermute,
    "ds_permute_b32": _bpermute,
    "ds_swizzle_b32": _swizzle,
    "v_mbcnt_lo_u32_b32": _mbcnt,
    "v_mbcnt_hi_u32_b32": _mbcnt,
}

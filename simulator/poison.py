"""Propagation of values never written: which bits of a result depend on them.

The default rule: any stale bit that is read makes the whole result stale in that lane. Moves, shifts, permutes and
bitwise operations keep the exact bits, since compilers build words out of halves and mask what they do not mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from kvc.simulator.faults import Trap
from kvc.simulator.state import LANES, N_VECTOR, SCALAR_BIT, SCC_BIT, U32, Group, pack
from kvc.simulator.step import Step, stale_bits

ONES = np.uint32(0xFFFF_FFFF)
Rule = Callable[[Group, Step], None]


def any_source(g: Group, step: Step) -> np.ndarray | None:
    """Lanes (bool [W, 64] or [W, 1]) in which some bit that the step reads is stale, or None."""
    return _stale_lanes(g, step.sources)


def _stale_lanes(g: Group, sources: Iterable[tuple[int, int]]) -> np.ndarray | None:
    out: np.ndarray | None = None
    for register, mask in sources:
        if g.pmask >> register & 1:
            bits = stale_bits(g, register)
            if bits is not None:
                lanes = (bits & np.uint32(mask)) != 0
                out = lanes if out is None else out | lanes
    return out if out is not None and out.any() else None


def spread(g: Group, step: Step) -> None:
    """The default rule, for vector and scalar targets."""
    lanes = any_source(g, step)
    for register in step.targets:
        if register < N_VECTOR:
            g.set_vector_poison(register, None if lanes is None else lanes * ONES)
        else:
            g.set_poison(register, None if lanes is None else _per_wave(g, lanes))


def partial(field: int) -> Rule:
    """A result that goes to `field`, some bits of one vector register: the other bits stay as stale as they were."""
    written, kept = np.uint32(field), np.uint32(field ^ 0xFFFF_FFFF)

    def rule(g: Group, step: Step) -> None:
        (register,) = step.targets
        lanes = any_source(g, step)
        stale = stale_bits(g, register)
        if stale is not None:
            stale = stale & kept
        if lanes is not None:
            stale = lanes * written if stale is None else stale | lanes * written
        g.set_vector_poison(register, stale if stale is not None and stale.any() else None)

    return rule


def _per_wave(g: Group, lanes: np.ndarray) -> np.ndarray:
    if lanes.shape[1] == LANES and not g.full:
        lanes = lanes & g.execb
    return np.asarray(lanes.any(axis=1)) * ONES


def to_mask(g: Group, step: Step) -> None:
    """Targets that are lane masks: the bits of the stale lanes; other targets by the default rule."""
    lanes = any_source(g, step)
    vectors = [register for register in step.targets if register < N_VECTOR]
    for register in vectors:
        g.set_vector_poison(register, None if lanes is None else lanes * ONES)
    pairs = [register for register in step.targets if register >= N_VECTOR]
    if lanes is not None:
        lanes = np.broadcast_to(lanes, (g.W, LANES))
        bits = pack(lanes if g.full else lanes & g.execb).view(U32).reshape(g.W, 2)
    for i, register in enumerate(pairs):
        g.set_poison(register, None if lanes is None else bits[:, i & 1])


def low_first(high: frozenset[int]) -> Rule:
    """Sums of 64 bits: the low dword depends on all sources but the dwords `high`, the rest on all of them."""

    def rule(g: Group, step: Step) -> None:
        lanes = _stale_lanes(g, [source for source in step.sources if source[0] not in high])
        to_mask(g, step)
        g.set_vector_poison(step.targets[0], None if lanes is None else lanes * ONES)

    return rule


def clear(g: Group, step: Step) -> None:
    """The instruction writes defined values whatever it reads."""
    for register in step.targets:
        if register < N_VECTOR:
            g.set_vector_poison(register, None)
        else:
            g.set_poison(register, None)


def demand(what: str) -> Rule:
    """A rule that faults when a source is stale in an active lane: addresses, branch conditions, EXEC."""

    def rule(g: Group, step: Step) -> None:
        lanes = any_source(g, step)
        if lanes is not None:
            if lanes.shape[1] == LANES and not g.full:
                lanes = lanes & g.execb
            if lanes.any() and (g.exec64 != 0).any():
                raise Trap("KVC0905", f"{what} depends on a value never written: {names(g, step)}", lanes)
        clear(g, step)

    return rule


def names(g: Group, step: Step) -> str:
    """The stale source registers of a step, as the assembler names them."""
    found = [register_name(r) for r, mask in step.sources if g.pmask >> r & 1 and (g.poison[r] & np.uint32(mask)).any()]
    return ", ".join(dict.fromkeys(found))


def register_name(register: int) -> str:
    if register < 256:
        return f"v{register}"
    if register < N_VECTOR:
        return f"a{register - 256}"
    if register == SCC_BIT:
        return "scc"
    scalar = register - SCALAR_BIT
    return {106: "vcc_lo", 107: "vcc_hi", 124: "m0"}.get(scalar, f"s{scalar}")


# ---- exact rules for bitwise operations: operands as lists of dword readers


def bitwise(kind: str, values: list[Any], stale: list[Any]) -> Any:
    """Stale bits of and, or, andn2, orn2, nand, nor, xor, xnor, not, mov on dwords, given values and stale bits."""
    if kind in ("xor", "xnor", "not", "mov"):
        out = stale[0]
        for bits in stale[1:]:
            out = out | bits
        return out
    (a, b), (pa, pb) = values, stale
    if kind in ("andn2", "orn2"):
        b = ~b
    if kind in ("or", "nor", "orn2"):
        a, b = ~a, ~b
    return (pa & (b | pb)) | (pb & a)


def word_rule(kind: str, readers: list[list[Any]], registers: list[list[int]], vector: bool, scc: bool) -> Rule:
    """An exact rule for a bitwise instruction on one or two dwords.

    `readers[operand][word]` reads a dword, `registers[operand][word]` is its number in the set space or -1.
    """

    def rule(g: Group, step: Step) -> None:
        whole: np.ndarray | None = None
        words = len(readers[0])
        for word in range(words):
            values = [operand[word](g) for operand in readers]
            stale = []
            for operand in registers:
                bits = g.poison.get(operand[word]) if operand[word] >= 0 else None
                if bits is None:
                    bits = np.zeros((1, 1) if vector else 1, U32)
                elif vector and bits.ndim == 1:
                    bits = bits[:, None]
                stale.append(bits)
            bits = bitwise(kind, values, stale)
            _set(g, step.targets[word], bits, vector) if word < len(step.targets) else None
            whole = bits if whole is None else whole | bits
        if scc and whole is not None:
            bits = (np.broadcast_to(whole, g.W) != 0) * ONES
            g.set_poison(SCC_BIT, bits)

    return rule


def _set(g: Group, register: int, bits: np.ndarray, vector: bool) -> None:
    if vector:
        g.set_vector_poison(register, np.broadcast_to(bits, (g.W, bits.shape[1])) if bits.any() else None)
    else:
        g.set_poison(register, np.broadcast_to(bits, g.W) if bits.any() else None)


def linear_rule(fn: Callable[..., Any], readers: list[Any], registers: list[int], data: frozenset[int]) -> Rule:
    """For shifts and permutes: the instruction's own function applied to the stale bits of its `data` operands."""

    def rule(g: Group, step: Step) -> None:
        args, any_control = [], None
        for i, (reader, register) in enumerate(zip(readers, registers, strict=True)):
            bits = g.poison.get(register) if register >= 0 else None
            if bits is not None and bits.ndim == 1:
                bits = bits[:, None]
            if i in data:
                args.append(np.zeros((1, 1), U32) if bits is None else bits)
            else:
                args.append(reader(g))
                if bits is not None:
                    any_control = (bits != 0) if any_control is None else any_control | (bits != 0)
        out = np.asarray(fn(*args)).view(U32)
        if any_control is not None:
            out = out | any_control * ONES
        _set(g, step.targets[0], out, True)

    return rule


Part = tuple[int, int, list[tuple[int, int]]]  # target register, its bits, (source register, its bits) it depends on


def parts_rule(parts: list[Part]) -> Rule:
    """For packed arithmetic: each half or dword of the result depends on the parts that op_sel picks for it."""

    def rule(g: Group, step: Step) -> None:
        fresh: dict[int, np.ndarray | None] = {}
        for target, bits, sources in parts:
            lanes: np.ndarray | None = None
            for register, mask in sources:
                stale = stale_bits(g, register)
                if stale is not None:
                    some = (stale & np.uint32(mask)) != 0
                    lanes = some if lanes is None else lanes | some
            own = None if lanes is None else lanes * np.uint32(bits)
            before = fresh.get(target)
            fresh[target] = own if before is None else before if own is None else before | own
        for target, stale in fresh.items():
            g.set_vector_poison(target, stale)

    return rule


def select_rule(readers: list[Any], registers: list[int], mask: Callable[[Group], np.ndarray], pair: int) -> Rule:
    """v_cndmask_b32: the stale bits of the chosen operand, and of the mask."""

    def rule(g: Group, step: Step) -> None:
        sides = []
        for register in registers[:2]:
            bits = g.poison.get(register) if register >= 0 else None
            bits = np.zeros((1, 1), U32) if bits is None else bits
            sides.append(bits if bits.ndim == 2 else bits[:, None])
        out = np.where(mask(g), sides[1], sides[0])
        low, high = (g.poison.get(register) for register in (pair, pair + 1))
        if low is not None or high is not None:
            zero = np.zeros(g.W, U32)
            words = np.stack([zero if low is None else low, zero if high is None else high], axis=1)
            lanes = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
            out = out | lanes * ONES
        _set(g, step.targets[0], out, True)

    return rule


__all__ = [
    "any_source", "bitwise", "clear", "demand", "linear_rule", "low_first", "names", "parts_rule", "register_name",
    "select_rule", "spread", "to_mask", "word_rule",
]  # fmt: skip

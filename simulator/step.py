"""A decoded instruction bound to its registers, and what the checkers need to know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from kvc.simulator.asm import Instruction
from kvc.simulator.state import Group

CLASSES = ("valu", "salu", "vmem", "smem", "lds", "flat", "mfma", "branch", "barrier", "wait", "misc")


class Step:
    """`run` executes the instruction for a group. `sources` are (register, bits read) pairs, `targets` the
    registers written (numbers of the set space, see `state`); `taint` propagates poison before `run`,
    `in_order` names the counter ("vm", "ds") whose pending results this instruction may overwrite without a wait.
    """

    __slots__ = (
        "executions", "in_order", "ins", "kind", "read_mask", "regs", "run", "sources", "stats", "taint", "targets",
        "write_mask",
    )  # fmt: skip

    def __init__(
        self,
        ins: Instruction,
        kind: str,
        run: Callable[[Group], Any],
        sources: list[tuple[int, int]],
        targets: list[int],
        taint: Callable[[Group, Step], None],
        in_order: str = "",
    ) -> None:
        self.ins = ins
        self.kind = kind
        self.run = run
        self.sources = sources
        self.targets = targets
        self.taint = taint
        self.in_order = in_order
        self.write_mask = 0
        for register in targets:
            self.write_mask |= 1 << register
        self.read_mask = read_mask(sources)
        self.regs = self.write_mask | self.read_mask
        self.executions = 0
        self.stats: dict[str, float] = {}

    def count(self, key: str, amount: float) -> None:
        self.stats[key] = self.stats.get(key, 0) + amount


FULL = 0xFFFF_FFFF


def full(registers: list[int]) -> list[tuple[int, int]]:
    """Sources of which every bit is read."""
    return [(register, FULL) for register in registers]


def read_mask(registers: list[tuple[int, int]]) -> int:
    out = 0
    for register, _ in registers:
        out |= 1 << register
    return out


def stale_bits(g: Group, register: int) -> np.ndarray | None:
    """Poison of one register as uint32 [W, 64], [W, 1] for a scalar one, or None."""
    bits = g.poison.get(register)
    if bits is None:
        return None
    return bits if bits.ndim == 2 else bits[:, None]

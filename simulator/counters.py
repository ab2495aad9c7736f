"""What a launch did: instructions by class, bytes, transactions, LDS bank conflicts, matrix work.

Instruction counts, bytes, flops and atomics are exact. Transactions and bank conflicts are measured on a sample of the
executions of each instruction (the first two, then one in 64, at most two waves) and scaled: an estimate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from kvc.simulator.state import LANES, Group
from kvc.simulator.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterable

_SAMPLED_WAVES = 2


@dataclass
class Counters:
    """Totals of a launch. Instructions count once per wave; bytes are those that active lanes asked for."""

    waves: int = 0
    workgroups: int = 0
    instructions: int = 0
    by_class: dict[str, int] = field(default_factory=dict)
    global_read_bytes: int = 0
    global_write_bytes: int = 0
    global_transactions_64b: int = 0  # estimate
    lds_bytes: int = 0
    lds_conflict_cycles: int = 0  # estimate: cycles beyond the conflict-free access
    mfma_flops: int = 0
    atomics: int = 0
    barriers: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sampled(step: Step) -> bool:
    """Whether this execution of the step is one that gets measured."""
    step.executions += 1
    return step.executions <= 2 or not step.executions & 63


def bank_conflicts(g: Group, step: Step, where: np.ndarray, width: int) -> None:
    """Extra LDS cycles: distinct dwords in the same bank within one pass of the lanes (32 lanes for 4 bytes or less, 16
    for 8, 8 for 16), for banks 4 bytes wide.
    """
    if not sampled(step) or not g.full:
        return
    waves = min(g.W, _SAMPLED_WAVES)
    banks = g.batch.lds_banks
    words = where[:waves].reshape(waves, LANES) >> 2
    lanes = 32 if width <= 4 else 16 if width == 8 else 8
    extra = 0
    for row in words.reshape(-1, lanes):
        distinct = np.unique((row[:, None] + np.arange(max(width // 4, 1))).reshape(-1))
        extra += int(np.bincount(distinct % banks).max()) - 1
    step.count("conflicts", extra / waves)
    step.count("conflict_samples", 1)


def transactions(g: Group, step: Step, addr: np.ndarray, width: int) -> None:
    """Distinct 64-byte lines that a wave touches; `addr` is [W, 64] or [W, 1] uint64."""
    if not sampled(step):
        return
    waves = min(g.W, _SAMPLED_WAVES)
    lines = np.sort(addr[:waves] >> np.uint64(6), axis=1)
    distinct = waves + int(np.count_nonzero(lines[:, 1:] != lines[:, :-1]))
    step.count("lines", distinct / waves)
    step.count("line_samples", 1)


def total(blocks: Iterable[Any], launch: Counters) -> Counters:
    """Add up what the blocks of a program counted: executions per block times classes, plus each step's own."""
    by_class = launch.by_class
    for block in blocks:
        if not block.waves:
            continue
        for kind, count in block.classes.items():
            by_class[kind] = by_class.get(kind, 0) + count * block.waves
        for step in block.steps:
            stats = step.stats
            launch.global_read_bytes += int(stats.get("read", 0))
            launch.global_write_bytes += int(stats.get("written", 0))
            launch.lds_bytes += int(stats.get("lds_bytes", 0))
            launch.atomics += int(stats.get("atomics", 0))
            launch.mfma_flops += int(stats.get("flops", 0)) * block.waves
            if stats.get("line_samples"):
                launch.global_transactions_64b += round(stats["lines"] / stats["line_samples"] * block.waves)
            if stats.get("conflict_samples"):
                launch.lds_conflict_cycles += round(stats["conflicts"] / stats["conflict_samples"] * block.waves)
    launch.instructions = sum(by_class.values())
    launch.barriers = by_class.get("barrier", 0)
    return launch

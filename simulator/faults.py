"""Faults: where in the program and on which wave and lane something that must not happen happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from kvc.diagnostics import KvcError


class SimFault(KvcError):
    """A KVC09xx diagnostic with the place in `details`: kernel, pc, line, instruction, workgroup, wave, lane."""


class Trap(Exception):
    """Raised inside an instruction; the machine adds kernel, instruction and workgroup and raises SimFault.

    `where` is a boolean array [W] or [W, 64] (any shape that broadcasts) over the group's waves: its first set element
    names the wave and the lane; None means the first wave.
    """

    def __init__(self, code: str, message: str, where: Any = None, hint: str = "", lane: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.wave, self.lane = _first(where)
        if lane is not None:
            self.lane = lane


def _first(where: Any) -> tuple[int, int | None]:
    if where is None:
        return 0, None
    where = np.asarray(where)
    if where.ndim == 1:
        return int(where.argmax()), None
    flat = int(where.argmax())
    return flat // where.shape[1], flat % where.shape[1] if where.shape[1] > 1 else None


@dataclass(frozen=True)
class Hazard:
    """A finding collected when options say to report rather than to fault."""

    code: str
    message: str
    pc: int
    line: int
    instruction: str
    workgroup: tuple[int, int, int]
    wave: int

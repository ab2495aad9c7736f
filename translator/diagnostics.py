"""Typed errors: every failure that a user can meet has a stable code, a location and a way out.

The code table below is the whole list; documentation and tests are generated from it. A code is never reused
and its meaning never changes. Ranges: 01xx input, 02xx capture, 03xx IR, 04xx emission, 05xx toolchain,
06xx execution, 07xx verification, 08xx output and store, 09xx simulator.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

CODES: dict[str, str] = {
    # input
    "KVC0101": "model file not found",
    "KVC0102": "model file does not import",
    "KVC0103": "no model in the file",
    "KVC0104": "get_inputs does not fit the model",
    "KVC0105": "unknown target or architecture",
    "KVC0106": "argument out of range",
    "KVC0107": "size of an ONNX input is not known",
    "KVC0108": "optional package is not installed",
    # capture
    "KVC0201": "model cannot be captured",
    "KVC0202": "data-dependent control flow",
    "KVC0203": "operator outside the set",
    "KVC0204": "ONNX construct outside the set",
    # IR
    "KVC0301": "IR text does not parse",
    "KVC0302": "IR invariant broken",
    # emission
    "KVC0401": "no emitter supports this kernel",
    "KVC0402": "kernel exceeds the architecture's limits",
    "KVC0403": "lint rejected the source",
    # toolchain
    "KVC0501": "toolchain not found",
    "KVC0502": "source does not compile",
    "KVC0503": "language-model service gives no answer",
    "KVC0504": "budget of the language-model service is spent",
    # execution
    "KVC0601": "no device for this executor",
    "KVC0602": "device differs from its table row",
    "KVC0603": "launch failed",
    "KVC0604": "worker died or timed out",
    "KVC0605": "candidate reached out of its sandbox",
    # verification
    "KVC0701": "result differs from the oracle",
    "KVC0702": "output not written",
    "KVC0703": "input changed",
    "KVC0704": "guard band overwritten",
    "KVC0705": "result not deterministic",
    "KVC0706": "non-finite values differ from the oracle",
    "KVC0707": "degenerate reference",
    "KVC0708": "shape, dtype or stride differs",
    "KVC0709": "whole model differs from the original",
    "KVC0710": "a rounding of the spec is left out",
    "KVC0711": "fails for another size of a symbolic axis",
    "KVC0712": "copy of a source that is known already",
    "KVC0713": "faster than the hardware allows",
    # output and store
    "KVC0801": "output folder cannot be written",
    "KVC0802": "output folder is not a kvc translation",
    "KVC0803": "cache cannot be used",
    "KVC0804": "file does not match its recorded hash",
    # simulator
    "KVC0901": "assembly does not parse",
    "KVC0902": "unknown opcode, form or modifier",
    "KVC0903": "memory access out of bounds",
    "KVC0904": "misaligned memory access",
    "KVC0905": "read of a value never written",
    "KVC0906": "LDS race between barriers",
    "KVC0907": "missing s_waitcnt",
    "KVC0908": "divergent barrier",
    "KVC0909": "no progress (livelock or instruction limit)",
}


@dataclass(frozen=True)
class Location:
    """A place in a user's file. `line` counts from 1; 0 means the file as a whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Diagnostic:
    """One finding: stable code, message, where it is and what to do about it."""

    code: str
    message: str
    location: Location | None = None
    hint: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"diagnostic code {self.code} is not in the table")

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{where}{self.code}: {CODES[self.code]}: {self.message}{hint}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "title": CODES[self.code]}


class KvcError(Exception):
    """Raised where work cannot go on; the command line turns it into exit code 2 and one printed diagnostic."""

    def __init__(
        self, code: str, message: str, location: Location | None = None, hint: str = "", **details: Any
    ) -> None:
        self.diagnostic = Diagnostic(code, message, location, hint, details)
        super().__init__(str(self.diagnostic))

    @property
    def code(self) -> str:
        return self.diagnostic.code

"""What a fault is: one change to a source or to an assembly text, with the class it belongs to."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

#: Fault classes and what each stands for.
CLASSES = {
    "bound": "a comparison or an extent off by one",
    "guard": "a guard or a mask that is gone",
    "comparison": "a comparison the other way round",
    "stride": "a wrong stride",
    "index": "a wrong constant in an index",
    "arithmetic": "another operation",
    "operands": "operands the wrong way round",
    "constant": "a floating-point constant off by one hundredth",
    "precision": "a value kept in fewer bits than its type says",
    "rounding": "a rounding of the model that is left out",
    "init": "a wrong value to start a reduction from, or to fill a masked load with",
    "nan": "NaN that does not propagate",
    "wave32": "written for waves of 32 lanes",
    "barrier": "a barrier that is gone",
    "store": "a store that is gone",
    "atomic": "an atomic that is a plain update",
    "wait": "a wait that is gone or too weak",
    "exec": "a change of the lane mask that is gone",
    "branch": "a branch that is gone",
    "lanes": "a cross-lane move by the wrong distance",
    "offset": "an address offset one element off",
    "instruction": "any other instruction that is gone",
}


@dataclass(frozen=True)
class Fault:
    """A changed text. `level` is "source" or "assembly"; `line` counts from 1 in the original; `kernel` is the symbol
    whose assembly changed ("" at source level); `before` and `after` are the lines that differ."""

    level: str
    kind: str
    line: int
    before: str
    after: str
    text: str
    kernel: str = ""

    def __post_init__(self) -> None:
        if self.kind not in CLASSES:
            raise ValueError(f"no fault class {self.kind!r}")


def changed(kind: str, original: str, text: str) -> Fault:
    """The fault that leads from one source to another."""
    old, new = original.split("\n"), text.split("\n")
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            before, after = " ".join(old[a:b]).strip(), " ".join(new[c:d]).strip()
            return Fault("source", kind, a + 1, before, after, text)
    return Fault("source", kind, 0, "", "", text)

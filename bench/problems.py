"""Problems of a KernelBench checkout: `KernelBench/level1/12_Name.py` and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvc.diagnostics import KvcError

LEVELS = (1, 2, 3, 4)
_FILE = re.compile(r"(\d+)_(.*)\.py$")


@dataclass(frozen=True, order=True)
class Problem:
    """One file of the suite. `key` ("2/66") identifies it in journals and tables."""

    level: int
    number: int
    name: str
    path: Path

    @property
    def key(self) -> str:
        return f"{self.level}/{self.number}"


def numbers(text: str) -> frozenset[int]:
    """The numbers of "1,5,7-9". KVC0106 for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise KvcError("KVC0106", f"numbers {text!r}", hint="numbers and ranges, such as 1,5,7-9")
        first = int(match[1])
        found.update(range(first, int(match[2] or first) + 1))
    return frozenset(found)


def find(root: Path, levels: Iterable[int], wanted: frozenset[int] | None = None) -> list[Problem]:
    """Problems of the levels in order, those numbered `wanted` where given. KVC0101 where the checkout has none."""
    problems: list[Problem] = []
    for level in sorted(set(levels)):
        if level not in LEVELS:
            raise KvcError("KVC0106", f"level {level}", hint=f"one of: {', '.join(map(str, LEVELS))}")
        folder = root / "KernelBench" / f"level{level}"
        matches = [(m, p) for p in folder.glob("*.py") if (m := _FILE.match(p.name))]
        if not matches:
            raise KvcError(
                "KVC0101", f"{folder} holds no problems", hint="--root is a checkout of ScalingIntelligence/KernelBench"
            )
        found = (Problem(level, int(m[1]), m[2].strip("_"), p.resolve()) for m, p in matches)
        problems += sorted(p for p in found if wanted is None or p.number in wanted)
    if not problems:
        raise KvcError("KVC0106", "no such problem", hint="levels 1 and 2 have 100 problems, level 3 has 50")
    return problems

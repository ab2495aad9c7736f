"""Reads the header of a kernel source: how it is launched. The emitters write it, and people who write kernels by hand
write the same lines:

    // Launch: softmax(x, y), grid 37 x 1 x 1, block 256 x 1 x 1, 1024 bytes of LDS.
    # Launch: softmax(x, y) on 37 programs of 256 threads, num_warps=4
    // Scratch: partial, 74 elements of f32.

"Launch ahead:" says that the launch only prepares operands in scratch (kvc.emitter.Launch).
"""

from __future__ import annotations

import re

from kvc.diagnostics import KvcError, Location
from kvc.emitter import Knob, Launch, Scratch

_LAUNCH = re.compile(r"^\s*(?://|#)\s*Launch( ahead)?:\s*(\w+)\s*\(([^)]*)\)(.*)$", re.MULTILINE)
_SCRATCH = re.compile(
    r"^\s*(?://|#)\s*Scratch:\s*(\w+)(?:,\s*([\d,]+) elements of (\w+)|\s+(\w+)\[(\d+)\])", re.MULTILINE
)
_TRIPLE = r"(\d+)(?:\s*x\s*(\d+))?(?:\s*x\s*(\d+))?"
_EXAMPLE = 'add a comment line such as "Launch: NAME(x, y), grid 4 x 1 x 1, block 256 x 1 x 1"'


def _triple(word: str, text: str) -> tuple[int, int, int] | None:
    found = re.search(rf"\b{word}\s+{_TRIPLE}", text)
    return (int(found[1]), int(found[2] or 1), int(found[3] or 1)) if found else None


def _value(text: str) -> Knob:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch(r"-?\d+", text) else text.strip("'\"")


def parse_launches(source: str, file: str) -> tuple[Launch, ...]:
    """The launches that a source's header states, in order. KVC0106 with the line where one is missing or unclear."""
    launches = []
    for match in _LAUNCH.finditer(source):
        ahead, kernel, names, rest = match.groups()
        line = source.count("\n", 0, match.start(2)) + 1
        grid, block = _triple("grid", rest), _triple("block", rest)
        programs = re.search(r"\bon (\d+) programs of (\d+) threads", rest)
        if programs:
            grid, block = (int(programs[1]), 1, 1), (int(programs[2]), 1, 1)
        if grid is None or block is None:
            raise KvcError("KVC0106", f"launch of {kernel} states no grid or block", Location(file, line), _EXAMPLE)
        lds = re.search(r"([\d,]+) bytes of LDS", rest)
        options = tuple((k, _value(v)) for k, v in re.findall(r"\b(\w+)=([^,\s]+)", rest))
        args = tuple(name.strip() for name in names.split(",") if name.strip())
        shared = int(lds[1].replace(",", "")) if lds else 0
        launches.append(Launch(kernel, grid, block, args, shared, options, bool(ahead)))
    if not launches:
        raise KvcError("KVC0106", "the source does not say how it is launched", Location(file), _EXAMPLE)
    return tuple(launches)


def parse_workspace(source: str) -> tuple[Scratch, ...]:
    """The scratch buffers that a source's header states."""
    return tuple(
        Scratch(name, kind or other, int((count or size).replace(",", "")))
        for name, count, kind, other, size in _SCRATCH.findall(source)
    )

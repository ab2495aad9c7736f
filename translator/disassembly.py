"""The instructions of a kernel from its assembly text: how many of each class, its loops, and an excerpt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

#: Class of an instruction by how its name starts; the first that fits.
_CLASSES = (
    ("matrix", ("v_mfma", "v_smfmac")), ("wait", ("s_waitcnt", "s_nop", "s_sleep")), ("barrier", ("s_barrier",)),
    ("branch", ("s_cbranch", "s_branch", "s_endpgm", "s_setpc", "s_swappc")), ("scalar memory", ("s_load", "s_buffer")),
    ("LDS", ("ds_",)), ("memory", ("global_", "buffer_", "flat_", "scratch_")), ("scalar", ("s_",)),
    ("vector", ("v_",)),
)  # fmt: skip
_LABEL = re.compile(r"^([\w.$]+):")
_INSTRUCTION = re.compile(r"^\s+([a-z]\w+)\b")
_TARGET = re.compile(r"^\s+s_c?branch\w*\s+([\w.$]+)")


@dataclass(frozen=True)
class Loop:
    """A backward branch: lines `first` to `last` of the code, and its instructions by class."""

    first: int
    last: int
    counts: Counter[str]


@dataclass(frozen=True)
class Disassembly:
    """The code of one kernel: `lines` hold labels and instructions without directives and comments."""

    kernel: str
    lines: tuple[str, ...]
    counts: Counter[str]
    loops: tuple[Loop, ...]

    @property
    def hottest(self) -> Loop | None:
        """The innermost loop that does most: matrix instructions first, then any."""
        inner = [
            a for a in self.loops if not any(b is not a and a.first <= b.first and b.last <= a.last for b in self.loops)
        ]
        return max(inner, key=lambda loop: (loop.counts["matrix"], sum(loop.counts.values())), default=None)


def class_of(instruction: str) -> str:
    """The class of an instruction by its mnemonic; "other" for what the table does not have."""
    return next((name for name, starts in _CLASSES if instruction.startswith(starts)), "other")


def _count(lines: Sequence[str]) -> Counter[str]:
    found = (_INSTRUCTION.match(line) for line in lines)
    return Counter(class_of(m[1]) for m in found if m)


def disassemble(asm: str, kernel: str) -> Disassembly:
    """The code of a kernel in assembly text as clang and Triton write it; no lines where the text lacks the kernel."""
    start = re.search(rf"^{re.escape(kernel)}:.*$", asm, re.MULTILINE)
    text = asm[start.end() :] if start else ""
    end = re.search(r"^\.Lfunc_end\d+:|^\s+\.section|^\s+\.end_amdhsa_kernel", text, re.MULTILINE)
    lines = []
    for raw in text[: end.start() if end else len(text)].splitlines():
        line = raw.split(";")[0].split("//")[0].rstrip()
        if _LABEL.match(line) or (line and not line.lstrip().startswith(".")):
            lines.append(line.expandtabs(4))
    at = {m[1]: n for n, line in enumerate(lines) if (m := _LABEL.match(line))}
    loops = []
    for n, line in enumerate(lines):
        jump = _TARGET.match(line)
        if jump and at.get(jump[1], n + 1) <= n:
            first = at[jump[1]]
            loops.append(Loop(first, n, _count(lines[first : n + 1])))
    return Disassembly(kernel, tuple(lines), _count(lines), tuple(loops))


def mix(counts: Counter[str]) -> str:
    """Counts in words, the most frequent class first."""
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


def excerpt(code: Disassembly, most: int) -> tuple[str, list[str]]:
    """(what it shows, at most `most` lines): the hottest loop, or the start of code without loops."""
    loop = code.hottest
    if loop is None:
        return "no loops; from the start", list(code.lines[:most])
    what = f"innermost loop, {loop.last - loop.first + 1} lines: {mix(loop.counts)}"
    return what, list(code.lines[loop.first : min(loop.last + 1, loop.first + most)])

"""The scratch of a kernel's launches in a written module: where it lies, and what of it is prepared ahead of calls."""

from __future__ import annotations

from collections.abc import Collection

from kvc.dtypes import dtype
from kvc.emitter import Candidate

ALIGN = 256  # of every region of the arena, in bytes


def workspace_layout(
    candidate: Candidate, start: int, without: Collection[str] = ()
) -> tuple[dict[str, tuple[int, int]], int]:
    """(offset, bytes) of each scratch buffer from `start` on, and where they end; no room for those of `without`."""
    layout = {}
    for scratch in (s for s in candidate.workspace if s.name not in without):
        nbytes = scratch.numel * dtype(scratch.dtype).bytes
        layout[scratch.name] = (start, nbytes)
        start += -(-nbytes // ALIGN) * ALIGN
    return layout, start


def launches_ahead(candidate: Candidate, settled: Collection[str]) -> tuple[int, ...]:
    """The positions of launches that need not run at each call, since the operands that they prepare in scratch
    (`settled`: operands that stay the same from call to call) do not change."""
    scratch = {s.name for s in candidate.workspace}
    found: list[int] = []
    seen: set[str] = set()
    for number, launch in enumerate(candidate.launches):
        own = set(launch.args)
        if launch.ahead and own - scratch <= set(settled) and own & scratch and not own & seen:
            found.append(number)
        seen |= own & scratch
    return tuple(found)

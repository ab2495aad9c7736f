"""Times that cannot be: faster than the least work of a spec takes at the peak rates of its GPU."""

from __future__ import annotations

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic
from kvc.estimate import estimate
from kvc.kernel import KernelSpec

#: Clocks may boost beyond the data sheet's, and an operand may stay in a cache from the launch before: a time is
#: called impossible when it is below this share of the floor.
SLACK = 0.5


def impossible(spec: KernelSpec, arch: ArchSpec, microseconds: float) -> Diagnostic | None:
    """KVC0713 for a measured time of one call, in microseconds, that no kernel for the spec can reach."""
    found = estimate(spec, arch)
    floor = float(found["floor_us"])
    if microseconds >= SLACK * floor:
        return None
    text = (
        f"{spec.name}: {microseconds:.3g} us, and the {found['bound']} roofline of {arch.name} alone is {floor:.3g} us"
    )
    return Diagnostic("KVC0713", text, hint="the work is not all timed: synchronise before the end, check the outputs")

"""A CDNA GPU that is not there: executes gfx90a, gfx942 and gfx950 assembly on NumPy, with checks no GPU makes.

program = load(text, "gfx942", code_object)
mem = Memory("gfx942")
out, x = mem.alloc(4096), mem.upload(array)
report = launch(program, "kernel", grid=(16, 1, 1), block=(256, 1, 1), args=[out, x, 1024], mem=mem)
out.view(np.float32)
"""

from __future__ import annotations

from kvc.simulator.abi import KernelInfo
from kvc.simulator.counters import Counters
from kvc.simulator.faults import Hazard, SimFault
from kvc.simulator.launch import LaunchReport, launch, sample_workgroups
from kvc.simulator.machine import SimOptions
from kvc.simulator.memory import Buffer, Memory
from kvc.simulator.program import Program, load

__all__ = [
    "Buffer",
    "Counters",
    "Hazard",
    "KernelInfo",
    "LaunchReport",
    "Memory",
    "Program",
    "SimFault",
    "SimOptions",
    "launch",
    "load",
    "sample_workgroups",
]

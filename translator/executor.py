"""What runs kernels: one small interface, implemented by the simulator and by the AMD and NVIDIA executors.

A launch plan is data: it names its buffers, so that one set of plans runs on any executor, in another process, or is
written to a file. An executor copies the buffers in, runs the plans in order and copies the buffers out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic

if TYPE_CHECKING:
    import numpy as np

#: One kernel argument: a buffer by name, or a scalar passed by value.
Argument = tuple[Literal["buffer"], str] | tuple[Literal["i32", "i64"], int] | tuple[Literal["f32"], float]

#: Every byte of a buffer that a kernel must write before anyone reads it: NaN in every float type, -1 in integers.
UNWRITTEN_BYTE = 0xFF


@dataclass(frozen=True)
class LaunchPlan:
    """One kernel launch.

    `binary` is the ELF code object (cubin for NVIDIA), `asm` its assembly text (the simulator runs that), `kernel` the
    symbol in it. `grid` counts workgroups and `block` threads, per axis; `dynamic_lds` is in bytes, beyond static LDS.
    """

    binary: bytes
    asm: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int = 0
    args: tuple[Argument, ...] = ()

    @property
    def threads(self) -> int:
        """Threads in a workgroup."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def workgroups(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers among the arguments, in order, each once."""
        return tuple(dict.fromkeys(str(value) for kind, value in self.args if kind == "buffer"))


@dataclass(frozen=True)
class Execution:
    """Buffers after the last launch (every one that was passed in) and what was seen: JSON-able, one entry a fact."""

    buffers: dict[str, np.ndarray]
    evidence: dict[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """Runs launch plans on numpy buffers (bf16 and fp8 travel as unsigned integers of their width)."""

    name: str

    def available(self, arch: ArchSpec) -> Diagnostic | None:
        """None when kernels for `arch` can run here, else the reason (KVC0601, KVC0602)."""
        ...

    def execute(
        self, launches: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray], *, outputs: Collection[str] = ()
    ) -> Execution:
        """Run `launches` in order. The arrays passed in are not changed.

        Buffers named in `outputs` give only their size: their content on the device is undefined (UNWRITTEN_BYTE
        where nothing better exists) until a kernel writes it. Raises KvcError with KVC0603 (launch failed), KVC0704
        (write outside a buffer) or a simulator code (KVC09xx).
        """
        ...

    def run(
        self, launches: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray], *, outputs: Collection[str] = ()
    ) -> dict[str, np.ndarray]:
        """`execute` without the evidence."""
        ...

"""Plan: how a graph is cut into kernels, and the order in which they run.

A graph lowers to one KernelSpec that states the whole model (values of the graph are its tensors); partition cuts
that into specs of one kernel each. Equal specs are one entry of `kernels`; `steps` say which buffers they run on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvc.diagnostics import Location
from kvc.graph import Graph, Node, TensorType
from kvc.kernel import KernelSpec


@dataclass(frozen=True)
class Invoke:
    """Run kernel number `kernel`: values bound to its inputs and outputs, in operand order."""

    kernel: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origin: tuple[Location, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fallback:
    """Run a node eagerly, for the stated reason."""

    node: Node
    reason: str


Step = Invoke | Fallback


@dataclass(frozen=True)
class Plan:
    """`buffers`: every value that exists in memory beside the graph's inputs, with its type (contiguous unless it is a
    graph output). `graph.outputs` name buffers or inputs."""

    graph: Graph
    kernels: tuple[KernelSpec, ...]
    steps: tuple[Step, ...]
    buffers: dict[str, TensorType] = field(default_factory=dict)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        return tuple(s for s in self.steps if isinstance(s, Fallback))

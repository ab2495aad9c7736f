"""Plan: how a graph is cut into kernels, and the order in which they run.

A graph lowers to one KernelSpec that states the whole model (values of the graph are its tensors); partition cuts
that into specs of one kernel each. Equal specs are one entry of `kernels`; `steps` say which buffers they run on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

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
    graph output); no step writes those without elements. `graph.outputs` name buffers or inputs. Steps of the
    `prologue` run when parameters change, the rest at each call."""

    graph: Graph
    kernels: tuple[KernelSpec, ...]
    steps: tuple[Step, ...]
    buffers: dict[str, TensorType] = field(default_factory=dict)

    @cached_property
    def prologue(self) -> frozenset[int]:
        """The positions of steps that follow from parameters and constants alone: folded norms, weights in another
        layout or dtype, tables. What they write is kept from call to call."""
        known = set(fixed_inputs(self.graph))
        found = set()
        for n, step in enumerate(self.steps):
            stays = not self.graph.live_out & set(step.outputs) if isinstance(step, Invoke) else False
            if isinstance(step, Invoke) and stays and known.issuperset(step.inputs):
                found.add(n)
                known.update(step.outputs)
        return frozenset(found)

    @cached_property
    def settled(self) -> frozenset[str]:
        """The values that hold the same from call to call: parameters, constants, and what the prologue writes."""
        return fixed_inputs(self.graph).union(*(getattr(self.steps[n], "outputs", ()) for n in self.prologue))

    @property
    def calls(self) -> tuple[Step, ...]:
        """The steps that run at each call."""
        return tuple(s for n, s in enumerate(self.steps) if n not in self.prologue)

    @property
    def launches(self) -> tuple[Invoke, ...]:
        """The kernels that run at each call."""
        return tuple(s for s in self.calls if isinstance(s, Invoke))

    @property
    def empties(self) -> dict[str, TensorType]:
        """Values without elements: no step writes them, they need only be there."""
        written = {v for s in self.steps for v in (s.outputs if isinstance(s, Invoke) else s.node.outputs)}
        return {v: self.graph.types.get(v, t) for v, t in self.buffers.items() if v not in written}

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        return tuple(s for s in self.steps if isinstance(s, Fallback))


def fixed_inputs(graph: Graph) -> frozenset[str]:
    """Inputs that hold the same from call to call: parameters, constants, and buffers that the model leaves alone."""
    changed = {name for name, _ in graph.mutations}
    return frozenset(i.name for i in graph.inputs if i.kind != "user" and i.name not in changed)

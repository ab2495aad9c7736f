"""Graph: a captured model as functional ATen with composite operators kept whole.

Single assignment, explicit dtypes and strides, casts are nodes, every node carries its source location. Mutation of
buffers is data: `mutations` names the value that each buffer holds after the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kvc.diagnostics import Location
from kvc.dtypes import DType
from kvc.kernel import contiguous

# An attribute value: a literal, or a (nested) tuple of literals.
Attr = bool | int | float | str | None | DType | tuple["Attr", ...]


@dataclass(frozen=True)
class TensorType:
    """dtype, shape and strides (in elements)."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(dtype: DType, shape: tuple[int, ...]) -> TensorType:
        """A contiguous tensor."""
        return TensorType(dtype, shape, contiguous(shape))

    @property
    def is_contiguous(self) -> bool:
        if 0 in self.shape:
            return True
        expected = contiguous(self.shape)
        return all(s == e for s, e, extent in zip(self.strides, expected, self.shape, strict=True) if extent != 1)

    @property
    def numel(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n


@dataclass(frozen=True)
class Ref:
    """An argument that is a value of the graph."""

    name: str


Arg = Ref | Attr | tuple["Arg", ...]


@dataclass(frozen=True)
class Input:
    """A graph input. kind: "user" (an argument of forward), "param" or "buffer" (`target` is its state_dict name), or
    "const" (a tensor lifted from the model, not in its state_dict; `target` is its attribute path)."""

    name: str
    type: TensorType
    kind: str
    target: str = ""


@dataclass(frozen=True)
class Node:
    """`outputs = op(args, attrs)`. `op` is a name of the op table; several outputs for ops like max.dim."""

    outputs: tuple[str, ...]
    op: str
    args: tuple[Arg, ...]
    attrs: tuple[tuple[str, Attr], ...]
    types: tuple[TensorType, ...]
    loc: Location | None = None

    @property
    def name(self) -> str:
        return self.outputs[0]

    @property
    def type(self) -> TensorType:
        return self.types[0]

    @cached_property
    def refs(self) -> tuple[str, ...]:
        """Names of the values read, in order, with repetitions."""
        return tuple(_refs(self.args))

    def attr(self, name: str, default: Attr = None) -> Attr:
        return dict(self.attrs).get(name, default)


def _refs(args: tuple[Arg, ...]) -> Iterator[str]:
    for arg in args:
        if isinstance(arg, Ref):
            yield arg.name
        elif isinstance(arg, tuple):
            yield from _refs(arg)


@dataclass(frozen=True)
class Graph:
    """`outputs` may repeat values and name inputs. `mutations`: (buffer input name, value written back)."""

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    mutations: tuple[tuple[str, str], ...] = ()

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Type of every value by name."""
        types = {i.name: i.type for i in self.inputs}
        for node in self.nodes:
            types.update(zip(node.outputs, node.types, strict=True))
        return types

    @cached_property
    def producer(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def users(self) -> dict[str, tuple[Node, ...]]:
        """Nodes that read each value (each node once)."""
        users: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for ref in dict.fromkeys(node.refs):
                users[ref].append(node)
        return {name: tuple(nodes) for name, nodes in users.items()}

    @cached_property
    def live_out(self) -> frozenset[str]:
        """Values that outlive the call: outputs and buffer updates."""
        return frozenset(self.outputs) | {value for _, value in self.mutations}

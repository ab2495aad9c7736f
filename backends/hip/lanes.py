"""Vector lanes: one thread computes `width` consecutive points, and memory moves in packs of up to 16 bytes.

The lane is an axis like any other, so the index algebra tells how each access depends on it: an offset of the form
`width * (...) + lane` is one pack, an offset without the lane is one load for all, anything else one load a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import STORAGE_TYPE, Val, from_storage, to_storage
from kvc.backends.hip.source import PACK
from kvc.backends.hip.unit import Kernel
from kvc.kernel import Axis, Const, Expr, Load, Stmt, substitute, walk
from kvc.simplify import Linear

Body = Callable[[Scope], object]
MAX_PACK_BYTES = 16


@dataclass(frozen=True)
class Lanes:
    """The lane axis of a loop nest; width 1 means that there is none."""

    axis: Axis | None
    width: int

    def flat(self, chunk: Axis) -> Expr:
        """The flat index of a lane: `width * chunk + lane`."""
        terms: dict[Expr, int] = {chunk: self.width}
        if self.axis is not None:
            terms[self.axis] = 1
        return Linear.build(terms, 0).expr()

    def base(self, kernel: Kernel, offset: Expr) -> Expr:
        """The offset of lane 0."""
        return offset if self.axis is None else kernel.algebra.index(substitute(offset, {self.axis.name: Const(0)}))

    def is_shared(self, expr: Expr) -> bool:
        """Whether the value is the same in all lanes."""
        return self.axis is None or self.axis not in walk(expr)

    @staticmethod
    def is_bound(kernel: Kernel, offset: Expr) -> bool:
        """Whether an offset can be computed ahead of the lane loop: it reads no axis of a loop inside the body."""
        return all(e.name in kernel.axis_text for e in walk(offset) if isinstance(e, Axis))

    def is_pack(self, kernel: Kernel, tensor: str, offset: Expr) -> bool:
        """Whether lanes 0..width-1 are consecutive elements from an aligned start."""
        if self.axis is None:
            return False
        linear = kernel.algebra.linear(offset)
        rest = [(atom, c) for atom, c in linear.terms if atom != self.axis]
        if linear.coefficients.get(self.axis) != 1 or linear.constant % self.width:
            return False
        if any(c % self.width or not self.is_shared(atom) for atom, c in rest):
            return False
        dtype = kernel.buffers[tensor].dtype
        operand = kernel.spec.operand.get(tensor)
        align = operand.align if operand is not None else MAX_PACK_BYTES
        return align % min(MAX_PACK_BYTES, self.width * dtype.bytes) == 0


def pack_type(kernel: Kernel, tensor: str, width: int) -> str:
    kernel.helpers.add("Pack", PACK)
    return f"Pack<{STORAGE_TYPE[kernel.buffers[tensor].dtype.name]}, {width}>"


def rehearse(scope: Scope, body: Body) -> dict[Load, Expr]:
    """The elements that a body will load, with their offsets, in order."""
    seen: dict[Load, Expr] = {}

    def note(load: Load, offset: Expr) -> None:
        seen.setdefault(load, offset)

    with scope.kernel.dry():
        trial = scope.child()
        trial.on_value = None
        trial.on_load = note
        body(trial)
    return seen


def read_shared(scope: Scope, lanes: Lanes, body: Body) -> dict[Load, Val]:
    """Load, ahead of the lane loop, what all lanes share and what moves as packs. The result names each lane's
    element of a pack, for the memo of the scope inside the loop."""
    found: dict[Load, Val] = {}
    if lanes.axis is None:
        return found
    kernel = scope.kernel
    lane = kernel.axis_text[lanes.axis.name]
    for load, offset in rehearse(scope, body).items():
        whole = Load(load.tensor, load.index)
        if load.other is not None or not lanes.is_bound(kernel, offset):
            continue
        if lanes.is_shared(offset):
            scope.tensor(load.tensor, load.index)
        elif lanes.is_pack(kernel, load.tensor, offset):
            buffer = kernel.buffers[load.tensor]
            kernel.used[load.tensor] = None
            kind = pack_type(kernel, load.tensor, lanes.width)
            name = kernel.names.fresh(f"{load.tensor}_pack")
            start = scope.index(lanes.base(kernel, offset))
            address = f"{buffer.pointer} + {start.text}" if start.text != "0" else buffer.pointer
            kernel.writer.line(f"const {kind} {name} = *reinterpret_cast<const {kind}*>({address});")
            found[whole] = from_storage(f"{name}.lane[{lane}]", buffer.dtype)
    return found


def for_each_lane(scope: Scope, lanes: Lanes, body: Body) -> None:
    """The body once a lane, unrolled, with packs read ahead."""
    if lanes.axis is None:
        body(scope)
        return
    packs = read_shared(scope, lanes, body)
    kernel = scope.kernel
    lane = kernel.axis_text[lanes.axis.name]
    kernel.writer.line("#pragma unroll")
    with kernel.writer.block(f"for (int {lane} = 0; {lane} < {lanes.width}; ++{lane})"):
        inner = scope.child()
        for load, element in packs.items():
            inner.remember(load, inner.name(load.tensor, element))
        body(inner)


class Stores:
    """Stores of statements at the points of the lanes: a pack where the lanes allow it, else one element at a time."""

    def __init__(self, scope: Scope, lanes: Lanes, stmts: Sequence[Stmt]) -> None:
        self.scope = scope
        self.lanes = lanes
        self.packs: dict[str, str] = {}
        self.offsets = {s.target: scope.offset(s.target, scope.index_of(s)) for s in stmts}
        for stmt in stmts:
            if lanes.is_pack(scope.kernel, stmt.target, self.offsets[stmt.target]):
                self.packs[stmt.target] = ""

    def declare(self) -> None:
        kernel = self.scope.kernel
        for tensor in self.packs:
            self.packs[tensor] = kernel.names.fresh(f"{tensor}_pack")
            kernel.writer.line(f"{pack_type(kernel, tensor, self.lanes.width)} {self.packs[tensor]};")

    def put(self, scope: Scope, stmt: Stmt, value: Val | None = None) -> None:
        """Store (or keep for the pack) the statement's value at the current point."""
        kernel = scope.kernel
        stored = to_storage(value or scope.final(stmt), kernel.buffers[stmt.target].dtype).text
        kernel.used[stmt.target] = None
        if stmt.target in self.packs:
            assert self.lanes.axis is not None
            kernel.writer.line(f"{self.packs[stmt.target]}.lane[{kernel.axis_text[self.lanes.axis.name]}] = {stored};")
        else:
            where = scope.index(self.offsets[stmt.target]).text
            kernel.writer.line(f"{kernel.buffers[stmt.target].pointer}[{where}] = {stored};")

    def flush(self) -> None:
        """Write the packs."""
        kernel = self.scope.kernel
        for tensor, name in self.packs.items():
            kind = pack_type(kernel, tensor, self.lanes.width)
            start = self.scope.index(self.lanes.base(kernel, self.offsets[tensor])).text
            address = f"{kernel.buffers[tensor].pointer} + {start}" if start != "0" else kernel.buffers[tensor].pointer
            kernel.writer.line(f"*reinterpret_cast<{kind}*>({address}) = {name};")

"""Stores what convolutions read with the channels last, where a chain of them profits.

The product inside a convolution runs over channels and window positions. With the channels last its operands are
contiguous along that sum, and 16 bytes are fetched at once; with the channels first neighbours are one pixel apart and
shifted by the window. Only intermediates change: inputs and outputs of the model keep their memory, and weights get a
copy in the new order, which the plan's prologue makes when parameters change.

The choice is made for all tensors that pointwise kernels join (a residual and what it is added to), so that no kernel
reads one order and writes the other. It needs a convolution with a window among the readers, and stays out where the
order of pixels is what others read: reductions over them, flattening, the model's own inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from kvc.kernel import Axis, Const, Expr, KernelSpec, Load, Reduce, Stmt, axes_of, loads, transform
from kvc.passes.fuse import Fusion
from kvc.patterns import Contraction, Pointwise, Rows, Window

_BYTES = 16  # of the widest access


@dataclass(frozen=True)
class Convolution:
    """A sum of products over `channel` and window positions: `data` and `weight` are its reads, `group` its kernel.
    `source` is the tensor in memory: the data, or what `before` makes it of, point by point, in the same kernel."""

    group: int
    stmt: Stmt
    data: Load
    weight: Load
    channel: str
    taps: int
    source: str
    before: Stmt | None = None

    @property
    def place(self) -> int:
        """The position of the channels among the data's dims."""
        return self.data.index.index(Axis(self.channel))

    @property
    def order(self) -> tuple[str, ...]:
        """The axes of the weights, as the product wants to read them: channels innermost."""
        used = {a for at in self.weight.index for a in axes_of(at)} - {self.channel}
        return (*(a for a in (*self.stmt.axes, *self.stmt.inner_axes) if a in used), self.channel)


@dataclass
class Choice:
    """`orders`: for each tensor that changes, the old positions of its dims in their new order. `convolutions` read
    such tensors as data."""

    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)
    convolutions: list[Convolution] = field(default_factory=list)


def choose(fusion: Fusion) -> Choice:
    """Which intermediates to store with the channels last."""
    found = list(_convolutions(fusion))
    if not any(c.taps > 1 for c in found):
        return Choice()
    search = _Search(fusion, found)
    choice = Choice()
    for members in search.components():
        place = search.worthwhile(members)
        if place is None:
            continue
        for tensor in members:
            rank = len(fusion.whole.dims_of(tensor))
            choice.orders[tensor] = (*(d for d in range(rank) if d != place), place)
    choice.convolutions = [c for c in found if c.source in choice.orders]
    for c in choice.convolutions:
        if _is_for_one_order(fusion, choice, c):
            choice.orders[c.weight.tensor] = tuple(c.weight.index.index(Axis(a)) for a in c.order)
    return choice


def _is_for_one_order(fusion: Fusion, choice: Choice, c: Convolution) -> bool:
    """Whether the weights come out of a kernel, which can write them in the order that all readers want."""
    tensor = c.weight.tensor
    if tensor not in fusion.position or tensor in fusion.live or {*c.weight.index} != {Axis(a) for a in c.order}:
        return False
    chosen = [o for o in choice.convolutions if o.weight.tensor == tensor]
    wanted = {tuple(o.weight.index.index(Axis(a)) for a in o.order) for o in chosen}
    return len(wanted) == 1 and set(fusion.readers[tensor]) == {o.stmt.target for o in chosen}


def apply(whole: KernelSpec, fusion: Fusion, choice: Choice) -> tuple[KernelSpec, dict[str, str]]:
    """The spec with sums over channels innermost and weights read from copies in that order, which are statements and
    groups of their own; the copies with the convolution that they were made for. The orders of tensors are left to
    kvc.passes.layout.permute."""
    body = {s.target: s for s in whole.body}
    copies: dict[Load, str] = {}
    made_for: dict[str, str] = {}
    for c in choice.convolutions:
        assert isinstance(c.stmt.over, Reduce)
        inner = (*(a for a in c.stmt.over.axes if a != c.channel), c.channel)
        own = c.order
        body[c.stmt.target] = replace(body[c.stmt.target], over=replace(c.stmt.over, axes=inner))
        if c.weight.tensor in choice.orders or [i for i in c.weight.index if i != Const(0)] == [Axis(a) for a in own]:
            continue
        if c.weight not in copies:
            copies[c.weight] = _free_name(whole, f"{c.weight.tensor}_last", body)
            made_for[copies[c.weight]] = c.stmt.target
            copy = Stmt(copies[c.weight], whole.dtype_of(c.weight.tensor), own, c.weight)
            body = {copy.target: copy, **body} if c.weight.tensor not in body else _after(body, copy, c.weight.tensor)
            fusion.insert(copy)
        name = copies[c.weight]
        body[c.stmt.target] = _reading(body[c.stmt.target], c.weight, Load(name, tuple(Axis(a) for a in own), None))
        fusion.redirect(c.stmt.target, c.weight.tensor, name)
    return replace(whole, body=tuple(body.values())), made_for


def _reading(stmt: Stmt, old: Load, new: Load) -> Stmt:
    """The statement with one of its reads exchanged."""

    def visit(expr: Expr) -> Expr:
        return new if expr == old else expr

    return stmt.map(lambda root: transform(root, visit))


def _after(body: dict[str, Stmt], stmt: Stmt, tensor: str) -> dict[str, Stmt]:
    result: dict[str, Stmt] = {}
    for target, own in body.items():
        result[target] = own
        if target == tensor:
            result[stmt.target] = stmt
    return result


def _free_name(whole: KernelSpec, stem: str, body: dict[str, Stmt]) -> str:
    name, n = stem, 1
    while name in body or name in whole.operand or name in whole.size:
        name, n = f"{stem}{n}", n + 1
    return name


# ---------------------------------------------------------------- convolutions


def _convolutions(fusion: Fusion) -> Iterator[Convolution]:
    for group, targets in fusion.groups.items():
        if fusion.kind(group) is not Contraction:
            continue
        for target in targets:
            found = _convolution(fusion, group, fusion.whole.stmt[target])
            if found is not None:
                yield found


def _convolution(fusion: Fusion, group: int, stmt: Stmt) -> Convolution | None:
    """The statement as a convolution of an intermediate with fixed weights, its channels a multiple of 16 bytes."""
    if not isinstance(stmt.over, Reduce) or stmt.over.op != "sum" or stmt.over.where is not None:
        return None
    reads = list(dict.fromkeys(loads(stmt.expr)))
    if len(reads) != 2:
        return None
    whole, inner = fusion.whole, set(stmt.over.axes)
    for data, weight in (reads, reads[::-1]):
        source, before = _source(fusion, group, data.tensor)
        if source not in fusion.position or not _is_fixed(fusion, weight.tensor) or weight.other is not None:
            continue
        of_data, of_weight = _axes(data), _axes(weight)
        plain = [at.name for at in data.index if isinstance(at, Axis) and at.name in inner]
        if len(plain) != 1 or (of_data & of_weight) - inner or not inner <= of_weight:
            continue
        windows = [set(axes_of(at)) for at in data.index if not isinstance(at, Axis)]
        if any(plain[0] in axes for axes in windows):
            continue
        taps = prod(whole.extent(a) for axes in windows for a in axes & inner)
        if whole.extent(plain[0]) * whole.dtype_of(source).bytes % _BYTES == 0:
            return Convolution(group, stmt, data, weight, plain[0], taps, source, before)
    return None


def _source(fusion: Fusion, group: int, tensor: str) -> tuple[str, Stmt | None]:
    """The tensor in memory that a convolution's data comes from ("" where that is not one, point by point), and the
    statement between them."""
    if tensor not in fusion.groups[group]:
        return tensor, None
    before = fusion.whole.stmt[tensor]
    full = {r.tensor for r in before.loads() if r.index == tuple(Axis(a) for a in before.axes)}
    if before.over is not None or len(full) != 1 or full & set(fusion.groups[group]):
        return "", None
    return full.pop(), before


def _is_fixed(fusion: Fusion, tensor: str) -> bool:
    return tensor in fusion.fixed or tensor in fusion.given


def _axes(load: Load) -> set[str]:
    return {a for at in load.index for a in axes_of(at)}


# ---------------------------------------------------------------- what moves together


class _Search:
    def __init__(self, fusion: Fusion, convolutions: list[Convolution]) -> None:
        self.fusion, self.whole = fusion, fusion.whole
        self.reads: dict[str, list[Convolution]] = {}
        for c in convolutions:
            self.reads.setdefault(c.source, []).append(c)
        self.loads: dict[str, list[tuple[Stmt, Load]]] = {}
        for stmt in self.whole.body:
            for load in stmt.loads():
                self.loads.setdefault(load.tensor, []).append((stmt, load))
        self.parent: dict[str, str] = {}
        for group in fusion.groups:
            joined = list(self._joined(group))
            for tensor in joined[1:]:
                self.parent[self._root(tensor)] = self._root(joined[0])

    def _root(self, tensor: str) -> str:
        while self.parent.setdefault(tensor, tensor) != tensor:
            tensor = self.parent[tensor]
        return tensor

    def _joined(self, group: int) -> Iterator[str]:
        """Tensors of about the same number of elements that a kernel reads or writes point by point."""
        kind = self.fusion.kind(group)
        if kind not in (Pointwise, Contraction):
            return
        targets = self.fusion.groups[group]
        outputs = self.fusion.outputs(targets, (group,))
        largest = max(prod(self.whole.shape_of(t)) for t in outputs)
        yield from outputs
        stmts = [self.whole.stmt[t] for t in targets]
        if kind is Contraction:  # what the product reads has its own order
            stmts = [s for s in stmts if s.over is None and not self._feeds(s)]
        for tensor in dict.fromkeys(r.tensor for s in stmts for r in s.loads() if r.tensor not in targets):
            shape = self.whole.shape_of(tensor)
            if len(shape) > 2 and 8 * prod(shape) >= largest:
                yield tensor

    def components(self) -> list[tuple[str, ...]]:
        """Tensors that must have one order, for each convolution's data."""
        members: dict[str, list[str]] = {}
        for tensor in list(self.parent):
            members.setdefault(self._root(tensor), []).append(tensor)
        roots = dict.fromkeys(self._root(t) for t in self.reads)
        return [tuple(members.get(root, [root])) for root in roots]

    def worthwhile(self, members: tuple[str, ...]) -> int | None:
        """The position of the channels, the same in all members; None where the order had better stay."""
        places = {c.place for t in members for c in self.reads.get(t, ())}
        if len(places) != 1:
            return None
        place = places.pop()
        if not all(self._can_move(t, place) for t in members):
            return None
        for_it = sum(c.taps > 1 for t in members for c in self.reads.get(t, ()))
        against = 0
        for tensor in members:
            for stmt, load in self.loads.get(tensor, ()):
                cost = self._cost(tensor, place, stmt, load)
                if cost is None:
                    return None
                against += cost
        return place if for_it > against else None

    def _can_move(self, tensor: str, place: int) -> bool:
        """Whether kernels alone see the tensor, one of those that write whole tiles or points writes it, and rows of
        channels begin at multiples of 16 bytes."""
        owner = self.fusion.owner.get(tensor)
        if tensor in self.whole.operand or owner is None or owner in self.fusion.barriers:
            return False
        shape = self.whole.shape_of(tensor)
        aligned = len(shape) > place and shape[place] * self.whole.dtype_of(tensor).bytes % _BYTES == 0
        return aligned and len(shape) > 2 and self.fusion.kind(owner) in (Pointwise, Window, Contraction)

    def _cost(self, tensor: str, place: int, stmt: Stmt, load: Load) -> int | None:
        """What a read loses: nothing (0), the order of its rows (1), or what no count makes up for (None)."""
        if any((c.before or c.stmt) is stmt for c in self.reads.get(tensor, ())):
            return 0
        kinds = {self.fusion.kind(g) for g in self.fusion.members[stmt.target] if g in self.fusion.groups}
        readers = {g for g in self.fusion.members[stmt.target] if g in self.fusion.barriers}
        if readers or not all(issubclass(k, Pointwise | Window | Contraction | Rows) for k in kinds):
            return None
        if load.index[place] not in [Axis(a) for a in stmt.axes]:
            return None
        if stmt.over is None and any(issubclass(k, Contraction) and self._feeds(stmt) for k in kinds):
            return None
        return int(any(issubclass(k, Rows) for k in kinds))

    def _feeds(self, stmt: Stmt) -> bool:
        """Whether a product sums over what a statement of its kernel makes."""
        return any(isinstance(self.whole.stmt[r].over, Reduce) for r in self.fusion.readers[stmt.target])

"""Brings the statements of one kernel to normal form: statements that run over the same points share axis names.

Statements arrive with axes of their own. A temporary read at plain axes gives its axes to the reader. Where a read is
a reshape (`t[b, h*64 + d]`, or `m[c // 4]`), axes are split into digits until it is plain: every domain in the kernel
is then a set of common axes. Splitting keeps row-major order, so that the memory of an operand stays what it was. What
remains unmatched is paired with the axes of the anchor (the first reduction, else the first output): naming two axes
alike says only that one loop may run both.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from kvc.kernel import (
    Axis,
    Call,
    Const,
    Expr,
    KernelSpec,
    Load,
    Operand,
    Order,
    Reduce,
    Scan,
    Scatter,
    Size,
    Stmt,
    transform,
)
from kvc.kernel import substitute as substitute_axes
from kvc.passes.access import compose
from kvc.simplify import IndexAlgebra, simplify_stmt

Digit = tuple[int, str, int, int]  # coefficient, axis, divisor, extent: coefficient * (axis // divisor % extent)


class Alignment:
    """The statements of a kernel under construction. `whole` is the spec they come from, `outputs` the targets that
    go to memory. After `run`, `stmts` are aligned and `names` maps their axes to one name a class."""

    def __init__(self, whole: KernelSpec, targets: Sequence[str], outputs: Sequence[str]) -> None:
        self.whole = whole
        self.outputs = tuple(outputs)
        self.fresh = 0
        self.sizes: dict[str, Size] = {}
        self.stems: dict[str, str] = {}  # the name each axis had in the whole spec
        self.strides: dict[str, tuple[int, ...] | None] = {o: whole.operand[o].strides if o in whole.operand else None
                                                           for o in outputs}  # fmt: skip
        self.scope = ChainMap(self.sizes, whole.size)
        self.algebra = IndexAlgebra(self.scope)
        self.loops: dict[str, str] = {}  # the axis of a loop, which is one for all its statements
        self.stmts = {t: self._own(whole.stmt[t]) for t in targets}
        self.digits: list[tuple[str, ...]] = []  # groups of axes that one axis was split into
        self.names: dict[str, str] = {}

    # ------------------------------------------------------------ axes
    def _axis(self, stem: str, size: Size) -> str:
        self.fresh += 1
        name = f"{stem}.{self.fresh}"
        self.sizes[name] = replace(size, name=name)
        self.stems[name] = stem
        return name

    def _own(self, stmt: Stmt) -> Stmt:
        """The statement under axis names that no other uses; symbolic axes keep theirs, since it is their identity."""
        looped = stmt.loop.axis if stmt.loop is not None else None
        names = {}
        for a in (*stmt.axes, *stmt.inner_axes):
            size = self.whole.size[a]
            if size.size is not None and (a != looped or a not in self.loops):
                names[a] = self._axis(a, size)
        if looped is not None and looped in names:
            self.loops[looped] = names[looped]
        names |= {a: b for a, b in self.loops.items() if a == looped}
        return rename_axes(stmt, names)

    def extent(self, axis: str) -> int | None:
        return self.scope[axis].size

    def dims(self, tensor: str) -> tuple[str, ...]:
        return self.stmts[tensor].axes if tensor in self.stmts else self.whole.dims_of(tensor)

    def simplify(self, stmt: Stmt) -> Stmt:
        return simplify_stmt(self.algebra, self.dims, stmt)

    # ------------------------------------------------------------ the passes
    def run(self) -> Alignment:
        self._inline_guarded()
        for _ in range(8):  # each round splits at least one axis; no model needs more than two or three
            while self._split_reshapes():
                pass
            self._unify()
            if not self._pair():
                break
        return self

    def _reads(self) -> Iterator[tuple[Stmt, Load]]:
        """Reads of the kernel's own tensors."""
        for stmt in list(self.stmts.values()):
            for load in stmt.loads():
                if load.tensor in self.stmts:
                    yield stmt, load

    def _owned(self) -> set[str]:
        """What one thread must own: outputs, and all that follows from a reduction."""
        owned = set(self.outputs)
        for stmt in self.stmts.values():
            follows = any(load.tensor in owned - set(self.outputs) for load in stmt.loads())
            if follows or stmt.over is not None or stmt.loop is not None:
                owned.add(stmt.target)
        return owned

    def _inline_guarded(self) -> None:
        """A guarded read of a pointwise temporary becomes its expression, with the guard on what it loads."""

        def inlines(expr: Expr) -> bool:
            if not isinstance(expr, Load) or expr.other is None or expr.tensor not in self.stmts:
                return False
            inner = self.stmts[expr.tensor]
            return inner.over is None and inner.loop is None

        def visit(expr: Expr) -> Expr:
            if isinstance(expr, Load) and inlines(expr):
                # What comes out may itself read a temporary under a guard.
                return transform(compose(self._typed(), self.algebra, expr, self.stmts[expr.tensor]), visit)
            return expr

        for target, stmt in self.stmts.items():
            if any(inlines(load) for load in stmt.loads()):
                self.stmts[target] = self.simplify(stmt.map(lambda root: transform(root, visit)))

    def _typed(self) -> KernelSpec:
        """The kernel as it is now, for types and shapes."""
        return KernelSpec("", (), self.operands(), (), tuple(self.stmts.values()))

    def operands(self) -> tuple[Operand, ...]:
        """The tensors read from memory, in order of their first read, under the dims of the whole spec."""
        read = dict.fromkeys(r.tensor for s in self.stmts.values() for r in s.loads() if r.tensor not in self.stmts)
        return tuple(operand_of(self.whole, tensor) for tensor in read)

    # ------------------------------------------------------------ splitting
    def _split_reshapes(self) -> bool:
        """Split axes for one read that is a reshape of an owned tensor; whether there was one."""
        owned = self._owned()
        for stmt, load in self._reads():
            if load.tensor not in owned or load.other is not None:
                continue
            for dim, index in enumerate(load.index):
                if not isinstance(index, Axis) and self._split_for(stmt, load.tensor, dim, index):
                    return True
        return False

    def _split_for(self, reader: Stmt, tensor: str, dim: int, index: Expr) -> bool:
        digits = read_digits(self.algebra, index)
        axis = self.stmts[tensor].axes[dim]
        if digits is None or prod(d[3] for d in digits) != self.extent(axis):
            return False
        if not all(self._can_split(reader, d[1]) for d in digits if d[3] != self.extent(d[1])):
            return False
        if len(digits) > 1:
            if not self._can_split(self.stmts[tensor], axis):
                return False
            self._split(tensor, axis, [d[3] for d in digits])
        done = len(digits) > 1
        for _, name, divisor, extent in digits:
            whole = self.extent(name)
            if whole is not None and extent != whole and name in self.sizes and self._has(reader.target, name):
                self._split(reader.target, name, [whole // (divisor * extent), extent, divisor])
                done = True
        return done

    def _has(self, target: str, axis: str) -> bool:
        stmt = self.stmts[target]
        return axis in stmt.axes or axis in stmt.inner_axes

    @staticmethod
    def _can_split(stmt: Stmt, axis: str) -> bool:
        over = stmt.over
        if stmt.loop is not None and axis == stmt.loop.axis:
            return False
        if isinstance(over, Scan | Order):
            return axis != over.axis
        if isinstance(over, Scatter):
            return False
        return not (isinstance(over, Reduce) and over.op.startswith("arg") and axis in over.axes)

    def _split(self, target: str, axis: str, extents: Sequence[int]) -> None:
        """Replace an axis of a statement by digits of these extents (1s are left out), most significant first."""
        extents = [e for e in extents if e != 1]
        stem = self.stems[axis]
        parts = [self._axis(f"{stem}{i}" if i else stem, Size("", e)) for i, e in enumerate(extents)]
        self.digits.append(tuple(parts))
        steps = [prod(extents[i + 1 :]) for i in range(len(extents))]
        value: Expr = Const(0)
        for part, step in zip(parts, steps, strict=True):
            value = Call("add", (value, Call("mul", (Axis(part), Const(step)))))
        stmt = self.stmts[target]
        position = stmt.axes.index(axis) if axis in stmt.axes else None
        over = stmt.over
        if isinstance(over, Reduce):
            over = replace(over, axes=_spliced(over.axes, axis, parts))
        stmt = replace(stmt, axes=_spliced(stmt.axes, axis, parts), over=over)
        self.stmts[target] = stmt.map(lambda root: substitute_axes(root, {axis: value}))
        if position is not None:
            self._split_readers(target, position, extents, steps)
        self.stmts = {t: self.simplify(s) for t, s in self.stmts.items()}

    def _split_readers(self, target: str, position: int, extents: list[int], steps: list[int]) -> None:
        def visit(expr: Expr) -> Expr:
            if not isinstance(expr, Load) or expr.tensor != target:
                return expr
            index = expr.index[position]
            high = [Call("floordiv", (index, Const(step))) for step in steps]
            digits = (high[0], *(Call("mod", (h, Const(e))) for h, e in zip(high[1:], extents[1:], strict=True)))
            return replace(expr, index=(*expr.index[:position], *digits, *expr.index[position + 1 :]))

        self.stmts = {t: s.map(lambda root: transform(root, visit)) for t, s in self.stmts.items()}
        strides = self.strides.get(target)
        if strides is not None:
            split = tuple(strides[position] * s for s in steps)
            self.strides[target] = (*strides[:position], *split, *strides[position + 1 :])

    # ------------------------------------------------------------ unification
    def _unify(self) -> None:
        """One name for the axes that a plain read identifies, as long as no statement would name an axis twice."""
        self.names = {}
        self.members: dict[str, set[str]] = {}
        for stmt in self.stmts.values():
            for axis in (*stmt.axes, *stmt.inner_axes):
                self.members.setdefault(axis, set()).add(stmt.target)
        owned = self._owned()
        reads = [(s, r) for s, r in self._reads() if r.other is None]
        for _, load in sorted(reads, key=lambda read: read[1].tensor not in owned):
            for axis, index in zip(self.stmts[load.tensor].axes, load.index, strict=True):
                if isinstance(index, Axis):
                    self._join(axis, index.name)

    def name(self, axis: str) -> str:
        while axis in self.names:
            axis = self.names[axis]
        return axis

    def _join(self, a: str, b: str) -> bool:
        a, b = self.name(a), self.name(b)
        if a == b:
            return True
        if self.scope[a].size is None or self.scope[a].size != self.scope[b].size or self.members[a] & self.members[b]:
            return False
        self.names[b] = a
        self.members[a] |= self.members.pop(b)
        return True

    # ------------------------------------------------------------ pairing with the anchor
    def anchor(self) -> Stmt:
        """The statement that gives the domain: the first reduction, else the first output."""
        for stmt in self.stmts.values():
            if isinstance(stmt.over, Reduce):
                return stmt
        return self.stmts[self.outputs[0]]

    def _pair(self) -> bool:
        """Identify what is left of each owned statement's axes with free axes of the anchor; True when that took a
        split, after which all has to be unified again."""
        anchor = self.anchor()
        frame = [*anchor.axes, *anchor.inner_axes]
        owned = self._owned()
        for stmt in self.stmts.values():
            if stmt.target not in owned or stmt is anchor:
                continue
            axes = [*stmt.axes, *stmt.inner_axes]
            classes = {self.name(a) for a in axes}
            free = [a for a in frame if self.name(a) not in classes]
            left = [a for a in axes if self.name(a) not in {self.name(f) for f in frame}]
            self._pair_by_reads(anchor, stmt, free, left)
            sizes_left, sizes_free = [self.extent(a) for a in left], [self.extent(a) for a in free]
            if sizes_left == sizes_free:
                for a, b in zip(free, left, strict=True):
                    self._join(a, b)
            elif left and None not in (*sizes_left, *sizes_free) and self._refine(anchor, free, stmt, left):
                return True
        return False

    def _pair_by_reads(self, anchor: Stmt, stmt: Stmt, free: list[str], left: list[str]) -> None:
        """Pair axes that read the same dim of the same tensor."""
        at = {(r.tensor, i): e.name for r in anchor.loads() for i, e in enumerate(r.index) if isinstance(e, Axis)}
        for load in stmt.loads():
            for i, index in enumerate(load.index):
                partner = at.get((load.tensor, i))
                if not isinstance(index, Axis) or index.name not in left or partner is None or partner not in free:
                    continue
                if self._join(partner, index.name):
                    left.remove(index.name)
                    free.remove(partner)

    def _refine(self, anchor: Stmt, free: list[str], stmt: Stmt, left: list[str]) -> bool:
        """Split both sides so that their extents agree in order; False where they do not nest."""
        a, b = [self.extent(x) or 0 for x in free], [self.extent(x) or 0 for x in left]
        if prod(a) != prod(b) or 0 in (*a, *b):
            return False
        bounds = sorted({prod(a[i:]) for i in range(len(a) + 1)} | {prod(b[i:]) for i in range(len(b) + 1)})
        if any(high % low for low, high in pairwise(bounds)):
            return False
        plans = []
        for owner, axes, extents in ((anchor, free, a), (stmt, left, b)):
            for i, axis in enumerate(axes):
                low, high = prod(extents[i + 1 :]), prod(extents[i:])
                cuts = [c for c in bounds if low <= c <= high]
                parts = [hi // lo for lo, hi in pairwise(cuts)][::-1]
                if len(parts) > 1:
                    if not self._can_split(self.stmts[owner.target], axis):
                        return False
                    plans.append((owner.target, axis, parts))
        for target, axis, parts in plans:
            self._split(target, axis, parts)
        return bool(plans)


def operand_of(whole: KernelSpec, tensor: str) -> Operand:
    """A tensor of the whole spec as an operand of one kernel."""
    if tensor in whole.operand:
        return replace(whole.operand[tensor], alias=None)
    stmt = whole.stmt[tensor]
    return Operand(tensor, stmt.dtype, stmt.axes)


def _spliced(axes: tuple[str, ...], axis: str, parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(p for a in axes for p in (parts if a == axis else (a,)))


def rename_axes(stmt: Stmt, names: dict[str, str]) -> Stmt:
    """The statement under other axis names; names not in the map stay."""
    over = stmt.over
    if isinstance(over, Reduce | Scatter):
        over = replace(over, axes=tuple(names.get(a, a) for a in over.axes))
    elif isinstance(over, Scan | Order):
        over = replace(over, axis=names.get(over.axis, over.axis))
    new: dict[str, Expr] = {a: Axis(b) for a, b in names.items()}
    loop = replace(stmt.loop, axis=names.get(stmt.loop.axis, stmt.loop.axis)) if stmt.loop is not None else None
    stmt = replace(stmt, axes=tuple(names.get(a, a) for a in stmt.axes), over=over, loop=loop)
    return stmt.map(lambda root: substitute_axes(root, new))


def read_digits(algebra: IndexAlgebra, index: Expr) -> list[Digit] | None:
    """The digits that an index puts together, most significant first, if it is such a number: each digit's coefficient
    is the product of the extents below it, as in `(i*4 + j // 8)*8 + k`."""
    linear = algebra.linear(index)
    if linear.constant or not linear.terms:
        return None
    digits: list[Digit] = []
    for atom, coefficient in linear.terms:
        digit = _digit(algebra, atom)
        if digit is None or coefficient < 1:
            return None
        digits.append((coefficient, *digit))
    digits.sort()
    step = 1
    for coefficient, _, _, extent in digits:
        if coefficient != step:
            return None
        step *= extent
    return digits[::-1]


def _digit(algebra: IndexAlgebra, atom: Expr) -> tuple[str, int, int] | None:
    """(axis, divisor, extent) of `axis // divisor % extent`, where it divides evenly."""
    axis, divisor, extent = atom, 1, 0
    match atom:
        case Call("mod", (Call("floordiv", (Axis() as axis, Const(p))), Const(q))):
            divisor, extent = int(p), int(q)
        case Call("floordiv", (Axis() as axis, Const(p))):
            divisor = int(p)
        case Call("mod", (Axis() as axis, Const(q))):
            extent = int(q)
    size = algebra.sizes[axis.name].size if isinstance(axis, Axis) else None
    if not size or not isinstance(axis, Axis):  # unknown, or an axis without elements
        return None
    extent = extent or size // divisor
    return (axis.name, divisor, extent) if size % (divisor * extent) == 0 else None

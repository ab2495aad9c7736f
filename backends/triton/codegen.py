"""Expressions of the index notation as Triton block expressions.

A `Scope` is a place in a kernel where a block of points is being computed. *Physical* axes are bound to Python
locals: a block-shaped index tensor (`p = pid * BLOCK + tl.arange(0, BLOCK)`), the variable of a loop, or a scalar.
Every axis of the spec is an index expression over physical axes, so `x[m, k]` over a flat block becomes one pointer,
`x_ptr + p`, by the index algebra alone.

Tensors are evaluated on demand, at one index, and kept in a named local: `Scope.value` of a load reads memory, or
computes a temporary where it is read. Scopes nest (loops); each value is written in the outermost scope that binds
all its physical axes, so what does not change in a loop stands in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from kvc.dtypes import BOOL, F32, I32, DType
from kvc.functions import COMBINES, FUNCTIONS
from kvc.kernel import (
    Axis,
    Call,
    Const,
    Expr,
    Extent,
    Reduce,
    Stmt,
    axes_of,
    call,
    substitute,
)
from kvc.simplify import Linear

from .index import LINE, UNROLL_POINTS, Physical, V, identity_of, literal_text, typed_literal
from .spelling import ADD, ATOM, BIT_AND, TL
from .values import ValueScope


class Scope(ValueScope):
    """See the module: tensors read, computed, reduced and stored."""

    # ------------------------------------------------------------ tensors
    def load(self, tensor: str, index: tuple[Expr, ...], other: Expr | None) -> V:
        """`tensor[index]`: from memory, or computed here where it is a temporary."""
        key = self.key(tensor, index, other)
        known = self.recall(key)
        if known is not None:
            return known
        home = self.home(self.physical_axes(index if other is None else (*index, other)))
        if tensor in self.kernel.memory:
            return self._read(home, key, tensor, index, other)
        return self._compute(home, key, tensor, index, other)

    def key(self, tensor: str, index: tuple[Expr, ...], other: Expr | None = None) -> object:
        """What a load is remembered by: its place among the physical axes."""
        guard = substitute(other, self.env) if other is not None else None
        return tensor, tuple(self.resolved(i) for i in index), guard

    def _read(self, home: Scope, key: object, tensor: str, index: tuple[Expr, ...], other: Expr | None) -> V:
        dtype = self.spec.dtype_of(tensor)
        if other is not None and not isinstance(other, Const):
            return self._started(home, key, tensor, index, other)
        raw = self.access(tensor, index, other, home, self.fill.get(key))
        value = V(f"{raw}.to({TL[dtype.compute.name]})" if dtype.compute is not dtype else raw, ATOM, dtype.compute)
        return home.keep(key, tensor, replace(value, axes=self.physical_axes(index)))

    def _started(self, home: Scope, key: object, tensor: str, index: tuple[Expr, ...], other: Expr) -> V:
        """A loop's read of the step before: its value from memory, or the start value in the first step."""
        dtype = self.spec.dtype_of(tensor)
        guards = self.guards(tensor, index, home)
        raw = self.access(tensor, index, Const(0), home)
        stored = V(f"{raw}.to({TL[dtype.compute.name]})" if dtype.compute is not dtype else raw, ATOM, dtype.compute)
        start = home.strong(home.round(home.value(other), dtype), dtype.compute)
        inside = V(conjunction(guards), BIT_AND, BOOL)
        chosen = home._joined("tl.where({0}, {1}, {2})", ATOM, [inside, stored, start], dtype.compute)
        return home.keep(key, tensor, replace(chosen, axes=self.physical_axes([*index, other])))

    def access(
        self, tensor: str, index: tuple[Expr, ...], other: Expr | None, home: Scope, fill: float | bool | None = None
    ) -> str:
        """The `tl.load` of an operand or scratch buffer, in its storage type. Lanes outside the block give `fill`."""
        dtype = self.spec.dtype_of(tensor)
        guards = self.guards(tensor, index, home) if other is not None else []
        masks = [*self.masks(index), *guards]
        pointer = self.address(tensor, index, home)
        if not masks:
            return f"tl.load({pointer})"
        outside = typed_literal(other.value if isinstance(other, Const) else fill or 0, dtype.compute)
        fallback = literal_text(outside if dtype is not BOOL else int(outside))
        mask = conjunction(masks)
        if len(pointer) + len(mask) > LINE - 32 and len(masks) > 1:
            local = self.kernel.fresh("inside")
            home.emit(f"{local} = {mask}")
            mask = local
        return f"tl.load({pointer}, mask={mask}, other={fallback})"

    def address(self, tensor: str, index: tuple[Expr, ...], home: Scope) -> str:
        """Pointer arithmetic of one access."""
        offset: Expr = Const(0)
        for at, stride in zip(index, self.stride_exprs(tensor), strict=True):
            offset = Call("add", (offset, Call("mul", (at, stride))))
        resolved = self.resolved(offset)
        pointer = self.kernel.pointer(tensor)
        parts = self._by_axes(resolved)
        if len(parts) > 1 and any(len(part.terms) > 1 for part in parts.values()):
            return f"{pointer} + ({' + '.join(self._part(tensor, part).at(ADD + 1) for part in parts.values())})"
        text = home._index(resolved)
        return pointer if text.literal == 0 else f"{pointer} + {text.at(ADD)}"

    def _by_axes(self, offset: Expr) -> dict[frozenset[str], Linear]:
        """An offset as a sum of parts that depend on different axes. Added up one by one, its terms would make a block
        of all axes as soon as two meet; the parts meet once, and each is worked out where its axes are bound."""
        linear = self.algebra.linear(offset)
        found: dict[frozenset[str], dict[Expr, int]] = {}
        for atom, factor in linear.terms:
            found.setdefault(frozenset(axes_of(atom)), {})[atom] = factor
        parts = {axes: Linear.build(terms, 0) for axes, terms in found.items()}
        if linear.constant and parts:
            first = next(iter(parts))
            parts[first] = parts[first].plus(Linear((), linear.constant))
        return parts

    def _part(self, tensor: str, part: Linear) -> V:
        """One part of an offset, in a local of its own where it has several terms."""
        expr = part.expr()
        place = self.home(axes_of(expr))
        value = place._index(expr)
        return value if len(part.terms) == 1 else place._local(expr, f"{tensor}_at", value)

    def stride_exprs(self, tensor: str) -> list[Expr]:
        """Strides in elements; products of extents where the sizes are symbolic."""
        dims = self.spec.dims_of(tensor)
        operand = self.spec.operand.get(tensor)
        if (operand is not None and operand.strides is not None) or all(
            self.spec.size[d].size is not None for d in dims
        ):
            return [Const(s) for s in self.kernel.strides(tensor)]
        strides: list[Expr] = [Const(1)]
        for d in reversed(dims[1:]):
            strides.append(Call("mul", (strides[-1], Extent(d))))
        return list(reversed(strides)) if dims else []

    def masks(self, exprs: Iterable[Expr]) -> list[str]:
        """Masks of the physical axes that expressions depend on, each once."""
        names = sorted(self.physical_axes(exprs), key=self._order)
        return list(dict.fromkeys(m for a in names if (m := self.binding(a).mask)))

    def _order(self, axis: str) -> int:
        return [a for scope in reversed(self.chain()) for a in scope.physical].index(axis)

    def guards(self, tensor: str, index: tuple[Expr, ...], home: Scope) -> list[str]:
        """The conditions under which an access lies inside the tensor."""
        found = []
        for at, dim in zip(index, self.spec.dims_of(tensor), strict=True):
            size = self.spec.size[dim].size
            resolved = self.resolved(at)
            low, high = self.algebra.interval(resolved)
            if at == Axis(dim):
                continue
            inner = home._index(resolved)
            local = inner if inner.strength == ATOM else home._local(resolved, dim, inner)
            if low < 0:
                found.append(f"({local.text} >= 0)")
            if size is None or high >= size:
                found.append(f"({local.text} < {size if size is not None else self.kernel.extent(dim)})")
        return found

    def _local(self, key: Expr, stem: str, value: V) -> V:
        known = self.recall(("local", key))
        return known if known is not None else self.keep(("local", key), stem, value)

    def _compute(self, home: Scope, key: object, tensor: str, index: tuple[Expr, ...], other: Expr | None) -> V:
        """A temporary where it is read."""
        stmt = self.spec.stmt[tensor]
        if other is not None:
            return self._guarded(home, key, stmt, index, other)
        if isinstance(stmt.over, Reduce):
            return home.reduce(key, stmt, index)
        assert stmt.over is None, f"{tensor} must be in memory before it is read"
        at = dict(zip(stmt.axes, index, strict=True))
        value = home.value(substitute(stmt.expr, at))
        return home.keep(key, tensor, home.round(value, stmt.dtype))

    def _guarded(self, home: Scope, key: object, stmt: Stmt, index: tuple[Expr, ...], other: Expr) -> V:
        """A temporary read where it may be outside: computed at a clamped index, and replaced there."""
        guards = self.guards(stmt.target, index, home)
        clamped = []
        for at, dim in zip(index, stmt.axes, strict=True):
            size = self.spec.size[dim].size
            last: Expr = Call("sub", (Extent(dim), Const(1))) if size is None else Const(size - 1)
            inside = home.algebra.interval(home.resolved(at))
            fits = inside[0] >= 0 and size is not None and inside[1] < size
            clamped.append(at if fits else call("minimum", call("maximum", at, 0), last))
        value = home.load(stmt.target, tuple(clamped), None)
        if not guards:
            return value
        condition = V(conjunction(guards), BIT_AND, BOOL, self.physical_axes(index))
        outside = home._argument(home.to(home.value(other), value.type))
        chosen = home._joined("tl.where({0}, {1}, {2})", ATOM, [condition, value, outside], value.type)
        return home.keep(key, stmt.target, chosen)

    # ------------------------------------------------------------ reductions inside a lane
    def full(self, value: float | bool, dtype: DType) -> str:
        """A block of this scope's shape, all of one value."""
        shape = ", ".join(self.shape) + ("," if len(self.shape) == 1 else "")
        return f"tl.full(({shape}), {literal_text(typed_literal(value, dtype))}, {TL[dtype.name]})"

    def broadcast(self, value: V) -> str:
        """The value as a block of this scope's whole shape (a scalar where there is none)."""
        if value.literal is not None:
            return self.full(value.literal, value.type)
        if set(self.shape) <= {self.binding(a).spans for a in value.axes}:
            return value.text
        shape = ", ".join(self.shape) + ("," if len(self.shape) == 1 else "")
        return f"tl.broadcast_to({value.text}, ({shape}))"

    def reduce(self, key: object, stmt: Stmt, index: tuple[Expr, ...]) -> V:
        """A reduction by loops inside every lane."""
        over = stmt.over
        assert isinstance(over, Reduce)
        names = {a: self.kernel.fresh(a) for a in over.axes}
        at = dict(zip(stmt.axes, index, strict=True)) | {a: Axis(names[a]) for a in over.axes}
        arg = over.op in ("argmax", "argmin")
        kind = self.spec.type_of(stmt.expr) if arg else stmt.dtype.compute
        kind = I32 if arg and kind is BOOL else kind
        best = self.kernel.fresh("best" if arg else stmt.target)
        self.emit(f"{best} = {self.full(identity_of(over.op, kind), kind)}")
        result = self.kernel.fresh(stmt.target) if arg else best
        if arg:
            self.emit(f"{result} = {self.full(0, self.integer)}")
        scopes = self._loops(over.axes, names)
        inner = scopes[-1]
        where = inner.to(inner.value(substitute(over.where, at)), BOOL) if over.where is not None else None
        if arg:
            value = inner.value(substitute(stmt.expr, at))
            inner.best_of(over.op, best, result, inner.strong(value, kind), inner.index(at[over.axes[0]]), where)
        elif over.op == "sum" and kind.is_float and where is None and is_product(stmt.expr):
            factors = (inner.to(inner.value(substitute(f, at)), kind) for f in stmt.expr.children)
            inner.emit(f"{best} = tl.fma({', '.join(f.text for f in factors)}, {best})")
        else:
            inner.accumulate(over.op, best, inner.value(substitute(stmt.expr, at)), kind, where)
        for depth in range(len(scopes) - 1, 0, -1):
            scopes[depth - 1].close(self._loop_header(over.axes[depth - 1], names, over.axes), scopes[depth])
        final = V(result, ATOM, self.integer if arg else kind, frozenset(self.all_axes()))
        if not arg and stmt.dtype is not kind and self.is_read(stmt.target):
            return self.keep(key, stmt.target, self.round(final, stmt.dtype))
        self.memo[key] = final
        return final

    def all_axes(self) -> set[str]:
        return {a for scope in self.chain() for a in scope.physical}

    def _loops(self, axes: tuple[str, ...], names: dict[str, str]) -> list[Scope]:
        """Scopes of a nest of loops, this one first."""
        scopes = [self]
        unrolled = self._unrolled(axes)
        for a in axes:
            inner = scopes[-1].child()
            inner.bind(names[a], self.spec.size[a].size, Physical(names[a], constant=unrolled))
            scopes.append(inner)
        return scopes

    def _unrolled(self, axes: tuple[str, ...]) -> bool:
        return (
            all(self.spec.size[a].size is not None for a in axes)
            and math.prod(self.spec.extent(a) for a in axes) <= UNROLL_POINTS
        )

    def _loop_header(self, axis: str, names: dict[str, str], axes: tuple[str, ...]) -> str:
        size = self.spec.size[axis].size
        bound = str(size) if size is not None else self.kernel.extent(axis)
        return f"for {names[axis]} in {'tl.static_range' if self._unrolled(axes) else 'range'}({bound}):"

    def accumulate(self, op: str, into: str, value: V, kind: DType, where: V | None = None) -> None:
        """Combine one more value into an accumulator of type `kind`."""
        value = self.to(value, kind)
        if where is not None:
            outside = self._argument(self.to(V("", ATOM, kind, literal=identity_of(op, kind)), kind))
            yes = self.strong(value, kind)
            value = self._joined("tl.where({0}, {1}, {2})", ATOM, [where, yes, outside], kind)
        combined = self.combined(op, into, value, kind)
        self.emit(f"{into} {combined[1:]}" if combined.startswith("@") else f"{into} = {combined}")

    def combined(self, op: str, into: str, value: V, kind: DType) -> str:
        """The text of op(into, value); "@+= ..." where an augmented assignment says it."""
        if op in ("sum", "prod") and kind is not BOOL:
            return f"@{'+' if op == 'sum' else '*'}= {value.text}"
        if op in ("any", "all"):
            return f"@{'|' if op == 'any' else '&'}= {value.text}"
        function = FUNCTIONS[COMBINES[op].binary]
        return self._primitive(function, [V(into, ATOM, kind), value], kind, kind).text

    def best_of(self, op: str, best: str, at: str, value: V, index: V, where: V | None) -> None:
        """One step of argmax or argmin: a later value replaces the best only where it is better, or the first NaN."""
        new = self._named(value, "v")
        sign = ">" if op == "argmax" else "<"
        better = f"({new.text} {sign} {best})"
        if value.type.is_float:
            better += f" | (({new.text} != {new.text}) & ({best} == {best}))"
        if where is not None:
            better = f"({better}) & {where.at(BIT_AND + 1)}"
        take = self.kernel.fresh("better")
        self.emit(f"{take} = {better}")
        self.emit(f"{best} = tl.where({take}, {new.text}, {best})")
        self.emit(f"{at} = tl.where({take}, {index.text}, {at})")

    # ------------------------------------------------------------ stores
    def result(self, stmt: Stmt) -> V:
        """The value of a statement at its own axes, for its store. It is not rounded yet, unless others read it."""
        index = tuple(Axis(a) for a in stmt.axes)
        if self.is_read(stmt.target) or stmt.over is not None:
            return self.load(stmt.target, index, None)
        match stmt.expr:
            case Call("gelu", (arg,)) if (
                stmt.dtype.is_float and stmt.dtype.bits == 16 and self.spec.type_of(arg) is F32
            ):
                helper = self.kernel.file.helper("gelu_16")
                return self._joined(f"{helper}({{0}})", ATOM, [self.strong(self.value(arg), F32)], F32)
        return self.value(stmt.expr)

    def is_read(self, tensor: str) -> bool:
        """Whether some statement reads it; what nobody reads is rounded by its store alone."""
        return any(load.tensor == tensor for stmt in self.spec.body for load in stmt.loads())

    def store(self, tensor: str, index: tuple[Expr, ...], value: V) -> None:
        """Write a block of values (already rounded, or rounded by the store) to an operand or scratch buffer."""
        dtype = self.spec.dtype_of(tensor)
        pointer = self.address(tensor, index, self)
        masks = self.masks(index)
        rounded = self.stored(value, dtype)
        mask = ", mask=" + conjunction(masks) if masks else ""
        if len(pointer) + len(rounded) + len(mask) > LINE and not rounded.isidentifier():
            name = self.kernel.fresh(tensor)
            self.emit(f"{name} = {rounded}")
            rounded = name
        self.emit(f"tl.store({pointer}, {rounded}{mask})")

    def stored(self, value: V, dtype: DType) -> str:
        """The value in a storage type."""
        value = self.to(value, dtype.compute) if not (dtype.is_integer and value.type.is_integer) else value
        if dtype is value.type or value.literal is not None:
            return value.text
        return f"{value.at(ATOM)}.to({TL[dtype.name]})"


def conjunction(masks: list[str]) -> str:
    """All masks at once; one alone stands without its parentheses."""
    return masks[0].removeprefix("(").removesuffix(")") if len(masks) == 1 else " & ".join(masks)


def is_product(expr: Expr) -> bool:
    """Whether a sum of the expression is a chain of fused multiply-adds."""
    return isinstance(expr, Call) and expr.fn == "mul"


__all__ = ["LINE", "Physical", "Scope", "V", "identity_of"]

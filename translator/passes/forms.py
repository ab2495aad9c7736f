"""What a group of statements is, names aside: equal blocks of a deep model are matched and priced once.

A statement's form is its expression tree with tensors and axes numbered in order of first appearance. A group's form is
the forms of its statements, with their tensors numbered over the group, and what is known of the operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from kvc.kernel import Axis, Call, Cast, Const, Expr, KernelSpec, Load, Order, Reduce, Scan, Scatter, Stmt

Form = tuple[Any, ...]


class Forms:
    """Forms of groups of statements of one spec. Statements of loops and symbolic sizes have none: their axes are their
    identity."""

    def __init__(self, whole: KernelSpec) -> None:
        self.whole = whole
        self._numbers: dict[Form, int] = {}
        self._stmts: dict[str, tuple[int, tuple[str, ...]] | None] = {}
        self._tensors: dict[str, Form] = {}

    def of(self, targets: Sequence[str], outputs: Sequence[str]) -> tuple[Form, tuple[str, ...]] | None:
        """(the form of a group, its tensors in the order in which the form numbers them); equal forms differ only in
        those names."""
        names: dict[str, int] = {}
        parts = []
        for target in targets:
            own = self._stmt(target)
            if own is None:
                return None
            form, tensors = own
            parts.append((form, *(names.setdefault(t, len(names)) for t in (*tensors, target))))
        inside = set(targets)
        operands = tuple(self._operand(t) for t in names if t not in inside)
        results = tuple((names[o], self._operand(o)[-1]) for o in outputs)
        return (tuple(parts), operands, results), tuple(names)

    def _operand(self, tensor: str) -> Form:
        if tensor not in self._tensors:
            operand = self.whole.operand.get(tensor)
            strides = operand.strides if operand is not None else None
            self._tensors[tensor] = (self.whole.dtype_of(tensor).name, self.whole.shape_of(tensor), strides)
        return self._tensors[tensor]

    def _stmt(self, target: str) -> tuple[int, tuple[str, ...]] | None:
        """(the number of a statement's form, the tensors that it reads)."""
        if target not in self._stmts:
            stmt = self.whole.stmt[target]
            used = [self.whole.size[a].size for a in (*stmt.axes, *stmt.inner_axes)]
            plain = stmt.loop is None and None not in used
            self._stmts[target] = self._numbered(stmt, used) if plain else None
        return self._stmts[target]

    def _numbered(self, stmt: Stmt, extents: Sequence[int | None]) -> tuple[int, tuple[str, ...]]:
        writer = _Writer({a: n for n, a in enumerate((*stmt.axes, *stmt.inner_axes))})
        form = (stmt.dtype.name, len(stmt.axes), tuple(extents), writer.over(stmt.over), writer.expr(stmt.expr))
        return self._numbers.setdefault(form, len(self._numbers)), tuple(writer.tensors)


class _Writer:
    """Writes one statement with numbers for names."""

    def __init__(self, axes: dict[str, int]) -> None:
        self.axes = axes
        self.tensors: dict[str, int] = {}

    def expr(self, expr: Expr) -> Form:
        match expr:
            case Axis(name):
                return ("axis", self.axes[name])
            case Const():
                return ("const", type(expr.value).__name__, repr(expr.value))
            case Load(tensor, index, other):
                number = self.tensors.setdefault(tensor, len(self.tensors))
                return ("load", number, *map(self.expr, index), None if other is None else self.expr(other))
            case Call(fn, args):
                return (fn, *map(self.expr, args))
            case Cast(dtype, arg):
                return ("cast", dtype.name, self.expr(arg))
        raise TypeError(f"{type(expr).__name__} has no form")

    def over(self, over: Reduce | Scan | Scatter | Order | None) -> Form:
        if over is None:
            return ()
        return (type(over).__name__, *(self._field(getattr(over, f.name)) for f in fields(over)))

    def _field(self, value: Any) -> Any:
        """A field of an `over`: axes by number, expressions as trees, the rest as it is."""
        if isinstance(value, Expr):
            return self.expr(value)
        if isinstance(value, tuple):
            return tuple(map(self._field, value))
        return ("axis", self.axes[value]) if isinstance(value, str) and value in self.axes else value

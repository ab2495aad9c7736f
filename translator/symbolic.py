"""One spec with symbolic sizes from two specs of the same computation at different sizes, and back.

A graph with dynamic shapes is lowered at two sets of sizes. Where both give the same kernel but for numbers, the sizes
that differ become symbolic axes, and a number that differs becomes the expression of those extents that gives it both
times. Two points prove nothing about a third, so the result is only a proposal: `sizes_for` says whether the kernel
that the lowering gives at other sizes is an instance of it, by comparing the whole text. A symbolic kernel therefore
never serves a size at which the model means something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvc.dtypes import BOOL, F32
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Operand,
    Order,
    Over,
    Reduce,
    Scan,
    Scatter,
    Size,
    Stmt,
    contiguous,
    loads,
    transform,
)
from kvc.simplify import IndexAlgebra, in_bounds, simplify_indices

LARGEST = 2**31  # bound of a symbolic size
SMALLEST_HINT = 16


class _Differs(Exception):
    """Why two specs are not one."""


def generalised(first: KernelSpec, second: KernelSpec) -> KernelSpec | str:
    """The spec that both are instances of, under the names of the first, or the reason why there is none. Static where
    they are equal."""
    try:
        return _Pair(dense(first), dense(second)).joined()
    except _Differs as reason:
        return str(reason)


class _Pair:
    """Two specs being compared, position by position."""

    def __init__(self, first: KernelSpec, second: KernelSpec) -> None:
        self.first, self.second = first, second
        self.axes = _axis_map(first, second)
        self.tensors = dict(
            zip((o.name for o in (*second.inputs, *second.outputs)), (o.name for o in (*first.inputs, *first.outputs)),
                strict=False)
        )  # fmt: skip
        for a, b in zip(first.body, second.body, strict=False):
            if self.tensors.setdefault(b.target, a.target) != a.target:
                raise _Differs("its statements come in another order at other sizes")
        self.symbolic = {
            a: (first.extent(a), second.extent(b)) for b, a in self.axes.items() if first.extent(a) != second.extent(b)
        }

    def joined(self) -> KernelSpec:
        first, second = self.first, self.second
        counts = [(len(s.inputs), len(s.outputs), len(s.body)) for s in (first, second)]
        if counts[0] != counts[1]:
            raise _Differs("it has other statements at other sizes")
        sizes = tuple(
            Size(s.name, None, 1, LARGEST, _hint(s.typical)) if s.name in self.symbolic else s for s in first.sizes
        )
        inputs = tuple(self.operand(a, b) for a, b in zip(first.inputs, second.inputs, strict=True))
        outputs = tuple(self.operand(a, b) for a, b in zip(first.outputs, second.outputs, strict=True))
        body = tuple(self.stmt(a, b) for a, b in zip(first.body, second.body, strict=True))
        joined = KernelSpec(first.name, sizes, inputs, outputs, body)
        return replace(joined, body=tuple(_guarded(joined, s) for s in body)) if self.symbolic else joined

    def operand(self, a: Operand, b: Operand) -> Operand:
        if a.dtype is not b.dtype or (a.alias is None) != (b.alias is None):
            raise _Differs(f"{a.name} is another operand at other sizes")
        if a.strides != b.strides:
            raise _Differs(f"the layout of {a.name} depends on the sizes")
        return replace(a, align=min(a.align, b.align))

    # ------------------------------------------------------------ statements
    def stmt(self, a: Stmt, b: Stmt) -> Stmt:
        if (a.loop is not None or b.loop is not None) and self.symbolic:
            raise _Differs("it runs step by step, which takes scratch memory of known size")
        if a.dtype is not b.dtype or (a.loop is None) != (b.loop is None):
            raise _Differs(f"{a.target} is another statement at other sizes")
        return replace(a, expr=self.expr(a.expr, b.expr), over=self.over(a, a.over, b.over))

    def over(self, stmt: Stmt, a: Over | None, b: Over | None) -> Over | None:
        match a, b:
            case None, None:
                return None
            case Reduce(), Reduce() if a.op == b.op and (a.where is None) == (b.where is None):
                return a if a.where is None or b.where is None else replace(a, where=self.expr(a.where, b.where))
            case Scan(), Scan() if (a.op, a.reverse, a.exclusive) == (b.op, b.reverse, b.exclusive):
                return a
            case Order(), Order() if (a.kind, a.descending) == (b.kind, b.descending):
                return a
            case Scatter(), Scatter() if a.op == b.op and len(a.index) == len(b.index):
                index = tuple(self.expr(x, y) for x, y in zip(a.index, b.index, strict=True))
                return replace(a, index=index, base=self.expr(a.base, b.base))
        raise _Differs(f"{stmt.target} is reduced otherwise at other sizes")

    # ------------------------------------------------------------ expressions
    def expr(self, a: Expr, b: Expr) -> Expr:
        match a, b:
            case Const(), Const():
                return a if a == b else self.number(a, b)
            case Axis(), Axis() if self.axes.get(b.name) == a.name:
                return a
            case Extent(), Extent() if self.axes.get(b.name) == a.name:
                return a
            case Load(), Load() if self.tensors.get(b.tensor) == a.tensor and (a.other is None) == (b.other is None):
                pass
            case Call(), Call() if a.fn == b.fn:
                pass
            case Cast(), Cast() if a.dtype is b.dtype:
                pass
            case _:
                raise _Differs("an expression is another one at other sizes")
        if len(a.children) != len(b.children):
            raise _Differs("an expression is another one at other sizes")
        return a.rebuild(tuple(self.expr(x, y) for x, y in zip(a.children, b.children, strict=True)))

    def number(self, a: Const, b: Const) -> Expr:
        """The extents that give both literals."""
        if type(a.value) is not type(b.value) or isinstance(a.value, bool):
            raise _Differs("a literal has another type at other sizes")
        found: Expr | None
        if isinstance(a.value, float):
            found = self.fraction(float(a.value), float(b.value))
        else:
            found = self.whole(int(a.value), int(b.value))
        if found is None:
            raise _Differs(f"the number {a.value} does not follow from its sizes")
        return found

    def whole(self, a: int, b: int) -> Expr | None:
        """An extent, a multiple of one, one with an offset, or a product of two: the first that gives both integers."""
        extents = list(self.symbolic.items())
        for name, (x, y) in extents:
            if (a, b) == (x, y):
                return Extent(name)
        for name, (x, y) in extents:
            if a % x == 0 and a // x == b / y:
                return Call("mul", (Extent(name), Const(a // x)))
        for name, (x, y) in extents:
            if a - x == b - y:
                return Call("add", (Extent(name), Const(a - x)))
        for n, (name, (x, y)) in enumerate(extents):
            for other, (v, w) in extents[n:]:
                if a % (x * v) == 0 and a // (x * v) == b / (y * w):
                    product: Expr = Call("mul", (Extent(name), Extent(other)))
                    factor = a // (x * v)
                    return product if factor == 1 else Call("mul", (product, Const(factor)))
        for name, (x, y) in extents:
            if (a - b) % (x - y) == 0:
                slope = (a - b) // (x - y)
                return Call("add", (Call("mul", (Extent(name), Const(slope))), Const(a - slope * x)))
        return None

    def fraction(self, a: float, b: float) -> Expr | None:
        """An integer made float, or a constant divided by one (the factor of a mean)."""
        if a.is_integer() and b.is_integer():
            found = self.whole(int(a), int(b))
            return Cast(F32, found) if found is not None else None
        for name, (x, y) in self.symbolic.items():
            for scale in (1.0, a * x):
                if (scale / x, scale / y) == (a, b):
                    return Call("div", (Const(scale), Cast(F32, Extent(name))))
        for n, (name, (x, y)) in enumerate(self.symbolic.items()):
            for other, (v, w) in list(self.symbolic.items())[n:]:
                if (1.0 / (x * v), 1.0 / (y * w)) == (a, b):
                    return Call("div", (Const(1.0), Cast(F32, Call("mul", (Extent(name), Extent(other))))))
        return None


def _guarded(spec: KernelSpec, stmt: Stmt) -> Stmt:
    """The statement with a guard on each access that symbolic sizes do not prove to be inside. Two axes of one size are
    two symbols; where they are equal the guard never acts, and `instance` drops it again."""
    algebra = IndexAlgebra(spec.size)

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.other is not None or any(loads(i) for i in expr.index):
            return expr
        if in_bounds(algebra, expr.index, spec.dims_of(expr.tensor)):
            return expr
        kind = spec.dtype_of(expr.tensor)
        return Load(expr.tensor, expr.index, Const(0.0 if kind.is_float else False if kind is BOOL else 0))

    return stmt.map(lambda root: transform(root, visit))


def _hint(size: int) -> int:
    """The next power of two: one for many sizes, so that a kernel learned at another size has the same text."""
    return max(SMALLEST_HINT, 1 << (size - 1).bit_length())


# ---------------------------------------------------------------- layouts


def dense(spec: KernelSpec) -> KernelSpec:
    """The spec with the dims of each operand in the order in which they lie in memory, where that makes the operand
    contiguous: strides are numbers, and a transposed tensor of symbolic size has none."""
    orders = {o.name: order for o in (*spec.inputs, *spec.outputs) if (order := _memory_order(spec, o)) is not None}
    if not orders:
        return spec

    def moved(items: Sequence[Any], name: str) -> tuple[Any, ...]:
        return tuple(items[d] for d in orders[name]) if name in orders else tuple(items)

    def operand(o: Operand) -> Operand:
        return replace(o, dims=moved(o.dims, o.name), strides=None) if o.name in orders else o

    def visit(expr: Expr) -> Expr:
        return Load(expr.tensor, moved(expr.index, expr.tensor), expr.other) if isinstance(expr, Load) else expr

    def stmt(s: Stmt) -> Stmt:
        s = s.map(lambda root: transform(root, visit))
        if s.target not in orders:
            return s
        over = replace(s.over, index=moved(s.over.index, s.target)) if isinstance(s.over, Scatter) else s.over
        return replace(s, axes=moved(s.axes, s.target), over=over)

    return replace(
        spec,
        inputs=tuple(map(operand, spec.inputs)),
        outputs=tuple(map(operand, spec.outputs)),
        body=tuple(map(stmt, spec.body)),
    )


def _memory_order(spec: KernelSpec, operand: Operand) -> list[int] | None:
    """The dims of a strided operand from the outermost to the innermost, where they leave no gaps; None for others."""
    if operand.strides is None or operand.alias is not None or any(o.alias == operand.name for o in spec.outputs):
        return None
    strides, shape = operand.strides, spec.shape_of(operand.name)
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    expected = contiguous(tuple(shape[d] for d in order))
    fits = all(strides[d] == n or shape[d] == 1 for d, n in zip(order, expected, strict=True))
    return order if fits else None


# ---------------------------------------------------------------- back to sizes


def _positions(spec: KernelSpec) -> Iterator[str]:
    """Every mention of an axis that declares something, in order."""
    for operand in (*spec.inputs, *spec.outputs):
        yield from operand.dims
    for stmt in spec.body:
        if stmt.loop is not None:
            yield stmt.loop.axis
        yield from stmt.axes
        yield from stmt.inner_axes
        if isinstance(stmt.over, Scan | Order):
            yield stmt.over.axis


def _axis_map(first: KernelSpec, second: KernelSpec) -> dict[str, str]:
    """The first spec's axis for each of the second's, by position."""
    ours, theirs = list(_positions(first)), list(_positions(second))
    found: dict[str, str] = {}
    back: dict[str, str] = {}
    if len(ours) != len(theirs):
        raise _Differs("it has other axes at other sizes")
    for a, b in zip(ours, theirs, strict=True):
        if found.setdefault(b, a) != a or back.setdefault(a, b) != b:
            raise _Differs("it has other axes at other sizes")
    return found


def instance(spec: KernelSpec, sizes: Mapping[str, int]) -> KernelSpec:
    """The spec with these sizes for its symbolic axes; numbers that followed from them are literals again, and
    guards that never act are gone."""

    def fold(expr: Expr) -> Expr:
        match expr:
            case Extent(name) if name in sizes:
                return Const(sizes[name])
            case Cast(to, Const(value)) if to is F32 and isinstance(value, int) and not isinstance(value, bool):
                return Const(float(value))
            case Call("add" | "sub" | "mul" as fn, (Const(a), Const(b))) if type(a) is int and type(b) is int:
                return Const(a + b if fn == "add" else a - b if fn == "sub" else a * b)
            case Call("div", (Const(a), Const(b))) if isinstance(a, float) and isinstance(b, float) and b:
                return Const(a / b)
        return expr

    made = replace(
        spec,
        sizes=tuple(Size(s.name, sizes[s.name]) if s.name in sizes else s for s in spec.sizes),
        body=tuple(s.map(lambda root: transform(root, fold)) for s in spec.body),
    )
    return simplify_indices(made)


def sizes_for(spec: KernelSpec, concrete: KernelSpec) -> dict[str, int] | None:
    """The sizes at which `spec` is `concrete`, names aside; None where it is not at any."""
    concrete = dense(concrete)
    try:
        axes = _axis_map(spec, concrete)
    except _Differs:
        return None
    sizes = {a: concrete.extent(b) for b, a in axes.items()}
    symbolic = {s.name: sizes[s.name] for s in spec.sizes if s.size is None}
    if any(s.size is not None and sizes.get(s.name, s.size) != s.size for s in spec.sizes):
        return None
    if any(s.size is None and not s.low <= symbolic[s.name] <= s.high for s in spec.sizes):
        return None
    same = instance(_aligned(concrete, spec), {})
    return symbolic if instance(spec, symbolic).hash == same.hash else None


def _aligned(concrete: KernelSpec, spec: KernelSpec) -> KernelSpec:
    """`concrete` claiming no more alignment than `spec` does."""

    def least(mine: Sequence[Operand], theirs: Sequence[Operand]) -> tuple[Operand, ...]:
        return tuple(
            replace(a, align=min(a.align, b.align)) for a, b in zip(mine, theirs, strict=False)
        )  # fmt: skip

    if (len(concrete.inputs), len(concrete.outputs)) != (len(spec.inputs), len(spec.outputs)):
        return concrete
    return replace(concrete, inputs=least(concrete.inputs, spec.inputs), outputs=least(concrete.outputs, spec.outputs))


__all__ = ["generalised", "instance", "sizes_for"]

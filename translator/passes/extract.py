"""Cuts one kernel out of the whole spec: its statements in normal form, with operands of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from kvc.canonical import axis_order, rename
from kvc.check import RESERVED
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
    walk,
)
from kvc.passes.align import Alignment, operand_of, read_digits, rename_axes
from kvc.passes.inline import drop_dead, used_sizes
from kvc.simplify import IndexAlgebra, in_bounds, simplify_indices


def extract(whole: KernelSpec, targets: Sequence[str], outputs: Sequence[str], name: str = "") -> KernelSpec:
    """The kernel that computes `outputs` by the statements `targets` (in order of the whole spec). Operands keep the
    names of the whole spec; an output's dims may split a dim of the buffer it is written to. Without a `name` it is a
    draft, to be matched and priced, whose axes keep their working names."""
    alignment = Alignment(whole, targets, outputs).run()
    names = {a: alignment.name(a) for a in alignment.sizes}
    order = [alignment.name(a) for a in alignment.anchor().inner_axes]
    body = [_order_reduction(rename_axes(s, names), order) for s in alignment.stmts.values()]
    operands = tuple(own_dims(o) for o in alignment.operands())
    sizes = {a: alignment.scope[a] for s in body for a in (*s.axes, *s.inner_axes)}
    for operand, own in zip(alignment.operands(), operands, strict=True):
        sizes |= {b: replace(alignment.scope[a], name=b) for a, b in zip(operand.dims, own.dims, strict=True)}
    stmts = {s.target: s for s in body}
    results = tuple(replace(operand_of(whole, o), dims=stmts[o].axes, strides=alignment.strides[o]) for o in outputs)
    spec = drop_dead(KernelSpec(name, tuple(sizes.values()), operands, results, tuple(body)))
    for digits in alignment.digits:
        spec = join_digits(spec, [alignment.name(d) for d in digits])
    spec = simplify_indices(spec)
    spec = used_sizes(tidy_inputs(spec))
    return name_axes(coalesce(spec), alignment.stems) if name else spec


def own_dims(operand: Operand) -> Operand:
    """The operand with dims of its own, so that axes may be split and joined without it."""
    return replace(operand, dims=tuple(f"{d}.{operand.name}" for d in operand.dims))


def _order_reduction(stmt: Stmt, order: list[str]) -> Stmt:
    """Reductions over the same axes name them in the same order."""
    over = stmt.over
    if isinstance(over, Reduce) and set(over.axes) == set(order):
        return replace(stmt, over=replace(over, axes=tuple(order)))
    return stmt


def tidy_inputs(spec: KernelSpec) -> KernelSpec:
    """The spec with the dims of inputs as their reads see them: unit dims gone, adjacent dims read as digits of
    one number joined, a dim that is read at several axes at once split, each named after the axis that reads it. The
    memory stays the same."""
    reads: dict[str, list[Load]] = {o.name: [] for o in spec.inputs}
    for stmt in spec.body:
        for load in stmt.loads():
            if load.tensor in reads:
                reads[load.tensor].append(load)
    sizes = dict(spec.size)
    index: dict[Load, tuple[Expr, ...]] = {}
    inputs = tuple(_tidied(spec, o, reads[o.name], sizes, index) for o in spec.inputs)

    def moved(expr: Expr) -> Expr:
        # Parents first: an indirect read is looked up as it was before the reads in its index changed.
        if isinstance(expr, Load) and expr in index:
            expr = replace(expr, index=index[expr])
        children = tuple(moved(c) for c in expr.children)
        return expr if children == expr.children else expr.rebuild(children)

    body = tuple(s.map(moved) if index else s for s in spec.body)
    return replace(spec, sizes=tuple(sizes.values()), inputs=inputs, body=body)


def _tidied(
    spec: KernelSpec, operand: Operand, reads: list[Load], sizes: dict[str, Size], index: dict[Load, tuple[Expr, ...]]
) -> Operand:
    """One input with its new dims, whose sizes go to `sizes`; `index` gets the new index of each read that changed."""
    algebra = IndexAlgebra(sizes)
    dims, strides = list(operand.dims), list(spec.strides_of(operand.name))
    columns = [[r.index[i] for r in reads] for i in range(len(dims))]
    i = 0
    while i < len(dims):
        unit = sizes[dims[i]].size == 1 and all(algebra.interval(e) == (0, 0) for e in columns[i])
        joined = None if unit or i + 1 == len(dims) else _join_dims(algebra, dims, strides, columns, i)
        if unit:
            del dims[i], strides[i], columns[i]
        elif joined is not None:
            high, low = sizes[dims[i]].size, sizes[dims[i + 1]].size
            assert high is not None and low is not None
            dims[i + 1] = _fresh(f"{dims[i + 1]}.{operand.name}", Size("", high * low), sizes)
            del dims[i], strides[i], columns[i]
            columns[i] = joined
            i = max(i - 1, 0)
        else:
            i += 1
    for i in reversed(range(len(dims))):
        digits = _common_digits(algebra, columns[i])
        extents = [sizes[e.name].size or 0 for e in digits[0]] if digits else []
        if digits and prod(extents) == sizes[dims[i]].size:
            steps = [prod(extents[n + 1 :]) for n in range(len(extents))]
            names = [_fresh(f"{dims[i]}.{n}.{operand.name}", Size("", e), sizes) for n, e in enumerate(extents)]
            strides[i : i + 1] = [strides[i] * step for step in steps]
            columns[i : i + 1] = [[d[n] for d in digits] for n in range(len(extents))]
            dims[i : i + 1] = names
    for n, r in enumerate(reads):
        moved = tuple(column[n] for column in columns)
        if moved != r.index:
            index[r] = moved
    kept = tuple(strides) if operand.strides is not None else None
    return replace(operand, dims=_dims_by_readers(sizes, dims, columns), strides=kept)


def _fresh(stem: str, size: Size, sizes: dict[str, Size]) -> str:
    """A dim of this size under a name that no axis and no other dim has: those keep their extent."""
    name = stem
    while name in sizes:
        name += "_"
    sizes[name] = replace(size, name=name)
    return name


def _common_digits(algebra: IndexAlgebra, column: list[Expr]) -> list[list[Axis]]:
    """For each index of a column the whole axes it puts together as the digits of one number, if all put together
    digits of the same extents; else nothing."""
    found: list[list[Axis]] = []
    for index in column:
        digits = read_digits(algebra, index)
        if digits is None or len(digits) < 2:
            return []
        if any(divisor != 1 or extent != algebra.sizes[axis].size for _, axis, divisor, extent in digits):
            return []
        found.append([Axis(axis) for _, axis, _, _ in digits])
    same = {tuple(algebra.sizes[a.name].size for a in axes) for axes in found}
    return found if len(same) == 1 else []


def _join_dims(
    algebra: IndexAlgebra, dims: list[str], strides: list[int], columns: list[list[Expr]], i: int
) -> list[Expr] | None:
    """The indices of dims i and i + 1 as one, where that takes fewer divisions and no access needs them apart."""
    extent = algebra.sizes[dims[i + 1]].size
    if extent is None or algebra.sizes[dims[i]].size is None or strides[i] != strides[i + 1] * extent:
        return None
    pairs = list(zip(columns[i], columns[i + 1], strict=True))
    if not any(_divisions(high) and _divisions(low) for high, low in pairs):
        return None
    joined = [algebra.index(high * extent + low) for high, low in pairs]
    divisions = sum(_divisions(e) for e in joined), sum(_divisions(a) + _divisions(b) for a, b in pairs)
    inside = all(in_bounds(algebra, (high, low), (dims[i], dims[i + 1])) for high, low in pairs)
    return joined if inside and divisions[0] < divisions[1] else None


def _divisions(expr: Expr) -> int:
    return sum(isinstance(e, Call) and e.fn in ("floordiv", "mod") for e in walk(expr))


def _dims_by_readers(sizes: dict[str, Size], dims: list[str], columns: list[list[Expr]]) -> tuple[str, ...]:
    """Each dim named after the first axis of its size that reads it as it is; symbolic dims are their own axis."""
    named: list[str] = []
    for dim, column in zip(dims, columns, strict=True):
        fits = [
            e.name
            for e in column
            if isinstance(e, Axis) and sizes[e.name].size == sizes[dim].size and e.name not in named
        ]
        symbolic = [e.name for e in column if isinstance(e, Axis) and e.name == dim.split(".")[0]]
        named.append((symbolic if sizes[dim].size is None else fits or [dim])[0])
    return tuple(named)


def coalesce(spec: KernelSpec) -> KernelSpec:
    """The spec with adjacent axes as one wherever all accesses allow it: a linear layer over [batch, sequence, k] is a
    product of two matrices, and a pointwise kernel runs over flat memory."""
    for stmt in spec.body:
        for axes in (stmt.axes, stmt.inner_axes):
            for high, low in pairwise(axes):
                joined = _join(spec, high, low)
                if joined is not None:
                    return coalesce(joined)
    return spec


def join_digits(spec: KernelSpec, digits: list[str]) -> KernelSpec:
    """Adjacent digits of a split axis as one axis again, where nothing tells them apart."""
    digits = [d for d in digits if d in spec.size]
    for high, low in pairwise(digits):
        joined = _join(spec, high, low)
        if joined is not None:
            return join_digits(joined, [low if d == low else d for d in digits if d != high])
    return spec


def _join(spec: KernelSpec, high: str, low: str) -> KernelSpec | None:
    """The spec with the axes `high`, `low` as one under the name of `low`; None where some access needs them apart."""
    step, outer = spec.size[low].size, spec.size[high].size
    if step is None or outer is None:
        return None
    spec = _with_own_dims(spec, high, low)
    parts: dict[str, Expr] = {
        high: Call("floordiv", (Axis(low), Const(step))),
        low: Call("mod", (Axis(low), Const(step))),
    }

    def apart(axes: tuple[str, ...]) -> bool:
        """Whether a list of axes has the two, but not side by side."""
        used = [a for a in axes if a in (high, low)]
        return bool(used) and (high, low) not in pairwise(axes)

    def bound(s: Stmt) -> bool:
        """Whether a statement needs one of the two as it is: to step, scan, sort or scatter along it."""
        if isinstance(s.over, Scan | Order) and s.over.axis in (high, low):
            return True
        if isinstance(s.over, Scatter) and {high, low} & {*s.axes, *s.over.axes}:
            return True
        return s.loop is not None and s.loop.axis in (high, low)

    def without(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a for a in axes if a != high)

    joined_dims = {s.target: s.axes for s in spec.body if high in s.axes}
    if any(apart(s.axes) or apart(s.inner_axes) or bound(s) for s in spec.body):
        return None
    if any(r.other is not None and r.tensor in joined_dims for s in spec.body for r in s.loads()):
        return None

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Axis):
            return parts.get(expr.name, expr)
        if isinstance(expr, Load) and expr.tensor in joined_dims:
            i = joined_dims[expr.tensor].index(high)
            whole = expr.index[i] * step + expr.index[i + 1]
            return replace(expr, index=(*expr.index[:i], whole, *expr.index[i + 2 :]))
        return expr

    body = []
    for s in spec.body:
        over = replace(s.over, axes=without(s.over.axes)) if isinstance(s.over, Reduce) else s.over
        body.append(replace(s.map(lambda e: transform(e, visit)), axes=without(s.axes), over=over))
    outputs = []
    for o in spec.outputs:
        strides = o.strides
        if strides is not None and high in o.dims:
            i = o.dims.index(high)
            if strides[i] != strides[i + 1] * step:
                return None
            strides = (*strides[:i], *strides[i + 1 :])
        outputs.append(replace(o, dims=without(o.dims), strides=strides))
    sizes = {s.name: s for s in spec.sizes}
    sizes[low] = Size(low, step * outer)
    del sizes[high]
    joined = simplify_indices(replace(spec, sizes=tuple(sizes.values()), outputs=tuple(outputs), body=tuple(body)))
    joined = tidy_inputs(joined)
    return None if _digits_of(joined, low) else used_sizes(joined)


def _with_own_dims(spec: KernelSpec, high: str, low: str) -> KernelSpec:
    """The spec with dims of inputs that are named after one of two axes under names of their own."""
    sizes = dict(spec.size)

    def own(operand: Operand) -> Operand:
        names = {d: f"{d}.{operand.name}" for d in operand.dims if d in (high, low)}
        sizes.update({new: replace(sizes[old], name=new) for old, new in names.items()})
        return replace(operand, dims=tuple(names.get(d, d) for d in operand.dims))

    inputs = tuple(own(o) for o in spec.inputs)
    return replace(spec, inputs=inputs, sizes=tuple(sizes.values()))


def _digits_of(spec: KernelSpec, axis: str) -> int:
    """How many divisions and remainders of an axis a spec takes."""
    return sum(
        isinstance(e, Call) and e.fn in ("floordiv", "mod") and Axis(axis) in walk(e)
        for s in spec.body
        for root in s.roots
        for e in walk(root)
    )


def name_axes(spec: KernelSpec, stems: dict[str, str]) -> KernelSpec:
    """Short names for axes: the stem of what the axis was called in the model, numbered where it repeats."""
    taken = {o.name for o in (*spec.inputs, *spec.outputs)} | {s.target for s in spec.body} | RESERVED
    names: dict[str, str] = {}
    domains = [a for s in spec.body for a in (*s.axes, *s.inner_axes)]
    for axis in dict.fromkeys((*domains, *axis_order(spec))):
        if spec.size[axis].size is None:
            taken.add(axis)
            continue
        stem = stems.get(axis, axis.split(".")[0]).rstrip("0123456789_") or "i"
        name, n = stem, 0
        while name in taken:
            n += 1
            name = f"{stem}{n}"
        taken.add(name)
        names[axis] = name
    return rename(spec, {}, names)

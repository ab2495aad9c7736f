"""Cuts one kernel out of the whole spec: its statements in normal form, with operands of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from kvc.canonical import axis_order, rename
from kvc.check import RESERVED
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load, Operand, Reduce, Size, Stmt, transform, walk
from kvc.passes.align import Alignment, operand_of, rename_axes
from kvc.passes.inline import drop_dead
from kvc.simplify import simplify_indices


def extract(whole: KernelSpec, targets: Sequence[str], outputs: Sequence[str], name: str = "kernel") -> KernelSpec:
    """The kernel that computes `outputs` by the statements `targets` (in order of the whole spec). Operands keep the
    names of the whole spec; an output's dims may split a dim of the buffer it is written to."""
    alignment = Alignment(whole, targets, outputs).run()
    names = {a: alignment.name(a) for a in alignment.sizes}
    order = [alignment.name(a) for a in alignment.anchor().inner_axes]
    body = [_order_reduction(rename_axes(s, names), order) for s in alignment.stmts.values()]
    operands = alignment.operands()
    used = {
        *alignment.sizes,
        *(d for o in operands for d in o.dims),
        *(a for s in body for a in (*s.axes, *s.inner_axes)),
    }
    sizes = {a: alignment.scope[a] for a in used}
    inputs = tuple(_input(o, body, sizes) for o in operands)
    stmts = {s.target: s for s in body}
    results = tuple(replace(operand_of(whole, o), dims=stmts[o].axes, strides=alignment.strides[o]) for o in outputs)
    spec = drop_dead(KernelSpec(name, tuple(sizes.values()), inputs, results, tuple(body)))
    for digits in alignment.digits:
        spec = join_digits(spec, [alignment.name(d) for d in digits])
    return name_axes(simplify_indices(spec), alignment.stems)


def _order_reduction(stmt: Stmt, order: list[str]) -> Stmt:
    """Reductions over the same axes name them in the same order."""
    over = stmt.over
    if isinstance(over, Reduce) and set(over.axes) == set(order):
        return replace(stmt, over=replace(over, axes=tuple(order)))
    return stmt


def _input(operand: Operand, body: list[Stmt], sizes: dict[str, Size]) -> Operand:
    """The operand with dims named after the axes that read them; dims read otherwise get names of their own."""
    readers = [r.index for s in body for r in s.loads() if r.tensor == operand.name]
    dims: list[str] = []
    for position, dim in enumerate(operand.dims):
        plain = (index[position] for index in readers)
        fits = [
            e.name
            for e in plain
            if isinstance(e, Axis) and sizes[e.name].size == sizes[dim].size and e.name not in dims
        ]
        own = f"{dim}.{operand.name}"
        if sizes[dim].size is None:
            own = dim
        elif not fits:
            sizes[own] = replace(sizes[dim], name=own)
        dims.append(fits[0] if fits and sizes[dim].size is not None else own)
    return replace(operand, dims=tuple(dims))


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
    parts: dict[str, Expr] = {
        high: Call("floordiv", (Axis(low), Const(step))),
        low: Call("mod", (Axis(low), Const(step))),
    }

    def apart(axes: tuple[str, ...]) -> bool:
        """Whether a list of axes has the two, but not side by side."""
        used = [a for a in axes if a in (high, low)]
        return bool(used) and (high, low) not in pairwise(axes)

    def without(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a for a in axes if a != high)

    joined_dims = {s.target: s.axes for s in spec.body if high in s.axes}
    if any(apart(s.axes) or apart(s.inner_axes) for s in spec.body):
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
    fresh = {high: f"{high}.d", low: f"{low}.d"}
    inputs = tuple(replace(o, dims=tuple(fresh.get(d, d) for d in o.dims)) for o in spec.inputs)
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
    sizes |= {new: Size(new, sizes[old].size) for old, new in fresh.items()}
    sizes[low] = Size(low, step * outer)
    del sizes[high]
    joined = simplify_indices(
        replace(spec, sizes=tuple(sizes.values()), inputs=inputs, outputs=tuple(outputs), body=tuple(body))
    )
    return None if _digits_of(joined, low) else joined


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

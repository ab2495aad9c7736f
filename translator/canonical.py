"""Canonical renaming: two specs that differ only in names become equal."""

from __future__ import annotations

from dataclasses import replace

from kvc.kernel import Axis, Expr, Extent, KernelSpec, Load, Order, Over, Reduce, Scan, Scatter, Stmt, transform

#: What canonical axes are called, before their number. No dtype begins with it: an axis i8 would read as one.
AXIS = "d"


def rename(spec: KernelSpec, tensors: dict[str, str], axes: dict[str, str]) -> KernelSpec:
    """The spec under other names; names not in the maps stay. Sizes come in order of first use, unused ones go."""

    def visit(expr: Expr) -> Expr:
        match expr:
            case Axis(name):
                return Axis(axes.get(name, name))
            case Extent(name):
                return Extent(axes.get(name, name))
            case Load(tensor, index, other):
                return Load(tensors.get(tensor, tensor), index, other)
        return expr

    def over(o: Over | None) -> Over | None:
        match o:
            case Reduce() | Scatter():
                return replace(o, axes=tuple(axes.get(a, a) for a in o.axes))
            case Scan() | Order():
                return replace(o, axis=axes.get(o.axis, o.axis))
        return None

    def stmt(s: Stmt) -> Stmt:
        s = s.map(lambda root: transform(root, visit))
        names = tuple(axes.get(a, a) for a in s.axes)
        loop = replace(s.loop, axis=axes.get(s.loop.axis, s.loop.axis)) if s.loop is not None else None
        return replace(s, target=tensors.get(s.target, s.target), axes=names, over=over(s.over), loop=loop)

    operands = {
        o.name: replace(
            o,
            name=tensors.get(o.name, o.name),
            dims=tuple(axes.get(a, a) for a in o.dims),
            alias=tensors.get(o.alias, o.alias) if o.alias else None,
        )
        for o in (*spec.inputs, *spec.outputs)
    }
    sizes = {axes.get(s.name, s.name): replace(s, name=axes.get(s.name, s.name)) for s in spec.sizes}
    return KernelSpec(
        spec.name,
        tuple(sizes[axes.get(a, a)] for a in axis_order(spec)),
        tuple(operands[o.name] for o in spec.inputs),
        tuple(operands[o.name] for o in spec.outputs),
        tuple(stmt(s) for s in spec.body),
    )


def axis_order(spec: KernelSpec) -> list[str]:
    """Axes in order of first mention in the printed text; symbolic ones first, as they are declared up front."""
    order: dict[str, None] = dict.fromkeys(s.name for s in spec.sizes if s.size is None)
    for operand in (*spec.inputs, *spec.outputs):
        order.update(dict.fromkeys(operand.dims))
    for stmt in spec.body:
        if stmt.loop is not None:
            order[stmt.loop.axis] = None
        order.update(dict.fromkeys(stmt.axes))
        order.update(dict.fromkeys(stmt.inner_axes))
        if isinstance(stmt.over, Scan | Order):
            order[stmt.over.axis] = None
    return list(order)


def canonical(spec: KernelSpec) -> KernelSpec:
    """The spec with operands a0.., temporaries t0.., outputs y0.. and axes d0.., named `k`."""
    tensors = {o.name: f"a{n}" for n, o in enumerate(spec.inputs)}
    tensors |= {o.name: f"y{n}" for n, o in enumerate(spec.outputs)}
    tensors |= {s.target: f"t{n}" for n, s in enumerate(spec.temps)}
    axes = {a: f"{AXIS}{n}" for n, a in enumerate(axis_order(spec))}
    return replace(rename(spec, tensors, axes), name="k")

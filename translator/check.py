"""Executable invariants of both IRs, run after every pass (KVC0302 where one is broken)."""

from __future__ import annotations

from collections.abc import Iterator

from kvc.diagnostics import KvcError
from kvc.dtypes import BOOL, DTYPES, I64
from kvc.functions import COMBINES, FUNCTIONS
from kvc.graph import Graph
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Loop,
    Order,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    loads,
    walk,
)
from kvc.simplify import IndexAlgebra, in_bounds, steps

RESERVED = frozenset(COMBINES) | frozenset(FUNCTIONS) | frozenset(DTYPES) | {
    "kernel", "scan", "scatter", "sort", "argsort", "where", "set", "in", "hint", "multiple", "true", "false",
    "inf", "nan", "loop", "reverse", "exclusive", "descending", "strides", "align", "alias",
}  # fmt: skip


def check_kernel(spec: KernelSpec) -> KernelSpec:
    """The spec itself, if all invariants hold; else KVC0302 that names the first broken one."""
    for problem in kernel_problems(spec):
        raise KvcError("KVC0302", f"kernel {spec.name}: {problem}")
    return spec


def kernel_problems(spec: KernelSpec) -> Iterator[str]:
    """Every broken invariant of a spec, as text."""
    yield from _name_problems(spec)
    known = {o.name for o in spec.inputs}
    algebra = IndexAlgebra(spec.size)
    for previous, stmt in zip((None, *spec.body), spec.body, strict=False):
        if stmt.target in known:
            yield f"{stmt.target} is defined twice"
            return
        loop = stmt.loop
        starts = previous is None or previous.loop != loop
        if loop is not None and starts and _loops_already(spec, loop.axis, known):
            yield f"the loop over {loop.axis} is in two parts"
        ahead = {s.target for s in spec.loops[loop]} if loop is not None else set()
        missing = [load.tensor for load in stmt.loads() if load.tensor not in known | ahead]
        if missing:
            yield f"{stmt.target} reads {missing[0]}, which is not defined before it"
            return
        unknown = [a for a in (*stmt.axes, *stmt.inner_axes) if a not in spec.size]
        if unknown:
            yield f"{stmt.target} uses axis {unknown[0]}, which has no size"
            return
        yield from _stmt_problems(spec, stmt, algebra)
        if loop is not None:
            yield from _loop_problems(spec, stmt, loop, algebra, ahead & known)
        known.add(stmt.target)
    for out in spec.outputs:
        if out.name not in spec.stmt:
            yield f"output {out.name} is never defined"
        elif spec.shape_of(out.name) != tuple(spec.extent(a) for a in spec.stmt[out.name].axes):
            yield f"output {out.name} is defined over axes of other sizes than its dims"


def _loops_already(spec: KernelSpec, axis: str, known: set[str]) -> bool:
    """Whether some statement before this point belongs to a loop over the axis."""
    return any(s.loop is not None and s.loop.axis == axis and s.target in known for s in spec.body)


def _name_problems(spec: KernelSpec) -> Iterator[str]:
    names = [o.name for o in (*spec.inputs, *spec.outputs)]
    tensors = {*names, *(s.target for s in spec.body)}
    if len(set(names)) != len(names):
        yield "two operands have one name"
    for name in sorted((tensors | set(spec.size)) & RESERVED):
        yield f"{name} is a reserved word"
    for name in sorted(tensors & set(spec.size)):
        yield f"{name} names both a tensor and an axis"
    if len(spec.size) != len(spec.sizes):
        yield "an axis has two sizes"
    for size in spec.sizes:
        if (size.size if size.size is not None else size.low) < 0 or size.multiple < 1:
            yield f"axis {size.name} has an impossible size"
    for operand in (*spec.inputs, *spec.outputs):
        if any(d not in spec.size for d in operand.dims):
            yield f"operand {operand.name} has a dim without size"
        if operand.strides is not None and len(operand.strides) != len(operand.dims):
            yield f"operand {operand.name} has {len(operand.strides)} strides for {len(operand.dims)} dims"
        if operand.alias is not None and operand.alias not in {o.name for o in spec.inputs}:
            yield f"operand {operand.name} aliases {operand.alias}, which is no input"


def _stmt_problems(spec: KernelSpec, stmt: Stmt, algebra: IndexAlgebra) -> Iterator[str]:
    if len(set(stmt.axes) | set(stmt.inner_axes)) != len(stmt.axes) + len(stmt.inner_axes):
        yield f"{stmt.target} names an axis twice"
    yield from _over_problems(spec, stmt)
    scope = {*stmt.axes, *stmt.inner_axes}
    for root in stmt.roots:
        at = set(stmt.axes) if isinstance(stmt.over, Scatter) and root is stmt.over.base else scope
        if isinstance(stmt.over, Scatter) and root is not stmt.over.base:
            at = set(stmt.over.axes)
        for node in walk(root):
            yield from _node_problems(spec, stmt, node, at, algebra)


def _over_problems(spec: KernelSpec, stmt: Stmt) -> Iterator[str]:
    match stmt.over:
        case Reduce(op, axes, where):
            if op in ("argmax", "argmin") and (len(axes) != 1 or stmt.dtype is not I64):
                yield f"{stmt.target}: {op} takes one axis and gives i64"
            if where is not None and spec.type_of(where) is not BOOL:
                yield f"{stmt.target}: the reduction's condition is not bool"
            if not axes:
                yield f"{stmt.target} reduces over no axis"
        case Scan(op, axis):
            if axis not in stmt.axes or op not in COMBINES or not COMBINES[op].binary:
                yield f"{stmt.target}: a scan needs a combine function and an axis of the statement"
        case Order(_, axis):
            if axis not in stmt.axes:
                yield f"{stmt.target}: the sorted axis is not an axis of the statement"
        case Scatter(_, _, index, _):
            if len(index) != len(stmt.axes):
                yield f"{stmt.target}: {len(index)} scatter indices for {len(stmt.axes)} axes"


def _node_problems(spec: KernelSpec, stmt: Stmt, node: Expr, scope: set[str], algebra: IndexAlgebra) -> Iterator[str]:
    match node:
        case Axis(name) if name not in scope:
            yield f"{stmt.target} reads axis {name} outside its domain"
        case Extent(name) if name not in spec.size:
            yield f"{stmt.target} reads the size of unknown axis {name}"
        case Call(fn, args):
            if fn not in FUNCTIONS:
                yield f"{stmt.target} calls unknown function {fn}"
            elif len(args) != FUNCTIONS[fn].arity:
                yield f"{stmt.target}: {fn} takes {FUNCTIONS[fn].arity} arguments, not {len(args)}"
        case Load(tensor, index, other):
            dims = spec.dims_of(tensor)
            if len(index) != len(dims):
                yield f"{stmt.target}: {tensor} has {len(dims)} dims, not {len(index)}"
            elif any(spec.type_of(i).kind != "int" for i in index):
                yield f"{stmt.target}: an index of {tensor} is not an integer"
            elif not (other is None or isinstance(other, Const)) and not _is_carried(spec, stmt, node, algebra):
                yield f"{stmt.target}: the guard of {tensor} is no literal, and the access no step before in a loop"
            elif other is None and _is_affine_outside(algebra, index, dims):
                yield f"{stmt.target}: an access of {tensor} may fall outside it; it needs a guard"


def _is_carried(spec: KernelSpec, stmt: Stmt, load: Load, algebra: IndexAlgebra) -> bool:
    """Whether a load of the statement's loop is of the step before."""
    source = spec.stmt.get(load.tensor)
    loop = stmt.loop
    if source is None or loop is None or source.loop != loop or loop.axis not in source.axes:
        return False
    return steps(algebra, loop.axis, load.index[source.axes.index(loop.axis)]) == loop.back


def _loop_problems(spec: KernelSpec, stmt: Stmt, loop: Loop, algebra: IndexAlgebra, before: set[str]) -> Iterator[str]:
    """What a statement of a loop does wrong; `before` are the loop's statements ahead of it."""
    if loop.axis not in stmt.axes:
        yield f"{stmt.target} has no axis {loop.axis}, which it loops over"
        return
    if not isinstance(stmt.over, Reduce | None):
        yield f"{stmt.target}: a step of a loop is pointwise or a reduction"
    for load in stmt.loads():
        source = spec.stmt.get(load.tensor)
        if source is None or source.loop != loop or len(load.index) != len(source.axes):
            continue
        at = source.axes.index(loop.axis) if loop.axis in source.axes else 0
        rest = tuple(i for n, i in enumerate(load.index) if n != at)
        if not _is_carried(spec, stmt, load, algebra):
            if source.target not in before or steps(algebra, loop.axis, load.index[at]) != 0:
                yield f"{stmt.target} reads {load.tensor} at a step that is neither done nor the one before"
        elif load.other is None:
            yield f"{stmt.target} reads {load.tensor} at the step before and gives no value for the first"
        elif not in_bounds(algebra, rest, tuple(d for n, d in enumerate(source.axes) if n != at)):
            yield f"{stmt.target} reads {load.tensor} at the step before and outside its other dims"
        elif any(spec.stmt[r.tensor].loop == loop for r in loads(load.other) if r.tensor in spec.stmt):
            yield f"{stmt.target}: the first value of {load.tensor} is read from the loop itself"


def _is_affine_outside(algebra: IndexAlgebra, index: tuple[Expr, ...], dims: tuple[str, ...]) -> bool:
    """Whether an unguarded access without indirection cannot be shown to stay inside. Indirect indices are trusted
    as torch does; the verifier's inputs keep them valid, and the simulator faults where they are not."""
    direct = [(i, d) for i, d in zip(index, dims, strict=True) if not any(isinstance(n, Load | Cast) for n in walk(i))]
    return not in_bounds(algebra, tuple(i for i, _ in direct), tuple(d for _, d in direct))


def check_graph(graph: Graph) -> Graph:
    """The graph itself, if it is in single-assignment form with every use after its definition; else KVC0302."""
    for problem in graph_problems(graph):
        raise KvcError("KVC0302", f"graph {graph.name}: {problem}")
    return graph


def graph_problems(graph: Graph) -> Iterator[str]:
    known: set[str] = set()
    for i in graph.inputs:
        if i.name in known:
            yield f"two inputs are named {i.name}"
        known.add(i.name)
    for node in graph.nodes:
        if len(node.outputs) != len(node.types):
            yield f"{node.name} has {len(node.outputs)} outputs and {len(node.types)} types"
        for ref in node.refs:
            if ref not in known:
                yield f"{node.name} reads {ref}, which is not defined before it"
        for name in node.outputs:
            if name in known:
                yield f"{name} is defined twice"
            known.add(name)
        for t in node.types:
            if len(t.shape) != len(t.strides):
                yield f"{node.name}: {len(t.strides)} strides for {len(t.shape)} dims"
    for name in (*graph.outputs, *(v for _, v in graph.mutations)):
        if name not in known:
            yield f"output {name} is never defined"
    buffers = {i.name for i in graph.inputs if i.kind != "user"}
    for target, _ in graph.mutations:
        if target not in buffers:
            yield f"{target} is mutated but is no buffer"


__all__ = ["Const", "check_graph", "check_kernel", "graph_problems", "kernel_problems"]

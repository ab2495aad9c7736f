"""The generic emitter: any spec as a sequence of launches, each of which writes one tensor to memory.

Pointwise stages and reductions are flat blocks with loops inside the lanes. A scan gives a few lanes a line each and
walks it in blocks of columns, scanned in parallel, with a carry. Sorting counts, for each element, those that precede
it (stable, and without exchanging anything between lanes). A scatter is an atomic per source point where order does
not matter, else every target point looks through the sources in order, which is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvc.dtypes import BOOL, I32, DType
from kvc.emitter import Task
from kvc.functions import COMBINES, FUNCTIONS
from kvc.kernel import (
    Axis,
    Call,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Order,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    substitute,
)
from kvc.patterns import Stage, recurrence, stages

from .codegen import LINE, Physical, Scope, V, identity_of
from .emitter import RuleEmitter
from .pointwise import (
    close_flat,
    flat_configurations,
    flat_kernel,
    is_wide,
    open_flat,
    open_lines,
    points_of,
    programs,
    walked,
)
from .recurrence import loop_kernel
from .source import KernelText, Knobs, SourceFile, kernel_name
from .spelling import ATOM, COMBINE_HELPER, COMPARE

#: Sums that the hardware can do in memory; narrower types would round at every step.
_ATOMIC_SUM = frozenset({"f32", "f64", "i32", "i64"})


class GenericEmitter(RuleEmitter):
    """Writes every spec with static sizes, and those with symbolic sizes that need no scratch of unknown size. Knobs:
    BLOCK (points a program), COLUMNS (of a scan's block, when there is one), num_warps."""

    schedule = "generic"

    def refusal(self, task: Task) -> str:
        spec = task.spec
        for stage in stages(spec).stages:
            for target in _in_memory(spec, stage):
                if _is_unsized(spec, target) and (stage.kind == "loop" or not _is_recomputed(spec.stmt[target])):
                    return f"{target} needs scratch memory, and its size is symbolic"
        return ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        spec = task.spec
        points = max((points_of(spec, s.axes) for s in spec.body), default=1)
        heavy = any(s.over is not None for s in spec.body)
        scans = [s.over for s in spec.body if isinstance(s.over, Scan)]
        longest = max((spec.extent(o.axis) for o in scans), default=0)
        for setting in flat_configurations(task, points, heavy):
            if not scans:
                yield setting
                continue
            for columns, warps in _scan_blocks(longest, task.arch.wave_size):
                yield (("COLUMNS", columns), *((k, warps if k == "num_warps" else v) for k, v in setting))

    def write(self, file: SourceFile) -> None:
        spec = file.spec
        memory = frozenset(o.name for o in spec.inputs)
        outputs = {o.name for o in spec.outputs}
        found = stages(spec).stages
        for number, stage in enumerate(found):
            stmt = spec.stmt[stage.target]
            name = kernel_name(spec.name if len(found) == 1 else f"{spec.name}_{number}_{stage.target}")
            if stage.kind == "loop":
                memory = loop_kernel(file, name, stage, memory)
                continue
            if stage.target not in outputs:
                if _is_unsized(spec, stage.target):
                    continue  # worked out where it is read
                file.scratch(stage.target, stmt.dtype, spec.shape_of(stage.target))
            _write_stage(file, name, stage, stmt, memory)
            memory |= {stage.target}


def _scan_blocks(longest: int, wave: int) -> list[tuple[int, int]]:
    """(COLUMNS, num_warps), the best first: blocks as long as the line up to 4,096, of which each lane takes four
    points (16 bytes of fp32), so that no two lanes load the same."""
    sizes = [c for c in (4096, 2048, 1024, 256, 64) if c < 2 * longest or c == 64]
    return [(c, max(1, min(8, c // (4 * wave)))) for c in sizes]


def _in_memory(spec: KernelSpec, stage: Stage) -> set[str]:
    """The temporaries of a stage that would live in scratch."""
    kept = set(stage.targets or (stage.target,))
    loop = spec.stmt[stage.target].loop
    if loop is not None:
        pattern = recurrence(spec, loop)
        kept |= set() if pattern.is_local else set(pattern.shared)
    return kept - {o.name for o in spec.outputs}


def _is_unsized(spec: KernelSpec, tensor: str) -> bool:
    """Whether the tensor's size is known only at the launch: scratch for the hint would be too small."""
    return any(spec.size[d].size is None for d in spec.dims_of(tensor))


def _is_recomputed(stmt: Stmt) -> bool:
    """Whether a lane can work a value out by itself."""
    return stmt.over is None or isinstance(stmt.over, Reduce)


def _write_stage(file: SourceFile, name: str, stage: Stage, stmt: Stmt, memory: frozenset[str]) -> None:
    over = stmt.over
    if isinstance(over, Scan):
        scan_kernel(file, name, stmt, over, memory)
    elif isinstance(over, Order):
        order_kernel(file, name, stmt, over, memory)
    elif isinstance(over, Scatter):
        scatter_kernels(file, name, stmt, over, memory)
    else:
        flat_kernel(file, name, [stmt], memory)


# ---------------------------------------------------------------- scans


def scan_kernel(file: SourceFile, name: str, stmt: Stmt, over: Scan, memory: frozenset[str]) -> None:
    """One line of the scanned axis a program: blocks of COLUMNS points, a carry between them. An exclusive scan stores
    each result one place further, and the start value in the first."""
    spec = file.spec
    kernel = KernelText(file, name, spec, memory)
    root = Scope(kernel)
    lines = tuple(a for a in stmt.axes if a != over.axis)
    root.wide = is_wide(spec, stmt.axes)
    scope = open_lines(root, lines)
    kind = stmt.dtype.compute
    flag = kind is BOOL
    kind = I32 if flag else kind
    start = identity_of(over.op, stmt.dtype.compute)
    carry = kernel.fresh("carry")
    identity = scope.strong(V("", ATOM, kind, literal=start), kind).text
    scope.emit(f"{carry} = {identity}")
    size = spec.size[over.axis].size
    extent = str(size) if size is not None else kernel.extent(over.axis)
    first = kernel.fresh("first")
    inner = scope.child()
    column = kernel.fresh_axis(over.axis)
    begin = first
    if over.reverse:
        # From the last block to the first, each scanned from its end.
        begin = kernel.fresh("begin")
        inner.emit(f"{begin} = tl.cdiv({extent}, COLUMNS) * COLUMNS - COLUMNS - {first}")
    inner.emit(f"{column} = {begin} + tl.arange(0, COLUMNS)")
    mask = kernel.fresh(f"{column}_in")
    inner.emit(f"{mask} = {column} < {extent}")
    axis = inner.bind(column, size, Physical(column, mask=mask, spans="COLUMNS"))
    inner.shape = ("COLUMNS",)
    inner.place({over.axis: axis})
    value = inner.to(inner.to(inner.value(stmt.expr), stmt.dtype.compute), kind)
    block = kernel.fresh("block")
    if len(value.text) > LINE // 2:
        value = inner._named(value, "v")
    inner.emit(f"{block} = tl.where({mask}, {value.text}, {identity})")
    helper = file.helper(COMBINE_HELPER[over.op])
    total = V(f"tl.reduce({block}, 0, {helper})", ATOM, kind)
    scanned = kernel.fresh(stmt.target)
    backwards = ", reverse=True" if over.reverse else ""
    partial = V(f"tl.associative_scan({block}, 0, {helper}{backwards})", ATOM, kind)
    combined = _combine(inner, over.op, V(carry, ATOM, kind), partial)
    inner.emit(f"{scanned} = {combined}")
    inner.emit(f"{carry} = {_combine(inner, over.op, V(carry, ATOM, kind), total)}")
    result = inner.to(V(scanned, ATOM, kind, frozenset({column})), stmt.dtype.compute)
    index: list[Expr] = [Axis(a) for a in stmt.axes]
    if over.exclusive:
        _store_shifted(inner, stmt, over, index, column, extent, result)
        edge: list[Expr] = [Const(0) if a == over.axis and not over.reverse else Axis(a) for a in stmt.axes]
        _store_edge(scope, stmt, over, edge, start)
    else:
        inner.store(stmt.target, tuple(index), result)
    steps = walked(file, "0", extent, "COLUMNS", file.constant("COLUMNS"))
    scope.close(f"for {first} in {steps}:", inner)
    close_flat(root, scope)
    file.add(kernel, points_of(spec, lines))


def _combine(scope: Scope, op: str, a: V, b: V) -> str:
    return scope._primitive(FUNCTIONS[COMBINES[op].binary], [a, b], a.type, a.type).text


def _store_shifted(scope: Scope, stmt: Stmt, over: Scan, index: list[Expr], column: str, extent: str, value: V) -> None:
    step = -1 if over.reverse else 1
    bound = f"({column} < {extent})" if over.reverse else f"({column} < {extent} - 1)"
    moved = tuple(Call("add", (i, Const(step))) if i == Axis(over.axis) else i for i in index)
    pointer = scope.address(stmt.target, moved, scope)
    mask = f"({column} > 0) & {bound}" if over.reverse else bound
    scope.emit(f"tl.store({pointer}, {scope.stored(value, stmt.dtype)}, mask={mask})")


def _store_edge(scope: Scope, stmt: Stmt, over: Scan, index: list[Expr], start: float | bool) -> None:
    if over.reverse:
        size = scope.spec.size[over.axis].size
        last: Expr = Const(size - 1) if size is not None else Call("sub", (Extent(over.axis), Const(1)))
        index = [last if i == Axis(over.axis) else i for i in index]
    kind = stmt.dtype.compute
    scope.store(stmt.target, tuple(index), scope.strong(V("", ATOM, kind, literal=start), kind))


# ---------------------------------------------------------------- sorting


def order_kernel(file: SourceFile, name: str, stmt: Stmt, over: Order, memory: frozenset[str]) -> None:
    """Rank of an element = how many of its line precede it; the element goes to its rank."""
    spec = file.spec
    kernel = KernelText(file, name, spec, memory)
    scope = Scope(kernel)
    inner = open_flat(scope, stmt.axes)
    kind = spec.type_of(stmt.expr)
    mine = inner._named(inner.strong(inner.value(stmt.expr), kind), stmt.target)
    here = inner.index(Axis(over.axis))
    rank = kernel.fresh("rank")
    inner.emit(f"{rank} = {inner.full(0, inner.integer)}")
    size = spec.size[over.axis].size
    other = kernel.fresh_axis("other")
    loop = inner.child()
    loop.bind(other, size, Physical(other))
    its = loop.value(substitute(stmt.expr, {over.axis: Axis(other)}))
    helper = file.helper("precedes_descending" if over.descending else "precedes")
    loop.emit(f"{rank} += {helper}({its.text}, {other}, {mine.text}, {here.text})")
    extent = str(size) if size is not None else kernel.extent(over.axis)
    inner.close(f"for {other} in range({extent}):", loop)
    place = inner.child(inline=True)
    place.bind(rank, size, Physical(rank, mask=" & ".join(inner.masks([Axis(a) for a in stmt.axes])), spans="BLOCK"))
    index = tuple(Axis(rank) if a == over.axis else Axis(a) for a in stmt.axes)
    value = mine if over.kind == "sort" else V(here.text, here.strength, here.type)
    place.store(stmt.target, index, value)
    close_flat(scope, inner)
    file.add(kernel, programs(file, spec, stmt.axes))


# ---------------------------------------------------------------- scatters


def scatter_kernels(file: SourceFile, name: str, stmt: Stmt, over: Scatter, memory: frozenset[str]) -> None:
    """Sums: the base in one launch, atomic additions in the next. All else: every target looks through the sources."""
    if over.op == "sum" and stmt.dtype.name in _ATOMIC_SUM:
        base = Stmt(stmt.target, stmt.dtype, stmt.axes, over.base)
        _pointwise_as(file, f"{name}_base", base, memory)
        _atomic_sum(file, name, stmt, over, memory)
    else:
        _searching_scatter(file, name, stmt, over, memory)


def _pointwise_as(file: SourceFile, name: str, stmt: Stmt, memory: frozenset[str]) -> None:
    """A kernel that stores the statement's expression to its target."""
    kernel = KernelText(file, name, file.spec, memory)
    scope = Scope(kernel)
    inner = open_flat(scope, stmt.axes)
    inner.store(
        stmt.target, tuple(Axis(a) for a in stmt.axes), inner.strong(inner.value(stmt.expr), stmt.dtype.compute)
    )
    close_flat(scope, inner)
    file.add(kernel, programs(file, file.spec, stmt.axes))


def _atomic_sum(file: SourceFile, name: str, stmt: Stmt, over: Scatter, memory: frozenset[str]) -> None:
    spec = file.spec
    kernel = KernelText(file, name, spec, memory)
    scope = Scope(kernel)
    inner = open_flat(scope, over.axes)
    value = inner.strong(inner.value(stmt.expr), stmt.dtype.compute)
    pointer = inner.address(stmt.target, over.index, inner)
    # Lanes beyond the sources take part in no atomic; the block's mask covers all of them.
    masks = inner.masks([Axis(a) for a in over.axes])
    mask = f", mask={' & '.join(masks)}" if masks else ""
    inner.emit(f'tl.atomic_add({pointer}, {value.text}{mask}, sem="relaxed")')
    close_flat(scope, inner)
    file.add(kernel, programs(file, spec, over.axes))


def _searching_scatter(file: SourceFile, name: str, stmt: Stmt, over: Scatter, memory: frozenset[str]) -> None:
    spec = file.spec
    kernel = KernelText(file, name, spec, memory)
    scope = Scope(kernel)
    inner = open_flat(scope, stmt.axes)
    kind: DType = stmt.dtype.compute
    result = kernel.fresh(stmt.target)
    start = inner.strong(inner.to(inner.value(over.base), kind), kind)  # a bare literal would have 32 bits
    inner.emit(f"{result} = {inner.broadcast(start)}")
    names = {a: kernel.fresh(a) for a in over.axes}
    rename: dict[str, Expr] = {a: Axis(n) for a, n in names.items()}
    nest = inner._loops(over.axes, names)
    loop = nest[-1]
    hits = []
    for axis, index in zip(stmt.axes, over.index, strict=True):
        at = loop.value(substitute(index, rename))
        hits.append(f"({inner.index(Axis(axis)).at(COMPARE + 1)} == {at.at(COMPARE + 1)})")
    value = loop.to(loop.value(substitute(stmt.expr, rename)), kind)
    new = value.text
    if over.op != "set":
        new = _combine(loop, over.op, V(result, ATOM, kind), value)
    elif value.literal is not None:
        new = loop.strong(value, kind).text
    loop.emit(f"{result} = tl.where({' & '.join(hits) or 'True'}, {new}, {result})")
    for depth in range(len(nest) - 1, 0, -1):
        nest[depth - 1].close(inner._loop_header(over.axes[depth - 1], names, over.axes), nest[depth])
    inner.store(stmt.target, tuple(Axis(a) for a in stmt.axes), V(result, ATOM, kind))
    close_flat(scope, inner)
    file.add(kernel, programs(file, spec, stmt.axes))

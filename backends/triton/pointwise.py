"""Pointwise kernels: a flat block of output points a program. The same block serves windows and generic stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from kvc.emitter import Task
from kvc.kernel import Axis, Call, Const, Expr, Extent, KernelSpec, Stmt, contiguous
from kvc.patterns import match_pointwise

from .codegen import Physical, Scope
from .emitter import RuleEmitter, grid_of
from .source import KernelText, Knobs, SourceFile, is_far, kernel_name

MAX_PROGRAMS = 2**31 - 1


class PointwiseEmitter(RuleEmitter):
    """One launch, every output over the same points. Knobs: BLOCK (points a program), num_warps."""

    schedule = "pointwise"

    def refusal(self, task: Task) -> str:
        spec = task.spec
        pattern = match_pointwise(spec)
        if isinstance(pattern, str):
            return pattern
        # Other axes of symbolic size are of the same extents at these sizes alone.
        alike = all(set(spec.stmt[o.name].axes) == set(pattern.axes) for o in spec.outputs)
        return "" if spec.is_static or alike else "its outputs have symbolic sizes of their own"

    def configurations(self, task: Task) -> Iterator[Knobs]:
        yield from flat_configurations(task, points_of(task.spec, task.spec.stmt[task.spec.outputs[0].name].axes))

    def write(self, file: SourceFile) -> None:
        spec = file.spec
        stmts = [spec.stmt[o.name] for o in spec.outputs]
        flat_kernel(file, kernel_name(spec.name), stmts, frozenset(o.name for o in spec.inputs))


def points_of(spec: KernelSpec, axes: Sequence[str]) -> int:
    return prod(spec.extent(a) for a in axes)


def flat_configurations(task: Task, points: int, heavy: bool = False) -> Iterator[Knobs]:
    """Settings of a flat block. Vector loads want several points a lane; heavy points (loops) want one. A grid that
    would not fill the GPU takes smaller blocks."""
    arch = task.arch
    wave = arch.wave_size
    block = wave * 4 if heavy else wave * 16
    while block > wave and points < block * arch.cu_count:
        block //= 2
    # 16 bytes of the narrowest operand a lane.
    narrow = min((o.dtype.bytes for o in (*task.spec.inputs, *task.spec.outputs)), default=4) <= 2
    warps = block // (8 * wave) if narrow and not heavy else block // wave
    best = {"BLOCK": block, "num_warps": max(1, min(4, warps))}
    blocks = [b for b in (wave, wave * 2, wave * 4, wave * 8, wave * 16, wave * 32) if b <= max(points, wave)]
    waves = [w for w in (1, 2, 4, 8) if w * wave <= arch.max_threads]
    for setting in grid_of(best, {"BLOCK": blocks, "num_warps": waves}):
        chosen = dict(setting)
        if int(chosen["num_warps"]) * wave <= int(chosen["BLOCK"]):
            yield setting


def flat_kernel(
    file: SourceFile,
    name: str,
    stmts: Sequence[Stmt],
    memory: frozenset[str],
    comment: str = "",
    spec: KernelSpec | None = None,
) -> None:
    """A kernel (of `spec`, where that is not the file's own) in which every lane owns points of one domain and stores
    the value of each statement there. Statements have the same axes in any order, or axes of the same extents position
    by position."""
    spec = spec or file.spec
    kernel = KernelText(file, name, spec, memory, comment)
    scope = Scope(kernel)
    axes = stmts[0].axes
    inner = open_flat(scope, axes)
    for stmt in stmts:
        here = inner
        if set(stmt.axes) != set(axes):
            here = inner.child(inline=True)
            here.place({a: inner.env[b] for a, b in zip(stmt.axes, axes, strict=True)})
        here.store(stmt.target, tuple(Axis(a) for a in stmt.axes), here.result(stmt))
    close_flat(scope, inner)
    file.add(kernel, programs(file, spec, axes))


def is_wide(spec: KernelSpec, axes: Sequence[str]) -> bool:
    """Whether offsets or flat points may not fit in 32 bits."""
    if not spec.is_static or points_of(spec, axes) + 65536 >= 2**31:
        return True
    return is_far(spec)


def programs(file: SourceFile, spec: KernelSpec, axes: Sequence[str]) -> int:
    points = points_of(spec, axes)
    if points == 1 and spec.is_static:
        return 1
    return min(-(-points // file.constant("BLOCK")), MAX_PROGRAMS)


def open_flat(scope: Scope, axes: Sequence[str]) -> Scope:
    """Bind the axes of a domain to a flat block `p`; gives the scope to work in, which `close_flat` ends. A domain with
    symbolic sizes is walked by a loop, so that any grid covers it."""
    spec, kernel = scope.spec, scope.kernel
    scope.wide = is_wide(spec, axes)
    static = all(spec.size[a].size is not None for a in axes)
    if static and points_of(spec, axes) == 1:
        scope.place({a: Const(0) for a in axes})
        return scope
    name = kernel.fresh_axis("p")
    program = "tl.program_id(0).to(tl.int64)" if scope.wide else "tl.program_id(0)"
    if static:
        points = points_of(spec, axes)
        block = kernel.file.constant("BLOCK")
        scope.emit(f"{name} = {program} * BLOCK + tl.arange(0, BLOCK)")
        mask = bounds(scope, name, str(points), points > 0 and points % block == 0, "BLOCK")
        p: Expr = scope.bind(name, points, Physical(name, mask=mask, spans="BLOCK", i64=scope.wide))
        scope.shape = ("BLOCK",)
        scope.place(unflatten(spec, axes, p))
        return scope
    total = scope.index(extent_product(axes)).text
    inner = scope.child()
    points_name = kernel.fresh("points")
    scope.emit(f"{points_name} = {total}")
    start = kernel.fresh("start")
    inner.lines.append(f"{name} = {start} + tl.arange(0, BLOCK)")
    mask = bounds(inner, name, points_name, False, "BLOCK")
    p = inner.bind(name, None, Physical(name, mask=mask, spans="BLOCK"))
    inner.shape = ("BLOCK",)
    inner.place(unflatten(spec, axes, p))
    inner.lines.insert(0, f"@{start} in range({program} * BLOCK, {points_name}, tl.num_programs(0) * BLOCK):")
    return inner


def open_lines(scope: Scope, lines: tuple[str, ...]) -> Scope:
    """One line of the domain a program, or a loop over lines where their number is not known; `close_flat` ends it."""
    spec, kernel = scope.spec, scope.kernel
    static = all(spec.size[a].size is not None for a in lines)
    if static and points_of(spec, lines) == 1:
        scope.place({a: Const(0) for a in lines})
        return scope
    name = kernel.fresh_axis("line")
    inner = scope
    if static:
        scope.emit(f"{name} = tl.program_id(0){'.to(tl.int64)' if scope.wide else ''}")
    else:
        inner = scope.child()
        total = scope.index(extent_product(lines)).text
        inner.emit(f"@{name} in range(tl.program_id(0).to(tl.int64), {total}, tl.num_programs(0)):")
    axis = inner.bind(name, points_of(spec, lines) if static else None, Physical(name, i64=scope.wide))
    inner.place(unflatten(spec, lines, axis))
    return inner


def close_flat(scope: Scope, inner: Scope) -> None:
    if inner is not scope:
        header = inner.lines.pop(0)
        scope.close("for " + header.removeprefix("@"), inner)


def bounds(scope: Scope, name: str, extent: str, even: bool, block: str) -> str:
    """The mask of a block axis, "" where the block divides the extent (which the source then asserts)."""
    if even:
        scope.emit(f"tl.static_assert({extent} // {block} * {block} == {extent})")
        return ""
    mask = scope.kernel.fresh(f"{name}_in")
    scope.emit(f"{mask} = {name} < {extent}")
    return mask


STAGED_BYTES = 64 << 10  # of shared memory that a walk may take for what it loads ahead: two programs still share an SM


def walked(file: SourceFile, first: str, last: str, step: str, points: int) -> str:
    """The steps of a walk over blocks of `points`. On NVIDIA they load ahead, by way of shared memory: a block that is
    on its way hides its latency behind the work on the one before, which Triton does by itself only for products."""
    if file.task.arch.vendor == "nvidia":
        block = points * sum(o.dtype.bytes for o in file.spec.inputs)
        stages = next((n for n in (3, 2) if (n - 1) * block <= STAGED_BYTES), 1)
        if stages > 1:
            return f"tl.range({first}, {last}, {step}, num_stages={stages})"
    return f"range({first}, {last}, {step})"


def extent_product(axes: Sequence[str]) -> Expr:
    """The points of a domain as an expression of its extents."""
    count: Expr = Const(1)
    for a in axes:
        count = Call("mul", (count, Extent(a)))
    return count


def unflatten(spec: KernelSpec, axes: Sequence[str], flat: Expr) -> dict[str, Expr]:
    """Where the axes of a row-major domain are, as index expressions over its flat point."""
    if all(spec.size[a].size is not None for a in axes):
        extents = [spec.extent(a) for a in axes]
        at: dict[str, Expr] = {}
        for position, (a, step) in enumerate(zip(axes, contiguous(tuple(extents)), strict=True)):
            whole: Expr = Call("floordiv", (flat, Const(step))) if step != 1 else flat
            outermost = all(n == 1 for n in extents[:position])
            at[a] = Const(0) if spec.extent(a) == 1 else whole
            if not outermost and spec.extent(a) != 1:
                at[a] = Call("mod", (whole, Const(spec.extent(a))))
        return at
    at = {}
    rest = flat
    for a in reversed(axes[1:]):
        at[a] = Call("mod", (rest, Extent(a)))
        rest = Call("floordiv", (rest, Extent(a)))
    return at | {axes[0]: rest}

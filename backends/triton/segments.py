"""Few long rows: each is shared by many programs.

A launch reduces segments of the rows to partial results, in scratch, and a second one combines them. Reductions that
depend on others follow in the same way, with what is known by then as an input. Outputs along the rows come last, as a
pointwise launch. (A program for each row, as in kvc.backends.triton.rows, would leave most of the GPU idle.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvc.emitter import Task
from kvc.kernel import Axis, KernelSpec, Load, Operand, Reduce, Size, Stmt
from kvc.patterns import Rows, dependents, match_rows

from .codegen import Physical, V
from .emitter import RuleEmitter, grid_of
from .pointwise import flat_kernel, is_wide, points_of, unflatten
from .rows import RowKernel, accumulator_type
from .source import Knobs, SourceFile, kernel_name
from .spelling import ATOM

LONG_ROW = 1 << 16  # columns from which a row is worth sharing
SHARES = 8  # segments that a compute unit gets at the least, to keep its memory requests coming
_OPS = frozenset({"sum", "prod", "max", "min"})


class SegmentedRowsEmitter(RuleEmitter):
    """Knobs: SEGMENTS (of a row), COLUMNS and ROWS (of the combining launch; one row a program), BLOCK (points of a
    pointwise program), num_warps."""

    schedule = "rows_segmented"

    def refusal(self, task: Task) -> str:
        spec = task.spec
        if not spec.is_static:
            return "it has symbolic sizes"
        pattern = match_rows(spec)
        if isinstance(pattern, str):
            return pattern
        for stmt in pattern.stmts:
            if isinstance(stmt.over, Reduce) and stmt.over.op not in _OPS:
                return f"{stmt.over.op} has no partial results of one value"
        rows, columns = points_of(spec, pattern.outer), points_of(spec, pattern.inner)
        if rows == 0 or columns < LONG_ROW:
            return "its rows are short"
        if rows >= 2 * task.arch.cu_count:
            return "it has rows enough for all compute units"
        return ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        rows, columns = points_of(task.spec, pattern.outer), points_of(task.spec, pattern.inner)
        wave, units = task.arch.wave_size, task.arch.cu_count
        warps = max(256 // wave, 1)
        block = 16 * warps * wave
        most = max(-(-columns // (2 * block)), 1)
        best = {"SEGMENTS": min(-(-SHARES * units // rows), most), "COLUMNS": block, "ROWS": 1}
        best |= {"BLOCK": 1024, "num_warps": warps}
        segments = [min(-(-share * units // rows), most) for share in (2, 4, 8, 16)]
        yield from grid_of(best, {"SEGMENTS": segments, "COLUMNS": [block // 4, block // 2, block]})

    def write(self, file: SourceFile) -> None:
        spec, level = file.spec, 0
        while any(isinstance(s.over, Reduce) for s in spec.body):
            spec = _reduce_level(file, spec, level)
            level += 1
        memory = frozenset(o.name for o in spec.inputs)
        for number, stmts in enumerate(_by_domain(spec)):
            name = kernel_name(file.spec.name if number == 0 else f"{file.spec.name}_{number}")
            flat_kernel(file, name, stmts, memory, spec=spec)


def _by_domain(spec: KernelSpec) -> list[list[Stmt]]:
    """Outputs that no launch has written yet, those over the same axes together."""
    groups: dict[frozenset[str], list[Stmt]] = {}
    for out in spec.outputs:
        if out.name in spec.stmt:
            groups.setdefault(frozenset(spec.stmt[out.name].axes), []).append(spec.stmt[out.name])
    return list(groups.values())


def _reduce_level(file: SourceFile, spec: KernelSpec, level: int) -> KernelSpec:
    """Write the launches of all reductions that read no other, and give the spec of what is left: their results are
    inputs of it."""
    pattern = match_rows(spec)
    assert isinstance(pattern, Rows)
    later = dependents(spec)
    now = [s for s in pattern.stmts if isinstance(s.over, Reduce) and not any(r.tensor in later for r in s.loads())]
    segments = file.constant("SEGMENTS")
    parts = {s.target: Operand(_fresh(file, f"{s.target}_parts"), accumulator_type(spec, s), ()) for s in now}
    axis = _fresh_axis(spec, "part")
    sizes = (*spec.sizes, Size(axis, segments))
    parts = {t: replace(o, dims=(*spec.stmt[t].axes, axis)) for t, o in parts.items()}
    for part in parts.values():
        file.scratch(part.name, part.dtype, [*(spec.extent(a) for a in part.dims[:-1]), segments])
    _SegmentKernel(file, replace(spec, sizes=sizes, outputs=tuple(parts.values())), pattern, now, parts, level).write()

    done = {s.target for s in now}
    left = [s for s in spec.body if s.target not in done]
    combined = [
        replace(s, over=replace(s.over, axes=(axis,), where=None), expr=_whole(parts[s.target]))
        for s in now
        if isinstance(s.over, Reduce)
    ]
    last = not any(s.over is not None for s in left) and all(
        not set(pattern.inner) & set(spec.stmt[o.name].axes) for o in spec.outputs if o.name in spec.stmt
    )
    written = {o.name for o in spec.outputs} & ({s.target for s in spec.body} if last else done)
    kept = done - {o.name for o in spec.outputs}
    outputs = [o for o in spec.outputs if o.name in written]
    if not last:
        for target in sorted(kept):
            stmt = spec.stmt[target]
            outputs.append(Operand(target, stmt.dtype, stmt.axes))
            file.scratch(target, stmt.dtype, spec.shape_of(target))
    own = {o.name for o in outputs}
    body = [*combined, *(s for s in left if last)]
    joined = replace(
        spec,
        sizes=sizes,
        inputs=(*spec.inputs, *parts.values()),
        outputs=tuple(outputs),
        body=tuple(s for s in body if last or s.target in own),
    )
    rows = match_rows(joined)
    assert isinstance(rows, Rows), rows
    RowKernel(file, rows, joined, kernel_name(f"{file.spec.name}_join_{level}")).write()
    known = tuple(Operand(s.target, s.dtype, s.axes) for s in now)
    return replace(
        spec,
        inputs=(*spec.inputs, *(o for o in known if not last)),
        outputs=tuple(o for o in spec.outputs if o.name not in written),
        body=() if last else tuple(left),
    )


def _whole(part: Operand) -> Load:
    return Load(part.name, tuple(Axis(a) for a in part.dims))


def _fresh(file: SourceFile, name: str) -> str:
    taken = {*file.spec.operand, *file.spec.stmt, *file.workspace}
    while name in taken:
        name += "_"
    return name


def _fresh_axis(spec: KernelSpec, name: str) -> str:
    while name in spec.size:
        name += "_"
    return name


class _SegmentKernel(RowKernel):
    """A program reduces one segment of one row."""

    def __init__(
        self,
        file: SourceFile,
        spec: KernelSpec,
        pattern: Rows,
        now: list[Stmt],
        parts: dict[str, Operand],
        level: int,
    ) -> None:
        super().__init__(file, pattern, spec, kernel_name(f"{file.spec.name}_parts_{level}"))
        self.now, self.parts = now, parts
        self.segments = file.constant("SEGMENTS")
        # Whole blocks, so that only the last segment needs a mask.
        blocks = -(-self.columns // self.width)
        self.length = -(-blocks // self.segments) * self.width
        self.scope.wide = is_wide(spec, (*pattern.outer, *pattern.inner))
        self.flat = True

    def write(self) -> None:
        scope, kernel = self.scope, self.kernel
        program, segment = kernel.fresh("program"), kernel.fresh("segment")
        cast = ".to(tl.int64)" if scope.wide else ""
        scope.emit(f"{program} = tl.program_id(0){cast}")
        scope.emit(f"{segment} = {program} % {self.segments}")
        row = kernel.fresh_axis("row")
        scope.emit(f"{row} = {program} // {self.segments}")
        scope.place(unflatten(self.spec, self.pattern.outer, scope.bind(row, self.rows, Physical(row, i64=scope.wide))))
        scope.shape = ("COLUMNS",)
        self.first = kernel.fresh("first")
        scope.emit(f"{self.first} = {segment} * {self.length}")
        self._pass(self.now, [])
        for stmt in self.now:
            self._store_part(stmt, program)
        self.file.add(kernel, self.rows * self.segments)

    def _steps(self) -> str:
        return f"range({self.first}, tl.minimum({self.first} + {self.length}, {self.columns}), COLUMNS)"

    def _store_part(self, stmt: Stmt, program: str) -> None:
        part = self.parts[stmt.target]
        value = self.scope.recall(self.scope.key(stmt.target, tuple(Axis(a) for a in stmt.axes)))
        assert value is not None
        text = self.scope.stored(V(value.text, ATOM, value.type), part.dtype)
        self.scope.emit(f"tl.store({self.kernel.pointer(part.name)} + {program}, {text})")

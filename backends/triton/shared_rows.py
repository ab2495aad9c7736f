"""Rows too long for one program's registers, each held by many programs at once: memory is read once and written once.

A program holds a segment of a row in registers. What its segment gives of a reduction goes to scratch, it waits until
all programs of the row have theirs there, and combines them, all in the same order; then the next reduction, then the
outputs. Walking the row again instead reads it again from memory, since the rows that are in work do not fit into L2.

Waiting is safe as long as programs start in the order of their numbers, as they do on both vendors' GPUs: the programs
of a row are neighbours, no more than there are compute units, so that of the rows in work the first has all its
programs running.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvc.dtypes import I32, DType
from kvc.emitter import Task
from kvc.kernel import Reduce, Stmt
from kvc.patterns import Rows, match_rows

from .emitter import RuleEmitter, power_of_two
from .index import Physical, identity_of, literal_text
from .pointwise import points_of, unflatten
from .rows import RESIDENT_POINTS, RowKernel, accumulator_type
from .source import KernelText, Knobs, SourceFile, kernel_name
from .spelling import COMBINE_HELPER

LANE_POINTS = 32  # of a segment that a lane holds
_OPS = frozenset({"sum", "prod", "max", "min"})


class SharedRowsEmitter(RuleEmitter):
    """Knobs: COLUMNS (of a segment, which a program holds), num_warps."""

    schedule = "rows_shared"

    def refusal(self, task: Task) -> str:
        spec = task.spec
        if not spec.is_static:
            return "it has symbolic sizes"
        pattern = match_rows(spec)
        if isinstance(pattern, str):
            return pattern
        reductions = [s for s in pattern.stmts if isinstance(s.over, Reduce)]
        if any(isinstance(s.over, Reduce) and s.over.op not in _OPS for s in reductions):
            return "a reduction has no partial results of one value"
        if any(not set(pattern.inner) <= set(spec.stmt[o.name].axes) for o in spec.outputs):
            return "it has outputs that are not along its rows"
        if points_of(spec, pattern.inner) <= RESIDENT_POINTS:
            return "a program holds a row by itself"
        if points_of(spec, pattern.outer) == 0 or next(iter(self.configurations(task)), None) is None:
            return "a row has more segments than there are compute units"
        return ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        columns, wave = points_of(task.spec, pattern.inner), task.arch.wave_size
        lengths = [n for n in (8192, 4096, 16384) if -(-columns // n) <= task.arch.cu_count]
        if not lengths:
            return
        warps = {n: min(n // (LANE_POINTS * wave), task.arch.max_threads // wave) for n in lengths}
        for n in lengths:
            yield (("COLUMNS", n), ("num_warps", warps[n]))
            yield (("COLUMNS", n), ("num_warps", max(warps[n] // 2, 1)))

    def write(self, file: SourceFile) -> None:
        pattern = match_rows(file.spec)
        assert isinstance(pattern, Rows)
        _SharedRow(file, pattern).write()


class _SharedRow(RowKernel):
    """A program holds one segment of one row."""

    def __init__(self, file: SourceFile, pattern: Rows) -> None:
        spec = file.spec
        reductions = [s for s in pattern.stmts if isinstance(s.over, Reduce)]
        rows, self.levels, self.level = points_of(spec, pattern.outer), len(reductions), 0
        self.segments = -(-points_of(spec, pattern.inner) // file.constant("COLUMNS"))
        self.arrived = _named(file, "arrived")
        file.scratch(self.arrived, I32, [rows * self.levels])
        self.parts: dict[str, str] = {}
        for stmt in reductions:
            self.parts[stmt.target] = _named(file, f"{stmt.target}_parts")
            file.scratch(self.parts[stmt.target], accumulator_type(spec, stmt), [rows, self.segments])
        _clear(file, self.arrived, rows * self.levels)
        super().__init__(file, pattern)
        self.flat = True

    def write(self) -> None:
        file, scope, kernel = self.file, self.scope, self.kernel
        self.program, segment = kernel.fresh("program"), kernel.fresh("segment")
        scope.emit(f"SEGMENTS: tl.constexpr = {self.segments}")
        kernel.names.add("SEGMENTS")
        scope.emit(f"{self.program} = tl.program_id(0){'.to(tl.int64)' if scope.wide else ''}")
        scope.emit(f"{segment} = {self.program} % SEGMENTS")
        self.row = kernel.fresh_axis("row")
        scope.emit(f"{self.row} = {self.program} // SEGMENTS")
        scope.place(unflatten(self.spec, self.pattern.outer, scope.bind(self.row, self.rows, Physical(self.row))))
        scope.shape = ("COLUMNS",)
        first = kernel.fresh("first")
        scope.emit(f"{first} = {segment} * COLUMNS")
        self._bind_columns(scope, first)
        for stmt in self.pattern.stmts:
            if isinstance(stmt.over, Reduce):
                self._reduce_block(stmt)
            if stmt.target in self.outputs:
                self._store(scope, stmt)
        file.add(kernel, self.rows * self.segments)

    def _combine_lanes(self, stmt: Stmt, kind: DType, text: str, position: str) -> None:
        """A segment's part to scratch; then, when all parts of the row are there, the whole from them."""
        over, scope, fresh = stmt.over, self.scope, self.kernel.fresh
        assert isinstance(over, Reduce)
        pointer = self.kernel.pointer(self.parts[stmt.target])
        combined = f"tl.reduce({text}, 0, {self.file.helper(COMBINE_HELPER[over.op])})"
        scope.emit(f"tl.store({pointer} + {self.program}, {combined})")
        counter, seen, lane, whole = fresh("counter"), fresh("seen"), fresh("lane"), fresh("parts")
        scope.emit("tl.debug_barrier()")  # the part is written before it is counted
        arrived = self.kernel.pointer(self.arrived)
        scope.emit(f"{counter} = {arrived} + {self.row} * {self.levels} + {self.level}")
        scope.emit(f'{seen} = tl.atomic_add({counter}, 1, sem="acq_rel") + 1')
        scope.emit(f"while {seen} < SEGMENTS:")
        scope.emit(f'    {seen} = tl.atomic_add({counter}, 0, sem="acquire")')
        scope.emit("tl.debug_barrier()")
        span = power_of_two(self.segments)
        scope.emit(f"{lane} = tl.arange(0, {span})")
        mask = (
            ""
            if span == self.segments
            else f", mask={lane} < SEGMENTS, other={literal_text(identity_of(over.op, kind))}"
        )
        # Volatile: no cache of this compute unit may hold what stood there before.
        scope.emit(f"{whole} = tl.load({pointer} + {self.row} * SEGMENTS + {lane}{mask}, volatile=True)")
        self.level += 1
        super()._combine_lanes(stmt, kind, whole, position)


def _named(file: SourceFile, name: str) -> str:
    """A name that no tensor of the spec and no other buffer has."""
    while name in {*file.spec.operand, *file.spec.stmt, *file.workspace}:
        name += "_"
    return name


def _clear(file: SourceFile, buffer: str, points: int) -> None:
    """A launch that sets a buffer of integers to zero: scratch holds anything at the start of a call."""
    block = 1024
    kernel = KernelText(file, kernel_name(f"{file.spec.name}_clear"), file.spec, frozenset())
    at = kernel.fresh("at")
    kernel.lines.append(f"{at} = tl.program_id(0) * {block} + tl.arange(0, {block})")
    kernel.lines.append(
        f"tl.store({kernel.pointer(buffer)} + {at}, tl.full(({block},), 0, tl.int32), mask={at} < {points})"
    )
    file.add(kernel, -(-points // block))


__all__ = ["SharedRowsEmitter"]

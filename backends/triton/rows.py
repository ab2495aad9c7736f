"""Row reductions: softmax, norms, row sums, argmax. Each program owns ROWS rows.

Where a row fits into the block it is read once and stays in registers. Longer rows are walked in blocks of COLUMNS,
in as many passes as reductions depend on each other (a maximum and the sum of exponentials that goes with it count as
one): every lane keeps a partial result per accumulator (which also keeps long sums accurate), lanes are combined after
the loop, and each output is written in the first pass that has all it needs. A single row (a whole tensor) uses a
one-dimensional block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvc.attention import inlined
from kvc.dtypes import BOOL, F32, I32, DType
from kvc.emitter import Task
from kvc.functions import FUNCTIONS
from kvc.kernel import Axis, Call, Cast, Const, Expr, KernelSpec, Load, Reduce, Stmt, axes_of
from kvc.patterns import Rows, match_rows

from .codegen import LINE, Physical, Scope, V, identity_of
from .emitter import RuleEmitter, grid_of, power_of_two
from .pointwise import bounds, close_flat, extent_product, is_wide, points_of, unflatten, walked
from .source import KernelText, Knobs, SourceFile, kernel_name
from .spelling import ADD, ATOM, BIT_AND, COMBINE_HELPER

RESIDENT_POINTS = 32768  # the largest block that stays in registers: 1,024 lanes of 32 values


class RowsEmitter(RuleEmitter):
    """Knobs: ROWS (rows a program), COLUMNS (at least the row: resident; less: passes), num_warps."""

    schedule = "rows"

    def refusal(self, task: Task) -> str:
        pattern = match_rows(task.spec)
        if isinstance(pattern, str):
            return pattern
        if any(task.spec.size[a].size is None for a in pattern.inner):
            return "the length of its rows is symbolic"
        return "it reduces nothing" if points_of(task.spec, (*pattern.outer, *pattern.inner)) == 0 else ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        rows, columns = points_of(task.spec, pattern.outer), points_of(task.spec, pattern.inner)
        best = _best(task, pattern, rows, columns)
        whole = power_of_two(columns)
        wave, most = task.arch.wave_size, task.arch.max_threads // task.arch.wave_size
        lengths = sorted({c for c in (64, 256, 1024, 4096, whole, best["COLUMNS"]) if 16 <= c <= max(whole, 16)})
        choices = {
            "ROWS": [r for r in (1, 2, 4, 8, 16, 32, 64) if r <= power_of_two(rows)],
            "COLUMNS": [c for c in lengths if c == whole or c >= 64] or [best["COLUMNS"]],
            "num_warps": [w for w in (1, 2, 4, 8, 16, 32) if w <= most],
        }
        for setting in grid_of(dict(best), choices):
            chosen = dict(setting)
            block = int(chosen["ROWS"]) * int(chosen["COLUMNS"])
            lanes = int(chosen["num_warps"]) * wave
            if setting == tuple(best.items()) or (block <= RESIDENT_POINTS and lanes // 4 <= block <= lanes * 64):
                yield setting

    def write(self, file: SourceFile) -> None:
        pattern = match_rows(file.spec)
        assert isinstance(pattern, Rows)
        RowKernel(file, pattern).write()


def _best(task: Task, pattern: Rows, rows: int, columns: int) -> dict[str, int]:
    """Resident rows of about eight values a lane; lanes run along the rows where memory does."""
    wave, most = task.arch.wave_size, task.arch.max_threads // task.arch.wave_size
    whole = power_of_two(columns)
    across = rows >= 16 and _contiguous_across(task.spec, pattern)
    if across:
        height = min(power_of_two(rows), 32)
        length = max(min(whole, 8192 // height), 1)
    else:
        # A row that is read once beats any that is walked again, as long as its values fit into registers.
        again = any(set(pattern.inner) <= set(s.axes) for s in pattern.stmts)
        length = whole if whole <= (RESIDENT_POINTS if again else 8192) else 4096
        height = 1
        # Short rows share a program, as long as every compute unit still gets several.
        while height * length < 16 * wave and height < 64 and rows // (height * 2) >= 4 * task.arch.cu_count:
            height *= 2
        while height * length < wave and height < rows:
            height *= 2
    lanes = wave * 8 if height * length <= 8192 else wave * 16
    warps = max(1, min(most, power_of_two(height * length // lanes)))
    if height * length <= 8192:
        warps = min(warps, 8)
    return {"ROWS": height, "COLUMNS": length, "num_warps": warps}


def _contiguous_across(spec: KernelSpec, pattern: Rows) -> bool:
    """Whether the largest operand is contiguous along the rows' index rather than within a row."""
    reads = [load for s in spec.body for load in s.loads() if load.tensor in spec.operand and load.index]
    if not reads or not pattern.outer:
        return False
    largest = max(reads, key=lambda load: points_of(spec, spec.dims_of(load.tensor)))
    for index, stride in zip(largest.index, spec.strides_of(largest.tensor), strict=True):
        if stride == 1 and spec.shape_of(largest.tensor)[largest.index.index(index)] > 1:
            used = set(axes_of(index))
            return bool(used) and used <= set(pattern.outer)
    return False


def accumulator_type(spec: KernelSpec, stmt: Stmt) -> DType:
    """The type in which a reduction is combined."""
    assert isinstance(stmt.over, Reduce)
    kind = spec.type_of(stmt.expr) if stmt.over.op in ("argmax", "argmin") else stmt.dtype.compute
    return I32 if kind is BOOL else kind


@dataclass(frozen=True)
class _Accumulator:
    stmt: Stmt
    kind: DType
    best: str
    at: str = ""  # position, of argmax and argmin


class RowKernel:
    """Writes the kernel of one row pattern, under a name; `spec` where it is not the file's own."""

    def __init__(self, file: SourceFile, pattern: Rows, spec: KernelSpec | None = None, name: str = "") -> None:
        self.file = file
        self.spec = spec or file.spec
        self.pattern = pattern
        self.rows = points_of(self.spec, pattern.outer)
        self.columns = points_of(self.spec, pattern.inner)
        self.width = file.constant("COLUMNS")
        self.outputs = {o.name for o in self.spec.outputs}
        self.zero: set[Expr] = set()
        memory = frozenset(o.name for o in self.spec.inputs)
        self.kernel = KernelText(file, name or kernel_name(self.spec.name), self.spec, memory)
        self.scope = Scope(self.kernel)
        self.scope.wide = is_wide(self.spec, (*pattern.outer, *pattern.inner))
        self.column = self.kernel.fresh_axis("column")
        # A symbolic number of rows is walked by a loop, so that any grid covers it.
        self.walked = any(self.spec.size[a].size is None for a in pattern.outer)
        self.flat = self.rows == 1 and not self.walked

    def write(self) -> None:
        whole = self.scope
        self._open_rows()
        if self.width >= self.columns:
            self._resident()
        else:
            self._passes()
        close_flat(whole, self.scope)
        programs = 1 if self.flat else -(-self.rows // self.file.constant("ROWS"))
        self.file.add(self.kernel, programs)

    # ------------------------------------------------------------ blocks
    def _open_rows(self) -> None:
        scope, outer = self.scope, self.pattern.outer
        if self.flat:
            scope.emit("tl.static_assert(ROWS == 1)")
            scope.place({a: Const(0) for a in outer})
            scope.shape = ("COLUMNS",)
            return
        row = self.kernel.fresh_axis("row")
        program = "tl.program_id(0).to(tl.int64)" if scope.wide else "tl.program_id(0)"
        if self.walked:
            self._walk_rows(row, program)
            return
        scope.emit(f"{row} = {program} * ROWS + tl.arange(0, ROWS)[:, None]")
        mask = bounds(scope, row, str(self.rows), self.rows % self.file.constant("ROWS") == 0, "ROWS")
        axis = scope.bind(row, self.rows, Physical(row, mask=mask, spans="ROWS", i64=scope.wide))
        scope.place(unflatten(self.spec, outer, axis))
        scope.shape = ("ROWS", "COLUMNS")

    def _walk_rows(self, row: str, program: str) -> None:
        """The rest of the kernel stands in a loop over blocks of rows."""
        count, start = self.kernel.fresh("rows"), self.kernel.fresh("first")
        self.scope.emit(f"{count} = {self.scope.index(extent_product(self.pattern.outer)).text}")
        inner = self.scope.child()
        inner.emit(f"{row} = {start} + tl.arange(0, ROWS)[:, None]")
        mask = bounds(inner, row, count, False, "ROWS")
        inner.place(
            unflatten(self.spec, self.pattern.outer, inner.bind(row, None, Physical(row, mask=mask, spans="ROWS")))
        )
        inner.shape = ("ROWS", "COLUMNS")
        inner.lines.insert(0, f"@{start} in range({program} * ROWS, {count}, tl.num_programs(0) * ROWS):")
        self.scope = inner

    def _bind_columns(self, scope: Scope, start: str) -> None:
        lanes = "tl.arange(0, COLUMNS)" + ("" if self.flat else "[None, :]")
        scope.emit(f"{self.column} = {f'{start} + {lanes}' if start else lanes}")
        if start:
            even = self.columns % self.width == 0
            mask = bounds(scope, self.column, str(self.columns), even, "COLUMNS")
        else:
            mask = ""
            if self.width != self.columns:
                mask = self.kernel.fresh(f"{self.column}_in")
                scope.emit(f"{mask} = {self.column} < {self.columns}")
        axis = scope.bind(self.column, self.columns, Physical(self.column, mask=mask, spans="COLUMNS"))
        scope.place(unflatten(self.spec, self.pattern.inner, axis))

    # ------------------------------------------------------------ one block holds the row
    def _resident(self) -> None:
        relation = "==" if self.width == self.columns else ">="
        self.scope.emit(f"tl.static_assert(COLUMNS {relation} {self.columns})")
        self._bind_columns(self.scope, "")
        for stmt in self.pattern.stmts:
            if isinstance(stmt.over, Reduce):
                self._reduce_block(stmt)
            if stmt.target in self.outputs:
                self._store(self.scope, stmt)

    def _store(self, scope: Scope, stmt: Stmt) -> None:
        scope.store(stmt.target, tuple(Axis(a) for a in stmt.axes), scope.result(stmt))

    def _reduce_block(self, stmt: Stmt) -> None:
        over = stmt.over
        assert isinstance(over, Reduce)
        kind = self._kind(stmt)
        value = self._masked(self.scope, stmt, kind)
        text = value.text if self.column in value.axes else self.scope.broadcast(value)
        if len(text) > LINE // 2:
            text = self.scope._named(V(text, ATOM, kind, value.axes), "v").text
        self._combine_lanes(stmt, kind, text, self.column)

    def _kind(self, stmt: Stmt) -> DType:
        return accumulator_type(self.spec, stmt)

    def _masked(self, scope: Scope, stmt: Stmt, kind: DType) -> V:
        """The reduced expression, with the identity in lanes that lie outside the row or its condition."""
        over = stmt.over
        assert isinstance(over, Reduce)
        start = identity_of(over.op, kind)
        if over.op in ("any", "all"):
            start = int(over.op == "all")
        mask = scope.binding(self.column).mask
        filled = bool(mask) and over.where is None and self._fill(scope, stmt.expr, over.op, start)
        value = scope.value(stmt.expr)
        if over.op in ("any", "all"):
            value = scope.to(value, BOOL)
        value = scope.strong(value, kind)
        conditions = [V(mask, ATOM, BOOL)] if mask and not filled else []
        if over.where is not None:
            conditions.append(scope.to(scope.value(over.where), BOOL))
        if not conditions:
            return value
        condition = " & ".join(c.at(BIT_AND + 1) for c in conditions)
        outside = scope._argument(scope.to(V("", ATOM, kind, literal=start), kind))
        axes = value.axes | {self.column}
        inside = scope._joined("tl.where({0}, {1}, {2})", ATOM, [V(condition, BIT_AND, BOOL), value, outside], kind)
        return V(inside.text, ATOM, kind, axes)

    def _fill(self, scope: Scope, expr: Expr, op: str, start: float) -> bool:
        """Whether lanes outside the row hold the identity by themselves, because loads put it there."""
        if op == "sum":
            return self._vanishes(scope, expr)
        match expr:
            case Load(tensor, index, None) if tensor in self.kernel.memory:
                key = scope.key(tensor, index)
                dtype = self.spec.dtype_of(tensor)
                if scope.recall(key) is None and self._in_columns(scope, expr) and dtype.is_float:
                    scope.fill[key] = start
                return scope.fill.get(key) == start
        return False

    def _vanishes(self, scope: Scope, expr: Expr) -> bool:
        match expr:
            case Load(tensor, index, None) if tensor in self.kernel.memory:
                key = scope.key(tensor, index)
                return self._in_columns(scope, expr) and scope.fill.get(key, 0) == 0
            case Call("mul", (a, b)):
                return self._vanishes(scope, a) and self._vanishes(scope, b)
            case Call("neg" | "abs", (a,)) | Cast(_, a):
                return self._vanishes(scope, a)
        return False

    def _in_columns(self, scope: Scope, load: Load) -> bool:
        return self.column in scope.physical_axes(load.index)

    def _combine_lanes(self, stmt: Stmt, kind: DType, text: str, position: str) -> None:
        """Reduce a block over its columns, and keep the result under the statement's name."""
        over = stmt.over
        assert isinstance(over, Reduce)
        axis, tail = ("0", "") if self.flat else ("1", ", keep_dims=True")
        scope, name = self.scope, self.kernel.fresh(stmt.target)
        helper = COMBINE_HELPER[over.op]
        if over.op in ("argmax", "argmin"):
            self.file.helper(helper)
            shape = ", ".join(scope.shape) + ("," if self.flat else "")
            where = f"tl.broadcast_to({position}, ({shape}))" if position == self.column else position
            best = self.kernel.fresh("best")
            scope.emit(f"{best}, {name} = tl.reduce(({text}, {where}), {axis}, {helper}{tail})")
            kind = scope.integer
        elif over.op == "sum":
            scope.emit(f"{name} = tl.sum({text}, axis={axis}{tail})")
        elif over.op in ("max", "min") and not kind.is_float:
            scope.emit(f"{name} = tl.{over.op}({text}, axis={axis}{tail})")
        else:
            scope.emit(f"{name} = tl.reduce({text}, {axis}, {self.file.helper(helper)}{tail})")
        rows = frozenset(a for a in scope.physical if a != self.column)
        result = V(name, ATOM, kind, rows)
        key = scope.key(stmt.target, tuple(Axis(a) for a in stmt.axes))
        if over.op not in ("argmax", "argmin") and stmt.dtype is not kind and scope.is_read(stmt.target):
            scope.keep(key, stmt.target, scope.round(result, stmt.dtype))
        else:
            scope.memo[key] = result

    # ------------------------------------------------------------ the row in passes
    def _passes(self) -> None:
        levels = self._levels()
        last = max(levels[s.target] for s in self.pattern.stmts)
        reductions = [s for s in self.pattern.stmts if isinstance(s.over, Reduce)]
        depth = max(levels[s.target] for s in reductions)
        inner = set(self.pattern.inner)
        for number in range(1, max(depth, last) + 2):
            now = [s for s in reductions if levels[s.target] == number]
            wanted = [s for s in self.pattern.stmts if s.target in self.outputs and inner <= set(s.axes)]
            stores = [s for s in wanted if levels[s.target] == number - 1]
            if now or stores:
                self._pass(now, stores)
            for stmt in self.pattern.stmts:
                if stmt.target in self.outputs and not inner <= set(stmt.axes) and levels[stmt.target] == number:
                    self._store(self.scope, stmt)

    def _levels(self) -> dict[str, int]:
        """The pass after which each tensor is known: a reduction needs one more than what it reads."""
        levels, online = {o.name: 0 for o in self.spec.inputs}, self._online()
        for stmt in self.spec.body:
            read = max((levels[load.tensor] for load in stmt.loads()), default=0)
            # The sum that goes with a maximum is known when that is.
            levels[stmt.target] = read + (isinstance(stmt.over, Reduce) and stmt.target not in online)
        return levels

    def _steps(self) -> str:
        """The columns that a pass walks, block by block."""
        return walked(self.file, "0", str(self.columns), "COLUMNS", self.width * self.file.constant("ROWS"))

    def _pass(self, reductions: list[Stmt], stores: list[Stmt]) -> None:
        scope = self.scope
        accumulators = [self._accumulator(s) for s in reductions]
        start = self.kernel.fresh("start")
        loop = scope.child()
        self._bind_columns(loop, start)
        online = self._online()
        followed: dict[str, list[_Accumulator]] = {acc.stmt.target: [] for acc in accumulators}
        for acc in accumulators:
            if acc.stmt.target in online:
                followed[online[acc.stmt.target]].append(acc)
        for acc in accumulators:
            if acc.stmt.target in online:
                continue
            value = self._masked(loop, acc.stmt, acc.kind)
            over = acc.stmt.over
            assert isinstance(over, Reduce)
            if followed[acc.stmt.target]:
                self._grow_online(loop, acc, followed[acc.stmt.target], value)
            elif acc.at:
                loop.best_of(over.op, acc.best, acc.at, value, V(self.column, ATOM, loop.integer), None)
            else:
                loop.accumulate(over.op, acc.best, value, acc.kind)
        for stmt in stores:
            self._store(loop, stmt)
        scope.close(f"for {start} in {self._steps()}:", loop)
        best = {acc.stmt.target: acc.best for acc in accumulators}
        for acc in accumulators:
            text = acc.best
            if acc.stmt.target in online:
                top = self.spec.stmt[online[acc.stmt.target]]
                largest = scope.load(top.target, tuple(Axis(a) for a in top.axes), None).text
                text = f"{acc.best} * {self._exp(scope, f'{best[top.target]} - {largest}', acc.kind)}"
            self._combine_lanes(acc.stmt, acc.kind, text, acc.at)

    # ------------------------------------------------------------ sums of exponentials in the pass of their maximum
    def _online(self) -> dict[str, str]:
        """Sums of exp(x - max x), by the maximum: a lane can take both at once, when what it summed shrinks by as much
        as its maximum grows."""
        found: dict[str, str] = {}
        kept = {s.target for s in self.pattern.stmts if isinstance(s.over, Reduce)}
        tops = [s for s in self.pattern.stmts if self._is_plain(s, "max")]
        for stmt in self.pattern.stmts:
            for top in tops if self._is_plain(stmt, "sum") else ():
                largest = Load(top.target, tuple(Axis(a) for a in top.axes))
                shifted = Call("exp", (Call("sub", (inlined(self.spec, top.expr, kept), largest)),))
                if inlined(self.spec, stmt.expr, kept) == shifted:
                    found[stmt.target] = top.target
        return found

    def _is_plain(self, stmt: Stmt, op: str) -> bool:
        over = stmt.over
        return isinstance(over, Reduce) and over.op == op and over.where is None and stmt.dtype is F32

    def _grow_online(self, loop: Scope, top: _Accumulator, sums: list[_Accumulator], value: V) -> None:
        value = loop._named(value, "v")
        largest, shift = self.kernel.fresh("largest"), self.kernel.fresh("shift")
        loop.emit(f"{largest} = {loop.combined('max', top.best, value, top.kind)}")
        loop.emit(f'{shift} = tl.where({largest} == float("-inf"), 0.0, {largest})')
        for acc in sums:
            before = self._exp(loop, f"{top.best} - {shift}", acc.kind)
            now = self._exp(loop, f"{value.text} - {shift}", acc.kind)
            loop.emit(f"{acc.best} = {acc.best} * {before} + {now}")
        loop.emit(f"{top.best} = {largest}")

    def _exp(self, scope: Scope, text: str, kind: DType) -> str:
        return scope._primitive(FUNCTIONS["exp"], [V(text, ADD, kind)], kind, kind).text

    def _accumulator(self, stmt: Stmt) -> _Accumulator:
        over = stmt.over
        assert isinstance(over, Reduce)
        kind = self._kind(stmt)
        arg = over.op in ("argmax", "argmin")
        best = self.kernel.fresh("best" if arg else f"{stmt.target}_lanes")
        start = int(over.op == "all") if over.op in ("any", "all") else identity_of(over.op, kind)
        self.scope.emit(f"{best} = {self.scope.full(start, kind)}")
        at = ""
        if arg:
            at = self.kernel.fresh("at")
            # Lanes that see nothing better than the start value keep their own first column.
            lanes = "tl.arange(0, COLUMNS)" + ("" if self.flat else "[None, :]")
            shape = ", ".join(self.scope.shape) + ("," if self.flat else "")
            kind_text = ".to(tl.int64)" if self.scope.wide else ""
            self.scope.emit(f"{at} = tl.broadcast_to({lanes}{kind_text}, ({shape}))")
        return _Accumulator(stmt, kind, best, at)

"""Attention forward as one kernel: the scores live in registers, block by block (online softmax).

A program owns BLOCK_M queries of one batch entry and walks the keys in blocks of BLOCK_N. Per row it keeps the largest
score so far, the sum of exp(score - largest), and the sum of those weights times v; when the largest grows, both
sums shrink by what exp makes of the difference. (What is kept per row is one-dimensional, since Triton leaves that in
the layout of the scores' rows, where columns of width one would go through LDS in every step.) Exponentials are powers
of two, with log2(e) folded into the scale.

Blocks that a causal mask hides from all rows are not visited, and those that it hides from none need no mask; rows
with the most keys start first. A row whose keys are all masked shifts by zero, so that its sums are zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvc.attention import Attention, causal_reach, masked, match_attention
from kvc.dtypes import BOOL, F32, DType
from kvc.emitter import Knob, Task
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load

from .codegen import Physical, Scope, V
from .contraction import MIN_TILE, storage_type
from .emitter import RuleEmitter, grid_of, power_of_two
from .pointwise import bounds, is_wide, points_of, unflatten
from .source import KernelText, Knobs, SourceFile, kernel_name
from .spelling import ATOM, BIT_AND, TL

MAX_HEAD = 256  # what a program's registers hold
LOG2_E = math.log2(math.e)


class AttentionEmitter(RuleEmitter):
    """Knobs: BLOCK_M (queries a program), BLOCK_N (keys a step), num_warps, num_stages, and on AMD waves_per_eu and
    matrix_instr_nonkdim. BLOCK_D and BLOCK_E follow from the head sizes."""

    schedule = "attention"

    def refusal(self, task: Task) -> str:
        spec = task.spec
        if not spec.is_static:
            return "it has symbolic sizes"
        pattern = match_attention(spec)
        if isinstance(pattern, str):
            return pattern
        if max(points_of(spec, pattern.d), points_of(spec, pattern.e)) > MAX_HEAD:
            return f"its heads are longer than {MAX_HEAD}"
        if points_of(spec, (*pattern.scores.axes, *pattern.d, *pattern.e)) == 0:
            return "it is empty"
        if pattern.scores.dtype.compute is not F32 or pattern.output.dtype.compute is not F32:
            return "its sums are not fp32"
        kinds = {storage_type(spec, x) for x in (pattern.q, pattern.k, pattern.v)}
        if len(kinds) != 1 or (kind := kinds.pop()) is None or kind.name not in ("f16", "bf16"):
            return "its operands are not all f16 or all bf16"
        return ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        pattern = _pattern(task.spec)
        queries, keys = points_of(task.spec, pattern.m), points_of(task.spec, pattern.n)
        depth, width = (_block(task.spec, axes) for axes in (pattern.d, pattern.e))
        head = max(depth, width)
        if task.arch.vendor == "nvidia":
            tile = (64, 64, 4, 3) if head <= 64 else (128, 128, 8, 3) if head <= 128 else (64, 32, 4, 2)
        else:
            tile = (128, 64, 4, 2) if head <= 64 else (128, 32, 4, 2) if head <= 128 else (64, 32, 4, 2)
        m, n, warps, depth_of_pipeline = tile
        best: dict[str, Knob] = {
            "BLOCK_M": max(MIN_TILE, min(m, power_of_two(queries))),
            "BLOCK_N": max(MIN_TILE, min(n, power_of_two(keys))),
            "BLOCK_D": depth,
            "BLOCK_E": width,
            "num_warps": warps if queries > 32 else 1,
            "num_stages": depth_of_pipeline,
        }
        if task.arch.vendor == "amd":
            best |= {"waves_per_eu": 0, "matrix_instr_nonkdim": 16}
        choices: dict[str, list[Knob]] = {
            "BLOCK_M": [s for s in (16, 32, 64, 128) if s <= max(power_of_two(queries), 16)],
            "BLOCK_N": [s for s in (16, 32, 64, 128) if s <= max(power_of_two(keys), 16)],
            "num_warps": [1, 2, 4, 8],
            "num_stages": [2] if task.arch.vendor == "amd" else [2, 3, 4],
        }
        for setting in grid_of(best, choices):
            if setting == tuple(best.items()) or _fits(task, dict(setting)):
                yield setting

    def write(self, file: SourceFile) -> None:
        _AttentionKernel(file, _pattern(file.spec)).write()


def _pattern(spec: KernelSpec) -> Attention:
    pattern = match_attention(spec)
    assert isinstance(pattern, Attention)
    return pattern


def _block(spec: KernelSpec, axes: tuple[str, ...]) -> int:
    return max(MIN_TILE, power_of_two(points_of(spec, axes)))


def _fits(task: Task, chosen: dict[str, Knob]) -> bool:
    """LDS for the queries and the stages of keys and values; accumulators and scores in registers."""
    m, n, d, e = (int(chosen[f"BLOCK_{x}"]) for x in "MNDE")
    lanes = int(chosen["num_warps"]) * task.arch.wave_size
    staged = 2 * (m * d + n * (d + e) * max(int(chosen["num_stages"]) - 1, 1))
    return staged <= task.arch.lds_bytes and m * (n + e) <= 144 * lanes and m >= 16 * int(chosen["num_warps"])


class _AttentionKernel:
    def __init__(self, file: SourceFile, pattern: Attention) -> None:
        self.file, self.pattern = file, pattern
        self.spec = file.spec
        self.queries, self.keys = points_of(self.spec, pattern.m), points_of(self.spec, pattern.n)
        memory = frozenset(o.name for o in self.spec.inputs)
        self.kernel = KernelText(file, kernel_name(self.spec.name), self.spec, memory)
        self.scope = Scope(self.kernel)
        self.scope.wide = is_wide(self.spec, pattern.output.axes)
        self.scope.shape = ("BLOCK_M", "BLOCK_E")
        fresh, axis = self.kernel.fresh, self.kernel.fresh_axis
        self.row, self.lane = axis("row"), axis("lane")
        self.tile = fresh("tile")
        self.q, self.top, self.total, self.acc = fresh("q_tile"), fresh("top"), fresh("total"), fresh("acc")
        kind = storage_type(self.spec, pattern.q)
        assert kind is not None
        self.kind = kind

    @property
    def cast(self) -> str:
        return ".to(tl.int64)" if self.scope.wide else ""

    def write(self) -> None:
        pattern, scope = self.pattern, self.scope
        tiles = -(-self.queries // self.file.constant("BLOCK_M"))
        reach, conditions = self._causal()
        self._open(tiles, reach is not None)
        place, depth = self._along(scope, pattern.d, "BLOCK_D", "[None, :]")
        place.shape = ("BLOCK_M", "BLOCK_D")
        scope.emit(f"{self.q} = {self._tile(place, pattern.q, {self.row, depth}, depth)}")
        scope.emit(f'{self.top} = tl.full((BLOCK_M,), float("-inf"), tl.float32)')
        scope.emit(f"{self.total} = tl.full((BLOCK_M,), 0.0, tl.float32)")
        scope.emit(f"{self.acc} = {scope.full(0, F32)}")
        block = self.file.constant("BLOCK_N")
        whole = self.keys // block * block
        others = tuple(c for c in masked(pattern.score).conditions if c not in conditions)
        if reach is None:
            if whole:
                self._steps(f"range(0, {whole}, BLOCK_N)", others)
            if whole < self.keys:
                self._steps(f"range({whole}, {self.keys}, BLOCK_N)", others)
        else:
            full, end = self.kernel.fresh("full"), self.kernel.fresh("end")
            seen = _plus(f"{self.tile} * BLOCK_M", reach + 1)
            scope.emit(f"{full} = tl.maximum(tl.minimum({seen}, {self.keys}), 0) // BLOCK_N * BLOCK_N")
            scope.emit(f"{end} = tl.minimum({_plus(f'{self.tile} * BLOCK_M + BLOCK_M', reach)}, {self.keys})")
            self._steps(f"range(0, {full}, BLOCK_N)", others, inside=True)
            self._steps(f"range({full}, {end}, BLOCK_N)", (*conditions, *others))
        self._epilogue()
        self.file.add(self.kernel, tiles * points_of(self.spec, pattern.batch))

    def _causal(self) -> tuple[int | None, tuple[Expr, ...]]:
        """How far a row sees beyond its own position, and the condition that says so."""
        if len(self.pattern.m) != 1 or len(self.pattern.n) != 1:
            return None, ()
        for condition in masked(self.pattern.score).conditions:
            reach = causal_reach(self.scope.algebra, condition, self.pattern.m[0], self.pattern.n[0])
            if reach is not None:
                return reach, (condition,)
        return None, ()

    # ------------------------------------------------------------ axes
    def _open(self, tiles: int, causal: bool) -> None:
        scope, pattern = self.scope, self.pattern
        program = self.kernel.fresh("program")
        scope.emit(f"{program} = tl.program_id(0)")
        nth = f"{program} % {tiles}"
        scope.emit(f"{self.tile} = {f'{tiles - 1} - {nth}' if causal else nth}")
        if pattern.batch:
            batch = self.kernel.fresh_axis("batch")
            scope.emit(f"{batch} = {program}{self.cast} // {tiles}")
            axis = scope.bind(batch, points_of(self.spec, pattern.batch), Physical(batch, i64=scope.wide))
            scope.place(unflatten(self.spec, pattern.batch, axis))
        scope.emit(f"{self.row} = {self.tile}{self.cast} * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]")
        even = self.queries % self.file.constant("BLOCK_M") == 0
        mask = bounds(scope, self.row, str(self.queries), even, "BLOCK_M")
        axis = scope.bind(self.row, self.queries, Physical(self.row, mask=mask, spans="BLOCK_M", i64=scope.wide))
        scope.place(unflatten(self.spec, pattern.m, axis))
        self._bind(scope, self.lane, pattern.e, "BLOCK_E", "[None, :]")

    def _bind(self, scope: Scope, name: str, axes: tuple[str, ...], block: str, lane: str, start: str = "") -> None:
        """Axes of the spec along a block that starts at 0, or at `start`."""
        points = points_of(self.spec, axes)
        first = f"{start}{self.cast} + " if start else ""
        scope.emit(f"{name} = {first}tl.arange(0, {block}){lane}")
        mask = bounds(scope, name, str(points), points % self.file.constant(block) == 0, block)
        scope.place(unflatten(self.spec, axes, scope.bind(name, points, Physical(name, mask=mask, spans=block))))

    def _along(
        self, scope: Scope, axes: tuple[str, ...], block: str, lane: str, start: str = "", stem: str = "depth"
    ) -> tuple[Scope, str]:
        place, name = scope.child(inline=True), self.kernel.fresh_axis(stem)
        self._bind(place, name, axes, block, lane, start)
        return place, name

    # ------------------------------------------------------------ operands
    def _tile(self, place: Scope, expr: Expr, axes: set[str], summed: str) -> str:
        """A tile of an operand in its storage type, zero beyond what is summed."""
        plain = isinstance(expr, Load) and expr.tensor in self.kernel.memory
        if isinstance(expr, Load) and plain:
            used = place.physical_axes(expr.index)
            value = V(place.access(expr.tensor, expr.index, expr.other, place), 0, self.kind, used)
        else:
            value = place.strong(place.value(expr), self.spec.type_of(expr))
            value = V(f"{value.at(ATOM)}.to({TL[self.kind.name]})", ATOM, self.kind, value.axes)
        mask = place.binding(summed).mask
        other = expr.other if isinstance(expr, Load) else None
        zero = plain and summed in value.axes and (other is None or other == Const(0) or other == Const(0.0))
        if mask and not zero:
            value = V(f"tl.where({mask}, {value.text}, 0.0)", ATOM, self.kind, value.axes | {summed})
        return value.text if axes <= value.axes else place.broadcast(value)

    # ------------------------------------------------------------ steps
    def _steps(self, header: str, conditions: tuple[Expr, ...], inside: bool = False) -> None:
        """A loop over blocks of keys. `inside`: all of them lie before the last key."""
        scope, pattern, fresh = self.scope, self.pattern, self.kernel.fresh
        start = fresh("start")
        loop = scope.child()
        column = self.kernel.fresh_axis("column")
        self._bind(loop, column, pattern.n, "BLOCK_N", "[None, :]", start)
        loop.shape = ("BLOCK_M", "BLOCK_N")
        mask = loop.binding(column).mask
        place, depth = self._along(loop, pattern.d, "BLOCK_D", "[:, None]")
        place.shape = ("BLOCK_D", "BLOCK_N")
        k = fresh("k_tile")
        place.emit(f"{k} = {self._tile(place, pattern.k, {column, depth}, depth)}")
        s = fresh("s")
        loop.emit(f'{s} = tl.dot({self.q}, {k}, input_precision="ieee")')
        largest, shift, p = self._weights(loop, s, column, conditions, "" if inside else mask)
        decay = fresh("decay")
        loop.emit(f"{decay} = tl.exp2({self.top} - {shift})")
        loop.emit(f"{self.total} = {self.total} * {decay} + tl.sum({p}, axis=1)")
        place, key = self._along(loop, pattern.n, "BLOCK_N", "[:, None]", start, "key")
        place.shape = ("BLOCK_N", "BLOCK_E")
        v = fresh("v_tile")
        place.emit(f"{v} = {self._tile(place, pattern.v, {key, self.lane}, key)}")
        weight: DType = pattern.weight or F32
        if weight is not self.kind:
            loop.emit(f"{v} = {v}.to({TL[weight.name]})")
        rounded = f"{p}.to({TL[weight.name]})" if weight is not F32 else p
        loop.emit(f'{self.acc} = tl.dot({rounded}, {v}, {self.acc} * {decay}[:, None], input_precision="ieee")')
        loop.emit(f"{self.top} = {largest}")
        scope.close(f"for {start} in {header}:", loop)

    def _weights(
        self, loop: Scope, s: str, column: str, conditions: tuple[Expr, ...], mask: str
    ) -> tuple[str, str, str]:
        """Locals with the largest score so far (times log2 e), what to subtract, and the weights of a block."""
        pattern, fresh = self.pattern, self.kernel.fresh
        scores = pattern.scores
        index = tuple(Axis(a) for a in scores.axes)
        raw = V(s, ATOM, F32, frozenset({self.row, column}))
        key = loop.key(scores.target, index)
        if scores.dtype is not F32:
            loop.keep(key, scores.target, loop.round(raw, scores.dtype))
        else:
            loop.memo[key] = raw
        value = masked(pattern.score).value
        factor = LOG2_E
        while isinstance(value, Call) and value.fn == "mul" and isinstance(value.args[1], Const):
            if not (isinstance(value.args[1].value, float | int) and value.args[1].value > 0):
                break
            factor *= float(value.args[1].value)
            value = value.args[0]
        score = loop._named(loop.strong(loop.value(value), F32), "score")
        hidden = [V(mask, ATOM, BOOL)] if mask else []
        hidden += [loop.to(loop.value(c), BOOL) for c in conditions]
        if hidden:
            condition = " & ".join(c.at(BIT_AND + 1) for c in hidden)
            name = fresh("score")
            loop.emit(f'{name} = tl.where({condition}, {score.text}, float("-inf"))')
            score = V(name, ATOM, F32, score.axes)
        largest, shift, p = fresh("largest"), fresh("shift"), fresh("p")
        text = score.text if {self.row, column} <= score.axes else loop.broadcast(score)
        loop.emit(f"{largest} = tl.maximum({self.top}, tl.max({text}, axis=1) * {factor!r})")
        loop.emit(f'{shift} = tl.where({largest} == float("-inf"), 0.0, {largest})')
        loop.emit(f"{p} = tl.exp2(tl.fma({text}, {factor!r}, -{shift}[:, None]))")
        return largest, shift, p

    # ------------------------------------------------------------ results
    def _epilogue(self) -> None:
        scope, pattern = self.scope, self.pattern
        rows = frozenset({self.row})
        output = pattern.output
        for stmt, text in (
            (pattern.total, f"{self.total}[:, None]"),
            (pattern.top, f"{self.top}[:, None] * {1 / LOG2_E!r}"),
        ):
            if any(load.tensor == stmt.target for s in pattern.epilogue for load in s.loads()):
                scope.keep(self._key(stmt.target), stmt.target, scope.round(V(text, 0, F32, rows), stmt.dtype))
        acc = V(self.acc, ATOM, F32, rows | {self.lane})
        if pattern.normalised:
            acc = V(f"{self.acc} / {self.total}[:, None]", 0, F32, acc.axes)
        scope.keep(self._key(output.target), output.target, scope.round(acc, output.dtype))
        outputs = {o.name for o in self.spec.outputs}
        for s in (output, *pattern.epilogue):
            if s.target in outputs:
                result = scope.result(s)
                if result.literal is not None or not {self.row, self.lane} <= result.axes:
                    result = V(scope.broadcast(result), ATOM, result.type, result.axes)
                scope.store(s.target, tuple(Axis(a) for a in s.axes), result)

    def _key(self, target: str) -> object:
        return self.scope.key(target, tuple(Axis(a) for a in self.spec.stmt[target].axes))


def _plus(text: str, number: int) -> str:
    return text if number == 0 else f"{text} {'+' if number > 0 else '-'} {abs(number)}"

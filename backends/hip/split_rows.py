"""Few long rows: each row is cut into segments, one workgroup each, so that the whole GPU takes part.

Batch statistics, losses and sums over everything have fewer rows than the GPU has compute units. Every walk over the
row is a launch of its own; a workgroup leaves the partial results of its segment in scratch memory, and the next launch
begins by combining them, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvc.backends.hip.codegen import Accumulator, Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val
from kvc.backends.hip.lanes import Lanes, Stores, for_each_lane
from kvc.backends.hip.rows import ROW_REDUCE, Phase, RowsEmitter, Walk, row_widths
from kvc.backends.hip.source import VERSION, File, Knobs, domain_size, needs_wide, operand_buffers
from kvc.backends.hip.unit import Buffer, Kernel, Unit
from kvc.emitter import Candidate, Scratch, Space, Support, Task, integer
from kvc.kernel import Load, Reduce, Stmt
from kvc.patterns import Rows, match_rows

THREADS = 256
MIN_SEGMENT = 4096  # elements; below it a second launch costs more than the idle compute units


class SplitRowsEmitter:
    """Knobs: SEGMENTS, workgroups a row; WIDTH, consecutive elements a thread."""

    name = "hip.split_rows"
    version = VERSION
    schedule = "split_row_reduction"

    def supports(self, task: Task) -> Support:
        basic = RowsEmitter().supports(task)
        if not basic.ok:
            return basic
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        if any(isinstance(s.over, Reduce) and s.over.op.startswith("arg") for s in task.spec.body):
            return Support(False, "positions of a maximum are not combined across workgroups")
        if any(o.alias is not None for o in task.spec.outputs):
            return Support(False, "an output lies in an input that other workgroups may still read")
        rows, length = domain_size(task.spec, pattern.outer), domain_size(task.spec, pattern.inner)
        if 2 * rows > task.arch.cu_count:
            return Support(False, "its rows fill the GPU")
        if length < 2 * MIN_SEGMENT:
            return Support(False, "its rows are short")
        return Support(True)

    def space(self, task: Task) -> Space:
        """Segment counts that give each compute unit about four workgroups come first."""
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        rows, length = domain_size(task.spec, pattern.outer), domain_size(task.spec, pattern.inner)
        most = min(THREADS, length // MIN_SEGMENT)
        wanted = max(1, 4 * task.arch.cu_count // rows)
        counts = sorted(
            {n for n in (2, 4, 8, 16, 32, 64, 128, 256, most) if 2 <= n <= most}, key=lambda n: abs(n - wanted)
        )
        widths = row_widths(task.spec, pattern, length)
        return Space(tuple((("SEGMENTS", n), ("WIDTH", w)) for n in counts for w in widths))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        setting = dict(knobs)
        writer = _SplitRows(task, pattern, integer(setting["SEGMENTS"]), integer(setting["WIDTH"]))
        yield writer.candidate(self.name, self.schedule, knobs)


class _SplitRows:
    """One candidate in the making."""

    def __init__(self, task: Task, pattern: Rows, segments: int, width: int) -> None:
        self.task, self.spec, self.pattern = task, task.spec, pattern
        self.segments, self.width = segments, width
        self.length, self.rows = domain_size(self.spec, pattern.inner), domain_size(self.spec, pattern.outer)
        self.chunks = self.length // width
        self.file = File(task, Unit(self.spec))
        self.buffers = operand_buffers(self.spec)
        self.wide = needs_wide(self.spec, self.buffers, self.rows * segments * THREADS)
        self.known: list[Stmt] = []  # reductions whose partial results are in scratch

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        kind = "long long" if self.wide else "int"
        self.file.head += [
            f"constexpr int BLOCK = {THREADS};  // threads a workgroup",
            f"constexpr int SEGMENTS = {self.segments};  // workgroups a row",
            f"constexpr int WIDTH = {self.width};  // consecutive elements a thread moves at once",
            f"constexpr {kind} CHUNKS = {self.chunks};  // of WIDTH elements a row",
            f"constexpr {kind} SEGMENT = (CHUNKS + SEGMENTS - 1) / SEGMENTS;  // chunks a workgroup",
            "constexpr int ROW_THREADS = BLOCK;",
            "constexpr int ROW_LANES = KVC_WAVE_SIZE;",
            "constexpr int ROW_WAVES = ROW_THREADS / ROW_LANES;",
        ]
        phases = self._walk(self._kernel()).phases
        for number in range(len(phases)):
            self._phase(number)
        if self._walk(self._kernel()).row_outputs:
            self._finish()
        return self.file.candidate(emitter, schedule, knobs)

    def _kernel(self) -> Kernel:
        return Kernel(self.file.unit, dict(self.buffers), self.wide, (o.name for o in self.spec.inputs))

    def _walk(self, kernel: Kernel) -> Walk:
        return Walk(kernel, self.pattern, self.length, self.width, self.rows)

    def _partial(self, stmt: Stmt) -> str:
        """Key of the scratch buffer of a reduction's partial results."""
        return f"{stmt.target} partial"

    # ------------------------------------------------------------ launches
    def _phase(self, number: int) -> None:
        kernel = self._kernel()
        walk = self._walk(kernel)
        phase = walk.phases[number]
        writer, kind = kernel.writer, kernel.index_type
        writer.line("const int lane = threadIdx.x;")
        writer.line(f"const {kind} row = blockIdx.x / SEGMENTS;")
        writer.line(f"const {kind} first = blockIdx.x % SEGMENTS * SEGMENT;")
        writer.line(f"const {kind} last = CHUNKS < first + SEGMENT ? CHUNKS : first + SEGMENT;")
        outer = walk.scope({})
        self._gather(kernel, walk, outer)
        walk.hoist(outer, phase)
        accumulators = [Accumulator(kernel, s) for s in phase.reductions]
        for accumulator in accumulators:
            accumulator.declare()
        self._over_segment(kernel, walk, outer, phase, accumulators)
        for stmt, accumulator in zip(phase.reductions, accumulators, strict=True):
            self._leave(kernel, stmt, accumulator)
        outputs = [s.target for s in phase.outputs] + [self._partial(s) for s in phase.reductions]
        self.known += phase.reductions
        name = f"{self.spec.name}_{'_'.join(s.target for s in (*phase.reductions, *phase.outputs))}"
        self.file.add(kernel, name, (self.rows * self.segments,), THREADS, outputs, "BLOCK")

    def _over_segment(
        self, kernel: Kernel, walk: Walk, outer: Scope, phase: Phase, accumulators: list[Accumulator]
    ) -> None:
        chunk = kernel.axis_text[walk.chunk.name]
        header = f"for ({kernel.index_type} {chunk} = first + lane; {chunk} < last; {chunk} += BLOCK)"
        with kernel.writer.block(header):
            scope = outer.child()
            stores = Stores(scope, walk.lanes, phase.outputs)
            stores.declare()

            def body(inner: Scope) -> None:
                for accumulator in accumulators:
                    accumulator.step(inner, walk.point)
                for stmt, value in [(s, inner.final(s)) for s in phase.outputs]:
                    stores.put(inner, stmt, value)

            for_each_lane(scope, walk.lanes, body)
            stores.flush()

    def _leave(self, kernel: Kernel, stmt: Stmt, accumulator: Accumulator) -> None:
        """Combine the workgroup's lanes and store the segment's result."""
        self._reduce(kernel, accumulator)
        key = self._partial(stmt)
        name = f"{stmt.target}_partial"
        buffer = Buffer(name, accumulator.type, (), (), self.rows * self.segments, name)
        self.buffers[key] = kernel.buffers[key] = buffer
        self.file.workspace.append(Scratch(name, accumulator.type.name, self.rows * self.segments))
        kernel.writer.line(f"if (lane == 0) {name}[blockIdx.x] = {accumulator.name};")

    def _reduce(self, kernel: Kernel, accumulator: Accumulator) -> None:
        kernel.helpers.add("row_reduce", ROW_REDUCE)
        kind = COMPUTE_TYPE[accumulator.type.name]
        combined = accumulator.combine(Val("a", accumulator.type), Val("b", accumulator.type))
        name = accumulator.name
        kernel.writer.line(f"{name} = row_reduce({name}, []({kind} a, {kind} b) {{ return {combined.text}; }});")

    def _gather(self, kernel: Kernel, walk: Walk, outer: Scope) -> None:
        """The finished reductions of earlier launches, from their segments' results."""
        for stmt in self.known:
            accumulator = Accumulator(kernel, stmt)
            accumulator.declare()
            key = self._partial(stmt)
            kernel.used[key] = None
            pointer = kernel.buffers[key].pointer
            kernel.writer.line(f"if (lane < SEGMENTS) {accumulator.name} = {pointer}[row * SEGMENTS + lane];")
            self._reduce(kernel, accumulator)
            result = accumulator.result()
            named = result if result.text == accumulator.name else outer.name(stmt.target, result)
            outer.memo[Load(stmt.target, outer.index_of(stmt))] = named

    def _finish(self) -> None:
        """Outputs of one value a row, one workgroup each."""
        kernel = self._kernel()
        walk = self._walk(kernel)
        kernel.writer.line("const int lane = threadIdx.x;")
        kernel.writer.line(f"const {kernel.index_type} row = blockIdx.x;")
        outer = walk.scope({})
        self._gather(kernel, walk, outer)
        with kernel.writer.block("if (lane == 0)"):
            scope = outer.child()
            stores = Stores(scope, Lanes(None, 1), walk.row_outputs)
            for stmt in walk.row_outputs:
                stores.put(scope, stmt)
        outputs = [s.target for s in walk.row_outputs]
        self.file.add(kernel, self.spec.name, (self.rows,), THREADS, outputs, "BLOCK")

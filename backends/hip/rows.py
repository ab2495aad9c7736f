"""Row reductions: softmax, norms, sums, argmax. One row belongs to a few lanes, a wave, or a whole workgroup.

The row is walked once for each level of reductions that depend on one another; reductions of one level share a walk.
What a later walk reads again (the inputs, exp(x - max)) stays in registers when it fits, else it is loaded and computed
again from cache. Lanes combine by butterfly shuffles, waves of a workgroup through LDS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from kvc.backends.hip.codegen import Accumulator, Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val
from kvc.backends.hip.lanes import Lanes, Stores, for_each_lane, rehearse
from kvc.backends.hip.source import (
    VERSION,
    File,
    Knobs,
    alias_problem,
    domain_count,
    domain_size,
    needs_wide,
    operand_buffers,
    symbolic_problem,
)
from kvc.backends.hip.unit import Kernel, Unit
from kvc.emitter import Candidate, Knob, Space, Support, Task, integer
from kvc.kernel import Axis, KernelSpec, Load, Reduce, Stmt, walk
from kvc.patterns import Rows, match_rows

HELD_REGISTERS = 64  # 32-bit registers a thread for values that stay between walks

ROW_REDUCE = """\
// Combine one value of each thread of a row; all of them get the result.
template <class T, class Combine>
__device__ __forceinline__ T row_reduce(T value, Combine combine) {
  #pragma unroll
  for (int mask = ROW_LANES / 2; mask > 0; mask /= 2) value = combine(value, __shfl_xor(value, mask));
  if constexpr (ROW_WAVES > 1) {
    __shared__ T partial[BLOCK / KVC_WAVE_SIZE];
    const int wave = threadIdx.x / KVC_WAVE_SIZE;
    const int first = threadIdx.x / ROW_THREADS * ROW_WAVES;
    if (threadIdx.x % KVC_WAVE_SIZE == 0) partial[wave] = value;
    __syncthreads();
    value = partial[first];
    #pragma unroll
    for (int w = 1; w < ROW_WAVES; ++w) value = combine(value, partial[first + w]);
    __syncthreads();
  }
  return value;
}
"""

ROW_BEST = """\
// The best candidate of all threads of a row and where it stands (-1: none); `better(a, a_at, b, b_at)` orders them.
template <class T, class Index, class Better>
__device__ __forceinline__ void row_best(T& value, Index& at, Better better) {
  #pragma unroll
  for (int mask = ROW_LANES / 2; mask > 0; mask /= 2) {
    const T other = __shfl_xor(value, mask);
    const Index other_at = __shfl_xor(at, mask);
    if (better(other, other_at, value, at)) value = other, at = other_at;
  }
  if constexpr (ROW_WAVES > 1) {
    __shared__ T partial[BLOCK / KVC_WAVE_SIZE];
    __shared__ Index partial_at[BLOCK / KVC_WAVE_SIZE];
    const int wave = threadIdx.x / KVC_WAVE_SIZE;
    const int first = threadIdx.x / ROW_THREADS * ROW_WAVES;
    if (threadIdx.x % KVC_WAVE_SIZE == 0) partial[wave] = value, partial_at[wave] = at;
    __syncthreads();
    value = partial[first], at = partial_at[first];
    #pragma unroll
    for (int w = 1; w < ROW_WAVES; ++w) {
      const T other = partial[first + w];
      const Index other_at = partial_at[first + w];
      if (better(other, other_at, value, at)) value = other, at = other_at;
    }
    __syncthreads();
  }
}
"""


class RowsEmitter:
    """Knobs: BLOCK, threads a workgroup; ROW_THREADS, threads a row; WIDTH, consecutive elements a thread."""

    name = "hip.rows"
    version = VERSION
    schedule = "row_reduction"

    def supports(self, task: Task) -> Support:
        spec = task.spec
        pattern = match_rows(spec)
        problem = pattern if isinstance(pattern, str) else alias_problem(spec) or symbolic_problem(spec, pattern.outer)
        if problem:
            return Support(False, problem)
        assert isinstance(pattern, Rows)
        if not domain_size(spec, (*pattern.outer, *pattern.inner)):
            return Support(False, "its domain is empty")
        kernel = Kernel(Unit(spec), operand_buffers(spec), False, (o.name for o in spec.inputs))
        *early, _ = Walk(kernel, pattern, domain_size(spec, pattern.inner), 1, 1).phases
        if any(spec.operand[s.target].alias is not None for phase in early for s in phase.outputs):
            return Support(False, "an output would overwrite an input that a later walk reads")
        return Support(True)

    def space(self, task: Task) -> Space:
        """Thread counts a row that leave each thread 1 to 64 elements; the best guess gives it about eight."""
        spec, arch = task.spec, task.arch
        pattern = match_rows(spec)
        assert isinstance(pattern, Rows)
        length, rows = domain_size(spec, pattern.inner), domain_size(spec, pattern.outer)
        # Where neighbouring rows are neighbours in memory, a thread had better keep a row to itself.
        spread = 2.0 if _runs_across(spec, pattern) else 0.0
        found: list[tuple[float, Knobs]] = []
        for width in row_widths(spec, pattern, length):
            chunks = length // width
            for threads in (2**n for n in range(int(math.log2(arch.max_threads)) + 1)):
                items = -(-chunks // threads)
                idle_half = threads > 1 and threads >= 2 * chunks
                too_long = items * width > 256 and threads < arch.max_threads
                if idle_half or too_long:
                    continue
                # A row of several waves has the workgroup to itself, so that no wave leaves before a barrier.
                block = threads if threads > arch.wave_size else min(256, arch.max_threads)
                idle = items * threads / chunks - 1
                machine = rows * threads / (arch.cu_count * arch.wave_size * arch.simds_per_cu)
                cost = (
                    abs(math.log2(items * width / 8))
                    + idle
                    + spread * math.log2(threads)
                    + max(0.0, -math.log2(machine))
                    - 0.5 * math.log2(width)
                )
                setting: tuple[tuple[str, Knob], ...] = (("BLOCK", block), ("ROW_THREADS", threads), ("WIDTH", width))
                found.append((cost, setting))
        return Space(tuple(setting for _, setting in sorted(found, key=lambda f: f[0])))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        pattern = match_rows(task.spec)
        assert isinstance(pattern, Rows)
        yield _RowKernel(task, pattern, dict(knobs)).candidate(self.name, self.schedule, knobs)


def _runs_across(spec: KernelSpec, pattern: Rows) -> bool:
    """Whether some operand is contiguous from row to row, and not along the row."""
    scope = Scope(Kernel(Unit(spec), operand_buffers(spec), False, (o.name for o in spec.inputs)), {})
    outer, inner = ([a for a in axes if spec.extent(a) > 1][-1:] for axes in (pattern.outer, pattern.inner))
    if not outer or not inner:
        return False
    for load in (load for s in spec.body for load in s.loads() if load.tensor in scope.kernel.readable):
        steps = scope.kernel.algebra.linear(scope.offset(load.tensor, load.index)).coefficients
        if steps.get(Axis(outer[0])) == 1 and steps.get(Axis(inner[0]), 0) > 1:
            return True
    return False


def row_widths(spec: KernelSpec, pattern: Rows, length: int) -> list[int]:
    """Widths at which every access along the row moves as a pack or is shared; 1 always."""
    widths = [w for w in (16, 8, 4, 2) if length % w == 0 and _moves_packs(spec, pattern, length, w)]
    return [*widths, 1]


def _moves_packs(spec: KernelSpec, pattern: Rows, length: int, width: int) -> bool:
    smallest = min((o.dtype.bytes for o in (*spec.inputs, *spec.outputs)), default=1)
    if width * smallest > 16:
        return False
    kernel = Kernel(Unit(spec), operand_buffers(spec), False, (o.name for o in spec.inputs))
    walker = Walk(kernel, pattern, length, width, domain_size(spec, pattern.outer))
    for phase in walker.phases:
        scope = walker.scope({})
        stores = Stores(scope, walker.lanes, phase.outputs)
        if len(stores.packs) < len(phase.outputs):
            return False
        for load, offset in rehearse(scope, lambda inner, p=phase: walker.rehearsal(inner, p)).items():  # type: ignore[misc]
            if not walker.is_inner(load) or walker.lanes.is_shared(offset):
                continue
            if load.other is not None or not walker.lanes.is_pack(kernel, load.tensor, offset):
                return False
    return True


class Phase:
    """One walk over the row: reductions, and outputs along the row that need no later reduction."""

    def __init__(self) -> None:
        self.reductions: list[Stmt] = []
        self.outputs: list[Stmt] = []


class Walk:
    """The axes of a row kernel, its phases, and which values later phases read again."""

    def __init__(self, kernel: Kernel, pattern: Rows, length: int, width: int, rows: int) -> None:
        self.kernel = kernel
        self.spec = kernel.spec
        self.pattern = pattern
        self.row = kernel.axis("row", rows if self.spec.is_static else None)
        self.chunk = kernel.axis("chunk" if width > 1 else "column", length // width)
        self.lanes = Lanes(kernel.axis("v", width) if width > 1 else None, width)
        column = self.lanes.flat(self.chunk)
        self.point = kernel.split(self.row, pattern.outer) | kernel.split(column, pattern.inner)
        self.row_outputs: list[Stmt] = []
        self.phases = self._phases()

    def _phases(self) -> list[Phase]:
        depth: dict[str, int] = {}
        phases: list[Phase] = []
        outputs = {o.name for o in self.spec.outputs}
        for stmt in self.spec.body:
            level = max((depth.get(load.tensor, 0) for load in stmt.loads()), default=0)
            is_reduction = isinstance(stmt.over, Reduce)
            depth[stmt.target] = level + is_reduction
            along = set(stmt.axes) != set(self.pattern.outer)
            while len(phases) <= level:
                phases.append(Phase())
            if is_reduction:
                phases[level].reductions.append(stmt)
            if stmt.target in outputs and (is_reduction or not along):
                self.row_outputs.append(stmt)
            elif stmt.target in outputs:
                phases[level].outputs.append(stmt)
        return [p for p in phases if p.reductions or p.outputs]

    def scope(self, memo: dict[Load, Val]) -> Scope:
        return Scope(self.kernel, self.point, memo)

    def is_inner(self, load: Load) -> bool:
        """Whether an access depends on the position in the row."""
        return any(node == self.chunk or node == self.lanes.axis for i in load.index for node in walk(i))

    def result_key(self, stmt: Stmt) -> Load:
        return Load(stmt.target, self.scope({}).index_of(stmt))

    def rehearsal(self, scope: Scope, phase: Phase) -> None:
        """Evaluate what a phase needs, with reductions of earlier phases taken as given."""
        for earlier in self.phases:
            for stmt in earlier.reductions:
                scope.memo[self.result_key(stmt)] = Val(stmt.target, self.spec.dtype_of(stmt.target).compute)
        for stmt in phase.reductions:
            Accumulator(self.kernel, stmt).step(scope, self.point)
        for stmt in phase.outputs:
            scope.final(stmt)

    def hoist(self, outer: Scope, phase: Phase) -> None:
        """Name, before the walk, the values that are the same along the whole row."""
        constant: list[Load] = []
        with self.kernel.dry():
            trial = outer.child()
            trial.on_value = lambda load, value: None if self.is_inner(load) else constant.append(load)
            self.rehearsal(trial, phase)
        for load in constant:
            outer.tensor(load.tensor, load.index, load.other)

    def held(self) -> dict[Load, Val]:
        """Values along the row that a later phase reads again."""
        held: dict[Load, Val] = {}
        known: dict[Load, Val] = {}
        for phase in self.phases:
            fresh: dict[Load, Val] = {}

            def reuse(load: Load, known: dict[Load, Val] = known) -> None:
                if load in known:
                    held[load] = known[load]

            with self.kernel.dry():
                scope = self.scope(dict(known))
                scope.on_reuse, scope.on_value = reuse, fresh.__setitem__
                self.rehearsal(scope, phase)
            per_lane = {k: v for k, v in fresh.items() if self.is_inner(k) and self._is_per_lane(k)}
            known.update({k: v for k, v in per_lane.items() if k not in known})
        return held

    def _is_per_lane(self, load: Load) -> bool:
        return self.lanes.axis is None or any(node == self.lanes.axis for i in load.index for node in walk(i))


class _RowKernel:
    """One candidate in the making."""

    def __init__(self, task: Task, pattern: Rows, setting: dict[str, Knob]) -> None:
        self.task, self.spec = task, task.spec
        self.block, self.threads, self.width = (integer(setting[k]) for k in ("BLOCK", "ROW_THREADS", "WIDTH"))
        self.length, self.rows = domain_size(self.spec, pattern.inner), domain_size(self.spec, pattern.outer)
        self.file = File(task, Unit(self.spec))
        buffers = operand_buffers(self.spec)
        wide = needs_wide(self.spec, buffers, self.rows * self.threads)
        self.kernel = Kernel(self.file.unit, buffers, wide, (o.name for o in self.spec.inputs))
        self.walk = Walk(self.kernel, pattern, self.length, self.width, self.rows)
        self.chunks = self.length // self.width
        self.items = -(-self.chunks // self.threads)
        held = self.walk.held()
        registers = sum(v.type.bytes // 4 or 1 for v in held.values()) * self.items * self.width
        self.holds = registers <= HELD_REGISTERS
        self.held = {load: self.kernel.names.fresh(f"{load.tensor}_row") for load in held} if self.holds else {}
        self.held_type = {load: v.type for load, v in held.items()}

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        self._constants()
        kernel, writer, kind = self.kernel, self.kernel.writer, self.kernel.index_type
        rows_a_block = self.block // self.threads
        writer.line("const int lane = threadIdx.x % ROW_THREADS;" if self.threads > 1 else "const int lane = 0;")
        where = f"({kind})blockIdx.x" if kernel.wide else "blockIdx.x"
        row = f"{where} * (BLOCK / ROW_THREADS) + threadIdx.x / ROW_THREADS" if rows_a_block > 1 else where
        if self.spec.is_static:
            writer.line(f"const {kind} row = {row};")
            if self.rows % rows_a_block:
                writer.line("if (row >= ROWS) return;")
            self._rows()
        else:  # as many rows as an argument says: any grid walks them all
            writer.line(f"const {kind} rows = {domain_count(kernel, self.walk.pattern.outer)};")
            step = f"({kind})gridDim.x * (BLOCK / ROW_THREADS)"
            with writer.block(f"for ({kind} row = {row}; row < rows; row += {step})"):
                self._rows()
        outputs = [o.name for o in self.spec.outputs]
        self.file.add(kernel, self.spec.name, (-(-self.rows // rows_a_block),), self.block, outputs, "BLOCK")
        return self.file.candidate(emitter, schedule, knobs)

    def _rows(self) -> None:
        """All phases of one row."""
        writer = self.kernel.writer
        for load, array in self.held.items():
            writer.line(f"{COMPUTE_TYPE[self.held_type[load].name]} {array}[ITEMS * WIDTH];")
        outer = self.walk.scope({})
        ready: dict[Load, Val] = {}
        for phase in self.walk.phases:
            self._phase(outer, phase, ready)
        self._row_outputs(outer)

    def _constants(self) -> None:
        kind = self.kernel.index_type
        self.file.head += [
            f"constexpr int BLOCK = {self.block};  // threads a workgroup",
            f"constexpr int ROW_THREADS = {self.threads};  // threads that share a row",
            f"constexpr int WIDTH = {self.width};  // consecutive elements a thread moves at once",
            *([f"constexpr {kind} ROWS = {self.rows};"] if self.spec.is_static else []),
            f"constexpr {kind} CHUNKS = {self.chunks};  // of WIDTH elements a row",
        ]
        if self.holds:
            self.file.head.append("constexpr int ITEMS = (CHUNKS + ROW_THREADS - 1) / ROW_THREADS;  // chunks a thread")
        self.file.head += [
            "constexpr int ROW_LANES = ROW_THREADS < KVC_WAVE_SIZE ? ROW_THREADS : KVC_WAVE_SIZE;  // within one wave",
            "constexpr int ROW_WAVES = ROW_THREADS / ROW_LANES;",
        ]

    # ------------------------------------------------------------ one walk over the row
    def _phase(self, outer: Scope, phase: Phase, ready: dict[Load, Val]) -> None:
        walker = self.walk
        walker.hoist(outer, phase)
        accumulators = [Accumulator(self.kernel, s) for s in phase.reductions]
        for accumulator in accumulators:
            accumulator.declare()

        def body(scope: Scope) -> None:
            for accumulator in accumulators:
                accumulator.step(scope, walker.point)
            values = [(s, scope.final(s)) for s in phase.outputs]
            for stmt, value in values:
                stores.put(scope, stmt, value)

        with self._walk_row():
            scope = outer.child(ready)
            stores = Stores(scope, walker.lanes, phase.outputs)
            stores.declare()
            fresh: dict[Load, Val] = {}
            scope.on_value = lambda load, value: self._keep(load, value, ready, fresh)
            for_each_lane(scope, walker.lanes, body)
            stores.flush()
        ready.update(fresh)
        for stmt, accumulator in zip(phase.reductions, accumulators, strict=True):
            self._combine_lanes(accumulator)
            outer.memo[walker.result_key(stmt)] = self._named_result(outer, stmt, accumulator)

    def _named_result(self, outer: Scope, stmt: Stmt, accumulator: Accumulator) -> Val:
        result = accumulator.result()
        return result if result.text == accumulator.name else outer.name(stmt.target, result)

    def _walk_row(self) -> Any:
        """The loop header over this thread's chunks, as a context."""
        return _Loop(self)

    def _keep(self, load: Load, value: Val, ready: dict[Load, Val], fresh: dict[Load, Val]) -> None:
        """Put a value that a later phase reads into its register array."""
        array = self.held.get(load)
        if array is None or load in ready or load in fresh:
            return
        lane = self.walk.lanes.axis
        slot = f"item * WIDTH + {self.kernel.axis_text[lane.name]}" if lane is not None else "item"
        self.kernel.writer.line(f"{array}[{slot}] = {value.text};")
        fresh[load] = Val(f"{array}[{slot}]", value.type)

    def _combine_lanes(self, accumulator: Accumulator) -> None:
        if self.threads == 1:
            return
        kind = COMPUTE_TYPE[accumulator.type.name]
        helpers, writer = self.kernel.helpers, self.kernel.writer
        name = accumulator.name
        if accumulator.is_arg:
            helpers.add("row_best", ROW_BEST)
            better = ">" if accumulator.over.op == "argmax" else "<"
            nan = " || (a != a && b == b)" if accumulator.type.is_float else ""
            tie = "(a == b || (a != a && b != b))" if accumulator.type.is_float else "a == b"
            kinds = f"{kind} a, {self.kernel.index_type} a_at, {kind} b, {self.kernel.index_type} b_at"
            with writer.block(f"row_best({name}, {accumulator.where}, []({kinds})", "});"):
                writer.line(f"return a_at >= 0 && (b_at < 0 || a {better} b{nan} || (a_at < b_at && {tie}));")
            return
        helpers.add("row_reduce", ROW_REDUCE)
        combined = accumulator.combine(Val("a", accumulator.type), Val("b", accumulator.type))
        writer.line(f"{name} = row_reduce({name}, []({kind} a, {kind} b) {{ return {combined.text}; }});")

    def _row_outputs(self, outer: Scope) -> None:
        """Outputs of one value a row, written by its first thread."""
        if not self.walk.row_outputs:
            return
        writer = self.kernel.writer
        with writer.block("if (lane == 0)" if self.threads > 1 else ""):
            scope = outer.child()
            stores = Stores(scope, Lanes(None, 1), self.walk.row_outputs)
            for stmt in self.walk.row_outputs:
                stores.put(scope, stmt)


class _Loop:
    """`with` block around the chunks of one thread: unrolled over registers, or a strided loop."""

    def __init__(self, owner: _RowKernel) -> None:
        self.owner = owner
        self.writer = owner.kernel.writer
        self.guarded = owner.holds and owner.chunks % owner.threads != 0

    def __enter__(self) -> None:
        owner, writer = self.owner, self.writer
        kind, chunk = owner.kernel.index_type, owner.kernel.axis_text[owner.walk.chunk.name]
        if not owner.holds:
            writer.line(f"for ({kind} {chunk} = lane; {chunk} < CHUNKS; {chunk} += ROW_THREADS) {{")
            writer.indent += 1
            return
        writer.line("#pragma unroll")
        writer.line("for (int item = 0; item < ITEMS; ++item) {")
        writer.indent += 1
        writer.line(f"const {kind} {chunk} = item * ROW_THREADS + lane;")
        if self.guarded:
            writer.line(f"if ({chunk} < CHUNKS) {{")
            writer.indent += 1

    def __exit__(self, *_: object) -> None:
        for _level in range(2 if self.guarded else 1):
            self.writer.indent -= 1
            self.writer.line("}")

"""Scans along contiguous lines: one workgroup a line, one pass over memory.

A block of the line is THREADS packs. Each thread scans its own pack in registers, the waves scan the packs' totals by
shuffles, and LDS joins the waves; what came before the block is a carry that every thread keeps. Lines across memory,
where neighbouring threads take neighbouring lines, stay with the generic emitter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val, identity
from kvc.backends.hip.lanes import Lanes, Stores, for_each_lane
from kvc.backends.hip.source import VERSION, File, Knobs, domain_size, needs_wide, operand_buffers
from kvc.backends.hip.spelling import SPELLINGS
from kvc.backends.hip.unit import Kernel, Unit
from kvc.dtypes import BOOL
from kvc.emitter import Candidate, Space, Support, Task, integer
from kvc.functions import COMBINES
from kvc.kernel import Expr, KernelSpec, Scan, Stmt

MIN_LINE = 256  # shorter lines leave most of a workgroup idle
_THREADS = (256, 512, 128, 64, 1024)

BLOCK_SCAN = """\
// What the threads before this one give together; `whole` becomes what all of them do.
template <class T, class Combine>
__device__ __forceinline__ T block_scan(T value, T start, T& whole, Combine combine) {
  __shared__ T partial[THREADS / KVC_WAVE_SIZE];
  const int lane = threadIdx.x % KVC_WAVE_SIZE;
  const int wave = threadIdx.x / KVC_WAVE_SIZE;
  #pragma unroll
  for (int step = 1; step < KVC_WAVE_SIZE; step *= 2) {
    const T other = __shfl_up(value, step);
    if (lane >= step) value = combine(other, value);
  }
  if (lane == KVC_WAVE_SIZE - 1) partial[wave] = value;
  T before = __shfl_up(value, 1);
  if (lane == 0) before = start;
  __syncthreads();
  T ahead = start;
  whole = start;
  #pragma unroll
  for (int w = 0; w < THREADS / KVC_WAVE_SIZE; ++w) {
    if (w == wave) ahead = whole;
    whole = combine(whole, partial[w]);
  }
  __syncthreads();
  return combine(ahead, before);
}
"""


def scan_of(spec: KernelSpec) -> Stmt | str:
    """The one scan of a spec, which is its output; or the reason why the spec is something else."""
    if not spec.is_static:
        return "sizes are symbolic"
    if spec.loops:
        return "it loops"
    stmts = [s for s in spec.body if s.over is not None]
    if len(stmts) != 1 or not isinstance(stmts[0].over, Scan):
        return "it is not one scan"
    stmt = stmts[0]
    if [o.name for o in spec.outputs] != [stmt.target] or spec.outputs[0].alias is not None:
        return "the scan is not its only output, or lies in an input"
    axis = stmt.over.axis if isinstance(stmt.over, Scan) else ""
    if spec.extent(axis) < MIN_LINE:
        return f"its lines are shorter than {MIN_LINE}"
    if stmt.axes[-1] != axis or spec.strides_of(stmt.target)[-1] != 1:
        return "its lines run across memory"
    if stmt.dtype.compute is BOOL:
        return "it scans booleans"
    return "" if domain_size(spec, stmt.axes) == 0 else stmt


class ScanEmitter:
    """Knobs: THREADS of a workgroup, WIDTH (consecutive elements of a thread)."""

    name = "hip.scan"
    version = VERSION
    schedule = "scan"

    def supports(self, task: Task) -> Support:
        stmt = scan_of(task.spec)
        return Support(not isinstance(stmt, str), (stmt or "it is empty") if isinstance(stmt, str) else "")

    def space(self, task: Task) -> Space:
        stmt = scan_of(task.spec)
        assert isinstance(stmt, Stmt)
        length = task.spec.extent(stmt.axes[-1])
        narrow = min(o.dtype.bytes for o in (*task.spec.inputs, *task.spec.outputs)) <= 2
        widths = [w for w in ((8, 4, 2, 1) if narrow else (4, 2, 8, 1)) if length % w == 0]
        found = [
            (("THREADS", t), ("WIDTH", w)) for w in widths for t in _THREADS if t <= 256 and t * w <= max(length, 256)
        ]
        found += [(("THREADS", t), ("WIDTH", widths[0])) for t in _THREADS if 256 < t * widths[0] <= length and t > 256]
        return Space(tuple(found) or ((("THREADS", 64), ("WIDTH", 1)),))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        stmt = scan_of(task.spec)
        assert isinstance(stmt, Stmt)
        yield _ScanKernel(task, stmt, knobs).candidate(self.name, self.schedule, knobs)


class _ScanKernel:
    def __init__(self, task: Task, stmt: Stmt, knobs: Knobs) -> None:
        assert isinstance(stmt.over, Scan)
        self.spec, self.stmt, self.over = task.spec, stmt, stmt.over
        given = dict(knobs)
        self.threads, self.width = integer(given["THREADS"]), integer(given["WIDTH"])
        self.file = File(task, Unit(task.spec))
        buffers = operand_buffers(task.spec)
        wide = needs_wide(task.spec, buffers, domain_size(task.spec, stmt.axes))
        self.kernel = Kernel(self.file.unit, buffers, wide, (o.name for o in task.spec.inputs))
        self.kernel.names.taken |= {"a", "b"}
        self.type = COMPUTE_TYPE[stmt.dtype.compute.name]

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        length, lines = self.spec.extent(self.over.axis), domain_size(self.spec, self.stmt.axes[:-1])
        self.file.head += [
            f"constexpr int THREADS = {self.threads};",
            f"constexpr int WIDTH = {self.width};  // consecutive elements of a thread",
            f"constexpr int CHUNKS = {length // self.width};  // of a line of {self.over.axis}",
        ]
        self.kernel.helpers.add("block_scan", BLOCK_SCAN)
        self._write(length // self.width)
        self.file.add(self.kernel, self.spec.name, (lines,), self.threads, [self.stmt.target], "THREADS")
        return self.file.candidate(emitter, schedule, knobs)

    def _write(self, chunks: int) -> None:
        kernel, writer, stmt = self.kernel, self.kernel.writer, self.stmt
        of, combine = stmt.dtype.compute, COMBINES[self.over.op]
        row = kernel.axis("row", max(domain_size(self.spec, stmt.axes[:-1]), 1))
        chunk = kernel.axis("chunk", chunks)
        lanes = Lanes(kernel.axis("v", self.width) if self.width > 1 else None, self.width)
        joined = SPELLINGS[combine.binary](kernel.helpers, (Val("a", of), Val("b", of)), of).text
        start = identity(combine.identity, stmt.dtype).text
        writer.extend(
            [
                "const int thread = threadIdx.x;",
                f"const {kernel.index_type} {kernel.axis_text[row.name]} = blockIdx.x;",
                f"const auto join = []({self.type} a, {self.type} b) -> {self.type} {{ return {joined}; }};",
                f"const {self.type} start = {start};",
                f"{self.type} carry = start;  // of all blocks before",
            ]
        )
        point: dict[str, Expr] = kernel.split(row, stmt.axes[:-1])
        point[self.over.axis] = lanes.flat(chunk)
        header = f"for ({kernel.index_type} first = 0; first < CHUNKS; first += THREADS)"
        with writer.block(header):
            place = "CHUNKS - 1 - first - thread" if self.over.reverse else "first + thread"
            writer.line(f"const {kernel.index_type} {kernel.axis_text[chunk.name]} = {place};")
            inside = ""
            if chunks % self.threads:
                name = kernel.axis_text[chunk.name]
                inside = f"{name} >= 0" if self.over.reverse else f"{name} < CHUNKS"
            self._block(Scope(kernel, point), lanes, inside)

    def _block(self, scope: Scope, lanes: Lanes, inside: str) -> None:
        """Load and scan a pack, find what comes before it, store."""
        writer = self.kernel.writer
        at = self.kernel.axis_text[lanes.axis.name] if lanes.axis is not None else "0"
        writer.line(f"{self.type} part[WIDTH];")
        if inside:
            writer.line("for (int i = 0; i < WIDTH; ++i) part[i] = start;")
        with writer.block(f"if ({inside})" if inside else ""):
            for_each_lane(scope.child(), lanes, lambda inner: self._load(inner, at))
        last, order = ("0", "WIDTH - 1 - i") if self.over.reverse else ("WIDTH - 1", "i")
        before = "i + 1" if self.over.reverse else "i - 1"
        if self.width > 1:
            writer.line("#pragma unroll")
            if self.over.reverse:
                writer.line("for (int i = WIDTH - 2; i >= 0; --i) part[i] = join(part[i + 1], part[i]);")
            else:
                writer.line(f"for (int i = 1; i < WIDTH; ++i) part[{order}] = join(part[{before}], part[i]);")
        writer.line(f"{self.type} whole;")
        writer.line(f"const {self.type} ahead = join(carry, block_scan(part[{last}], start, whole, join));")
        writer.line("carry = join(carry, whole);")
        with writer.block(f"if ({inside})" if inside else ""):
            self._store(scope.child(), lanes, at)

    def _load(self, scope: Scope, at: str) -> None:
        value = scope.value(scope.resolve(self.stmt.expr), self.stmt.dtype.compute)
        self.kernel.writer.line(f"part[{at}] = {value.text};")

    def _store(self, scope: Scope, lanes: Lanes, at: str) -> None:
        writer, kernel = self.kernel.writer, self.kernel
        stores = Stores(scope, lanes, [self.stmt])
        stores.declare()
        result = f"join(ahead, part[{at}])"
        if self.over.exclusive:
            edge, other = ("WIDTH - 1", "+ 1") if self.over.reverse else ("0", "- 1")
            result = f"{at} == {edge} ? ahead : join(ahead, part[{at} {other}])" if self.width > 1 else "ahead"
        value = Val(result, self.stmt.dtype.compute, 0 if "?" in result else 100)
        if lanes.axis is None:
            stores.put(scope, self.stmt, value)
            return
        writer.line("#pragma unroll")
        lane = kernel.axis_text[lanes.axis.name]
        with writer.block(f"for (int {lane} = 0; {lane} < WIDTH; ++{lane})"):
            stores.put(scope, self.stmt, value)
        stores.flush()

"""Kernels in which one thread owns whole points of a domain: pointwise fusions, and windows (pooling, depthwise
convolution) whose small reductions run inside the thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.lanes import MAX_PACK_BYTES, Lanes, Stores, for_each_lane, rehearse
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
from kvc.emitter import Candidate, Space, Support, Task, integer
from kvc.kernel import Expr, KernelSpec, Stmt
from kvc.patterns import Pointwise, Window, match_pointwise, match_window
from kvc.simplify import Linear


def _outputs(spec: KernelSpec) -> list[Stmt]:
    return [spec.stmt[o.name] for o in spec.outputs]


class Elementwise:
    """One output point a lane. Knobs: BLOCK, threads a workgroup; WIDTH, consecutive points a thread."""

    name: str
    version = VERSION
    schedule: str

    def match(self, spec: KernelSpec) -> Pointwise | Window | str:
        raise NotImplementedError

    def supports(self, task: Task) -> Support:
        spec = task.spec
        pattern = self.match(spec)
        if isinstance(pattern, str):
            return Support(False, pattern)
        problem = alias_problem(spec) or symbolic_problem(spec, pattern.axes)
        if problem:
            return Support(False, problem)
        if not domain_size(spec, pattern.axes):
            return Support(False, "its domain is empty")
        return Support(True)

    def space(self, task: Task) -> Space:
        widths = self._widths(task.spec)
        blocks = [b for b in (256, 128, 512, 1024, 64) if b <= task.arch.max_threads and b % task.arch.wave_size == 0]
        points = domain_size(task.spec, _outputs(task.spec)[0].axes)
        # Enough workgroups for every compute unit come before the widest access.
        starved = points // (widths[0] * 256) < task.arch.cu_count
        order = sorted(widths, reverse=not starved) if not starved else sorted(widths)
        return Space(tuple((("BLOCK", b), ("WIDTH", w)) for w in order for b in blocks))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        setting = dict(knobs)
        block, width = integer(setting["BLOCK"]), integer(setting["WIDTH"])
        spec = task.spec
        file = File(task, Unit(spec))
        buffers = operand_buffers(spec)
        points = domain_size(spec, _outputs(spec)[0].axes)
        kernel = Kernel(file.unit, buffers, needs_wide(spec, buffers, points), (o.name for o in spec.inputs))
        chunks, tail = divmod(points, width)
        file.head += [f"constexpr int BLOCK = {block};  // threads a workgroup"]
        threads = chunks + tail
        kind = kernel.index_type
        if not spec.is_static:
            self._write_symbolic(file, kernel, width)
            threads = max(points // width, 1)
            file.add(kernel, spec.name, (-(-threads // block),), block, [o.name for o in spec.outputs], "BLOCK")
            yield file.candidate(self.name, self.schedule, knobs)
            return
        thread = f"({kind})blockIdx.x * BLOCK + (int)threadIdx.x" if kernel.wide else "blockIdx.x * BLOCK + threadIdx.x"
        if width == 1:
            file.head.append(f"constexpr {kind} POINTS = {points};")
            flat = kernel.axis("i", points)
            kernel.writer.line(f"const {kind} {kernel.axis_text[flat.name]} = {thread};")
            kernel.writer.line(f"if ({kernel.axis_text[flat.name]} >= POINTS) return;")
            self._write(kernel, Lanes(None, 1), flat)
        else:
            self._write_wide(file, kernel, width, chunks, tail, thread)
        file.add(kernel, spec.name, (-(-threads // block),), block, [o.name for o in spec.outputs], "BLOCK")
        yield file.candidate(self.name, self.schedule, knobs)

    def _write_symbolic(self, file: File, kernel: Kernel, width: int) -> None:
        """A domain whose outermost size is an argument: any grid walks all of it."""
        kind, writer = kernel.index_type, kernel.writer
        axes = _outputs(kernel.spec)[0].axes
        file.head.append(f"constexpr int WIDTH = {width};  // consecutive points a thread")
        writer.line(f"const {kind} chunks = {domain_count(kernel, axes, width)};  // of WIDTH points")
        chunk = kernel.axis("chunk", None)
        lanes = Lanes(kernel.axis("v", width), width) if width > 1 else Lanes(None, 1)
        start, step = f"({kind})blockIdx.x * BLOCK + threadIdx.x", f"({kind})gridDim.x * BLOCK"
        with writer.block(f"for ({kind} chunk = {start}; chunk < chunks; chunk += {step})"):
            self._write(kernel, lanes, lanes.flat(chunk))

    def _write_wide(self, file: File, kernel: Kernel, width: int, chunks: int, tail: int, thread: str) -> None:
        """Whole chunks of `width` points first, then one thread for each point that is left over."""
        kind, writer = kernel.index_type, kernel.writer
        file.head.append(f"constexpr int WIDTH = {width};  // consecutive points a thread")
        file.head.append(f"constexpr {kind} CHUNKS = {chunks};")
        writer.line(f"const {kind} chunk = {thread};")
        chunk, lane = kernel.axis("chunk", chunks), kernel.axis("v", width)
        lanes = Lanes(lane, width)
        if not tail:
            writer.line("if (chunk >= CHUNKS) return;")
            self._write(kernel, lanes, lanes.flat(chunk))
            return
        file.head.append(f"constexpr int TAIL = {tail};  // points after the last whole chunk, one thread each")
        with writer.block("if (chunk < CHUNKS)", "} else if (chunk < CHUNKS + TAIL) {"):
            self._write(kernel, lanes, lanes.flat(chunk))
        writer.indent += 1
        rest = kernel.axis("rest", tail)
        writer.line("const int rest = chunk - CHUNKS;")
        self._write(kernel, Lanes(None, 1), Linear.build({rest: 1}, chunks * width).expr())
        writer.indent -= 1
        writer.line("}")

    def _write(self, kernel: Kernel, lanes: Lanes, flat: Expr) -> None:
        """Compute and store all outputs at one flat index (and its lanes)."""
        spec = kernel.spec
        stmts = _outputs(spec)
        scope = Scope(kernel, self._point(kernel, stmts, flat))
        stores = Stores(scope, lanes, stmts)
        stores.declare()

        def body(inner: Scope) -> None:
            values = [(s, inner.final(s)) for s in stmts]
            for s, value in values:
                stores.put(inner, s, value)

        for_each_lane(scope, lanes, body)
        stores.flush()

    @staticmethod
    def _point(kernel: Kernel, stmts: list[Stmt], flat: Expr) -> dict[str, Expr]:
        """Axes of every output as expressions of the flat index over the first output's domain."""
        point: dict[str, Expr] = {}
        for stmt in stmts:
            if not set(stmt.axes) <= set(point):
                point |= {k: v for k, v in kernel.split(flat, stmt.axes).items() if k not in point}
        return point

    def _widths(self, spec: KernelSpec) -> list[int]:
        """Widths at which the outputs and all accesses that depend on the lane move as packs; 1 always."""
        smallest = min(o.dtype.bytes for o in (*spec.inputs, *spec.outputs))
        axes = _outputs(spec)[0].axes
        points = domain_size(spec, axes)
        # Nothing is left over where the size is not known.
        whole = 0 if spec.is_static else domain_size(spec, axes[1:])
        widths = [
            w
            for w in (16, 8, 4, 2)
            if whole % w == 0 and w * smallest <= MAX_PACK_BYTES and self._moves_packs(spec, points, w)
        ]
        return [*widths, 1]

    def _moves_packs(self, spec: KernelSpec, points: int, width: int) -> bool:
        if points < width:
            return False
        kernel = Kernel(Unit(spec), operand_buffers(spec), False, (o.name for o in spec.inputs))
        chunk = kernel.axis("chunk", points // width if spec.is_static else None)
        lane = kernel.axis("v", width)
        lanes = Lanes(lane, width)
        stmts = _outputs(spec)
        scope = Scope(kernel, self._point(kernel, stmts, lanes.flat(chunk)))
        stores = Stores(scope, lanes, stmts)
        if len(stores.packs) < len(stmts):
            return False
        loaded = rehearse(scope, lambda inner: [inner.at(s) for s in stmts])
        return all(
            lanes.is_shared(offset)
            or (load.other is None and lanes.is_bound(kernel, offset) and lanes.is_pack(kernel, load.tensor, offset))
            for load, offset in loaded.items()
        )


class PointwiseEmitter(Elementwise):
    """Fusions without reductions, 16 bytes an access where layout and alignment allow."""

    name = "hip.pointwise"
    schedule = "pointwise"

    def match(self, spec: KernelSpec) -> Pointwise | str:
        return match_pointwise(spec)


class WindowEmitter(Elementwise):
    """Small reductions of static extent inside the thread that owns the output point."""

    name = "hip.window"
    schedule = "window"

    def match(self, spec: KernelSpec) -> Window | str:
        return match_window(spec)

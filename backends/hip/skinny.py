"""Matrix-vector products and other contractions with one short side: each wave sums a few results along the depth.

The long side's rows are read once, in packs along the depth; the short side (at most 16 rows) stays in cache. A wave
owns one row of the long side and a result for every row of the short side; its lanes share the depth and combine by
shuffles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val, rounded
from kvc.backends.hip.lanes import Lanes, Stores, read_shared, rehearse
from kvc.backends.hip.source import VERSION, File, Knobs, alias_problem, domain_size, needs_wide, operand_buffers
from kvc.backends.hip.unit import Kernel, Unit
from kvc.emitter import Candidate, Space, Support, Task, integer
from kvc.kernel import Axis, Expr, KernelSpec, Load
from kvc.patterns import Contraction, match_contraction

SHORT = 16  # the short side has fewer rows than this
MIN_DEPTH = 64  # below it a wave has nothing to share


class SkinnyEmitter:
    """Knobs: THREADS a workgroup, a wave for each row of the long side; WIDTH, consecutive depths a lane."""

    name = "hip.skinny"
    version = VERSION
    schedule = "skinny_contraction"

    def supports(self, task: Task) -> Support:
        spec = task.spec
        if not spec.is_static:
            return Support(False, "sizes are symbolic")
        pattern = match_contraction(spec)
        problem = pattern if isinstance(pattern, str) else alias_problem(spec)
        if problem:
            return Support(False, problem)
        assert isinstance(pattern, Contraction)
        if any(o.alias is not None for o in spec.outputs):
            return Support(False, "an output lies in an input that other workgroups may still read")
        m, n, k = (domain_size(spec, axes) for axes in (pattern.m, pattern.n, pattern.k))
        if not m * n * domain_size(spec, pattern.batch) or k < MIN_DEPTH:
            return Support(False, f"a depth of {k} is not worth sharing")
        if min(m, n) >= SHORT:
            return Support(False, "neither side is short")
        if not self._reads_along_depth(spec, pattern):
            return Support(False, "the long side is not contiguous along the depth")
        return Support(True)

    def _reads_along_depth(self, spec: KernelSpec, pattern: Contraction) -> bool:
        """Whether neighbouring depths of the long side are neighbours in memory."""
        plan = _Plan(spec, pattern, 1)
        scope = plan.scope()
        lane = plan.depth
        offsets = rehearse(scope, lambda s: s.value(s.resolve(plan.long_expr)))
        steps = [plan.kernel.algebra.linear(offset).coefficients.get(lane, 0) for offset in offsets.values()]
        return all(step in (0, 1) for step in steps) and 1 in steps

    def space(self, task: Task) -> Space:
        spec = task.spec
        pattern = match_contraction(spec)
        assert isinstance(pattern, Contraction)
        depth = domain_size(spec, pattern.k)
        widths = [w for w in (8, 4, 2, 1) if depth % w == 0 and _moves_packs(spec, pattern, w)]
        threads = [
            n * task.arch.wave_size for n in (4, 8, 2, 16, 1) if n * task.arch.wave_size <= task.arch.max_threads
        ]
        return Space(tuple((("THREADS", n), ("WIDTH", w)) for w in widths for n in threads))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        pattern = match_contraction(task.spec)
        assert isinstance(pattern, Contraction)
        setting = dict(knobs)
        kernel = _Skinny(task, pattern, integer(setting["THREADS"]), integer(setting["WIDTH"]))
        yield kernel.candidate(self.name, self.schedule, knobs)


def _moves_packs(spec: KernelSpec, pattern: Contraction, width: int) -> bool:
    """Whether the long side moves as packs of this width (of at most 16 bytes); 1 always."""
    if width == 1:
        return True
    plan = _Plan(spec, pattern, width)
    loaded = rehearse(plan.scope(), lambda s: s.value(s.resolve(plan.long_expr)))
    return all(
        plan.lanes.is_shared(offset)
        or (
            load.other is None
            and plan.lanes.is_pack(plan.kernel, load.tensor, offset)
            and spec.dtype_of(load.tensor).bytes * width <= 16
        )
        for load, offset in loaded.items()
    )


class _Plan:
    """Axes of a skinny kernel: `row` of the long side, `other` of the short side, and the depth."""

    def __init__(self, spec: KernelSpec, pattern: Contraction, width: int, unit: Unit | None = None) -> None:
        self.spec, self.pattern = spec, pattern
        buffers = operand_buffers(spec)
        m, n = domain_size(spec, pattern.m), domain_size(spec, pattern.n)
        batch = domain_size(spec, pattern.batch)
        wide = needs_wide(spec, buffers, m * n * batch)
        self.kernel = Kernel(unit or Unit(spec), buffers, wide, (o.name for o in spec.inputs))
        long_is_n = n >= m
        self.long_axes, self.short_axes = (pattern.n, pattern.m) if long_is_n else (pattern.m, pattern.n)
        self.long_expr, self.short_expr = (pattern.b, pattern.a) if long_is_n else (pattern.a, pattern.b)
        self.long, self.short, self.batches = max(m, n), min(m, n), batch
        self.chunks = domain_size(spec, pattern.k) // width
        self.batch = self.kernel.axis("batch", batch)
        self.row = self.kernel.axis("row", self.long)
        self.other = self.kernel.axis("other", self.short)
        self.depth = self.kernel.axis("chunk" if width > 1 else "depth", self.chunks)
        self.lanes = Lanes(self.kernel.axis("v", width) if width > 1 else None, width)
        split = self.kernel.split
        self.point: dict[str, Expr] = (
            split(self.batch, pattern.batch)
            | split(self.row, self.long_axes)
            | split(self.other, self.short_axes)
            | split(self.lanes.flat(self.depth), pattern.k)
        )

    def scope(self) -> Scope:
        return Scope(self.kernel, self.point)

    def text(self, axis: Axis) -> str:
        return self.kernel.axis_text[axis.name]


class _Skinny:
    """One candidate in the making."""

    def __init__(self, task: Task, pattern: Contraction, threads: int, width: int) -> None:
        self.task, self.spec, self.pattern, self.threads, self.width = task, task.spec, pattern, threads, width
        self.file = File(task, Unit(task.spec))
        self.plan = _Plan(task.spec, pattern, width, self.file.unit)
        self.type = pattern.stmt.dtype.compute

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        plan = self.plan
        kernel, writer, kind = plan.kernel, plan.kernel.writer, plan.kernel.index_type
        self.file.head += [
            f"constexpr int THREADS = {self.threads};  // threads a workgroup",
            "constexpr int WAVES = THREADS / KVC_WAVE_SIZE;  // each with one row of the long side",
            f"constexpr int WIDTH = {self.width};  // consecutive depths a lane",
            f"constexpr {kind} LONG = {plan.long};  // rows of the long side",
            f"constexpr int SHORT = {plan.short};  // rows of the short side",
            f"constexpr {kind} CHUNKS = {plan.chunks};  // of WIDTH depths",
        ]
        row, batch = plan.text(plan.row), plan.text(plan.batch)
        writer.extend([
            "const int lane = threadIdx.x % KVC_WAVE_SIZE;",
            f"const {kind} task = ({kind})blockIdx.x * WAVES + threadIdx.x / KVC_WAVE_SIZE;",
            f"const {kind} {row} = task % LONG;",
        ])  # fmt: skip
        if plan.batches > 1:
            writer.line(f"const {kind} {batch} = task / LONG;")
        tasks = plan.long * plan.batches
        writer.line(f"if (task >= LONG{f' * {plan.batches}' if plan.batches > 1 else ''}) return;")
        writer.line(f"{COMPUTE_TYPE[self.type.name]} acc[SHORT] = {{}};")
        self._sum()
        self._combine()
        self._finish()
        outputs = [o.name for o in self.spec.outputs]
        waves = self.threads // self.task.arch.wave_size
        self.file.add(kernel, self.spec.name, (-(-tasks // waves),), self.threads, outputs, "THREADS")
        return self.file.candidate(emitter, schedule, knobs)

    def _sum(self) -> None:
        """This lane's part of every sum."""
        plan, writer = self.plan, self.plan.kernel.writer
        kind, depth, other = plan.kernel.index_type, plan.text(plan.depth), plan.text(plan.other)
        with writer.block(f"for ({kind} {depth} = lane; {depth} < CHUNKS; {depth} += KVC_WAVE_SIZE)"):
            scope = plan.scope()
            packs = read_shared(scope, plan.lanes, lambda s: s.value(s.resolve(plan.long_expr)))
            writer.line("#pragma unroll")
            with writer.block(f"for (int {other} = 0; {other} < SHORT; ++{other})"):
                inner = scope.child()
                packs |= read_shared(inner, plan.lanes, lambda s: s.value(s.resolve(plan.short_expr)))
                if plan.lanes.axis is None:
                    self._step(inner, packs)
                    return
                v = plan.text(plan.lanes.axis)
                writer.line("#pragma unroll")
                with writer.block(f"for (int {v} = 0; {v} < WIDTH; ++{v})"):
                    self._step(inner.child(), packs)

    def _step(self, scope: Scope, packs: dict[Load, Val]) -> None:
        plan = self.plan
        for load, element in packs.items():
            scope.remember(load, scope.name(load.tensor, element))
        one = scope.value(scope.resolve(plan.long_expr), self.type)
        two = scope.value(scope.resolve(plan.short_expr), self.type)
        plan.kernel.writer.line(f"acc[{plan.text(plan.other)}] += {one.at(11)} * {two.at(11)};")

    def _combine(self) -> None:
        """Every lane gets the sums of its wave."""
        plan, writer = self.plan, self.plan.kernel.writer
        other = plan.text(plan.other)
        writer.line("#pragma unroll")
        with writer.block(f"for (int {other} = 0; {other} < SHORT; ++{other})"):
            writer.line("#pragma unroll")
            writer.line("for (int mask = KVC_WAVE_SIZE / 2; mask > 0; mask /= 2)")
            writer.line(f"  acc[{other}] += __shfl_xor(acc[{other}], mask);")

    def _finish(self) -> None:
        """The epilogue of short-side row i by lane i."""
        plan, writer, stmt = self.plan, self.plan.kernel.writer, self.pattern.stmt
        other = plan.text(plan.other)
        writer.line("#pragma unroll")
        with writer.block(f"for (int {other} = 0; {other} < SHORT; ++{other})"):
            writer.line(f"if (lane != {other}) continue;")
            scope = plan.scope()
            value = rounded(Val(f"acc[{other}]", self.type), stmt.dtype)
            named = value if value.text == f"acc[{other}]" else scope.name(stmt.target, value)
            scope.remember(Load(stmt.target, scope.index_of(stmt)), named)
            outputs = [self.spec.stmt[o.name] for o in self.spec.outputs]
            stores = Stores(scope, Lanes(None, 1), outputs)
            for s, v in [(s, scope.final(s)) for s in outputs]:
                stores.put(scope, s, v)

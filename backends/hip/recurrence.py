"""Recurrences: one launch runs a loop from its first step to its last.

Points of the batch never meet, so each has a workgroup of its own, and what one step hands to the next stays in LDS:
two slots a tensor, for this step and the one before, so that one barrier after each phase is all that threads wait for.
The threads of the workgroup share the points of a phase; where they are few and each sums over many, several lanes
share a point. A loop whose points never meet at all (an elementwise recurrence) keeps its past in registers instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kvc.backends.hip.codegen import Accumulator, Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val, convert, identifier, to_storage
from kvc.backends.hip.source import VERSION, File, Knobs, alias_problem, domain_size, needs_wide, operand_buffers
from kvc.backends.hip.unit import Buffer, Kernel, Unit
from kvc.dtypes import F32, F64
from kvc.emitter import Candidate, Knob, Scratch, Space, Support, Task, integer
from kvc.kernel import Axis, Const, Expr, KernelSpec, Load, Loop, Reduce, Stmt, axes_of, contiguous, substitute
from kvc.patterns import Recurrence, match_recurrence, recurrence
from kvc.simplify import steps

DEEP = 64  # sums of at least this many points are shared by lanes
SLOTS = 2  # this step and the one before


class RecurrenceEmitter:
    """Knobs: BLOCK, threads a workgroup; SHARE, lanes that share a point of a phase of sums."""

    name = "hip.recurrence"
    version = VERSION
    schedule = "recurrence"

    def supports(self, task: Task) -> Support:
        spec = task.spec
        if not spec.is_static:
            return Support(False, "sizes are symbolic")
        pattern = match_recurrence(spec)
        problem = pattern if isinstance(pattern, str) else alias_problem(spec)
        return Support(not problem, problem)

    def space(self, task: Task) -> Space:
        """A thread for each point of the widest phase, where the workgroup has room; sums over rows by half waves."""
        pattern = match_recurrence(task.spec)
        assert isinstance(pattern, Recurrence)
        limit, wave = task.arch.max_threads, task.arch.wave_size
        if pattern.is_local:
            return Space(tuple((("BLOCK", n), ("SHARE", 1)) for n in (256, 64, 512) if n <= limit))
        widest = max(domain_size(task.spec, pattern.lanes(phase)) for phase in pattern.phases)
        deep = any(_is_deep(task.spec, phase) for phase in pattern.phases)
        found: list[Knobs] = []
        for share in (16, 4, 64, 1) if deep else (1,):
            for block in (1024, 512, 256, 128, 64):
                if block <= limit and (block == wave or block < 2 * widest * share):
                    setting: tuple[tuple[str, Knob], ...] = (("BLOCK", block), ("SHARE", share))
                    found.append(setting)
        return Space(tuple(found))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        (loop,) = task.spec.loops
        settings = {**dict(self.space(task).default), **dict(knobs)}
        block, share = integer(settings["BLOCK"]), integer(settings["SHARE"])
        file = File(task, Unit(task.spec))
        file.head.append(f"constexpr int BLOCK = {block};  // threads a workgroup")
        if share > 1:
            file.head.append(f"constexpr int SHARE = {share};  // lanes that share a sum")
        buffers = operand_buffers(task.spec)
        done = [o.name for o in task.spec.inputs]
        written = tuple(o.name for o in task.spec.outputs)
        LoopWriter(file, loop, buffers, done, written, block, share).write(identifier(task.spec.name))
        yield file.candidate(self.name, self.schedule, tuple(settings.items()))


def _is_deep(spec: KernelSpec, phase: tuple[Stmt, ...]) -> bool:
    """Whether the reductions of a phase are of floats over many points, so that lanes may share them. What follows from
    them at the same point is computed by every lane."""
    reductions = [s for s in phase if isinstance(s.over, Reduce)]
    return bool(reductions) and all(
        isinstance(s.over, Reduce)
        and s.over.op in ("sum", "prod", "max", "min")
        and s.dtype.compute in (F32, F64)
        and domain_size(spec, s.inner_axes) >= DEEP
        for s in reductions
    )


@dataclass(frozen=True)
class Home:
    """Where a value waits to be read: `pointer[slot * points + offset]`, or the register `pointer` where there is one
    point a thread. `first` is the value before the first step over the statement's own axes, put in place before the
    loop; None where reads do not agree on one, and each looks at the step itself."""

    stmt: Stmt
    pointer: str
    lanes: tuple[str, ...]
    points: int
    first: Expr | None
    is_register: bool = False


class LoopKernel(Kernel):
    """A kernel whose scopes also read what the loop has computed."""

    def __init__(
        self, unit: Unit, buffers: dict[str, Buffer], wide: bool, readable: Sequence[str], loop: Loop, time: str
    ) -> None:
        super().__init__(unit, buffers, wide, readable)
        self.loop = loop
        self.own = {s.target for s in unit.spec.loops[loop]}
        self.homes: dict[str, Home] = {}
        self.computing = ""  # the statement at hand
        self.time = self.axis(time, unit.spec.size[loop.axis].size)
        self.now = self.names.fresh("now")


class StepScope(Scope):
    """Values within one step of a loop."""

    kernel: LoopKernel

    def tensor(self, tensor: str, index: tuple[Expr, ...], other: Expr | None = None) -> Val:
        key = Load(tensor, index, other)
        if tensor not in self.kernel.own or key in self.memo or self._is_new(tensor, index):
            return super().tensor(tensor, index, other)
        home = self.kernel.homes[tensor]
        at = index[home.stmt.axes.index(self.kernel.loop.axis)]
        is_now = steps(self.kernel.algebra, self.kernel.time.name, at) == 0
        value = self._kept(home, index, is_now)
        if not is_now and home.first is None:
            assert other is not None
            value = self._guarded(home, value, other)
        elif not home.is_register:
            value = self.name(tensor if is_now else f"{tensor}_before", value)
        self.remember(key, value)
        return value

    def _is_new(self, tensor: str, index: tuple[Expr, ...]) -> bool:
        """Whether this is the value that the phase at hand gives, which nothing has computed yet."""
        return tensor == self.kernel.computing and index == self.index_of(self.spec.stmt[tensor])

    def _kept(self, home: Home, index: tuple[Expr, ...], is_now: bool) -> Val:
        of = home.stmt.dtype.compute
        if home.is_register:
            return Val(home.pointer, of)
        where = self.slot(home, index, self.kernel.now if is_now else f"(1 - {self.kernel.now})")
        return Val(f"{home.pointer}[{where}]", of)

    def slot(self, home: Home, index: tuple[Expr, ...], slot: str | int) -> str:
        """The place of an element in its home, as C++."""
        at = dict(zip(home.stmt.axes, index, strict=True))
        offset: Expr = Const(0)
        extents = tuple(self.spec.extent(a) for a in home.lanes)
        for a, stride in zip(home.lanes, contiguous(extents), strict=True):
            offset = offset + at[a] * stride
        text = self.index(self.kernel.algebra.index(offset)).text
        if isinstance(slot, int):
            base = str(slot * home.points)
        else:
            base = slot if home.points == 1 else f"{slot} * {home.points}"
        return base if text == "0" else text if base == "0" else f"{base} + {text}"

    def _guarded(self, home: Home, value: Val, other: Expr) -> Val:
        """The value of the step before, or `other` in the first step."""
        name = self.kernel.names.fresh(f"{home.stmt.target}_before")
        kind = COMPUTE_TYPE[value.type.name]
        first = self.value(other, value.type)
        self.kernel.writer.line(f"{kind} {name} = {first.text};")
        time = self.kernel.axis_text[self.kernel.time.name]
        start = f"{self.kernel.unit.extent(self.kernel.loop.axis)} - 1" if self.kernel.loop.reverse else "0"
        self.kernel.writer.line(f"if ({time} != {start}) {name} = {value.text};")
        return Val(name, value.type)


class LoopWriter:
    """Writes the launch of one loop of a spec. `written`: the loop's tensors that have a buffer, to be stored there."""

    def __init__(
        self,
        file: File,
        loop: Loop,
        buffers: dict[str, Buffer],
        done: Sequence[str],
        written: Sequence[str],
        block: int,
        share: int = 1,
    ) -> None:
        self.file = file
        self.spec = file.task.spec
        self.loop = loop
        self.pattern = recurrence(self.spec, loop)
        self.written = tuple(written)
        self.block, self.share = block, share
        self.batches = domain_size(self.spec, self.pattern.batch)
        domain = max(domain_size(self.spec, s.axes) for s in self.spec.loops[loop])
        wide = needs_wide(self.spec, buffers, domain)
        self.kernel = LoopKernel(file.unit, dict(buffers), wide, done, loop, loop.axis)
        self.rings: list[str] = []  # scratch buffers that hold what LDS has no room for

    # ------------------------------------------------------------ the kernel
    def write(self, name: str) -> None:
        """Add the kernel and its launch; nothing where the loop has no step or no point."""
        kernel, writer = self.kernel, self.kernel.writer
        if not self.batches or not self.spec.extent(self.loop.axis):
            return
        local = self.pattern.is_local
        if local:
            flat = kernel.axis("i", self.batches)
            text = kernel.axis_text[flat.name]
            start = f"({kernel.index_type})blockIdx.x * BLOCK + threadIdx.x" if kernel.wide else ""
            writer.line(f"const {kernel.index_type} {text} = {start or 'blockIdx.x * BLOCK + threadIdx.x'};")
            writer.line(f"if ({text} >= {self.batches}) return;")
        else:
            flat = kernel.axis("batch", self.batches)
            writer.line(f"const {kernel.index_type} {kernel.axis_text[flat.name]} = blockIdx.x;")
        self.point = kernel.split(flat, self.pattern.batch)
        self._homes(local, kernel.axis_text[flat.name])
        self._first_values()
        self._loop()
        grid = -(-self.batches // self.block) if local else self.batches
        self.file.add(kernel, name, (grid,), self.block, [*self.written, *self.rings], "BLOCK")

    def _homes(self, local: bool, batch: str) -> None:
        """Give each shared value its place: registers, LDS, or scratch where LDS is too small."""
        spec, kernel = self.spec, self.kernel
        shared = [s for s in spec.loops[self.loop] if s.target in self.pattern.shared]
        lanes = {s.target: self.pattern.lanes((s,)) for s in shared}
        sizes = {t: SLOTS * domain_size(spec, axes) * spec.dtype_of(t).compute.bytes for t, axes in lanes.items()}
        in_scratch: set[str] = set()
        for target in sorted(sizes, key=lambda t: -sizes[t]):
            if sum(n for t, n in sizes.items() if t not in in_scratch) > self.file.task.arch.lds_bytes:
                in_scratch.add(target)
        for s in shared:
            of = s.dtype.compute
            kind, points = COMPUTE_TYPE[of.name], domain_size(spec, lanes[s.target])
            name = kernel.names.fresh(f"{s.target}_before" if local else f"{s.target}_steps")
            if local:
                kernel.writer.line(f"{kind} {name} = 0;")
            elif s.target in in_scratch:
                self._ring(s, name, points, batch)
            else:
                kernel.writer.line(f"__shared__ {kind} {name}[{SLOTS * points}];")
            kernel.homes[s.target] = Home(s, name, lanes[s.target], points, first_value(spec, self.loop, s), local)

    def _ring(self, stmt: Stmt, name: str, points: int, batch: str) -> None:
        """Both slots of one point of the batch, in scratch memory."""
        of = stmt.dtype.compute
        scratch = identifier(f"{stmt.target}_ring")
        span = self.batches * SLOTS * points
        self.file.workspace.append(Scratch(scratch, of.name, span))
        key = f"{stmt.target} ring"
        self.kernel.names.taken.add(scratch)
        self.kernel.buffers[key] = Buffer(scratch, of, (), (), span, scratch)
        self.rings.append(key)
        self.kernel.writer.line(f"{COMPUTE_TYPE[of.name]}* {name} = {scratch} + {batch} * {SLOTS * points};")

    # ------------------------------------------------------------ before the loop
    def _first_values(self) -> None:
        """Put the values before the first step where the first step looks for those of the step before."""
        kernel, writer = self.kernel, self.kernel.writer
        before = self.spec.extent(self.loop.axis) if self.loop.reverse else -1
        ready = False
        for home in kernel.homes.values():
            if home.first is None or home.stmt.target not in self.pattern.carried:
                continue
            of = home.stmt.dtype.compute
            if home.is_register:
                scope = StepScope(kernel, self.point)
                writer.line(f"{home.pointer} = {scope.value(scope.resolve(home.first), of).text};")
                continue
            with kernel.local_names():
                item = kernel.axis("item", home.points)
                text = kernel.axis_text[item.name]
                with writer.block(f"for (int {text} = threadIdx.x; {text} < {home.points}; {text} += BLOCK)"):
                    point = {**self.point, **kernel.split(item, home.lanes)}
                    scope = StepScope(kernel, point)
                    index = tuple(point.get(a, Const(0)) for a in home.stmt.axes)
                    value = scope.value(scope.resolve(home.first), of)
                    writer.line(f"{home.pointer}[{scope.slot(home, index, before % SLOTS)}] = {value.text};")
            ready = True
        if ready:
            writer.line("__syncthreads();")

    # ------------------------------------------------------------ the loop
    def _loop(self) -> None:
        kernel, writer = self.kernel, self.kernel.writer
        time, extent = kernel.axis_text[kernel.time.name], kernel.unit.extent(self.loop.axis)
        kind = kernel.index_type
        header = f"for ({kind} {time} = 0; {time} < {extent}; ++{time})"
        if self.loop.reverse:
            header = f"for ({kind} {time} = {extent} - 1; {time} >= 0; --{time})"
        point = {**self.point, self.loop.axis: kernel.time}
        with writer.block(header):
            if not self.pattern.is_local:
                writer.line(f"const int {kernel.now} = {time} % {SLOTS};")
            for phase in self.pattern.phases:
                if self.pattern.is_local:
                    self._statements(StepScope(kernel, point), phase)
                    continue
                self._phase(phase, point)
                if any(s.target in self.pattern.shared for s in phase):
                    writer.line("__syncthreads();")

    def _phase(self, phase: tuple[Stmt, ...], point: Mapping[str, Expr]) -> None:
        """The points of a phase, shared out between threads."""
        kernel, writer = self.kernel, self.kernel.writer
        lanes = self.pattern.lanes(phase)
        points = domain_size(self.spec, lanes)
        share = self.share if _is_deep(self.spec, phase) else 1
        with kernel.local_names():
            item = kernel.axis("item", points)
            text = kernel.axis_text[item.name]
            start, step = ("threadIdx.x", "BLOCK") if share == 1 else ("threadIdx.x / SHARE", "BLOCK / SHARE")
            with writer.block(f"for (int {text} = {start}; {text} < {points}; {text} += {step})"):
                self._statements(StepScope(kernel, {**point, **kernel.split(item, lanes)}), phase, share)

    def _statements(self, scope: StepScope, phase: tuple[Stmt, ...], share: int = 1) -> None:
        """Compute the statements of a phase at one point, then store what others read."""
        kernel, writer = self.kernel, self.kernel.writer
        for s in phase:
            kernel.computing = s.target
            if share > 1 and isinstance(s.over, Reduce):
                self._shared_sum(scope, s)
            else:
                scope.at(s)
            kernel.computing = ""
        if share > 1:
            with writer.block("if (threadIdx.x % SHARE == 0)"):
                self._stores(cast(StepScope, scope.child()), phase)
        else:
            self._stores(scope, phase)

    def _stores(self, scope: StepScope, phase: tuple[Stmt, ...]) -> None:
        kernel, writer = self.kernel, self.kernel.writer
        for s in phase:
            index = scope.index_of(s)
            value = scope.at(s)
            if s.target in self.written:
                where = scope.index(scope.offset(s.target, index)).text
                stored = to_storage(convert(value, s.dtype.compute), s.dtype)
                writer.line(f"{kernel.buffers[s.target].pointer}[{where}] = {stored.text};")
            home = kernel.homes.get(s.target)
            if home is None:
                continue
            target = home.pointer if home.is_register else f"{home.pointer}[{scope.slot(home, index, kernel.now)}]"
            writer.line(f"{target} = {convert(value, s.dtype.compute).text};")

    def _shared_sum(self, scope: StepScope, stmt: Stmt) -> None:
        """A reduction of which each of SHARE lanes takes every SHARE-th point; all of them get the result."""
        kernel, writer = self.kernel, self.kernel.writer
        accumulator = Accumulator(kernel, stmt)
        accumulator.declare()
        depth = domain_size(self.spec, stmt.inner_axes)
        with kernel.local_names():
            flat = kernel.axis("depth", depth)
            text = kernel.axis_text[flat.name]
            with writer.block(f"for (int {text} = threadIdx.x % SHARE; {text} < {depth}; {text} += SHARE)"):
                accumulator.step(scope.child(), {**scope.point, **kernel.split(flat, stmt.inner_axes)})
        writer.line("#pragma unroll")
        of = accumulator.type
        total = accumulator.combine(Val(accumulator.name, of), Val(f"__shfl_xor({accumulator.name}, mask)", of))
        writer.line(f"for (int mask = SHARE / 2; mask > 0; mask /= 2) {accumulator.name} = {total.text};")
        scope.remember(Load(stmt.target, scope.index_of(stmt)), accumulator.result())


def first_value(spec: KernelSpec, loop: Loop, stmt: Stmt) -> Expr | None:
    """The value of a carried statement before the first step, over its own axes; None where its reads do not agree on
    one, or do not say it for every point."""
    found: set[Expr] = set()
    for reader in spec.loops[loop]:
        for load in reader.loads():
            if load.tensor != stmt.target or load.other is None:
                continue
            index = zip(stmt.axes, load.index, strict=True)
            at = {e.name: a for a, e in index if a != loop.axis and isinstance(e, Axis)}
            if len(at) != len(stmt.axes) - 1 or not set(axes_of(load.other)) <= set(at):
                return None
            found.add(substitute(load.other, {name: Axis(a) for name, a in at.items()}))
    return found.pop() if len(found) == 1 else None


__all__ = ["LoopWriter", "RecurrenceEmitter", "first_value"]

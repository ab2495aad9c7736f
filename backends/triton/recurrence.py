"""Loops of a spec: statements that run step by step along an axis and read the step before.

A loop in which every point reads only its own past is a flat block of points with the steps inside the lanes; what the
next step needs stays in registers. Any other loop gives one program to each point of its batch: within a step the
program walks the lanes of each phase in blocks, and a barrier stands between phases. Values that another phase or the
next step reads elsewhere go through memory; the barrier orders that memory within the workgroup (LLVM's memory model
asks for nothing more on CDNA outside of threadgroup-split mode, which Triton's code objects do not use).
"""

from __future__ import annotations

from kvc.dtypes import BOOL
from kvc.kernel import Axis, Call, Const, Expr, Extent, Load, Reduce, Stmt
from kvc.patterns import Recurrence, Stage, recurrence

from .codegen import Physical, Scope, V
from .pointwise import bounds, close_flat, is_wide, open_flat, open_lines, points_of, programs, unflatten
from .source import KernelText, SourceFile
from .spelling import ATOM


def loop_kernel(file: SourceFile, name: str, stage: Stage, memory: frozenset[str]) -> frozenset[str]:
    """Write the kernel of a loop; gives the tensors that are in memory after it."""
    spec = file.spec
    loop = spec.stmt[stage.target].loop
    assert loop is not None
    pattern = recurrence(spec, loop)
    kept = set(stage.targets)
    if not pattern.is_local:
        kept |= pattern.shared
    for target in kept - {o.name for o in spec.outputs}:
        file.scratch(target, spec.stmt[target].dtype, spec.shape_of(target))
    kernel = _Loop(file, name, pattern, memory, frozenset(kept))
    if pattern.is_local:
        kernel.in_lanes()
    else:
        kernel.in_workgroups()
    return memory | set(stage.targets)


class _Loop:
    def __init__(
        self, file: SourceFile, name: str, pattern: Recurrence, memory: frozenset[str], kept: frozenset[str]
    ) -> None:
        self.file = file
        self.spec = file.spec
        self.pattern = pattern
        self.kept = kept
        self.stmts = [s for phase in pattern.phases for s in phase]
        # Another point's value is read from memory; a point's own is still in a local.
        self.kernel = KernelText(file, name, self.spec, memory if pattern.is_local else memory | kept)
        self.root = Scope(self.kernel)
        self.axis = pattern.loop.axis
        size = self.spec.size[self.axis].size
        self.steps = str(size) if size is not None else self.kernel.extent(self.axis)

    # ------------------------------------------------------------ every point by itself
    def in_lanes(self) -> None:
        batch = self.pattern.batch
        inner = open_flat(self.root, batch)
        inner.wide = self.root.wide = is_wide(self.spec, self.stmts[0].axes)
        carried = {}
        for target in sorted(self.pattern.carried):
            stmt = self.spec.stmt[target]
            local = self.kernel.fresh(f"{target}_before")
            inner.emit(f"{local} = {inner.full(0, stmt.dtype.compute)}")
            carried[target] = local
        step, header = self._open_steps(inner)
        for stmt in self.stmts:
            self._remember(step, stmt, carried)
        for stmt in self.stmts:
            self._define(step, stmt)
        for target, local in carried.items():
            stmt = self.spec.stmt[target]
            value = step.load(target, tuple(Axis(a) for a in stmt.axes), None)
            step.emit(f"{local} = {step.broadcast(value)}")
        inner.close(header, step)
        close_flat(self.root, inner)
        self.file.add(self.kernel, programs(self.file, self.spec, batch))

    def _remember(self, step: Scope, stmt: Stmt, carried: dict[str, str]) -> None:
        """Give every read of the step before its value: what was carried, or the start value in the first step."""
        for load in stmt.loads():
            if load.tensor in carried and load.other is not None:
                key = step.key(load.tensor, load.index, load.other)
                if step.recall(key) is None:
                    kind = self.spec.stmt[load.tensor].dtype.compute
                    before = V(carried[load.tensor], ATOM, kind, frozenset(step.all_axes()))
                    self._started(step, key, load, before)

    def _started(self, step: Scope, key: object, load: Load, before: V) -> V:
        """`before`, or the guard's value in the first step."""
        assert load.other is not None
        start = step.strong(step.round(step.value(load.other), self.spec.dtype_of(load.tensor)), before.type)
        first = V(f"{self.count} == 0", 1, BOOL)
        chosen = step._joined("tl.where({0}, {1}, {2})", ATOM, [first, start, before], before.type)
        return step.keep(key, f"{load.tensor}_before", chosen)

    # ------------------------------------------------------------ a workgroup a point of the batch
    def in_workgroups(self) -> None:
        batch = self.pattern.batch
        self.root.wide = is_wide(self.spec, self.stmts[0].axes)
        inner = open_lines(self.root, batch)
        step, header = self._open_steps(inner)
        for phase in self.pattern.phases:
            self._phase(step, phase)
            step.emit("tl.debug_barrier()")
        inner.close(header, step)
        close_flat(self.root, inner)
        self.file.add(self.kernel, points_of(self.spec, batch))

    def _phase(self, step: Scope, phase: tuple[Stmt, ...]) -> None:
        """All lanes of a phase, in blocks where there are more than BLOCK."""
        lanes = self.pattern.lanes(phase)
        static = all(self.spec.size[a].size is not None for a in lanes)
        if static and points_of(self.spec, lanes) == 1:
            here = step.child(inline=True)
            here.place({a: Const(0) for a in lanes})
            here.shape = ()
            for stmt in phase:
                self._define(here, stmt)
            return
        count: Expr = Const(1)
        for a in lanes:
            count = Call("mul", (count, Extent(a)))
        extent = step.index(count).text
        start = self.kernel.fresh("start")
        here = step.child()
        name = self.kernel.fresh_axis("lane")
        here.emit(f"{name} = {start} + tl.arange(0, BLOCK)")
        points = points_of(self.spec, lanes) if static else None
        even = points is not None and points % self.file.constant("BLOCK") == 0
        mask = bounds(here, name, extent, even, "BLOCK")
        axis = here.bind(name, points, Physical(name, mask=mask, spans="BLOCK"))
        here.shape = ("BLOCK",)
        here.place(unflatten(self.spec, lanes, axis))
        for stmt in phase:
            self._define(here, stmt)
        step.close(f"for {start} in range(0, {extent}, BLOCK):", here)

    # ------------------------------------------------------------ both
    def _open_steps(self, inner: Scope) -> tuple[Scope, str]:
        """The scope of one step, and the header of the loop over steps. `count` counts them; the axis may fall."""
        step = inner.child()
        step.shape = inner.shape
        self.count = self.kernel.fresh("step" if self.pattern.loop.reverse else self.axis)
        at = self.count
        if self.pattern.loop.reverse:
            at = self.kernel.fresh(self.axis)
            last = str(int(self.steps) - 1) if self.steps.isdigit() else f"{self.steps} - 1"
            step.emit(f"{at} = {last} - {self.count}")
        axis = step.bind(f"{at}", self.spec.size[self.axis].size, Physical(at))
        step.place({self.axis: axis})
        return step, f"for {self.count} in range({self.steps}):"

    def _define(self, scope: Scope, stmt: Stmt) -> None:
        """Compute a statement at its own point, keep it in a local, and store it where others need it."""
        index = tuple(Axis(a) for a in stmt.axes)
        key = scope.key(stmt.target, index)
        if isinstance(stmt.over, Reduce):
            value = scope.reduce(key, stmt, index)
        else:
            value = scope.value(stmt.expr)
            value = scope.keep(key, stmt.target, scope.strong(scope.round(value, stmt.dtype), stmt.dtype.compute))
        if stmt.target in self.kept:
            scope.store(stmt.target, index, V(scope.broadcast(value), ATOM, value.type, value.axes))

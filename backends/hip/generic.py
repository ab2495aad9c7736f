"""The generic emitter: any spec, one launch for each tensor that must exist in memory.

It is the safety net under the schedules: plain loops, one thread a point (or a line, for scans), nothing clever, but
every construct of the notation. Symbolic extents arrive as `long long` parameters; reductions are then computed
again where they are read, since the size of a scratch buffer would not be known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val, convert, identifier, identity, to_storage
from kvc.backends.hip.recurrence import LoopWriter
from kvc.backends.hip.source import (
    MAX_THREADS,
    VERSION,
    File,
    Knobs,
    alias_problem,
    buffer_of,
    domain_size,
    needs_wide,
    operand_buffers,
)
from kvc.backends.hip.spelling import SPELLINGS
from kvc.backends.hip.unit import Buffer, Kernel, Unit
from kvc.dtypes import BOOL, F32, I32, I64, DType
from kvc.emitter import Candidate, Scratch, Space, Support, Task
from kvc.functions import COMBINES
from kvc.kernel import Axis, Call, Const, Expr, Extent, Order, Scan, Scatter, Stmt
from kvc.patterns import stages

BLOCK = 256

ATOMIC_COMBINE = """\
// Replace *address by combine(*address, value), atomically, by compare and swap of its bits.
template <class T, class Word, class Combine>
__device__ __forceinline__ void atomic_combine(T* address, T value, Combine combine) {
  union Bits {
    T value;
    Word word;
  };
  Word* words = reinterpret_cast<Word*>(address);
  Bits seen, next;
  seen.word = *words;
  while (true) {
    next.value = combine(seen.value, value);
    const Word found = atomicCAS(words, seen.word, next.word);
    if (found == seen.word) return;
    seen.word = found;
  }
}
"""


class GenericEmitter:
    """Supports every spec with static sizes, and those with symbolic sizes that need no scratch memory."""

    name = "hip.generic"
    version = VERSION
    schedule = "generic"

    def supports(self, task: Task) -> Support:
        spec = task.spec
        if spec.is_static:
            return Support(True)
        if spec.loops:
            return Support(False, "a loop over symbolic sizes needs scratch memory")
        if any(isinstance(s.over, Scan | Order | Scatter) and s in spec.temps for s in spec.body):
            return Support(False, "a scanned, sorted or scattered temporary of symbolic size needs scratch memory")
        if any(isinstance(s.over, Scatter) for s in spec.body):
            return Support(False, "scatter over symbolic sizes needs scratch memory")
        problem = alias_problem(spec)
        return Support(not problem, problem)

    def space(self, task: Task) -> Space:
        return Space(((),))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        yield _Generic(task).candidate(self.name, self.schedule, knobs)


class _Generic:
    """One candidate in the making."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.spec = task.spec
        self.file = File(task, Unit(task.spec))
        self.file.head.append(f"constexpr int BLOCK = {BLOCK};  // threads a workgroup")
        self.buffers = operand_buffers(self.spec)
        self.done = [o.name for o in self.spec.inputs]  # tensors complete in memory
        # An output whose input is still needed elsewhere is written to scratch and copied at the end.
        late = alias_problem(self.spec) if self.spec.is_static else ""
        self.late = [o.name for o in self.spec.outputs if late and o.alias is not None]
        self.homes = {name: self.buffers[name] for name in self.late}

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        outputs = {o.name for o in self.spec.outputs}
        for stage in stages(self.spec).stages:
            stmt = self.spec.stmt[stage.target]
            if stage.kind == "loop":
                self._loop(stmt, stage.targets)
                continue
            if not self.spec.is_static and stmt.target not in outputs:
                continue
            if stmt.target not in outputs or stmt.target in self.late:
                self._scratch(stmt.target, stmt.dtype)
            self._stage(stmt)
            self.done.append(stmt.target)
        for name in self.late:
            self._copy_home(name)
        return self.file.candidate(emitter, schedule, knobs)

    # ------------------------------------------------------------ memory
    def _scratch(self, tensor: str, dtype: DType, suffix: str = "") -> Buffer:
        """A scratch buffer of the tensor's shape; without a suffix it becomes the tensor's home."""
        stem = identifier(f"{tensor}{suffix}" if suffix or tensor not in self.spec.operand else f"{tensor}_new")
        buffer = buffer_of(self.spec, tensor, dtype, stem)
        if not suffix:
            self.buffers[tensor] = buffer
        self.file.workspace.append(Scratch(stem, dtype.name, max(math.prod(self.spec.shape_of(tensor)), 1)))
        return buffer

    def _kernel(self, domain: int, extra: dict[str, Buffer] | None = None) -> Kernel:
        buffers = {**self.buffers, **(extra or {})}
        kernel = Kernel(self.file.unit, buffers, needs_wide(self.spec, buffers, domain), self.done)
        return kernel

    # ------------------------------------------------------------ the loop over a domain
    def _over(
        self,
        kernel: Kernel,
        axes: tuple[str, ...],
        body: Callable[[dict[str, Expr]], None],
        name: str,
        written: list[str],
    ) -> None:
        """Run `body` once a point of `axes`, one thread a point, with a stride where there are too many."""
        domain = domain_size(self.spec, axes)
        if not domain:
            return
        kind = kernel.index_type
        writer = kernel.writer
        stride = not self.spec.is_static or domain > MAX_THREADS
        blocks = min(-(-domain // BLOCK), MAX_THREADS // BLOCK)
        start = f"({kind})blockIdx.x * BLOCK + threadIdx.x" if kernel.wide else "blockIdx.x * BLOCK + threadIdx.x"
        flat = kernel.axis("i", domain if self.spec.is_static else None)
        flat_name = kernel.axis_text[flat.name]
        limit = " * ".join(kernel.unit.extent(a) for a in axes) or "1"
        if stride:
            step = f"({kind})gridDim.x * BLOCK"
            with writer.block(f"for ({kind} {flat_name} = {start}; {flat_name} < {limit}; {flat_name} += {step})"):
                body(self._split(kernel, flat, axes))
        else:
            writer.line(f"const {kind} {flat_name} = {start};")
            writer.line(f"if ({flat_name} >= {limit}) return;")
            body(self._split(kernel, flat, axes))
        self.file.add(kernel, name, (blocks,), BLOCK, written, "BLOCK")

    def _split(self, kernel: Kernel, flat: Axis, axes: tuple[str, ...]) -> dict[str, Expr]:
        """The point of a flat index. Symbolic extents divide at run time, so each axis becomes a variable."""
        if self.spec.is_static:
            return kernel.split(flat, axes)
        point: dict[str, Expr] = {}
        rest = kernel.axis_text[flat.name]
        for n, name in reversed(list(enumerate(axes))):
            extent = kernel.unit.extent(name)
            variable = kernel.names.fresh(name)
            kernel.writer.line(f"const long long {variable} = {rest if n == 0 else f'{rest} % {extent}'};")
            if n:
                quotient = kernel.names.fresh("rest")
                kernel.writer.line(f"const long long {quotient} = {rest} / {extent};")
                rest = quotient
            kernel.axis_text[name] = variable
            point[name] = Axis(name)
        return point

    def _store(self, kernel: Kernel, scope: Scope, buffer: Buffer, index: tuple[Expr, ...], value: Val) -> None:
        """buffer[index] = value (of the buffer's compute type)."""
        key = next(t for t, b in kernel.buffers.items() if b is buffer)
        where = scope.index(scope.offset(key, index)).text
        kernel.writer.line(f"{buffer.pointer}[{where}] = {to_storage(value, buffer.dtype).text};")

    # ------------------------------------------------------------ stages
    def _stage(self, stmt: Stmt) -> None:
        match stmt.over:
            case Scan():
                self._scan(stmt, stmt.over)
            case Order():
                self._order(stmt, stmt.over)
            case Scatter():
                self._scatter(stmt, stmt.over)
            case _:
                self._points(stmt)

    def _name(self, target: str, step: str = "") -> str:
        alone = len(stages(self.spec).stages) == 1 and not self.late and not step
        return identifier(self.spec.name if alone else f"{self.spec.name}_{target}{step}")

    def _points(self, stmt: Stmt) -> None:
        """A pointwise statement, or a reduction that each thread runs serially."""
        kernel = self._kernel(domain_size(self.spec, stmt.axes))

        def body(point: dict[str, Expr]) -> None:
            scope = Scope(kernel, point)
            value = scope.final(stmt)
            self._store(kernel, scope, kernel.buffers[stmt.target], scope.index_of(stmt), value)

        self._over(kernel, stmt.axes, body, self._name(stmt.target), [stmt.target])

    def _copy_home(self, name: str) -> None:
        """From scratch to the operand that the output aliases."""
        stmt = self.spec.stmt[name]
        home = f"{name} home"
        kernel = self._kernel(domain_size(self.spec, stmt.axes), {home: self.homes[name]})

        def body(point: dict[str, Expr]) -> None:
            scope = Scope(kernel, point)
            index = scope.index_of(stmt)
            value = scope.tensor(name, index)
            where = _offset(scope, self.homes[name], index)
            kernel.writer.line(f"{self.homes[name].pointer}[{where}] = {to_storage(value, stmt.dtype).text};")

        self._over(kernel, stmt.axes, body, self._name(name, "_home"), [home])

    def _loop(self, first: Stmt, targets: Sequence[str]) -> None:
        """All statements of a loop in one launch; `targets` are those that anything else reads."""
        assert first.loop is not None
        outputs = {o.name for o in self.spec.outputs}
        for target in targets:
            if target not in outputs or target in self.late:
                self._scratch(target, self.spec.dtype_of(target))
        LoopWriter(self.file, first.loop, self.buffers, self.done, targets, BLOCK).write(self._name(first.target))
        self.done += targets

    def _scan(self, stmt: Stmt, over: Scan) -> None:
        """One thread a line."""
        lines = tuple(a for a in stmt.axes if a != over.axis)
        kernel = self._kernel(domain_size(self.spec, stmt.axes))
        of = stmt.dtype.compute
        combine = COMBINES[over.op]

        def body(point: dict[str, Expr]) -> None:
            writer = kernel.writer
            total = kernel.names.fresh("running")
            writer.line(f"{COMPUTE_TYPE[of.name]} {total} = {identity(combine.identity, stmt.dtype).text};")
            step, at = self._line(kernel, over.axis, over.reverse)
            with writer.block(step):
                scope = Scope(kernel, {**point, over.axis: at})
                value = scope.value(scope.resolve(stmt.expr), of)
                index = scope.index_of(stmt)
                if over.exclusive:
                    value = scope.named("next", value)
                    self._store(kernel, scope, kernel.buffers[stmt.target], index, Val(total, of))
                writer.line(f"{total} = {SPELLINGS[combine.binary](kernel.helpers, (Val(total, of), value), of).text};")
                if not over.exclusive:
                    self._store(kernel, scope, kernel.buffers[stmt.target], index, Val(total, of))

        self._over(kernel, lines, body, self._name(stmt.target), [stmt.target])

    def _line(self, kernel: Kernel, axis: str, reverse: bool = False) -> tuple[str, Expr]:
        """The loop over an axis, and the current position as an expression."""
        variable = kernel.axis(axis, self.spec.size[axis].size)
        text = kernel.axis_text[variable.name]
        header = f"for ({kernel.index_type} {text} = 0; {text} < {kernel.unit.extent(axis)}; ++{text})"
        size = self.spec.size[axis].size
        last: Expr = Const(size - 1) if size is not None else Call("sub", (Extent(axis), Const(1)))
        return header, kernel.algebra.index(Call("sub", (last, variable))) if reverse else variable

    def _order(self, stmt: Stmt, over: Order) -> None:
        """Each thread counts the elements of its line that come before its own: a stable rank."""
        kernel = self._kernel(domain_size(self.spec, stmt.axes))
        of = self.spec.type_of(stmt.expr)

        def body(point: dict[str, Expr]) -> None:
            writer = kernel.writer
            scope = Scope(kernel, point)
            mine = scope.named("own", scope.value(scope.resolve(stmt.expr), of))
            own_at = scope.named("position", scope.index(scope.resolve(Axis(over.axis))))
            rank = kernel.axis("rank", self.spec.size[over.axis].size)
            rank_name = kernel.axis_text[rank.name]
            writer.line(f"{kernel.index_type} {rank_name} = 0;")
            header, at = self._line(kernel, over.axis)
            with writer.block(header):
                inner = scope.child()
                inner.point = {**point, over.axis: at}
                other = inner.named("other", inner.value(inner.resolve(stmt.expr), of))
                first = self._before(other.text, mine.text, over.descending, of)
                later = self._before(mine.text, other.text, over.descending, of)
                writer.line(f"if ({first} || ({inner.index(at).text} < {own_at.text} && !({later}))) ++{rank_name};")
            target = tuple(rank if a == over.axis else scope.resolve(Axis(a)) for a in stmt.axes)
            value = convert(own_at, I64) if over.kind == "argsort" else convert(mine, stmt.dtype.compute)
            self._store(kernel, scope, kernel.buffers[stmt.target], target, convert(value, stmt.dtype.compute))

        self._over(kernel, stmt.axes, body, self._name(stmt.target), [stmt.target])

    @staticmethod
    def _before(a: str, b: str, descending: bool, of: DType) -> str:
        """Whether a sorts strictly before b; NaN counts as larger than every number."""
        if descending:
            nan = f" || ({a} != {a} && {b} == {b})" if of.is_float else ""
            return f"{a} > {b}{nan}"
        nan = f" || ({b} != {b} && {a} == {a})" if of.is_float else ""
        return f"{a} < {b}{nan}"

    # ------------------------------------------------------------ scatter
    def _scatter(self, stmt: Stmt, over: Scatter) -> None:
        if over.op == "set":
            self._scatter_set(stmt, over)
            return
        self._scatter_combine(stmt, over)

    def _scatter_set(self, stmt: Stmt, over: Scatter) -> None:
        """The last source in row-major order wins: find it by an atomic maximum of source positions, then fetch."""
        winner = self._scratch(stmt.target, I64, "_winner")
        key = "winner"
        clear = self._kernel(domain_size(self.spec, stmt.axes), {key: winner})

        def reset(point: dict[str, Expr]) -> None:
            scope = Scope(clear, point)
            clear.writer.line(f"{winner.pointer}[{_offset(scope, winner, scope.index_of(stmt))}] = -1;")

        self._over(clear, stmt.axes, reset, self._name(stmt.target, "_clear"), [key])
        claim = self._kernel(domain_size(self.spec, over.axes), {key: winner})

        def take(point: dict[str, Expr]) -> None:
            scope = Scope(claim, point)
            index = tuple(scope.resolve(i) for i in over.index)
            position = self._position(scope, over.axes)
            claim.writer.line(f"atomicMax(&{winner.pointer}[{_offset(scope, winner, index)}], {position});")

        self._over(claim, over.axes, take, self._name(stmt.target, "_claim"), [key])
        self._fetch(stmt, over, winner, key)

    def _position(self, scope: Scope, axes: tuple[str, ...]) -> str:
        """The row-major position of the point, as `long long`."""
        flat: Expr = Const(0)
        for a in axes:
            size = self.spec.size[a].size
            assert size is not None
            flat = Call("add", (Call("mul", (flat, Const(size))), scope.resolve(Axis(a))))
        return convert(scope.index(scope.kernel.algebra.index(flat)), I64).text

    def _fetch(self, stmt: Stmt, over: Scatter, winner: Buffer, key: str) -> None:
        """target = expr at the winning source, or base where there is none."""
        kernel = self._kernel(domain_size(self.spec, (*stmt.axes, *over.axes)), {key: winner})

        def body(point: dict[str, Expr]) -> None:
            writer = kernel.writer
            scope = Scope(kernel, point)
            of = stmt.dtype.compute
            kernel.used[key] = None
            source = kernel.axis("source", max(domain_size(self.spec, over.axes), 1))
            text = kernel.axis_text[source.name]
            at = _offset(scope, winner, scope.index_of(stmt))
            writer.line(f"const {kernel.index_type} {text} = {winner.pointer}[{at}];")
            result = kernel.names.fresh("result")
            writer.line(f"{COMPUTE_TYPE[of.name]} {result};")
            with writer.block(f"if ({text} >= 0)", "} else {"):
                inner = Scope(kernel, kernel.split(source, over.axes))
                writer.line(f"{result} = {inner.value(inner.resolve(stmt.expr), of).text};")
            writer.indent += 1
            base = scope.child()
            writer.line(f"{result} = {base.value(base.resolve(over.base), of).text};")
            writer.indent -= 1
            writer.line("}")
            self._store(kernel, scope, kernel.buffers[stmt.target], scope.index_of(stmt), Val(result, of))

        self._over(kernel, stmt.axes, body, self._name(stmt.target), [stmt.target])

    def _scatter_combine(self, stmt: Stmt, over: Scatter) -> None:
        """Start from the base, then one atomic a source. Narrow types accumulate in scratch of their compute type."""
        of = I32 if stmt.dtype.compute is BOOL else stmt.dtype.compute
        narrow = of is not stmt.dtype
        target = self._scratch(stmt.target, of, "_total") if narrow else self.buffers[stmt.target]
        key = "total" if narrow else stmt.target
        start = self._kernel(domain_size(self.spec, stmt.axes), {key: target})

        def init(point: dict[str, Expr]) -> None:
            scope = Scope(start, point)
            value = scope.value(scope.resolve(over.base), stmt.dtype.compute)
            where = _offset(scope, target, scope.index_of(stmt))
            start.writer.line(f"{target.pointer}[{where}] = {convert(value, of).text};")

        self._over(start, stmt.axes, init, self._name(stmt.target, "_base"), [key])
        kernel = self._kernel(domain_size(self.spec, over.axes), {key: target})

        def add(point: dict[str, Expr]) -> None:
            scope = Scope(kernel, point)
            index = tuple(scope.resolve(i) for i in over.index)
            value = convert(scope.value(scope.resolve(stmt.expr), stmt.dtype.compute), of)
            address = f"&{target.pointer}[{_offset(scope, target, index)}]"
            kernel.writer.line(self._atomic(kernel, over.op, of, address, value))

        self._over(kernel, over.axes, add, self._name(stmt.target, "_add" if narrow else ""), [key])
        if narrow:
            self._narrow(stmt, target, key)

    def _narrow(self, stmt: Stmt, total: Buffer, key: str) -> None:
        """Round the accumulated values to the statement's dtype."""
        kernel = self._kernel(domain_size(self.spec, stmt.axes), {key: total})

        def body(point: dict[str, Expr]) -> None:
            scope = Scope(kernel, point)
            kernel.used[key] = None
            value = Val(f"{total.pointer}[{_offset(scope, total, scope.index_of(stmt))}]", total.dtype)
            value = convert(value, stmt.dtype.compute)
            self._store(kernel, scope, kernel.buffers[stmt.target], scope.index_of(stmt), value)

        self._over(kernel, stmt.axes, body, self._name(stmt.target, "_round"), [stmt.target])

    @staticmethod
    def _atomic(kernel: Kernel, op: str, of: DType, address: str, value: Val) -> str:
        if op == "sum":
            return f"atomicAdd({address}, {value.text});"
        if op in ("max", "min") and not of.is_float:
            return f"atomic{op.capitalize()}({address}, {value.text});"
        kind = COMPUTE_TYPE[of.name]
        word = "unsigned int" if of in (F32, I32) else "unsigned long long"
        kernel.helpers.add("atomic_combine", ATOMIC_COMBINE)
        combine = SPELLINGS[COMBINES[op].binary](kernel.helpers, (Val("a", of), Val("b", of)), of)
        function = f"[]({kind} a, {kind} b) {{ return {combine.text}; }}"
        return f"atomic_combine<{kind}, {word}>({address}, {value.text}, {function});"


def _offset(scope: Scope, buffer: Buffer, index: tuple[Expr, ...]) -> str:
    """The offset of an index into any buffer, as C++."""
    total: Expr = Const(0)
    for i, stride in zip(index, buffer.strides, strict=True):
        total = Call("add", (total, Call("mul", (i, stride))))
    return scope.index(scope.kernel.algebra.index(total)).text

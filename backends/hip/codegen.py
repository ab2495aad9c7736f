"""Expressions of a spec -> C++ for one point of an iteration domain.

A `Scope` gives the value of `tensor[index]` on demand: an element of a buffer is loaded, a pointwise temporary is
computed again at that index, a reduction runs as a loop. Each value becomes one named local, remembered by (tensor,
simplified index), so shared subexpressions stay shared and the text grows with the spec, not with its expansion.

Axes are bound to expressions over the axes of the loop nest being written (a flat index, a vector lane, a column),
and the index algebra simplifies every access over those: that is how a schedule finds out which accesses are
contiguous, which are shared between lanes and which guards can never act.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from kvc.backends.hip.cxx import (
    AND,
    ATOM,
    COMPUTE_TYPE,
    EQUALITY,
    MUL,
    UNARY,
    Val,
    Writer,
    convert,
    from_storage,
    identity,
    infix,
    literal,
    rounded,
)
from kvc.backends.hip.spelling import SPELLINGS
from kvc.backends.hip.unit import INT32, Kernel, Unit
from kvc.dtypes import BOOL, F32, F64, I32, I64, DType
from kvc.functions import COMBINES, FUNCTIONS
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Operand,
    Reduce,
    Stmt,
    substitute,
    walk,
)
from kvc.simplify import Linear

_INDEX_FUNCTIONS = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "minimum", "maximum"})
UNROLL_POINTS = 32  # inlined reductions up to this many points are unrolled
SERIAL_POINTS = 128  # longer sums in one thread carry their rounding error along


class Scope:
    """Values at one point, within one C++ block. `point` binds the spec's axes; `memo` holds what is already named."""

    def __init__(self, kernel: Kernel, point: dict[str, Expr], memo: dict[Load, Val] | None = None) -> None:
        self.kernel = kernel
        self.spec = kernel.spec
        self.point = point
        self.memo: dict[Load, Val] = dict(memo or {})
        self.on_load: Callable[[Load, Expr], None] | None = None  # before an element is loaded, with its offset
        self.on_value: Callable[[Load, Val], None] | None = None  # after a value was named
        self.on_reuse: Callable[[Load], None] | None = None  # when a named value is read again

    def child(self, memo: dict[Load, Val] | None = None) -> Scope:
        """A scope for a nested block: it sees what is named here, and what it names ends with the block."""
        inner = type(self)(self.kernel, self.point, {**self.memo, **(memo or {})})
        inner.on_load, inner.on_value, inner.on_reuse = self.on_load, self.on_value, self.on_reuse
        return inner

    # ------------------------------------------------------------ resolving
    def resolve(self, expr: Expr, point: dict[str, Expr] | None = None) -> Expr:
        """The expression over the axes of the loop nest, its indices simplified."""
        return self.simplify(substitute(expr, self.point if point is None else point))

    def simplify(self, expr: Expr) -> Expr:
        if isinstance(expr, Load):
            index = tuple(self.kernel.algebra.index(self.simplify(i)) for i in expr.index)
            if expr.other is None or self.is_inside(expr.tensor, index):
                return Load(expr.tensor, index)
            return Load(expr.tensor, index, self.simplify(expr.other))
        if is_index(expr):
            return self.kernel.algebra.index(expr)
        children = tuple(self.simplify(c) for c in expr.children)
        return self.kernel.algebra._node(expr if children == expr.children else expr.rebuild(children))

    def is_inside(self, tensor: str, index: tuple[Expr, ...]) -> bool:
        return not self.bounds(tensor, index)

    def bounds(self, tensor: str, index: tuple[Expr, ...]) -> list[Expr]:
        """The conditions under which an index lies in the tensor, those that always hold left out."""
        conditions: list[Expr] = []
        for i, dim in zip(index, self.spec.dims_of(tensor), strict=True):
            size = self.spec.size[dim]
            low, high = self.kernel.algebra.interval(i)
            if isinstance(i, Axis) and i.name == dim:
                continue
            if low < 0:
                conditions.append(Call("ge", (i, Const(0))))
            if high >= (size.size if size.size is not None else size.low):
                conditions.append(Call("lt", (i, Extent(dim))))
        return conditions

    def offset(self, tensor: str, index: tuple[Expr, ...]) -> Expr:
        """The element offset of an access into its buffer, simplified."""
        buffer = self.kernel.buffers[tensor]
        total = Linear((), 0)
        for i, stride in zip(index, buffer.strides, strict=True):
            total = total.plus(self.kernel.algebra.linear(Call("mul", (i, stride))))
        return self.kernel.algebra.index(total.expr())

    # ------------------------------------------------------------ values of tensors
    def tensor(self, tensor: str, index: tuple[Expr, ...], other: Expr | None = None) -> Val:
        """`tensor[index]` for a resolved index, in the compute type of the tensor."""
        key = Load(tensor, index, other)
        if key in self.memo:
            if self.on_reuse is not None:
                self.on_reuse(key)
            return self.memo[key]
        if tensor in self.kernel.readable:
            value = self._element(key)
        else:
            value = self._temp(key) if other is None else self._guarded_temp(key)
        self.remember(key, value)
        return value

    def remember(self, key: Load, value: Val) -> None:
        self.memo[key] = value
        if self.on_value is not None:
            self.on_value(key, value)

    def at(self, stmt: Stmt) -> Val:
        """The value of a statement at the current point."""
        return self.tensor(stmt.target, self.index_of(stmt))

    def final(self, stmt: Stmt) -> Val:
        """The value of an output that is about to be stored: not rounded yet, unless other statements read it."""
        unread = stmt.over is None and all(load.tensor != stmt.target for s in self.spec.body for load in s.loads())
        if not unread or Load(stmt.target, self.index_of(stmt)) in self.memo:
            return self.at(stmt)
        return self.value(self.resolve(stmt.expr), stmt.dtype.compute)

    def index_of(self, stmt: Stmt) -> tuple[Expr, ...]:
        return tuple(self.resolve(Axis(a)) for a in stmt.axes)

    def _element(self, load: Load) -> Val:
        buffer = self.kernel.buffers[load.tensor]
        self.kernel.used[load.tensor] = None
        offset = self.offset(load.tensor, load.index)
        if self.on_load is not None:
            self.on_load(load, offset)
        element = from_storage(f"{buffer.pointer}[{self.index(offset).text}]", buffer.dtype)
        if load.other is None:
            return self.name(load.tensor, element)
        inside = self.all_of(self.bounds(load.tensor, load.index))
        fill = self.value(load.other, element.type)
        return self.name(load.tensor, Val(f"{inside.at(AND)} ? {element.text} : {fill.text}", element.type, 0))

    def _guarded_temp(self, load: Load) -> Val:
        assert load.other is not None
        of = self.spec.dtype_of(load.tensor).compute
        name = self.kernel.names.fresh(load.tensor)
        writer = self.kernel.writer
        writer.line(f"{COMPUTE_TYPE[of.name]} {name} = {self.value(load.other, of).text};")
        with writer.block(f"if ({self.all_of(self.bounds(load.tensor, load.index)).text})"):
            writer.line(f"{name} = {self.child().tensor(load.tensor, load.index).text};")
        return Val(name, of)

    def _temp(self, load: Load) -> Val:
        stmt = self.spec.stmt[load.tensor]
        inner = replace_axes(stmt, load.index)
        if isinstance(stmt.over, Reduce):
            return self._reduce(stmt, stmt.over, inner)
        value = self.value(self.resolve(stmt.expr, inner), stmt.dtype.compute)
        return self.name(stmt.target, rounded(value, stmt.dtype))

    def name(self, stem: str, value: Val) -> Val:
        """A named local that holds the value."""
        name = self.kernel.names.fresh(stem if stem not in self.kernel.buffers else f"{stem}_value")
        self.kernel.writer.line(f"const {COMPUTE_TYPE[value.type.name]} {name} = {value.text};")
        return Val(name, value.type)

    def named(self, stem: str, value: Val) -> Val:
        """The value itself where its text is a name or a literal already, else a local of that name."""
        return value if value.level == ATOM and re.fullmatch(r"[\w.]+", value.text) else self.name(stem, value)

    # ------------------------------------------------------------ reductions inside one thread
    def _reduce(self, stmt: Stmt, over: Reduce, point: dict[str, Expr]) -> Val:
        """A serial loop nest over the reduction's axes."""
        writer = self.kernel.writer
        total = math.prod(self.kernel.spec.extent(a) for a in over.axes)
        accumulator = Accumulator(self.kernel, stmt, total > SERIAL_POINTS)
        accumulator.declare()
        point = dict(point)
        opened = 0
        for name in over.axes:
            axis = self.kernel.axis(name, self.spec.size[name].size)
            text = self.kernel.axis_text[axis.name]
            point[name] = axis
            if total <= UNROLL_POINTS and self.spec.size[name].size is not None:
                writer.line("#pragma unroll")
            writer.line(
                f"for ({self.kernel.index_type} {text} = 0; {text} < {self.kernel.unit.extent(name)}; ++{text}) {{"
            )
            writer.indent += 1
            opened += 1
        accumulator.step(self.child(), point)
        for _ in range(opened):
            writer.indent -= 1
            writer.line("}")
        result = accumulator.result()
        return result if result.text == accumulator.name else self.name(stmt.target, result)

    # ------------------------------------------------------------ expressions
    def value(self, expr: Expr, want: DType | None = None) -> Val:
        """C++ for a resolved expression; `want` types a weak literal and converts anything else."""
        if isinstance(expr, Const):
            return literal(expr.value, want or self.spec.type_of(expr))
        result = self._value(expr)
        return convert(result, want) if want is not None else result

    def _value(self, expr: Expr) -> Val:
        if is_index(expr):
            return self.index(expr)
        match expr:
            case Load(tensor, index, other):
                return self.tensor(tensor, index, other)
            case Cast(dtype, arg):
                return self._cast(dtype, arg)
            case Call(fn, args):
                return self._call(fn, args)
        raise TypeError(f"not an expression: {expr!r}")

    def _cast(self, dtype: DType, arg: Expr) -> Val:
        value = self.value(arg)
        if dtype.is_integer and value.type.is_float:
            # Narrow integers take the low bits of the truncated value, as torch does.
            value = convert(value, I64 if dtype is I64 else I32)
        return rounded(convert(value, dtype.compute), dtype)

    def _call(self, fn: str, args: tuple[Expr, ...]) -> Val:
        function = FUNCTIONS[fn]
        if function.expand is not None:
            joined = self.spec.type_of(Call(fn, args))
            return self._composite(fn, tuple(self.value(a, joined) for a in args), joined)
        if fn == "where":
            joined = self.spec.type_of(Call(fn, args))
            values = (self.value(args[0], BOOL), *(self.value(a, joined) for a in args[1:]))
            return SPELLINGS[fn](self.kernel.helpers, values, joined)
        if function.result == "bool" and all(is_index(a) for a in args) and fn not in ("and", "or", "not"):
            return self._index_compare(fn, args)
        joined = BOOL if fn in ("and", "or", "not") else self._joined(fn, args)
        return SPELLINGS[fn](self.kernel.helpers, tuple(self.value(a, joined) for a in args), joined)

    def _joined(self, fn: str, args: tuple[Expr, ...]) -> DType:
        """The type in which a function evaluates its arguments."""
        if FUNCTIONS[fn].result == "float":
            return self.spec.type_of(Call(fn, args))
        return self.spec.type_of(Call("add", args) if len(args) == 2 else Call("neg", args))

    def _composite(self, fn: str, args: tuple[Val, ...], of: DType) -> Val:
        """A call of the helper that a composite function becomes."""
        params = tuple(f"x{n}" if len(args) > 1 else "x" for n in range(len(args)))
        composite_helper(self.kernel, fn, of, params)
        return Val(f"{fn}({', '.join(a.text for a in args)})", of)

    def _index_compare(self, fn: str, args: tuple[Expr, ...]) -> Val:
        a, b = (self.index(x) for x in args)
        if a.type is not b.type:
            a, b = convert(a, I64), convert(b, I64)
        return SPELLINGS[fn](self.kernel.helpers, (a, b), a.type)

    # ------------------------------------------------------------ index arithmetic
    def index(self, expr: Expr) -> Val:
        """C++ for an integer expression in the kernel's index type; 64-bit where an intermediate would not fit."""
        wide = self.kernel.wide or self._overflows(expr)
        return self._index(expr, I64 if wide else I32)

    def _overflows(self, expr: Expr) -> bool:
        for node in walk(expr):
            if is_index(node):
                low, high = self.kernel.algebra.interval(node)
                if (low < -INT32 or high >= INT32) and not math.isinf(low) and not math.isinf(high):
                    return True
        return False

    def _index(self, expr: Expr, of: DType) -> Val:
        match expr:
            case Const(value):
                return literal(value, of)
            case Axis(name):
                native = I64 if self.kernel.wide else I32
                return convert(Val(self.kernel.axis_text[name], native), of)
            case Extent(name):
                size = self.spec.size[name].size
                native = I64 if size is None or size >= INT32 else I32
                return convert(Val(self.kernel.unit.extent(name), native), of)
            case Call("floordiv" | "mod" as fn, (a, b)):
                low, _ = self.kernel.algebra.interval(a)
                positive = isinstance(b, Const) and b.value > 0
                args = (self._index(a, of), self._index(b, of))
                if positive and low >= 0:
                    return infix("/" if fn == "floordiv" else "%", *args, MUL, of)
                return self.kernel.helpers.call("floor_div" if fn == "floordiv" else "floor_mod", args, of)
            case Call("add", (Call("mul", (a, Const(int(factor)))), b)) if factor < 0:
                positive_part = a if factor == -1 else Call("mul", (a, Const(-factor)))
                return self._index(Call("sub", (b, positive_part)), of)
            case Call(fn, args) if fn in _INDEX_FUNCTIONS:
                return SPELLINGS[fn](self.kernel.helpers, tuple(self._index(a, of) for a in args), of)
        return convert(self.value(expr), of)

    def all_of(self, conditions: Iterable[Expr]) -> Val:
        """The conjunction of conditions; `true` when there are none."""
        parts = [self._condition(c) for c in conditions]
        if not parts:
            return Val("true", BOOL)
        return Val(" && ".join(p.at(EQUALITY) for p in parts), BOOL, AND if len(parts) > 1 else parts[0].level)

    def _condition(self, condition: Expr) -> Val:
        """A bound of an index. An index read from memory is compared in its own width, before it is cut to 32 bits."""
        if isinstance(condition, Call) and not all(is_index(a) for a in condition.args):
            a, b = condition.args
            return SPELLINGS[condition.fn](self.kernel.helpers, (self._index(a, I64), self._index(b, I64)), I64)
        return self.value(condition)


class Accumulator:
    """The running state of a reduction in one thread: a value, and for argmax/argmin where it was seen."""

    def __init__(self, kernel: Kernel, stmt: Stmt, is_long: bool = False) -> None:
        assert isinstance(stmt.over, Reduce)
        self.kernel = kernel
        self.stmt = stmt
        self.over = stmt.over
        self.is_arg = stmt.over.op in ("argmax", "argmin")
        self.type = kernel.spec.type_of(stmt.expr) if self.is_arg else stmt.dtype.compute
        stem = stmt.target if stmt.target not in kernel.buffers else f"{stmt.target}_value"
        self.name = kernel.names.fresh(f"{stmt.target}_best" if self.is_arg else stem)
        self.where = kernel.names.fresh(f"{stmt.target}_at") if self.is_arg else ""
        is_compensated = is_long and self.over.op == "sum" and self.type.is_float
        self.carry = kernel.names.fresh(f"{stem}_carry") if is_compensated else ""
        self.start = identity(COMBINES[self.over.op].identity, self.type if self.is_arg else stmt.dtype)

    def declare(self) -> None:
        self.kernel.writer.line(f"{COMPUTE_TYPE[self.type.name]} {self.name} = {self.start.text};")
        if self.carry:
            self.kernel.writer.line(f"{COMPUTE_TYPE[self.type.name]} {self.carry} = 0;")
        if self.is_arg:
            self.kernel.writer.line(f"{self.kernel.index_type} {self.where} = -1;  // none seen yet")

    def step(self, scope: Scope, point: dict[str, Expr]) -> None:
        """Take in the statement's expression at one point."""
        writer = self.kernel.writer
        if self.over.where is not None:
            condition = scope.value(scope.resolve(self.over.where, point), BOOL)
            if condition.text != "true":
                with writer.block(f"if ({condition.text})"):
                    self._take(scope.child(), point)
                return
        self._take(scope, point)

    def _take(self, scope: Scope, point: dict[str, Expr]) -> None:
        value = scope.value(scope.resolve(self.stmt.expr, point), self.type)
        if self.is_arg:
            value = scope.named("candidate", value)
            where = scope.index(scope.resolve(Axis(self.over.axes[0]), point))
            self.take_arg(value.text, convert(where, I64 if self.kernel.wide else I32).text)
        elif self.carry:
            add = self.kernel.helpers.use("add_compensated")
            self.kernel.writer.line(f"{add}({self.name}, {self.carry}, {value.text});")
        elif self.over.op == "sum":
            self.kernel.writer.line(f"{self.name} += {value.text};")
        else:
            self.kernel.writer.line(f"{self.name} = {self.combine(Val(self.name, self.type), value).text};")

    def take_arg(self, value: str, where: str) -> None:
        """Keep the better candidate; points come in ascending order, so an equal one never replaces."""
        better = ">" if self.over.op == "argmax" else "<"
        nan = f" || ({value} != {value} && {self.name} == {self.name})" if self.type.is_float else ""
        with self.kernel.writer.block(f"if ({self.where} < 0 || {value} {better} {self.name}{nan})"):
            self.kernel.writer.line(f"{self.name} = {value};")
            self.kernel.writer.line(f"{self.where} = {where};")

    def combine(self, a: Val, b: Val) -> Val:
        """Two partial results as one."""
        return SPELLINGS[COMBINES[self.over.op].binary](self.kernel.helpers, (a, b), self.type)

    def result(self) -> Val:
        """The finished value, rounded to the statement's dtype."""
        if self.is_arg:
            return Val(f"(long long){self.where}" if not self.kernel.wide else self.where, I64, UNARY)
        return rounded(Val(self.name, self.type), self.stmt.dtype)


# ---------------------------------------------------------------- shared pieces


def is_index(expr: Expr) -> bool:
    """Whether the expression is integer arithmetic over axes and extents alone."""
    match expr:
        case Const(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Axis() | Extent():
            return True
        case Call(fn, args):
            return fn in _INDEX_FUNCTIONS and all(is_index(a) for a in args)
    return False


def replace_axes(stmt: Stmt, index: tuple[Expr, ...]) -> dict[str, Expr]:
    """The point at which a statement is read with `index`."""
    return dict(zip(stmt.axes, index, strict=True))


def composite_helper(kernel: Kernel, fn: str, of: DType, params: tuple[str, ...]) -> None:
    """Add the helper of a composite function to the unit, after the composites it uses."""
    key = f"{fn}({of})"
    if key in kernel.helpers.used:
        return
    expand = FUNCTIONS[fn].expand
    assert expand is not None
    dtype = F64 if of is F64 else F32
    body = expand(*(Load(p, ()) for p in params))
    spec = KernelSpec(fn, (), tuple(_scalar(p, dtype) for p in params), (), ())
    inner = Kernel(Unit(spec, kernel.helpers), {}, False)
    inner.writer = Writer(1)
    scope = Scope(inner, {}, {Load(p, ()): Val(p, dtype) for p in params})
    result = scope.value(body, dtype)
    type_name = COMPUTE_TYPE[dtype.name]
    arguments = ", ".join(f"{type_name} {p}" for p in params)
    lines = "\n".join(
        [
            f"__device__ __forceinline__ {type_name} {fn}({arguments}) {{",
            *inner.writer.lines,
            f"  return {result.text};",
            "}",
        ]
    )
    kernel.helpers.add(key, lines + "\n")


def _scalar(name: str, dtype: DType) -> Operand:
    return Operand(name, dtype, ())

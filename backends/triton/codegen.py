"""Expressions of the index notation as Triton block expressions.

A `Scope` is a place in a kernel where a block of points is being computed. *Physical* axes are bound to Python
locals: a block-shaped index tensor (`p = pid * BLOCK + tl.arange(0, BLOCK)`), the variable of a loop, or a scalar.
Every axis of the spec is an index expression over physical axes, so `x[m, k]` over a flat block becomes one pointer,
`x_ptr + p`, by the index algebra alone.

Tensors are evaluated on demand, at one index, and kept in a named local: `Scope.value` of a load reads memory, or
computes a temporary where it is read. Scopes nest (loops); each value is written in the outermost scope that binds
all its physical axes, so what does not change in a loop stands in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvc.dtypes import BOOL, F32, F64, I32, I64, DType, promote
from kvc.functions import COMBINES, FUNCTIONS, Function
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
    Size,
    Stmt,
    axes_of,
    call,
    lift,
    substitute,
)
from kvc.simplify import IndexAlgebra

from .source import KernelText
from .spelling import ADD, ATOM, BIT_AND, COMPARE, MUL, TL, UNARY, infix, spelling

LINE = 96  # longer expressions are cut at a named local
UNROLL_POINTS = 32  # a loop nest of at most this many points is unrolled by the compiler


@dataclass(frozen=True)
class V:
    """A value as text. `type` is its physical type (a compute type); `literal` holds the constant while it is still
    weakly typed; `axes` are the physical axes it depends on."""

    text: str
    strength: int
    type: DType
    axes: frozenset[str] = frozenset()
    literal: bool | int | float | None = None

    def at(self, strength: int) -> str:
        """The text, in parentheses where it binds less than `strength`."""
        return self.text if self.strength >= strength else f"({self.text})"


@dataclass(frozen=True)
class Physical:
    """A physical axis: its local, the mask that says where it is inside, and whether it is a Python constant."""

    text: str
    strength: int = ATOM
    mask: str = ""
    constant: bool = False


def literal_text(value: bool | int | float) -> str:
    """A Python literal that Triton accepts."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return f'float("{name}")'
    return repr(value)


def typed_literal(value: bool | int | float, dtype: DType) -> bool | int | float:
    """The literal as it is in another type."""
    if dtype is BOOL:
        return bool(value)
    return float(value) if dtype.is_float else int(value)


def identity_of(op: str, dtype: DType) -> bool | int | float:
    """The start value of a combine function in a compute type."""
    value = COMBINES[op].identity
    if value == "lowest":
        return -math.inf if dtype.is_float else -(2 ** (dtype.bits - 1)) if dtype is not BOOL else False
    if value == "highest":
        return math.inf if dtype.is_float else 2 ** (dtype.bits - 1) - 1 if dtype is not BOOL else True
    assert not isinstance(value, str)
    return typed_literal(value, dtype)


class Scope:
    """See the module. `lines` is where its text goes; a child of a loop has lines of its own."""

    def __init__(self, kernel: KernelText, parent: Scope | None = None, lines: list[str] | None = None) -> None:
        self.kernel = kernel
        self.parent = parent
        self.lines: list[str] = kernel.lines if parent is None else lines if lines is not None else []
        self.physical: dict[str, Physical] = {}
        self.memo: dict[object, V] = {}
        self.fill: dict[object, float] = {} if parent is None else parent.fill  # what loads give outside the block
        self.shape: tuple[str, ...] = parent.shape if parent is not None else ()
        if parent is None:
            self.env: dict[str, Expr] = {}
            self.sizes: dict[str, Size] = dict(kernel.spec.size)
            self.wide = False
        else:
            self.env = dict(parent.env)
            self.sizes = dict(parent.sizes)
            self.wide = parent.wide
        self.algebra = IndexAlgebra(self.sizes)

    # ------------------------------------------------------------ scopes
    @property
    def spec(self) -> KernelSpec:
        return self.kernel.spec

    def child(self, *, inline: bool = False) -> Scope:
        """A scope inside this one: the body of a loop, or (inline) more bindings at the same place."""
        return Scope(self.kernel, self, self.lines if inline else None)

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def close(self, header: str, child: Scope) -> None:
        """Write a loop whose body is `child`."""
        self.lines.append(header)
        self.lines += ["    " + line if line else "" for line in child.lines]

    def bind(self, name: str, size: int | None, physical: Physical) -> Axis:
        """Declare a physical axis of an extent (None: unknown), and give it."""
        self.sizes[name] = Size(name, size)
        self.physical[name] = physical
        self.env.pop(name, None)
        return Axis(name)

    def place(self, axes: dict[str, Expr]) -> None:
        """Say where axes of the spec are: index expressions over physical axes."""
        self.env.update(axes)

    def chain(self) -> list[Scope]:
        """This scope and those around it, inmost first."""
        scope: Scope | None = self
        found = []
        while scope is not None:
            found.append(scope)
            scope = scope.parent
        return found

    def binding(self, name: str) -> Physical:
        for scope in self.chain():
            if name in scope.physical:
                return scope.physical[name]
        raise KeyError(name)

    def home(self, axes: Iterable[str]) -> Scope:
        """The outermost scope in which all these physical axes are bound."""
        needed = set(axes)
        home = self
        for scope in self.chain():
            home = scope
            if needed & set(scope.physical):
                return home
        return home

    def recall(self, key: object) -> V | None:
        for scope in self.chain():
            if key in scope.memo:
                return scope.memo[key]
        return None

    def keep(self, key: object, stem: str, value: V) -> V:
        """Put a value into a named local of this scope."""
        name = self.kernel.fresh(stem)
        self.emit(f"{name} = {value.text}")
        self.memo[key] = V(name, ATOM, value.type, value.axes)
        return self.memo[key]

    # ------------------------------------------------------------ indices
    def resolved(self, index: Expr) -> Expr:
        """An index over axes of the spec as a simple one over physical axes."""
        return self.algebra.index(substitute(index, self.env))

    def physical_axes(self, exprs: Iterable[Expr]) -> frozenset[str]:
        """Physical axes that expressions over axes of the spec depend on."""
        return frozenset(name for expr in exprs for name in axes_of(self.resolved(expr)))

    def index(self, expr: Expr) -> V:
        """An integer expression over axes of the spec. It is i32 (i64 in a wide kernel), except through loads."""
        return self._index(self.resolved(expr))

    def _index(self, expr: Expr) -> V:
        """The same, for an expression that is already over physical axes."""
        local = self.recall(("local", expr))
        if local is not None:
            return local
        match expr:
            case Const(value):
                return V(repr(value), ATOM if value >= 0 else UNARY, self.integer, literal=int(value))
            case Axis(name):
                at = self.binding(name)
                return V(at.text, at.strength, self.integer, frozenset({name}))
            case Extent(name):
                size = self.spec.size[name].size
                return V(self.kernel.extent(name), ATOM, I64) if size is None else self._index(Const(size))
            case Call("floordiv" | "mod", _):
                return self._division(expr)
            case Call("neg", (arg,)):
                inner = self._index(arg)
                return replace(inner, text=f"-{inner.at(UNARY)}", strength=UNARY, literal=None)
            case Call("add" | "sub" | "mul" as fn, (a, b)):
                sign, level = {"add": ("+", ADD), "sub": ("-", ADD), "mul": ("*", MUL)}[fn]
                left, right = self._index(a), self._index(b)
                text = f"{left.at(level)} {sign} {right.at(level + 1)}"
                return V(text, level, promote(left.type, right.type), left.axes | right.axes)
            case Call("minimum" | "maximum" as fn, (a, b)):
                left, right = self._index(a), self._index(b)
                return V(f"tl.{fn}({left.text}, {right.text})", ATOM, promote(left.type, right.type), left.axes | right.axes)
        return self.resolved_value(expr)

    @property
    def integer(self) -> DType:
        return I64 if self.wide else I32

    def _division(self, expr: Call) -> V:
        """A quotient or remainder, in a named local."""
        known = self.recall(expr)
        if known is not None:
            return known
        home = self.home(axes_of(expr))
        stem = next((axis for axis, at in self.env.items() if at == expr), "q" if expr.fn == "floordiv" else "r")
        a, b = (home._index(arg) for arg in expr.args)
        axes = a.axes | b.axes
        kind = promote(a.type, b.type)
        if self.non_negative(expr.args[0]) and self.non_negative(expr.args[1]):
            sign = "//" if expr.fn == "floordiv" else "%"
            text = f"{a.at(MUL)} {sign} {b.at(UNARY)}"
        else:
            helper = "int_floor_divide" if expr.fn == "floordiv" else "int_remainder"
            text = f"{self.kernel.file.helper(helper)}({a.text}, {b.text})"
        return home.keep(expr, stem, V(text, MUL, kind, axes))

    def non_negative(self, expr: Expr) -> bool:
        """Whether an index is never negative; sizes are not, whatever they are."""
        if self.algebra.interval(expr)[0] >= 0:
            return True
        match expr:
            case Extent():
                return True
            case Call("add" | "mul" | "floordiv" | "mod" | "minimum", args):
                return all(self.non_negative(a) for a in args)
        return False

    # ------------------------------------------------------------ values
    def value(self, expr: Expr) -> V:
        """A block of values of an expression over axes of the spec, in its compute type."""
        match expr:
            case Const(value):
                kind = BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32
                text = literal_text(value)
                return V(text, UNARY if text.startswith("-") else ATOM, kind, literal=value)
            case Load(tensor, index, other):
                return self.load(tensor, index, other)
            case Cast(dtype, arg):
                return self.round(self.value(arg), dtype)
            case Axis() | Extent():
                return self._integer_value(expr)
            case Call(fn, args):
                if self.algebra.is_index(expr) and not all(isinstance(a, Const) for a in args):
                    return self._integer_value(expr)
                return self._call(FUNCTIONS[fn], args)
        raise TypeError(f"not an expression: {expr!r}")

    def resolved_value(self, expr: Expr) -> V:
        """The value of an expression that is already over physical axes."""
        free = Scope(self.kernel, self, self.lines)
        free.env = {}
        return free.value(expr)

    def _integer_value(self, expr: Expr) -> V:
        """An index used as a value: 64-bit arithmetic where 32 bits might not do."""
        resolved = self.resolved(expr)
        low, high = self.algebra.interval(resolved)
        if self.wide or (low >= -(2**31) and high < 2**31):
            value = self._index(resolved)
            if value.literal is not None:
                return replace(value, type=I64)
            constant = value.axes and all(self.binding(a).constant for a in value.axes)
            return V(f"tl.full((), {value.text}, tl.int32)", ATOM, I32, value.axes) if constant else value
        return self._widened(resolved)

    def _widened(self, expr: Expr) -> V:
        """The same arithmetic with every axis in 64 bits."""
        match expr:
            case Axis():
                return self.to(self._integer_value(expr), I64)
            case Call("add" | "sub" | "mul" as fn, (a, b)):
                left, right = self._widened(a), self._widened(b)
                sign, level = infix(fn, I64) or ("", ATOM)
                text = f"{left.at(level)} {sign} {right.at(level + 1)}"
                return V(text, level, I64, left.axes | right.axes)
        return self.to(self._index(expr), I64)

    def to(self, value: V, dtype: DType) -> V:
        """The value in another compute type; exact where that type is wider."""
        if value.literal is not None:
            number = typed_literal(value.literal, dtype)
            text = literal_text(number)
            return V(text, UNARY if text.startswith("-") else ATOM, dtype, literal=number)
        if value.type is dtype:
            return value
        if dtype is BOOL:
            return V(f"{value.at(COMPARE + 1)} != 0", COMPARE, BOOL, value.axes)
        return V(f"{value.at(ATOM)}.to({TL[dtype.name]})", ATOM, dtype, value.axes)

    def strong(self, value: V, dtype: DType) -> V:
        """The value as a tensor of the type, also where it is a literal."""
        cast = self.to(value, dtype)
        if cast.literal is None:
            return cast
        return V(f"tl.full((), {cast.text}, {TL[dtype.name]})", ATOM, dtype)

    def round(self, value: V, dtype: DType) -> V:
        """What a value is after it was stored as `dtype` and read again: in that type's compute type."""
        compute = dtype.compute
        if dtype is compute:
            return self.to(value, dtype)
        if value.literal is not None and not dtype.is_float:
            value = self.strong(value, compute)
        value = self.to(value, compute) if not (dtype.is_integer and value.type.is_integer) else value
        value = self.strong(value, compute) if value.literal is not None else value
        text = f"{value.at(ATOM)}.to({TL[dtype.name]}).to({TL[compute.name]})"
        return V(text, ATOM, compute, value.axes)

    # ------------------------------------------------------------ calls
    def _call(self, function: Function, args: tuple[Expr, ...]) -> V:
        if function.name == "pow" and args[1] in (Const(2), Const(2.0)):
            return self._square(args[0])
        values = [self.value(a) for a in args]
        if function.result == "select":
            return self._select(values, args)
        result = self.spec.type_of(Call(function.name, args))
        joined = self.spec.type_of(call("add", *args)) if len(args) == 2 else self.spec.type_of(args[0])
        operand = result if function.result in ("float", "same") else joined
        if function.name in ("and", "or", "not"):
            operand = BOOL
        if all(v.literal is not None for v in values):
            values[0] = self.strong(values[0], operand)
        if not self._narrow_integers(function, values):
            values = [self.to(v, operand) for v in values]
        else:
            operand = I32
        if function.expand is not None:
            return self._composite(function, values, operand)
        return self._primitive(function, values, operand, BOOL if function.result == "bool" else operand)

    def _square(self, arg: Expr) -> V:
        """pow(x, 2): one product, exactly what a correctly rounded pow gives."""
        base = self._named(self.strong(self.value(arg), self.spec.type_of(arg)), "v")
        return self._joined("{0} * {1}", MUL, [base, base], base.type)

    @staticmethod
    def _narrow_integers(function: Function, values: list[V]) -> bool:
        """Whether 32-bit operands of a function that cannot overflow may stay as they are."""
        safe = function.result == "bool" or function.name in ("minimum", "maximum", "mod", "floordiv")
        return safe and all(
            v.type is I32 or (isinstance(v.literal, int) and not isinstance(v.literal, bool) and abs(v.literal) < 2**31)
            for v in values
        )

    def _select(self, values: list[V], args: tuple[Expr, ...]) -> V:
        kind = self.spec.type_of(Call("where", args))
        if all(v.type is I32 for v in values[1:]):
            kind = I32
        condition = self.to(values[0], BOOL)
        yes, no = (self._argument(self.to(v, kind)) for v in values[1:])
        if yes.literal is not None and no.literal is not None:
            yes = self.strong(yes, kind)
        return self._joined("tl.where({0}, {1}, {2})", ATOM, [condition, yes, no], kind)

    def _argument(self, value: V) -> V:
        """A value as an argument of a tl function, which takes Python floats as f32."""
        precise = value.type in (F64, I64) and value.literal is not None
        return self.strong(value, value.type) if precise else value

    def _primitive(self, function: Function, values: list[V], operand: DType, result: DType) -> V:
        operator = infix(function.name, operand)
        if operator is not None:
            sign, level = operator
            # Comparisons do not chain; the others associate to the left.
            left = values[0] if values[0].strength >= level + (level == COMPARE) else self._in_parentheses(values[0])
            right = values[1] if values[1].strength > level else self._in_parentheses(values[1])
            return self._joined(f"{{0}} {sign} {{1}}", level, [left, right], result)
        how = spelling(function.name, operand, self.kernel.file.task.numerics)
        if how.libdevice:
            self.kernel.file.use_libdevice()
        for helper in how.helpers:
            self.kernel.file.helper(helper)
        arguments = [self._argument(v) for v in values]
        if how.atoms:
            arguments = [v if v.strength >= UNARY else self._in_parentheses(v) for v in arguments]
            if how.template.count("{0}") > 1:
                arguments = [self._named(arguments[0], "v")]
        return self._joined(how.template, how.strength, arguments, result)

    @staticmethod
    def _in_parentheses(value: V) -> V:
        return replace(value, text=f"({value.text})", strength=ATOM)

    def _joined(self, template: str, strength: int, values: list[V], kind: DType) -> V:
        """A template over texts, with the longest argument in a local where the line gets too long."""
        while sum(len(v.text) for v in values) + len(template) > LINE:
            longest = max(range(len(values)), key=lambda n: len(values[n].text))
            if len(values[longest].text) < 24:
                break
            values = [self._named(v, "v") if n == longest else v for n, v in enumerate(values)]
        axes = frozenset().union(*(v.axes for v in values))
        return V(template.format(*(v.text for v in values)), strength, kind, axes)

    def _named(self, value: V, stem: str) -> V:
        """The value in a local of this scope."""
        if value.text.isidentifier():
            return value
        text = value.text[1:-1] if value.text.startswith("(") and _encloses(value.text) else value.text
        name = self.kernel.fresh(stem)
        self.emit(f"{name} = {text}")
        return replace(value, text=name, strength=ATOM)

    def _composite(self, function: Function, values: list[V], operand: DType) -> V:
        """A call of the helper function made from a composite's meaning."""
        assert function.expand is not None
        file = self.kernel.file
        name = function.name if operand is F32 else f"{function.name}_{operand.name}"
        if not file.has_helper(name):
            parameters = [chr(ord("x") + n) for n in range(function.arity)]
            scalars = tuple(Operand(p, operand, ()) for p in parameters)
            text = KernelText(file, name, KernelSpec(name, (), scalars, (), ()), frozenset())
            scope = Scope(text)
            for p in parameters:
                scope.memo[(p, (), None)] = V(p, ATOM, operand)
            result = scope.value(lift(function.expand(*(Load(p, ()) for p in parameters))))
            lines = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
            lines += [f"    {line}" for line in (*text.lines, f"return {result.text}")]
            file.define_helper(name, "\n".join(lines))
        arguments = ", ".join(["{%d}" % n for n in range(len(values))])
        return self._joined(f"{name}({arguments})", ATOM, values, operand)

    # ------------------------------------------------------------ tensors
    def load(self, tensor: str, index: tuple[Expr, ...], other: Const | None) -> V:
        """`tensor[index]`: from memory, or computed here where it is a temporary."""
        key = (tensor, tuple(self.resolved(i) for i in index), other)
        known = self.recall(key)
        if known is not None:
            return known
        home = self.home(self.physical_axes(index))
        if tensor in self.kernel.memory:
            return self._read(home, key, tensor, index, other)
        return self._compute(home, key, tensor, index, other)

    def _read(self, home: Scope, key: object, tensor: str, index: tuple[Expr, ...], other: Const | None) -> V:
        dtype = self.spec.dtype_of(tensor)
        raw = self.access(tensor, index, other, home, self.fill.get(key))
        value = V(f"{raw}.to({TL[dtype.compute.name]})" if dtype.compute is not dtype else raw, ATOM, dtype.compute)
        return home.keep(key, tensor, replace(value, axes=self.physical_axes(index)))

    def access(
        self, tensor: str, index: tuple[Expr, ...], other: Const | None, home: Scope, fill: float | bool | None = None
    ) -> str:
        """The `tl.load` of an operand or scratch buffer, in its storage type. Lanes outside the block give `fill`."""
        dtype = self.spec.dtype_of(tensor)
        guards = self.guards(tensor, index, home) if other is not None else []
        masks = [*self.masks(index), *guards]
        pointer = self.address(tensor, index, home)
        if not masks:
            return f"tl.load({pointer})"
        outside = typed_literal(other.value if other is not None else fill or 0, dtype.compute)
        fallback = literal_text(outside if dtype is not BOOL else int(outside))
        return f"tl.load({pointer}, mask={self._all(masks)}, other={fallback})"

    def address(self, tensor: str, index: tuple[Expr, ...], home: Scope) -> str:
        """Pointer arithmetic of one access."""
        offset: Expr = Const(0)
        for at, stride in zip(index, self.stride_exprs(tensor), strict=True):
            offset = Call("add", (offset, Call("mul", (at, stride))))
        text = home._index(self.resolved(offset))
        pointer = self.kernel.pointer(tensor)
        return pointer if text.literal == 0 else f"{pointer} + {text.at(ADD)}"

    def stride_exprs(self, tensor: str) -> list[Expr]:
        """Strides in elements; products of extents where the sizes are symbolic."""
        dims = self.spec.dims_of(tensor)
        operand = self.spec.operand.get(tensor)
        if (operand is not None and operand.strides is not None) or all(
            self.spec.size[d].size is not None for d in dims
        ):
            return [Const(s) for s in self.kernel.strides(tensor)]
        strides: list[Expr] = [Const(1)]
        for d in reversed(dims[1:]):
            strides.append(Call("mul", (strides[-1], Extent(d))))
        return list(reversed(strides)) if dims else []

    def masks(self, exprs: Iterable[Expr]) -> list[str]:
        """Masks of the physical axes that expressions depend on, each once."""
        names = sorted(self.physical_axes(exprs), key=self._order)
        return list(dict.fromkeys(m for a in names if (m := self.binding(a).mask)))

    def _order(self, axis: str) -> int:
        return [a for scope in reversed(self.chain()) for a in scope.physical].index(axis)

    def guards(self, tensor: str, index: tuple[Expr, ...], home: Scope) -> list[str]:
        """The conditions under which an access lies inside the tensor."""
        found = []
        for at, dim in zip(index, self.spec.dims_of(tensor), strict=True):
            size = self.spec.size[dim].size
            resolved = self.resolved(at)
            low, high = self.algebra.interval(resolved)
            if at == Axis(dim):
                continue
            inner = home._index(resolved)
            local = inner if inner.strength == ATOM else home._local(resolved, dim, inner)
            if low < 0:
                found.append(f"({local.text} >= 0)")
            if size is None or high >= size:
                found.append(f"({local.text} < {size if size is not None else self.kernel.extent(dim)})")
        return found

    def _local(self, key: Expr, stem: str, value: V) -> V:
        known = self.recall(("local", key))
        return known if known is not None else self.keep(("local", key), stem, value)

    @staticmethod
    def _all(masks: list[str]) -> str:
        return " & ".join(masks)

    def _compute(self, home: Scope, key: object, tensor: str, index: tuple[Expr, ...], other: Const | None) -> V:
        """A temporary where it is read."""
        stmt = self.spec.stmt[tensor]
        if other is not None:
            return self._guarded(home, key, stmt, index, other)
        if isinstance(stmt.over, Reduce):
            return home.reduce(key, stmt, index)
        assert stmt.over is None, f"{tensor} must be in memory before it is read"
        at = dict(zip(stmt.axes, index, strict=True))
        value = home.value(substitute(stmt.expr, at))
        return home.keep(key, tensor, home.round(value, stmt.dtype))

    def _guarded(self, home: Scope, key: object, stmt: Stmt, index: tuple[Expr, ...], other: Const) -> V:
        """A temporary read where it may be outside: computed at a clamped index, and replaced there."""
        guards = self.guards(stmt.target, index, home)
        clamped = []
        for at, dim in zip(index, stmt.axes, strict=True):
            size = self.spec.size[dim].size
            last: Expr = Call("sub", (Extent(dim), Const(1))) if size is None else Const(size - 1)
            inside = home.algebra.interval(home.resolved(at))
            fits = inside[0] >= 0 and size is not None and inside[1] < size
            clamped.append(at if fits else call("minimum", call("maximum", at, 0), last))
        value = home.load(stmt.target, tuple(clamped), None)
        if not guards:
            return value
        condition = V(self._all(guards), BIT_AND, BOOL, self.physical_axes(index))
        outside = home._argument(home.to(home.value(other), value.type))
        chosen = home._joined("tl.where({0}, {1}, {2})", ATOM, [condition, value, outside], value.type)
        return home.keep(key, stmt.target, chosen)

    # ------------------------------------------------------------ reductions inside a lane
    def full(self, value: float | bool, dtype: DType) -> str:
        """A block of this scope's shape, all of one value."""
        shape = ", ".join(self.shape) + ("," if len(self.shape) == 1 else "")
        return f"tl.full(({shape}), {literal_text(typed_literal(value, dtype))}, {TL[dtype.name]})"

    def broadcast(self, value: V) -> str:
        """The value as a block of this scope's whole shape (a scalar where there is none)."""
        if value.literal is not None:
            return self.full(value.literal, value.type)
        shape = ", ".join(self.shape) + ("," if len(self.shape) == 1 else "")
        return f"tl.broadcast_to({value.text}, ({shape}))" if self.shape else value.text

    def reduce(self, key: object, stmt: Stmt, index: tuple[Expr, ...]) -> V:
        """A reduction by loops inside every lane."""
        over = stmt.over
        assert isinstance(over, Reduce)
        names = {a: self.kernel.fresh(a) for a in over.axes}
        at = dict(zip(stmt.axes, index, strict=True)) | {a: Axis(names[a]) for a in over.axes}
        arg = over.op in ("argmax", "argmin")
        kind = self.spec.type_of(stmt.expr) if arg else stmt.dtype.compute
        kind = I32 if arg and kind is BOOL else kind
        best = self.kernel.fresh("best" if arg else stmt.target)
        self.emit(f"{best} = {self.full(identity_of(over.op, kind), kind)}")
        result = self.kernel.fresh(stmt.target) if arg else best
        if arg:
            self.emit(f"{result} = {self.full(0, self.integer)}")
        scopes = self._loops(over.axes, names)
        inner = scopes[-1]
        where = inner.to(inner.value(substitute(over.where, at)), BOOL) if over.where is not None else None
        if arg:
            value = inner.value(substitute(stmt.expr, at))
            inner.best_of(over.op, best, result, inner.strong(value, kind), inner.index(at[over.axes[0]]), where)
        elif over.op == "sum" and kind.is_float and where is None and isinstance(stmt.expr, Call) and stmt.expr.fn == "mul":
            factors = (inner.to(inner.value(substitute(f, at)), kind) for f in stmt.expr.args)
            inner.emit(f"{best} = tl.fma({', '.join(f.text for f in factors)}, {best})")
        else:
            inner.accumulate(over.op, best, inner.value(substitute(stmt.expr, at)), kind, where)
        for depth in range(len(scopes) - 1, 0, -1):
            scopes[depth - 1].close(self._loop_header(over.axes[depth - 1], names, over.axes), scopes[depth])
        final = V(result, ATOM, self.integer if arg else kind, frozenset(self.all_axes()))
        if not arg and stmt.dtype is not kind and self.is_read(stmt.target):
            return self.keep(key, stmt.target, self.round(final, stmt.dtype))
        self.memo[key] = final
        return final

    def all_axes(self) -> set[str]:
        return {a for scope in self.chain() for a in scope.physical}

    def _loops(self, axes: tuple[str, ...], names: dict[str, str]) -> list[Scope]:
        """Scopes of a nest of loops, this one first."""
        scopes = [self]
        unrolled = self._unrolled(axes)
        for a in axes:
            inner = scopes[-1].child()
            inner.bind(names[a], self.spec.size[a].size, Physical(names[a], constant=unrolled))
            scopes.append(inner)
        return scopes

    def _unrolled(self, axes: tuple[str, ...]) -> bool:
        return all(self.spec.size[a].size is not None for a in axes) and math.prod(
            self.spec.extent(a) for a in axes
        ) <= UNROLL_POINTS

    def _loop_header(self, axis: str, names: dict[str, str], axes: tuple[str, ...]) -> str:
        size = self.spec.size[axis].size
        bound = str(size) if size is not None else self.kernel.extent(axis)
        return f"for {names[axis]} in {'tl.static_range' if self._unrolled(axes) else 'range'}({bound}):"

    def accumulate(self, op: str, into: str, value: V, kind: DType, where: V | None = None) -> None:
        """Combine one more value into an accumulator of type `kind`."""
        value = self.to(value, kind)
        if where is not None:
            outside = self._argument(self.to(V("", ATOM, kind, literal=identity_of(op, kind)), kind))
            yes = self.strong(value, kind)
            value = self._joined("tl.where({0}, {1}, {2})", ATOM, [where, yes, outside], kind)
        combined = self.combined(op, into, value, kind)
        self.emit(f"{into} {combined[1:]}" if combined.startswith("@") else f"{into} = {combined}")

    def combined(self, op: str, into: str, value: V, kind: DType) -> str:
        """The text of op(into, value); "@+= ..." where an augmented assignment says it."""
        if op in ("sum", "prod") and kind is not BOOL:
            return f"@{'+' if op == 'sum' else '*'}= {value.text}"
        if op in ("any", "all"):
            return f"@{'|' if op == 'any' else '&'}= {value.text}"
        function = FUNCTIONS[COMBINES[op].binary]
        return self._primitive(function, [V(into, ATOM, kind), value], kind, kind).text

    def best_of(self, op: str, best: str, at: str, value: V, index: V, where: V | None) -> None:
        """One step of argmax or argmin: a later value replaces the best only where it is better, or the first NaN."""
        new = self._named(value, "v")
        sign = ">" if op == "argmax" else "<"
        better = f"({new.text} {sign} {best})"
        if value.type.is_float:
            better += f" | (({new.text} != {new.text}) & ({best} == {best}))"
        if where is not None:
            better = f"({better}) & {where.at(BIT_AND + 1)}"
        take = self.kernel.fresh("better")
        self.emit(f"{take} = {better}")
        self.emit(f"{best} = tl.where({take}, {new.text}, {best})")
        self.emit(f"{at} = tl.where({take}, {index.text}, {at})")

    # ------------------------------------------------------------ stores
    def result(self, stmt: Stmt) -> V:
        """The value of a statement at its own axes, for its store. It is not rounded yet, unless others read it."""
        index = tuple(Axis(a) for a in stmt.axes)
        if self.is_read(stmt.target) or stmt.over is not None:
            return self.load(stmt.target, index, None)
        return self.value(stmt.expr)

    def is_read(self, tensor: str) -> bool:
        """Whether some statement reads it; what nobody reads is rounded by its store alone."""
        return any(load.tensor == tensor for stmt in self.spec.body for load in stmt.loads())

    def store(self, tensor: str, index: tuple[Expr, ...], value: V) -> None:
        """Write a block of values (already rounded, or rounded by the store) to an operand or scratch buffer."""
        dtype = self.spec.dtype_of(tensor)
        pointer = self.address(tensor, index, self)
        masks = self.masks(index)
        rounded = self.stored(value, dtype)
        mask = f", mask={self._all(masks)}" if masks else ""
        if len(pointer) + len(rounded) + len(mask) > LINE and not rounded.isidentifier():
            name = self.kernel.fresh(tensor)
            self.emit(f"{name} = {rounded}")
            rounded = name
        self.emit(f"tl.store({pointer}, {rounded}{mask})")

    def stored(self, value: V, dtype: DType) -> str:
        """The value in a storage type."""
        value = self.to(value, dtype.compute) if not (dtype.is_integer and value.type.is_integer) else value
        if dtype is value.type or value.literal is not None:
            return value.text
        return f"{value.at(ATOM)}.to({TL[dtype.name]})"


def _encloses(text: str) -> bool:
    """Whether the first parenthesis closes at the end."""
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return n == len(text) - 1
    return False



"""KernelSpec: what one kernel computes, in index notation.

A spec is a list of single-assignment statements. Each defines a whole tensor over an iteration domain, given by
named axes; reading it aloud gives the loop nest:

    kernel linear_gelu(x: bf16[m=32,k=128], w: bf16[n=64,k], b: bf16[n]) -> (y: bf16[m,n]) {
      t: f32[m,n] = sum(k) x[m,k] * w[n,k]
      u: bf16[m,n] = t[m,n] + b[n]
      y[m,n] = gelu(u[m,n])
    }

One expression language serves values, indices and predicates. Indices are quasi-affine in the axes (floordiv and
mod by constants) or indirect (a load of an integer tensor). A load may carry a guard, `x[i-1 | 0.0]`: the value
where any index lies outside the tensor. Arithmetic happens in the compute type (kvc.dtypes); a store rounds to the
statement's dtype, so that each rounding eager does is a typed temporary and visible. Literals are weak: they take
the type of the other operand (an int literal alone is an index, a float literal alone f32).

Statements of a loop run step by step along one axis, and may read what the loop gave at the step before:

    kernel decay(x: f32[t=9,n=5], a: f32[n], h0: f32[n]) -> (h: f32[t,n]) {
      loop t {
        h[t,n] = a[n] * h[t-1,n | h0[n]] + x[t,n]
      }
    }

Everything is frozen and hashable. The printed text (kvc.text) is the identity of a spec after canonical renaming.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from kvc.dtypes import BOOL, F32, I64, DType, promote
from kvc.functions import FUNCTIONS

# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Expr:
    """Base of all expressions."""

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """The same node over other children."""
        return self

    # Operators build calls, so that the op table reads like index notation.
    def __add__(self, other: ExprLike) -> Expr:
        return Call("add", (self, lift(other)))

    def __radd__(self, other: ExprLike) -> Expr:
        return Call("add", (lift(other), self))

    def __sub__(self, other: ExprLike) -> Expr:
        return Call("sub", (self, lift(other)))

    def __rsub__(self, other: ExprLike) -> Expr:
        return Call("sub", (lift(other), self))

    def __mul__(self, other: ExprLike) -> Expr:
        return Call("mul", (self, lift(other)))

    def __rmul__(self, other: ExprLike) -> Expr:
        return Call("mul", (lift(other), self))

    def __truediv__(self, other: ExprLike) -> Expr:
        return Call("div", (self, lift(other)))

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return Call("div", (lift(other), self))

    def __floordiv__(self, other: ExprLike) -> Expr:
        return Call("floordiv", (self, lift(other)))

    def __mod__(self, other: ExprLike) -> Expr:
        return Call("mod", (self, lift(other)))

    def __neg__(self) -> Expr:
        return Call("neg", (self,))


ExprLike = Expr | int | float | bool


@dataclass(frozen=True)
class Const(Expr):
    """A literal. Weakly typed: bool, int or float by its Python type."""

    value: bool | int | float

    # True == 1 == 1.0 in Python; as expressions they differ.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and type(other.value) is type(self.value) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash((type(self.value).__name__, repr(self.value)))


@dataclass(frozen=True)
class Axis(Expr):
    """The current value of an iteration axis, an index in [0, size)."""

    name: str


@dataclass(frozen=True)
class Extent(Expr):
    """The size of an axis, printed `#name`; only symbolic sizes need it."""

    name: str


@dataclass(frozen=True)
class Load(Expr):
    """`tensor[index]`, or `tensor[index | other]`: `other` where any index is outside the tensor. It is a literal,
    except where a loop reads its step before: there it is the value before the first step, any expression."""

    tensor: str
    index: tuple[Expr, ...]
    other: Expr | None = None

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.index if self.other is None else (*self.index, self.other)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        rank = len(self.index)
        return Load(self.tensor, children[:rank], children[rank] if len(children) > rank else None)


@dataclass(frozen=True)
class Call(Expr):
    """A pointwise function of kvc.functions."""

    fn: str
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Call(self.fn, children)


@dataclass(frozen=True)
class Cast(Expr):
    """Conversion to `dtype`; for a narrow float that is a rounding, whose result computes as f32 again."""

    dtype: DType
    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Cast(self.dtype, children[0])


def lift(value: ExprLike) -> Expr:
    return value if isinstance(value, Expr) else Const(value)


def call(fn: str, *args: ExprLike) -> Call:
    """`call("exp", x)`; functions and arities are those of kvc.functions."""
    return Call(fn, tuple(lift(a) for a in args))


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of the tree, parents first."""
    yield expr
    for child in expr.children:
        yield from walk(child)


def transform(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuild bottom-up; `visit` sees each node after its children were rebuilt."""
    children = expr.children
    new = tuple(transform(child, visit) for child in children)
    return visit(expr if new == children else expr.rebuild(new))


def substitute(expr: Expr, axes: dict[str, Expr]) -> Expr:
    """Replace axes by expressions, simultaneously."""
    return transform(expr, lambda e: axes.get(e.name, e) if isinstance(e, Axis) else e)


def loads(expr: Expr) -> list[Load]:
    return [e for e in walk(expr) if isinstance(e, Load)]


def axes_of(expr: Expr) -> list[str]:
    """Names of the axes that the expression reads, in order of first appearance."""
    return list(dict.fromkeys(e.name for e in walk(expr) if isinstance(e, Axis)))


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Reduce:
    """`op(axes where cond) expr`; op is a row of kvc.functions.COMBINES. The accumulator has the statement's dtype
    (argmax/argmin: the i64 position along the single axis, the first among equals, NaN first)."""

    op: str
    axes: tuple[str, ...]
    where: Expr | None = None


@dataclass(frozen=True)
class Scan:
    """`scan op(axis [reverse] [exclusive]) expr`; the axis is one of the statement's own."""

    op: str
    axis: str
    reverse: bool = False
    exclusive: bool = False


@dataclass(frozen=True)
class Scatter:
    """`scatter op(axes -> index ; base) expr`: the target starts as `base` (over the statement's axes); then for each
    point of `axes`, target[index] = op(target[index], expr). `op` "set" keeps the last in row-major order."""

    op: str
    axes: tuple[str, ...]
    index: tuple[Expr, ...]
    base: Expr


@dataclass(frozen=True)
class Order:
    """`sort(axis [descending]) expr` and `argsort(...)`: stable order along one of the statement's axes."""

    kind: str  # "sort" | "argsort"
    axis: str
    descending: bool = False


Over = Reduce | Scan | Scatter | Order


@dataclass(frozen=True)
class Loop:
    """`loop axis [reverse] { ... }`: its statements run in order at each point of `axis`, from first to last (or back).
    Each has `axis` among its own axes and is pointwise or a reduction. It reads other statements of the loop at
    `axis`, where they stand before it, or any of them at the step before, `h[t-1,n | h0[n]]` (`t+1` in reverse). The
    axis is the loop's identity: all its statements stand together."""

    axis: str
    reverse: bool = False

    @property
    def back(self) -> int:
        """What leads from a step to the one before it."""
        return 1 if self.reverse else -1


@dataclass(frozen=True)
class Stmt:
    """Defines `target` over `axes`. `over`: how `expr` is combined (None: pointwise); `loop`: the loop it runs in."""

    target: str
    dtype: DType
    axes: tuple[str, ...]
    expr: Expr
    over: Over | None = None
    loop: Loop | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All expressions of the statement."""
        over = self.over
        if isinstance(over, Reduce) and over.where is not None:
            return (self.expr, over.where)
        if isinstance(over, Scatter):
            return (self.expr, *over.index, over.base)
        return (self.expr,)

    def map(self, fn: Callable[[Expr], Expr]) -> Stmt:
        """The statement with `fn` applied to each of its expressions."""
        over = self.over
        if isinstance(over, Reduce) and over.where is not None:
            over = replace(over, where=fn(over.where))
        elif isinstance(over, Scatter):
            over = replace(over, index=tuple(fn(e) for e in over.index), base=fn(over.base))
        return replace(self, expr=fn(self.expr), over=over)

    @property
    def inner_axes(self) -> tuple[str, ...]:
        """Axes bound by `over`, beside the statement's own."""
        return self.over.axes if isinstance(self.over, Reduce | Scatter) else ()

    @cached_property
    def _loads(self) -> tuple[Load, ...]:
        return tuple(load for root in self.roots for load in loads(root))

    def loads(self) -> list[Load]:
        """All loads of the statement, in order of the text; fusion asks for them again and again."""
        return list(self._loads)


# ---------------------------------------------------------------- the spec


@dataclass(frozen=True)
class Size:
    """The extent of a named axis: static (`size`), or symbolic with bounds, a hint and a known divisor."""

    name: str
    size: int | None
    low: int = 1
    high: int = 2**31
    hint: int = 0
    multiple: int = 1

    @property
    def typical(self) -> int:
        """A concrete extent to reason with: the size, or the hint."""
        return self.size if self.size is not None else (self.hint or self.low)


@dataclass(frozen=True)
class Operand:
    """A tensor argument: dims are axis names, strides are in elements (None: contiguous), align is in bytes.
    An output with `alias` is written into the buffer of that input."""

    name: str
    dtype: DType
    dims: tuple[str, ...]
    strides: tuple[int, ...] | None = None
    align: int = 16
    alias: str | None = None


@dataclass(frozen=True)
class KernelSpec:
    name: str
    sizes: tuple[Size, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    body: tuple[Stmt, ...]

    @cached_property
    def size(self) -> dict[str, Size]:
        return {s.name: s for s in self.sizes}

    @cached_property
    def operand(self) -> dict[str, Operand]:
        return {o.name: o for o in (*self.inputs, *self.outputs)}

    @cached_property
    def stmt(self) -> dict[str, Stmt]:
        return {s.target: s for s in self.body}

    @cached_property
    def loops(self) -> dict[Loop, tuple[Stmt, ...]]:
        """The statements of each loop, in order."""
        found: dict[Loop, tuple[Stmt, ...]] = {}
        for s in self.body:
            if s.loop is not None:
                found[s.loop] = (*found.get(s.loop, ()), s)
        return found

    @property
    def temps(self) -> tuple[Stmt, ...]:
        outputs = {o.name for o in self.outputs}
        return tuple(s for s in self.body if s.target not in outputs)

    @property
    def is_static(self) -> bool:
        return all(s.size is not None for s in self.sizes)

    def extent(self, axis: str) -> int:
        """The static extent of an axis (the hint, where it is symbolic)."""
        return self.size[axis].typical

    def dims_of(self, tensor: str) -> tuple[str, ...]:
        """Axis names that give the shape of an operand or temporary."""
        return self.operand[tensor].dims if tensor in self.operand else self.stmt[tensor].axes

    def shape_of(self, tensor: str) -> tuple[int, ...]:
        return tuple(self.extent(a) for a in self.dims_of(tensor))

    def dtype_of(self, tensor: str) -> DType:
        return self.operand[tensor].dtype if tensor in self.operand else self.stmt[tensor].dtype

    def strides_of(self, operand: str) -> tuple[int, ...]:
        """Strides in elements; contiguous ones are worked out from the (typical) sizes."""
        strides = self.operand[operand].strides if operand in self.operand else None
        return strides if strides is not None else contiguous(self.shape_of(operand))

    def type_of(self, expr: Expr) -> DType:
        """Compute type of an expression (kvc.dtypes.promote; literals are weak)."""
        weak = self._type(expr)
        return weak if isinstance(weak, DType) else {"bool": BOOL, "int": I64, "float": F32}[weak]

    def _type(self, expr: Expr) -> DType | str:
        """A dtype, or the kind of a weak literal: "bool" | "int" | "float"."""
        if isinstance(expr, Const):
            return type(expr.value).__name__
        if isinstance(expr, Axis | Extent):
            return I64
        if isinstance(expr, Load):
            return self.dtype_of(expr.tensor).compute
        if isinstance(expr, Cast):
            return expr.dtype.compute
        assert isinstance(expr, Call)
        function = FUNCTIONS[expr.fn]
        if function.result == "bool":
            return BOOL
        values = expr.args[1:] if function.result == "select" else expr.args
        joined = self._join([self._type(a) for a in values])
        if function.result == "float" and (
            joined in ("int", "bool") or (isinstance(joined, DType) and not joined.is_float)
        ):
            return F32
        return joined

    @staticmethod
    def _join(kinds: list[DType | str]) -> DType | str:
        strong = [k for k in kinds if isinstance(k, DType)]
        weak = [k for k in kinds if isinstance(k, str)]
        if not strong:
            return max(weak, key=("bool", "int", "float").index)
        result = strong[0]
        for k in strong[1:]:
            result = promote(result, k)
        if "float" in weak and not result.is_float:
            return F32
        if "int" in weak and result is BOOL:
            return I64
        return result

    @cached_property
    def hash(self) -> str:
        """Identity: the digest of the canonical text (names of the kernel, tensors and axes do not count)."""
        from kvc.canonical import canonical
        from kvc.text import print_kernel

        return hashlib.sha256(print_kernel(canonical(self)).encode()).hexdigest()[:16]


def needed(body: Iterable[Stmt], targets: Iterable[str]) -> set[str]:
    """All tensors that `targets` depend on, themselves included. Loops go round, so order does not matter."""
    stmts = {s.target: s for s in body}
    found = set(targets)
    queue = list(found)
    while queue:
        stmt = stmts.get(queue.pop())
        for load in stmt.loads() if stmt is not None else ():
            if load.tensor not in found:
                found.add(load.tensor)
                queue.append(load.tensor)
    return found


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))

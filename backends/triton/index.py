"""Indices: where the axes of a spec are in a kernel, and index expressions as text. See kvc.backends.triton.codegen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from kvc.dtypes import BOOL, I32, I64, DType, promote
from kvc.functions import COMBINES
from kvc.kernel import (
    Axis,
    Call,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Size,
    axes_of,
    substitute,
)
from kvc.simplify import IndexAlgebra

from .source import KernelText, is_far
from .spelling import ADD, ATOM, MUL, UNARY

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
    """A physical axis: its local, the mask that says where it is inside, whether it is a Python constant, for a
    block-shaped one the size that it spans ("BLOCK"), and whether the local has 64 bits for sure."""

    text: str
    strength: int = ATOM
    mask: str = ""
    constant: bool = False
    spans: str = ""
    i64: bool = False


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


class IndexScope(ABC):
    """Where axes are, and index expressions as text. `lines` is where that text goes; a loop's body has its own."""

    parent: Self | None

    def __init__(self, kernel: KernelText, parent: Self | None = None, lines: list[str] | None = None) -> None:
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
            self.far = is_far(kernel.spec)
        else:
            self.env = dict(parent.env)
            self.sizes = dict(parent.sizes)
            self.wide = parent.wide
            self.far = parent.far
        self.algebra = IndexAlgebra(self.sizes)

    # ------------------------------------------------------------ scopes
    @property
    def spec(self) -> KernelSpec:
        return self.kernel.spec

    def child(self, *, inline: bool = False) -> Self:
        """A scope inside this one: the body of a loop, or (inline) more bindings at the same place."""
        return type(self)(self.kernel, self, self.lines if inline else None)

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def close(self, header: str, child: IndexScope) -> None:
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

    def chain(self) -> list[Self]:
        """This scope and those around it, inmost first."""
        scope: Self | None = self
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

    def home(self, axes: Iterable[str]) -> Self:
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
            case Const(value) if 2**31 <= value < 2**32:
                # To Triton the literal is unsigned, and as an offset by itself negative.
                return V(f"tl.full((), {value}, tl.int64)", ATOM, I64)
            case Const(value):
                return V(repr(value), ATOM if value >= 0 else UNARY, self.integer, literal=int(value))
            case Axis(name):
                at = self.binding(name)
                if self.far and at.constant:
                    return V(f"tl.full((), {at.text}, tl.int64)", ATOM, I64, frozenset({name}))
                if self.far and not at.i64:
                    text = at.text if at.strength == ATOM else f"({at.text})"
                    return V(f"{text}.to(tl.int64)", ATOM, I64, frozenset({name}))
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
                return V(
                    f"tl.{fn}({left.text}, {right.text})", ATOM, promote(left.type, right.type), left.axes | right.axes
                )
        return self.resolved_value(expr)

    @abstractmethod
    def value(self, expr: Expr) -> V:
        """A block of values of an expression over axes of the spec, in its compute type."""

    def resolved_value(self, expr: Expr) -> V:
        """The value of an expression that is already over physical axes."""
        free = type(self)(self.kernel, self, self.lines)
        free.env = {}
        return free.value(expr)

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

"""Writes index notation: what an op's meaning is given with.

def linear(k, x, w, b=None):
    *rows, kk = k.axes_like(x)          # one fresh axis per dimension
    n = k.axis(w.shape[0], "n")
    t = k.define(x.dtype.compute, (*rows, n), x[*rows, kk] * w[n, kk], k.sum(kk))
    return k.define(x.dtype, (*rows, n), t[*rows, n] + b[n]) if b else k.round(t, x.dtype)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvc.dtypes import DType
from kvc.kernel import Axis, Expr, ExprLike, KernelSpec, Load, Loop, Operand, Over, Reduce, Size, Stmt, lift


@dataclass(frozen=True)
class Tensor:
    """A tensor being read: `t[i, j]`, or `t.at((i - 1, j), other=0.0)` with a guard value outside."""

    name: str
    dtype: DType
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Load:
        return self.at(index if isinstance(index, tuple) else (index,))

    def at(self, index: Sequence[ExprLike], other: ExprLike | None = None) -> Load:
        guard = lift(other) if other is not None else None
        return Load(self.name, tuple(lift(i) for i in index), guard)


class Builder:
    """Collects axes and statements. `prefix` names what the current op defines; `reserved` names are never made up."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self.reserved = reserved
        self.sizes: dict[str, Size] = {}
        self.stmts: list[Stmt] = []
        self.tensors: dict[str, Tensor] = {}
        self.prefix = "t"
        self._loop: Loop | None = None
        self._fresh: dict[str, int] = {}

    def _name(self, stem: str) -> str:
        n = self._fresh.get(stem, 0)
        while self._taken(name := f"{stem}{n}" if n else stem):
            n += 1
        self._fresh[stem] = n
        return name

    def _taken(self, name: str) -> bool:
        return name in self.tensors or name in self.sizes or name in self.reserved

    def axis(self, size: int, stem: str = "i") -> Axis:
        """A fresh axis of `size`."""
        name = self._name(stem)
        self.sizes[name] = Size(name, size)
        return Axis(name)

    def axes(self, shape: Sequence[int], stem: str = "i") -> tuple[Axis, ...]:
        return tuple(self.axis(n, stem) for n in shape)

    def axes_like(self, x: Tensor, stem: str = "i") -> tuple[Axis, ...]:
        return self.axes(x.shape, stem)

    def size_of(self, axis: Axis) -> int:
        size = self.sizes[axis.name].size
        assert size is not None
        return size

    def operand(self, name: str, dtype: DType, shape: Sequence[int]) -> Tensor:
        """Declare an input tensor; each dimension gets an axis of its own."""
        dims = tuple(a.name for a in self.axes(shape, "d"))
        self.tensors[name] = Tensor(name, dtype, dims, tuple(shape))
        return self.tensors[name]

    def define(
        self, dtype: DType, axes: Sequence[Axis], expr: ExprLike, over: Over | None = None, name: str = ""
    ) -> Tensor:
        """Add a statement; the result has one dimension per axis."""
        tensor = self.declare(dtype, axes, name)
        self.stmts.append(Stmt(tensor.name, dtype, tensor.dims, lift(expr), over, self._loop))
        return tensor

    def declare(self, dtype: DType, axes: Sequence[Axis], name: str = "") -> Tensor:
        """A tensor that a loop reads at its step before, ahead of its statement: `define` it later under its name."""
        name = name or self._name(self.prefix)
        dims = tuple(a.name for a in axes)
        self.tensors[name] = Tensor(name, dtype, dims, tuple(self.size_of(a) for a in axes))
        return self.tensors[name]

    @contextmanager
    def loop(self, axis: Axis, reverse: bool = False) -> Iterator[Loop]:
        """Statements defined inside run step by step along `axis`, each with it among its axes. The step before is read
        at `axis + loop.back`, with the value before the first step as guard."""
        assert self._loop is None, "loops do not nest"
        self._loop = Loop(axis.name, reverse)
        try:
            yield self._loop
        finally:
            self._loop = None

    def sum(self, *axes: Axis, where: Expr | None = None) -> Reduce:
        return self.reduce("sum", *axes, where=where)

    def reduce(self, op: str, *axes: Axis, where: Expr | None = None) -> Reduce:
        return Reduce(op, tuple(a.name for a in axes), where)

    def round(self, x: Tensor, dtype: DType) -> Tensor:
        """`x` in another dtype (itself, where it has it already)."""
        if x.dtype is dtype:
            return x
        axes = self.axes_like(x)
        return self.define(dtype, axes, x[axes])

    def spec(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> KernelSpec:
        """The statements so far as one spec with the given operands."""

        def operand(tensor: str) -> Operand:
            t = self.tensors[tensor]
            return Operand(tensor, t.dtype, t.dims)

        return KernelSpec(
            name,
            tuple(self.sizes.values()),
            tuple(operand(i) for i in inputs),
            tuple(operand(o) for o in outputs),
            tuple(self.stmts),
        )

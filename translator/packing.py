"""Contractions over operands that a launch ahead rewrites, so that the main loop only loads 16 bytes and multiplies.

An operand that is one guarded read of an input (a matrix of odd length, the padded input of a convolution, a weight
whose channels lie far apart) is copied into scratch with its padding written out, its guard gone and one summed axis
last, rounded up to whole packs. The contraction then reads neighbouring depths at neighbouring addresses. Several bf16
terms of an fp32 operand are copies of the same kind.

All of it is index notation: the copies are temporaries of the spec, and the rewritten spec means what the given one
does. Which launches write them is the backend's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvc.arch import ArchSpec
from kvc.dtypes import BF16, F32, DType
from kvc.kernel import Axis, Call, Cast, Const, Expr, KernelSpec, Load, Reduce, Size, Stmt, loads, substitute
from kvc.patterns import Contraction
from kvc.simplify import IndexAlgebra

TERMS = ("high", "middle", "low")  # of an fp32 number in bf16: 8 + 8 + 8 bits of significand
_COUNTS = {"bf16": 1, "f16": 2, "f32": 3}  # bf16 terms that hold a number exactly


def products(left: int, right: int) -> list[tuple[int, int]]:
    """Pairs of terms whose product counts, the smallest first; term i is about 2^(-8 i) of its number, and what lies
    below 2^-24 of the result is left out."""
    pairs = [(i, j) for i in range(left) for j in range(right) if i + j < len(TERMS)]
    return sorted(pairs, key=lambda pair: (-sum(pair), -pair[0]))


LAUNCH_US = 3.0  # between two launches that depend on each other
GATHER_OPS = 12  # instructions of a lane for an element that is loaded by itself: address, guards, load, LDS


def gather_us(arch: ArchSpec, batch: int, own: int, depth: int, other: int) -> float:
    """Microseconds to load an operand of `own` rows element by element, in tiles of 128 of the other side's rows."""
    rate = arch.cu_count * arch.simds_per_cu * 16 * arch.clock_ghz * 1e3  # lane-instructions
    return batch * own * depth * -(-other // 128) * GATHER_OPS / rate


def copies_us(arch: ArchSpec, packing: Packing) -> float:
    """Microseconds of the launch that writes the copies, at the bandwidth of the table."""
    spec, moved = packing.spec, 0
    for packed in packing.ahead:
        kind = spec.stmt[packed.targets[0]].dtype
        moved += math.prod(spec.extent(a) for a in packed.axes) * kind.bytes * len(packed.targets)
        moved += math.prod(spec.shape_of(packed.tensor)) * spec.dtype_of(packed.tensor).bytes
    return LAUNCH_US + moved / (arch.hbm_gbps * 1e3)


def lies_wide(spec: KernelSpec, load: Load, order: tuple[tuple[str, ...], ...], width: int) -> bool:
    """Whether a read moves in packs of `width` elements: its contiguous dim is read along the last axis of one of the
    groups of `order` (flattened axes that a tile's lanes run along), and every other stride is a multiple of a pack."""
    strides, last = spec.strides_of(load.tensor), {group[-1] for group in order if group}
    algebra = IndexAlgebra(spec.size)
    along = [n for n, s in enumerate(strides) if s == 1 and spec.shape_of(load.tensor)[n] > 1]
    if len(along) != 1:
        return False
    index = load.index[along[0]]
    aligned = all(
        s * factor % width == 0
        for n, (i, s) in enumerate(zip(load.index, strides, strict=True))
        for factor in (*algebra.linear(i).coefficients.values(), algebra.linear(i).constant)
        if n != along[0]
    )
    return isinstance(index, Axis) and index.name in last and spec.extent(index.name) % width == 0 and aligned


@dataclass(frozen=True)
class Packed:
    """One input as copies over `axes`, the depth last. `moved`: their order is not the input's own."""

    tensor: str
    axes: tuple[str, ...]
    targets: tuple[str, ...]
    moved: bool


@dataclass(frozen=True)
class Packing:
    """`spec`: with the copies as temporaries, which come first; `pattern`: the contraction of that spec. `a`, `b`: the
    reads of each term of an operand, one read where it has no terms."""

    spec: KernelSpec
    pattern: Contraction
    ahead: tuple[Packed, ...]
    a: tuple[Expr, ...]
    b: tuple[Expr, ...]


def pack(spec: KernelSpec, pattern: Contraction, sides: str, split: bool, width: int) -> Packing | str:
    """Copy the operands that `sides` names ("a", "b", "ab"), as bf16 terms with `split`; the depth is rounded up to
    `width` elements. Gives the reason (text) where an operand cannot be copied."""
    writer = _Writer(spec, pattern, split, width)
    depth = writer.depth()
    if depth is None:
        return "no summed axis is read by itself on both sides"
    if spec.extent(depth) % width and sides != "ab":
        return "only both operands together can be padded"
    try:
        return writer.packing(sides, depth)
    except _NoPacking as reason:
        return str(reason)


class _NoPacking(Exception):
    """The reason why an operand cannot be copied."""


class _Writer:
    def __init__(self, spec: KernelSpec, pattern: Contraction, split: bool, width: int) -> None:
        self.spec, self.pattern, self.split, self.width = spec, pattern, split, width
        self.algebra = IndexAlgebra(spec.size)
        self.sizes: list[Size] = []
        self.taken = {*spec.operand, *spec.stmt, *(s.name for s in spec.sizes)}
        self.copies: dict[str, tuple[Packed, list[Stmt], tuple[Expr, ...]]] = {}

    def depth(self) -> str | None:
        """The summed axis that goes last: the longest that both operands read by itself."""
        both = [e.index for e in (self.pattern.a, self.pattern.b) if isinstance(e, Load)]
        alone = [a for a in self.pattern.k if len(both) == 2 and all(Axis(a) in index for index in both)]
        return max(alone, key=self.spec.extent, default=None)

    def packing(self, sides: str, depth: str) -> Packing:
        spec, pattern = self.spec, self.pattern
        extent = -(-spec.extent(depth) // self.width) * self.width
        last = depth if extent == spec.extent(depth) else self._fresh(depth)
        if last != depth:
            self.sizes.append(Size(last, extent))
        reads: dict[str, tuple[Expr, ...]] = {"a": (pattern.a,), "b": (pattern.b,)}
        for side in sides:
            reads[side] = self._copied(reads[side][0], depth, last)
        k = (*(a for a in pattern.k if a != depth), last)
        over = Reduce("sum", k)
        stmt = replace(pattern.stmt, expr=Call("mul", (reads["a"][0], reads["b"][0])), over=over)
        ahead = [stmts for _, stmts, _ in self.copies.values()]
        body = (*(s for stmts in ahead for s in stmts), *(stmt if s is pattern.stmt else s for s in spec.body))
        whole = replace(spec, body=body, sizes=(*spec.sizes, *self.sizes))
        changed = replace(pattern, stmt=stmt, k=k, a=reads["a"][0], b=reads["b"][0])
        return Packing(whole, changed, tuple(p for p, _, _ in self.copies.values()), reads["a"], reads["b"])

    def _fresh(self, stem: str) -> str:
        name = f"{stem}_"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    # ------------------------------------------------------------ one operand
    def _copied(self, expr: Expr, depth: str, last: str) -> tuple[Expr, ...]:
        """The reads of an operand's copies in its place."""
        if not isinstance(expr, Load) or expr.tensor not in {o.name for o in self.spec.inputs}:
            raise _NoPacking("an operand is more than a read of an input")
        if expr.other is not None and expr.other != Const(0.0):
            raise _NoPacking("an operand is padded with another value than zero")
        axes, source, index = self._places(expr, depth, last)
        kind = self.spec.dtype_of(expr.tensor)
        if expr.tensor in self.copies:  # the same tensor on both sides: one copy serves where it is read alike
            packed, stmts, _ = self.copies[expr.tensor]
            if self._alike(packed, axes, stmts, source, expr):
                return tuple(Load(t, index) for t in packed.targets)
            raise _NoPacking(f"{expr.tensor} is read in two ways")
        value: Expr = Load(expr.tensor, source, Const(0.0) if last != depth else expr.other)
        stmts = list(self._statements(expr.tensor, axes, value, kind))
        targets = tuple(s.target for s in stmts)
        moved = expr.index[-1] != Axis(depth)
        self.copies[expr.tensor] = (Packed(expr.tensor, axes, targets, moved), stmts, index)
        return tuple(Load(t, index) for t in targets)

    def _alike(
        self, packed: Packed, axes: tuple[str, ...], stmts: list[Stmt], source: tuple[Expr, ...], expr: Load
    ) -> bool:
        """Whether a copy that was made for the other side holds the same elements in the same places."""
        extents = [self._extent(a) for a in packed.axes] == [self._extent(a) for a in axes]
        renamed: dict[str, Expr] = {old: Axis(new) for old, new in zip(axes, packed.axes, strict=True)}
        first = next(e for e in loads(stmts[0].expr) if e.tensor == expr.tensor)
        moved = tuple(substitute(i, renamed) for i in source)
        return extents and first.index == moved and (first.other is None) == (expr.other is None)

    def _extent(self, axis: str) -> int:
        own = next((s for s in self.sizes if s.name == axis), None)
        return own.typical if own is not None else self.spec.extent(axis)

    def _places(self, load: Load, depth: str, last: str) -> tuple[tuple[str, ...], tuple[Expr, ...], tuple[Expr, ...]]:
        """The copy's axes (the depth last), where in the input each lies, and where the contraction reads the copy."""
        axes: list[str] = []
        source: list[Expr] = []
        index: list[Expr] = []
        deep = None
        for n, i in enumerate(load.index):
            if i == Axis(depth) and deep is None:
                deep = n
                source.append(Axis(last))
                continue
            linear = self.algebra.linear(i)
            if not all(isinstance(a, Axis) for a in linear.coefficients) or Axis(depth) in linear.coefficients:
                raise _NoPacking(f"{load.tensor} is read at computed places")
            low, high = self.algebra.interval(i)
            alone = isinstance(i, Axis) and i.name not in axes
            name = i.name if alone and isinstance(i, Axis) else self._fresh(f"{load.tensor}_{n}")
            if not alone:
                self.sizes.append(Size(name, int(high - low) + 1))
            axes.append(name)
            source.append(Axis(name) if not low else self.algebra.index(Axis(name) + int(low)))
            index.append(Axis(name) if alone else self.algebra.index(i - int(low)))
        if deep is None:
            raise _NoPacking(f"{load.tensor} is not read along {depth}")
        return (*axes, last), tuple(source), (*index, Axis(last))

    def _statements(self, tensor: str, axes: tuple[str, ...], value: Expr, kind: DType) -> Iterator[Stmt]:
        """The copies: one as it is, or terms, each of which rounds what the ones before it leave of the number."""
        if not self.split:
            yield Stmt(self._name(f"{tensor}_packed"), kind, axes, value)
            return
        rest = value if kind is F32 else Cast(F32, value)
        count = _COUNTS[kind.name]
        for term in TERMS[:count]:
            target = self._name(f"{tensor}_{term}" if count > 1 else f"{tensor}_packed")
            yield Stmt(target, BF16, axes, rest)
            rest = rest - Load(target, tuple(Axis(a) for a in axes))

    def _name(self, stem: str) -> str:
        while stem in self.taken:
            stem += "_"
        self.taken.add(stem)
        return stem


__all__ = ["LAUNCH_US", "TERMS", "Packed", "Packing", "copies_us", "gather_us", "lies_wide", "pack", "products"]

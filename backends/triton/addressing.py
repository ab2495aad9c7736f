"""Which tensors may be addressed by buffer instructions: those whose byte offsets never pass through a negative number.

Where a pointer is declared to span 32 bits, Triton addresses it by buffer instructions. LLVM puts the constant part of
an offset into the instruction's own offset field, and the hardware takes what is left for out of range where that is
negative, even though the sum is not: a load gives 0, a store is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvc.kernel import Call, Cast, Const, Expr, KernelSpec, Load, Scatter, walk
from kvc.simplify import IndexAlgebra

_MOST = 16  # statements between an index and what it is made of; longer chains count as shifted


def offsets_stay_positive(spec: KernelSpec, tensor: str) -> bool:
    """Whether no index into the tensor has a part that may be negative beside a constant that makes up for it: one that
    falls while an axis grows, as in a flip, or that adds to a value, as positions that count from -1 do."""
    if any(loop.reverse for loop in spec.loops):
        return False
    algebra, sums = IndexAlgebra(spec.size), _Sums(spec)
    return not any(
        any(c < 0 for _, c in algebra.linear(index).terms) or sums.shifts_data(index)
        for index in _indices(spec, tensor)
    )


def _indices(spec: KernelSpec, tensor: str) -> Iterator[Expr]:
    """Everything that indexes a dim of the tensor, in loads and scatters."""
    for stmt in spec.body:
        for load in stmt.loads():
            if load.tensor == tensor:
                yield from load.index
        if isinstance(stmt.over, Scatter) and stmt.target == tensor:
            yield from stmt.over.index


class _Sums:
    """Indices as sums, looked for through the statements that they are made in: code for them is one sum. What stands
    under other functions (a choice, a division, a conversion from float) is a value as it is."""

    def __init__(self, spec: KernelSpec) -> None:
        self.defined = {s.target: s for s in spec.body if s.over is None and s.loop is None}
        self.floats = {t for t in (*spec.operand, *(s.target for s in spec.body)) if spec.dtype_of(t).is_float}

    def shifts_data(self, index: Expr) -> bool:
        """Whether an index is a value read from memory plus a constant."""
        terms, constant = self.of(index, _MOST)
        return constant and any(isinstance(e, Load) for t in terms for e in walk(t))

    def of(self, expr: Expr, depth: int) -> tuple[list[Expr], bool]:
        """The terms of a sum of products with constants, and whether a constant that is not 0 is among them."""
        match expr:
            case Const(value):
                return [], bool(value)
            case Cast(_, arg) if not any(isinstance(e, Load) and e.tensor in self.floats for e in walk(arg)):
                return self.of(arg, depth)
            case Load(tensor) if tensor in self.defined:
                return self.of(self.defined[tensor].expr, depth - 1) if depth else ([expr], True)
            case Call("add" | "sub", args):
                return self._joined(args, depth)
            case Call("mul", args) if any(isinstance(a, Const) for a in args):
                return self._joined([a for a in args if not isinstance(a, Const)], depth)
        return [expr], False

    def _joined(self, args: Sequence[Expr], depth: int) -> tuple[list[Expr], bool]:
        parts = [self.of(a, depth) for a in args]
        return [t for terms, _ in parts for t in terms], any(constant for _, constant in parts)

"""What the files of the op table share: type promotion, broadcasting, dims, and short ways to write samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvc.builder import Builder, Tensor
from kvc.diagnostics import KvcError
from kvc.dtypes import BOOL, DTYPES, F32, I8, I16, I64, U8, DType
from kvc.kernel import Axis, Call, Cast, Const, Expr, ExprLike, call, lift
from kvc.ops import Sample

Scalar = bool | int | float

# ---------------------------------------------------------------- samples


def t(*shape: int, dtype: str = "f32") -> tuple[str, tuple[int, ...]]:
    """A float tensor argument of a sample (or one of another dtype)."""
    return dtype, shape


def ints(*shape: int, below: int = 5, dtype: str = "i64") -> tuple[str, tuple[int, ...], int]:
    """An integer argument of a sample with values in [0, below)."""
    return dtype, shape, below


def offsets(*shape: int, below: int = 5, dtype: str = "i64") -> tuple[str, tuple[int, ...], int, str]:
    """An integer argument of a sample that counts up from 0 along its last dim: where groups begin."""
    return dtype, shape, below, "offsets"


def positive(*shape: int) -> tuple[str, tuple[int, ...], str]:
    """A float argument of a sample that must be above zero (a variance, a probability)."""
    return "f32", shape, "positive"


def bools(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "bool", shape


def sample(*args: Any, **attrs: Any) -> Sample:
    """A sample; dtypes among its literals are written by name."""
    literal = {n: DTYPES.get(v, v) if isinstance(v, str) else v for n, v in attrs.items()}
    return Sample(tuple(DTYPES.get(a, a) if isinstance(a, str) else a for a in args), tuple(literal.items()))


# ---------------------------------------------------------------- refusal


def unsupported(reason: str) -> KvcError:
    """An op used in a way that has no meaning here: the node becomes a reported fallback."""
    return KvcError("KVC0203", reason)


# ---------------------------------------------------------------- dtypes


def promote_types(a: DType, b: DType) -> DType:
    """`torch.promote_types`: bool < integers < floats; f16 with bf16 gives f32, u8 with i8 gives i16."""
    if a is b:
        return a
    if a is BOOL or b is BOOL:
        return b if a is BOOL else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        if a.bits == b.bits:
            return F32
        return a if a.bits > b.bits else b
    if U8 in (a, b):
        signed = b if a is U8 else a
        return I16 if signed is I8 else signed
    return a if a.bits > b.bits else b


def _scalar_type(value: Scalar) -> DType:
    if isinstance(value, bool):
        return BOOL
    return I64 if isinstance(value, int) else F32


def result_dtype(*args: Tensor | Scalar) -> DType:
    """`torch.result_type`: tensors with dims decide, then 0-dim tensors, then Python scalars; a lower group counts
    only where it is of a higher kind (bool < int < float)."""
    groups: list[list[DType]] = [[], [], []]
    for arg in args:
        if isinstance(arg, Tensor):
            groups[0 if arg.rank else 1].append(arg.dtype)
        else:
            groups[2].append(_scalar_type(arg))
    result: DType | None = None
    for group in groups:
        if not group:
            continue
        lower = group[0]
        for dtype in group[1:]:
            lower = promote_types(lower, dtype)
        if result is None:
            result = lower
        elif not result.is_float and (result is BOOL or lower.is_float):
            result = promote_types(result, lower)
    assert result is not None
    return result


def float_dtype(dtype: DType) -> DType:
    """The dtype of a floating-point function of a value: itself, or torch's default for integers."""
    return dtype if dtype.is_float else F32


# ---------------------------------------------------------------- shapes


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all broadcast to (right-aligned)."""
    rank = max((len(s) for s in shapes), default=0)
    result = []
    for i in range(rank):
        extents = {s[i - rank + len(s)] for s in shapes if i - rank + len(s) >= 0} - {1}
        if len(extents) > 1:
            raise KvcError("KVC0302", f"shapes {', '.join(map(str, shapes))} do not broadcast")
        result.append(extents.pop() if extents else 1)
    return tuple(result)


def at(x: Tensor, axes: Sequence[Axis], shape: Sequence[int]) -> Expr:
    """`x` read over `axes` of extents `shape`, broadcast and right-aligned."""
    offset = len(axes) - x.rank
    return x[tuple(axes[offset + i] if extent == shape[offset + i] else Const(0) for i, extent in enumerate(x.shape))]


def dim_of(x: Tensor, dim: int, extra: int = 0) -> int:
    """A possibly negative dim as a position; `extra` counts dims that the op adds."""
    rank = max(x.rank + extra, 1)
    return dim + rank if dim < 0 else dim


def dims_of(x: Tensor, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """Dims to reduce, sorted; none given means all."""
    if isinstance(dims, int):
        dims = (dims,)
    if not dims:
        return tuple(range(x.rank))
    return tuple(sorted({dim_of(x, d) for d in dims}))


def pair(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each of `rank` spatial dims."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def clip(value: ExprLike, low: int, high: int) -> Expr:
    """`value` kept within [low, high], in a form whose bounds the checker sees."""
    return call("minimum", call("maximum", value, low), high)


def flatten(axes: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major position of a point."""
    result: Expr = Const(0)
    for axis, extent in zip(axes, shape, strict=True):
        result = axis if result == Const(0) else result * extent + axis
    return result


def wrap(index: Expr, extent: int) -> Expr:
    """An index that counts from the end where it is negative."""
    return call("where", call("lt", index, 0), index + extent, index)


# ---------------------------------------------------------------- pointwise


def read(arg: Tensor | Scalar, axes: Sequence[Axis], shape: Sequence[int], common: DType | None) -> Expr:
    """An argument of a pointwise op at a point; torch first converts tensors to the common dtype, which rounds
    where that is a narrow float."""
    if not isinstance(arg, Tensor):
        return Const(arg)
    value = at(arg, axes, shape)
    narrows = common is not None and common.is_float and common.bits < 32 and arg.dtype is not common
    return Cast(common, value) if narrows and common is not None else value


def pointwise(
    k: Builder, fn: Callable[..., ExprLike], *args: Tensor | Scalar, dtype: DType | None = None, floats: bool = False
) -> Tensor:
    """`fn` of the arguments, broadcast; the result has the promoted dtype (`floats`: at least a float), or `dtype`
    for ops such as comparisons."""
    common = result_dtype(*args)
    if floats:
        common = float_dtype(common)
    shape = broadcast(*(a.shape for a in args if isinstance(a, Tensor)))
    axes = k.axes(shape)
    expr = lift(fn(*(read(a, axes, shape, common) for a in args)))
    return k.define(dtype or common, axes, expr)


def reduced(
    k: Builder, x: Tensor, dims: Sequence[int], op: str, dtype: DType, fn: Callable[[Expr], Expr] = lambda e: e
) -> tuple[Tensor, list[Axis]]:
    """`op` of fn(x) over `dims`, accumulated in `dtype`; the result keeps the other dims, whose fresh axes are
    returned too."""
    axes = list(k.axes_like(x))
    kept = [a for i, a in enumerate(axes) if i not in dims]
    inner = [axes[i] for i in dims]
    over = k.reduce(op, *inner) if inner else None
    return k.define(dtype, kept, fn(x[tuple(axes)]), over), kept


def keep(k: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    """`x` with dims of extent 1 put in at `dims` (positions in the result)."""
    if not dims:
        return x
    axes: list[Axis] = []
    index: list[Axis] = []
    source = iter(x.shape)
    for position in range(x.rank + len(dims)):
        axis = k.axis(1 if position in dims else next(source))
        axes.append(axis)
        if position not in dims:
            index.append(axis)
    return k.define(x.dtype, axes, x[tuple(index)])


def finish(k: Builder, x: Tensor, dims: Sequence[int], keepdim: bool, dtype: DType) -> Tensor:
    """The end of a reduction: round to the result's dtype, put the reduced dims back where asked."""
    rounded = k.round(x, dtype)
    return keep(k, rounded, dims) if keepdim else rounded


def terms(exprs: Sequence[Expr], fn: str) -> Expr:
    """A left fold of a binary function."""
    result = exprs[0]
    for expr in exprs[1:]:
        result = Call(fn, (result, expr))
    return result

"""Views: each is one statement that only loads, so that partition folds it into the accesses of its reader."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Const, Expr, call
from kvc.ops import op
from kvc.optable._common import dim_of, dims_of, pair, sample, t, unsupported


def _groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of one size into the shortest runs of dims with equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        a: list[int] = []
        b: list[int] = []
        left = right = 1
        while True:
            if left <= right and i < len(source) and (not a or left < right or source[i] == 1):
                a.append(i)
                left *= source[i]
                i += 1
            elif j < len(target) and (right < left or not b or target[j] == 1):
                b.append(j)
                right *= target[j]
                j += 1
            else:
                break
        groups.append((a, b))
        if not a and not b:
            raise unsupported(f"shape {tuple(source)} does not reshape to {tuple(target)}")
    return groups


def reshape_index(axes: Sequence[Axis], target: Sequence[int], source: Sequence[int]) -> tuple[Expr, ...]:
    """Where the point `axes` of a tensor of shape `target` lies in its row-major reshape from `source`."""
    index: list[Expr] = [Const(0)] * len(source)
    for sources, targets in _groups(source, target):
        wide = [j for j in targets if target[j] != 1]
        flat: Expr = Const(0)
        for n, j in enumerate(wide):
            flat = axes[j] if n == 0 else flat * target[j] + axes[j]
        live = [i for i in sources if source[i] != 1]
        step = math.prod(source[i] for i in live)
        for n, i in enumerate(live):
            step //= source[i]
            part = flat if step == 1 else flat // step
            index[i] = part if n == 0 else part % source[i]
    return tuple(index)


def reshaped(k: Builder, x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x` under another shape of the same size; one extent may be -1."""
    known = math.prod(n for n in shape if n >= 0)
    size = math.prod(x.shape)
    full = tuple(n if n >= 0 else size // max(known, 1) for n in shape)
    axes = k.axes(full)
    if size == 0:
        return k.define(x.dtype, axes, x.at([0] * x.rank, other=0))
    return k.define(x.dtype, axes, x[reshape_index(axes, full, x.shape)])


_RESHAPES = (
    sample(t(6, 5), (30,)),
    sample(t(6, 5), (2, 3, 5)),
    sample(t(4, 6), (8, 3)),
    sample(t(2, 3, 4), (6, -1)),
    sample(t(2, 3, 4), (4, 3, 2)),
    sample(t(1), ()),
    sample(t(), (1, 1)),
    sample(t(2, 1, 3), (1, 2, 3, 1)),
    sample(t(5, 7), (5, 7)),
    sample(t(1, 1, 6), (2, 3)),
)


@op(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "_reshape_copy.default",
    "view_copy.default",
    samples=_RESHAPES,
)
def view(k: Builder, self: Tensor, size: Sequence[int] = (), shape: Sequence[int] = ()) -> Tensor:
    """Row-major reshape (`shape` is reshape's name for `size`)."""
    return reshaped(k, self, size or shape)


@op("flatten.using_ints", samples=(sample(t(2, 3, 4)), sample(t(2, 3, 4), 1), sample(t(2, 3, 4), 0, 1), sample(t())))
def flatten(k: Builder, self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if self.rank == 0:
        return reshaped(k, self, (1,))
    a, b = dim_of(self, start_dim), dim_of(self, end_dim)
    return reshaped(k, self, (*self.shape[:a], math.prod(self.shape[a : b + 1]), *self.shape[b + 1 :]))


@op("unflatten.int", samples=(sample(t(2, 12), 1, (3, 4)), sample(t(12, 2), 0, (-1, 4))))
def unflatten(k: Builder, self: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    d = dim_of(self, dim)
    known = math.prod(n for n in sizes if n >= 0)
    full = [n if n >= 0 else self.shape[d] // known for n in sizes]
    return reshaped(k, self, (*self.shape[:d], *full, *self.shape[d + 1 :]))


def permuted(k: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    axes = k.axes(tuple(x.shape[d] for d in order))
    index: list[Expr] = [Const(0)] * x.rank
    for axis, d in zip(axes, order, strict=True):
        index[d] = axis
    return k.define(x.dtype, axes, x[tuple(index)])


@op(
    "permute.default",
    "permute_copy.default",
    samples=(sample(t(2, 3, 5), (2, 0, 1)), sample(t(2, 3), (-1, 0)), sample(t(), ())),
)
def permute(k: Builder, self: Tensor, dims: Sequence[int]) -> Tensor:
    return permuted(k, self, [dim_of(self, d) for d in dims])


@op(
    "transpose.int",
    "transpose_copy.int",
    samples=(sample(t(2, 3, 5), 0, 2), sample(t(2, 3, 5), -1, -2), sample(t(), 0, 0)),
)
def transpose(k: Builder, self: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(self.rank))
    if order:
        a, b = dim_of(self, dim0), dim_of(self, dim1)
        order[a], order[b] = order[b], order[a]
    return permuted(k, self, order)


@op("swapaxes.default", samples=(sample(t(2, 3, 5), 0, 2),))
def swapaxes(k: Builder, self: Tensor, axis0: int, axis1: int) -> Tensor:
    return transpose(k, self, axis0, axis1)


@op(
    "t.default", "numpy_T.default", "mT.default", "t_copy.default", samples=(sample(t(2, 3)), sample(t(4)), sample(t()))
)
def t_(k: Builder, self: Tensor) -> Tensor:
    return permuted(k, self, range(self.rank)[::-1])


@op("movedim.int", "movedim.intlist", samples=(sample(t(2, 3, 5), 0, 2), sample(t(2, 3, 5, 4), (0, 1), (-1, -2))))
def movedim(k: Builder, self: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    src = [dim_of(self, d) for d in pair(source, 1)]
    dst = [dim_of(self, d) for d in pair(destination, 1)]
    moved = dict(zip(dst, src, strict=True))
    rest = iter(d for d in range(self.rank) if d not in src)
    return permuted(k, self, [moved[d] if d in moved else next(rest) for d in range(self.rank)])


def expanded(k: Builder, x: Tensor, shape: Sequence[int]) -> Tensor:
    extra = len(shape) - x.rank
    full = tuple(x.shape[i - extra] if n == -1 else n for i, n in enumerate(shape))
    axes = k.axes(full)
    index = tuple(Const(0) if n == 1 else axes[extra + i] for i, n in enumerate(x.shape))
    return k.define(x.dtype, axes, x[index])


@op(
    "expand.default",
    "broadcast_to.default",
    "expand_copy.default",
    samples=(sample(t(3, 1), (3, 5)), sample(t(3, 1), (2, -1, 4)), sample(t(), (2, 3)), sample(t(3), (3,))),
)
def expand(k: Builder, self: Tensor, size: Sequence[int]) -> Tensor:
    return expanded(k, self, size)


@op("expand_as.default", samples=(sample(t(3, 1), t(2, 3, 5)),))
def expand_as(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    return expanded(k, self, other.shape)


@op("view_as.default", "reshape_as.default", samples=(sample(t(6, 5), t(2, 15)),))
def view_as(k: Builder, self: Tensor, other: Tensor) -> Tensor:
    return reshaped(k, self, other.shape)


@op("broadcast_tensors.default", samples=(sample((t(3, 1), t(5))),))
def broadcast_tensors(k: Builder, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    from kvc.optable._common import broadcast

    shape = broadcast(*(x.shape for x in tensors))
    return tuple(expanded(k, x, shape) for x in tensors)


@op(
    "unsqueeze.default",
    "unsqueeze_copy.default",
    samples=(sample(t(3, 5), 0), sample(t(3, 5), -1), sample(t(3, 5), 1), sample(t(), 0)),
)
def unsqueeze(k: Builder, self: Tensor, dim: int) -> Tensor:
    d = dim if dim >= 0 else dim + self.rank + 1
    axes = k.axes((*self.shape[:d], 1, *self.shape[d:]))
    return k.define(self.dtype, axes, self[(*axes[:d], *axes[d + 1 :])])


def _squeezed(k: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    gone = {d for d in dims if x.shape[d] == 1}
    axes = k.axes(tuple(n for i, n in enumerate(x.shape) if i not in gone))
    rest = iter(axes)
    return k.define(x.dtype, axes, x[tuple(Const(0) if i in gone else next(rest) for i in range(x.rank))])


@op("squeeze.default", "squeeze_copy.default", samples=(sample(t(1, 3, 1, 5)), sample(t(2, 3)), sample(t(1, 1))))
def squeeze(k: Builder, self: Tensor) -> Tensor:
    return _squeezed(k, self, range(self.rank))


@op(
    "squeeze.dim",
    "squeeze.dims",
    name="squeeze_dims",
    samples=(
        sample(t(1, 3, 1), 0),
        sample(t(1, 3, 1), -1),
        sample(t(1, 3, 1), 1),
        sample(t(1, 3, 1), (0, 2)),
        sample(t(), 0),
    ),
)
def squeeze_dims(k: Builder, self: Tensor, dim: int | Sequence[int]) -> Tensor:
    if self.rank == 0:
        return self
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return _squeezed(k, self, [dim_of(self, d) for d in dims])


@op("select.int", "select_copy.int", samples=(sample(t(3, 5), 0, 1), sample(t(3, 5), -1, -2), sample(t(4), 0, 3)))
def select(k: Builder, self: Tensor, dim: int, index: int) -> Tensor:
    d = dim_of(self, dim)
    at = index + self.shape[d] if index < 0 else index
    axes = k.axes((*self.shape[:d], *self.shape[d + 1 :]))
    return k.define(self.dtype, axes, self[(*axes[:d], Const(at), *axes[d:])])


def slice_bounds(extent: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """First index and number of indices of a Python slice."""
    indices = range(*slice(start, end, step).indices(extent))
    return indices.start, len(indices)


def sliced(k: Builder, x: Tensor, dim: int, start: int, length: int, step: int = 1) -> Tensor:
    axes = k.axes(tuple(length if i == dim else n for i, n in enumerate(x.shape)))
    index: list[Expr] = list(axes)
    if step != 1:
        index[dim] = axes[dim] * step
    if start:
        index[dim] = index[dim] + start
    if math.prod(a for a in (length, *x.shape)) == 0:
        return k.define(x.dtype, axes, x.at(index, other=0))
    return k.define(x.dtype, axes, x[tuple(index)])


@op(
    "slice.Tensor",
    "slice_copy.Tensor",
    samples=(
        sample(t(7, 5), 0, 1, 6),
        sample(t(7, 5), 1, None, None),
        sample(t(7, 5), 0, -3, 2**63 - 1),
        sample(t(9), 0, 1, 8, 3),
        sample(t(3, 9), -1, 0, -2),
    ),
)
def slice_(
    k: Builder, self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    d = dim_of(self, dim)
    first, length = slice_bounds(self.shape[d], start, end, step)
    return sliced(k, self, d, first, length, step)


@op("narrow.default", samples=(sample(t(7, 5), 0, 1, 3), sample(t(7, 5), -1, -2, 2)))
def narrow(k: Builder, self: Tensor, dim: int, start: int, length: int) -> Tensor:
    d = dim_of(self, dim)
    return sliced(k, self, d, start + self.shape[d] if start < 0 else start, length)


def _pieces(k: Builder, x: Tensor, dim: int, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return tuple(sliced(k, x, dim, start, n) for start, n in zip(starts, lengths, strict=True))


def _even(extent: int, size: int) -> list[int]:
    return [min(size, extent - start) for start in range(0, extent, size)] or [0]


@op(
    "split.Tensor",
    "split.sizes",
    "split_with_sizes.default",
    "unsafe_split.Tensor",
    "split_with_sizes_copy.default",
    samples=(sample(t(7, 5), 3), sample(t(4, 6), 2, -1), sample(t(7, 2), (3, 4))),
)
def split(
    k: Builder, self: Tensor, split_size: int | Sequence[int] = 1, dim: int = 0, split_sizes: Sequence[int] = ()
) -> tuple[Tensor, ...]:
    """Pieces of one size (the last may be smaller), or of the sizes given."""
    d = dim_of(self, dim)
    sizes = split_sizes or split_size
    return _pieces(k, self, d, _even(self.shape[d], sizes) if isinstance(sizes, int) else sizes)


@op("chunk.default", "unsafe_chunk.default", samples=(sample(t(7, 5), 3), sample(t(2, 6), 3, -1)))
def chunk(k: Builder, self: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    d = dim_of(self, dim)
    return _pieces(k, self, d, _even(self.shape[d], -(-self.shape[d] // chunks)))


@op("tensor_split.sections", samples=(sample(t(7, 5), 3),))
def tensor_split(k: Builder, self: Tensor, sections: int, dim: int = 0) -> tuple[Tensor, ...]:
    d = dim_of(self, dim)
    base, extra = divmod(self.shape[d], sections)
    return _pieces(k, self, d, [base + (i < extra) for i in range(sections)])


@op("unbind.int", "unbind_copy.int", samples=(sample(t(3, 5)), sample(t(2, 3, 4), -1)))
def unbind(k: Builder, self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    d = dim_of(self, dim)
    return tuple(select(k, self, d, i) for i in range(self.shape[d]))


@op("repeat.default", samples=(sample(t(3, 5), (2, 1)), sample(t(3), (2, 2)), sample(t(2, 3), (2, 1, 3))))
def repeat(k: Builder, self: Tensor, repeats: Sequence[int]) -> Tensor:
    extra = len(repeats) - self.rank
    shape = (*repeats[:extra], *(n * r for n, r in zip(self.shape, repeats[extra:], strict=True)))
    axes = k.axes(shape)
    index = [a if r == 1 else a % n for a, n, r in zip(axes[extra:], self.shape, repeats[extra:], strict=True)]
    return k.define(self.dtype, axes, self[tuple(index)])


@op("repeat_interleave.self_int", samples=(sample(t(3, 5), 2, 1), sample(t(3, 5), 3, 0), sample(t(2, 3), 2)))
def repeat_interleave(
    k: Builder, self: Tensor, repeats: int, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    if dim is None:
        return repeat_interleave(k, reshaped(k, self, (math.prod(self.shape),)), repeats, 0)
    d = dim_of(self, dim)
    axes = k.axes(tuple(n * repeats if i == d else n for i, n in enumerate(self.shape)))
    return k.define(self.dtype, axes, self[tuple(a // repeats if i == d else a for i, a in enumerate(axes))])


@op("flip.default", samples=(sample(t(3, 5), (0,)), sample(t(3, 5), (0, -1)), sample(t(4), (0,))))
def flip(k: Builder, self: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = set(dims_of(self, dims)) if dims else set()
    axes = k.axes_like(self)
    index = [self.shape[i] - 1 - a if i in flipped else a for i, a in enumerate(axes)]
    return k.define(self.dtype, axes, self[tuple(index)])


@op("roll.default", samples=(sample(t(3, 5), (2,), (1,)), sample(t(3, 5), (-1, 2), (0, 1)), sample(t(3, 5), (4,))))
def roll(k: Builder, self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        flat = reshaped(k, self, (math.prod(self.shape),))
        return reshaped(k, roll(k, flat, shifts, (0,)), self.shape)
    axes = k.axes_like(self)
    index: list[Expr] = list(axes)
    for shift, dim in zip(pair(shifts, 1), pair(dims, 1), strict=True):
        d = dim_of(self, dim)
        index[d] = (index[d] + (-shift % self.shape[d])) % self.shape[d]
    return k.define(self.dtype, axes, self[tuple(index)])


def _triangle(k: Builder, x: Tensor, keep: str, diagonal: int) -> Tensor:
    axes = k.axes_like(x)
    kept = call(keep, axes[-1], axes[-2] + diagonal)
    zero: float | int = 0.0 if x.dtype.is_float else 0
    if x.dtype.kind == "bool":
        return k.define(x.dtype, axes, call("and", kept, x[axes]))
    return k.define(x.dtype, axes, call("where", kept, x[axes], zero))


@op("tril.default", samples=(sample(t(5, 7)), sample(t(2, 5, 5), 1), sample(t(4, 4), -1)))
def tril(k: Builder, self: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(k, self, "le", diagonal)


@op("triu.default", samples=(sample(t(5, 7)), sample(t(2, 5, 5), 1), sample(t(4, 4), -1)))
def triu(k: Builder, self: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(k, self, "ge", diagonal)


@op(
    "diagonal.default",
    "diagonal_copy.default",
    samples=(sample(t(5, 7)), sample(t(5, 7), 2), sample(t(2, 5, 4), -1, 1, 2)),
)
def diagonal(k: Builder, self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two dims, as the last dim of the result."""
    a, b = dim_of(self, dim1), dim_of(self, dim2)
    down, right = max(-offset, 0), max(offset, 0)
    length = min(self.shape[a] - down, self.shape[b] - right)
    axes = k.axes((*(n for i, n in enumerate(self.shape) if i not in (a, b)), length))
    rest = iter(axes[:-1])
    last = axes[-1]
    at = {a: last + down if down else last, b: last + right if right else last}
    return k.define(self.dtype, axes, self[tuple(at[i] if i in at else next(rest) for i in range(self.rank))])


@op("diag_embed.default", samples=(sample(t(2, 3)), sample(t(3), 1)))
def diag_embed(k: Builder, self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A matrix whose diagonal is the last dim of self."""
    if (dim1, dim2) != (-2, -1):
        raise unsupported("diag_embed with other dims than the last two")
    n = self.shape[-1] + abs(offset)
    axes = k.axes((*self.shape[:-1], n, n))
    row, column = axes[-2], axes[-1]
    at = row if offset >= 0 else column
    value = self.at((*axes[:-2], at), other=0)
    return k.define(self.dtype, axes, call("where", call("eq", column, row + offset), value, 0))


@op("unfold.default", "unfold_copy.default", samples=(sample(t(2, 9), 1, 3, 2), sample(t(7), 0, 2, 1)))
def unfold(k: Builder, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` every `step` along a dim; the position in the window is a new last dim."""
    d = dim_of(self, dimension)
    count = (self.shape[d] - size) // step + 1
    axes = k.axes((*self.shape[:d], count, *self.shape[d + 1 :], size))
    index: list[Expr] = list(axes[:-1])
    index[d] = axes[d] * step + axes[-1]
    return k.define(self.dtype, axes, self[tuple(index)])


@op(
    "as_strided.default",
    samples=(sample(t(4, 6), (3, 2), (6, 1), 1), sample(t(12), (5, 3), (2, 1)), sample(t(4, 6), (24,), (1,))),
)
def as_strided(
    k: Builder, self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Elements of the (contiguous) storage of self at storage_offset + sum(i * stride)."""
    axes = k.axes(size)
    flat: Expr = Const(storage_offset or 0)
    for axis, step in zip(axes, stride, strict=True):
        flat = flat + axis * step
    index: list[Expr] = []
    step = math.prod(self.shape)
    for i, n in enumerate(self.shape):
        step //= n
        part = flat // step if step != 1 else flat
        index.append(part if i == 0 else part % n)
    return k.define(self.dtype, axes, self[tuple(index)])


@op("pixel_shuffle.default", samples=(sample(t(2, 12, 3, 5), 2), sample(t(9, 2, 2), 3)))
def pixel_shuffle(k: Builder, self: Tensor, upscale_factor: int) -> Tensor:
    """[.., c*r*r, h, w] -> [.., c, h*r, w*r]."""
    r = upscale_factor
    *lead, c, h, w = self.shape
    axes = k.axes((*lead, c // (r * r), h * r, w * r))
    *batch, ch, y, x = axes
    return k.define(self.dtype, axes, self[(*batch, ch * (r * r) + (y % r) * r + x % r, y // r, x // r)])


@op("pixel_unshuffle.default", samples=(sample(t(2, 3, 4, 6), 2),))
def pixel_unshuffle(k: Builder, self: Tensor, downscale_factor: int) -> Tensor:
    """[.., c, h*r, w*r] -> [.., c*r*r, h, w]."""
    r = downscale_factor
    *lead, c, h, w = self.shape
    axes = k.axes((*lead, c * r * r, h // r, w // r))
    *batch, ch, y, x = axes
    return k.define(self.dtype, axes, self[(*batch, ch // (r * r), y * r + ch // r % r, x * r + ch % r)])


@op("channel_shuffle.default", samples=(sample(t(2, 6, 3, 3), 3),))
def channel_shuffle(k: Builder, self: Tensor, groups: int) -> Tensor:
    axes = k.axes_like(self)
    per = self.shape[1] // groups
    channel = axes[1] % groups * per + axes[1] // groups
    return k.define(self.dtype, axes, self[(axes[0], channel, *axes[2:])])

"""Discrete Fourier transforms as products with tables of cosines.

A complex tensor is a real one with a last dim of 2: real and imaginary part (kvc.optable.complex). The transform along
one dim is then one real contraction over (position, part), with a table that follows from sizes alone and is written
once (the plan's prologue). A long transform is two shorter ones with a turn in between (Cooley and Tukey 1965): of
n = n1 n2 points it costs n (n1 + n2) products instead of n^2. Tables are computed in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvc.builder import Builder, Tensor
from kvc.dtypes import F64, DType
from kvc.kernel import Axis, Cast, Const, Expr, ExprLike, call, lift
from kvc.ops import op
from kvc.optable._common import unsupported

# Points up to which a transform is one product, those of the longest table, and elements up to which a table holds the
# turn between two stages as well.
DIRECT, LONGEST, MERGED = 256, 4096, 1 << 22


def _table(
    k: Builder, dtype: DType, axes: Sequence[Axis], steps: ExprLike, points: int, quarters: ExprLike, scale: ExprLike
) -> Tensor:
    """scale * cos(2 pi steps / points + quarters pi / 2), the angle reduced exactly in integers."""
    turn = (lift(steps) * 4 + lift(quarters) * points) % (4 * points)
    value = call("cos", Cast(F64, turn) * (math.pi / (2 * points)))
    return k.round(k.define(F64, axes, value if scale == 1.0 else value * scale), dtype)


def _quarters(out: Sequence[Expr], part: Sequence[Expr]) -> Expr:
    """The quarter turns by which a table's cosine is ahead: a product with cos(a) + i sin(a) takes cos(a) from a part
    to itself, sin(a) from the real part to the imaginary one and -sin(a) back. No axis is the real part."""
    turned: Expr = Const(0)
    for axis in part:
        turned = turned + axis
    for axis in out:
        turned = turned - axis
    return turned


def _split(points: int) -> int:
    """The largest divisor up to the square root."""
    return next(d for d in range(math.isqrt(points), 0, -1) if points % d == 0)


def transform(
    k: Builder, x: Tensor, pair: bool, dim: int, points: int, sign: int, scale: float, bins: int, real: bool = False
) -> Tensor:
    """sum(n) x[n] exp(sign 2 pi i j n / points) * scale for j < `bins`, along `dim`: of a complex tensor (`pair`) or a
    real one, which counts as 0 beyond its end. The result is a pair, or its real part (`real`)."""
    if points <= DIRECT or _split(points) == 1:
        if points > LONGEST:
            raise unsupported(f"a Fourier transform of {points} points, which have no factors to split by")
        return _direct(k, x, pair, dim, points, sign, scale, bins, real)
    return _staged(k, x, pair, dim, points, sign, scale, bins, real)


def _around(k: Builder, x: Tensor, pair: bool, dim: int) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Fresh axes of the dims before `dim`, and of those after it but for the pair."""
    return k.axes(x.shape[:dim], "b"), k.axes(x.shape[dim + 1 : x.rank - pair], "b")


def _direct(
    k: Builder, x: Tensor, pair: bool, dim: int, points: int, sign: int, scale: float, bins: int, real: bool
) -> Tensor:
    before, after = _around(k, x, pair, dim)
    n, j = k.axis(min(points, x.shape[dim]), "k"), k.axis(bins, "n")
    part = (k.axis(2, "c"),) if pair else ()
    out = () if real else (k.axis(2, "p"),)
    quarters = _quarters(out, part)
    table = _table(k, x.dtype, (n, *part, j, *out), n * j * sign, points, quarters, scale)
    value = x[(*before, n, *after, *part)] * table[(n, *part, j, *out)]
    return k.define(x.dtype, (*before, j, *after, *out), value, k.sum(n, *part))


def _staged(
    k: Builder, x: Tensor, pair: bool, dim: int, points: int, sign: int, scale: float, bins: int, real: bool
) -> Tensor:
    """Input n = n2 + count2 * n1, output j = j1 + count1 * j2: transforms over n1, a turn by j1 n2 / points, transforms
    over n2."""
    count1 = _split(points)
    count2 = points // count1
    if count2 > LONGEST:
        raise unsupported(f"a Fourier transform of {points} points, whose largest factor is {count2}")
    before, after = _around(k, x, pair, dim)
    n1, n2, j1 = k.axis(count1, "k"), k.axis(count2, "m"), k.axis(count1, "n")
    part, out = ((k.axis(2, "c"),) if pair else ()), k.axis(2, "p")
    table = _table(k, x.dtype, (n1, *part, j1, out), n1 * j1 * sign, count1, _quarters((out,), part), 1.0)
    index = (*before, n2 + count2 * n1, *after, *part)
    given = x[index] if x.shape[dim] >= points else x.at(index, other=0.0)
    first = k.define(
        x.dtype, (*before, n2, j1, *after, out), given * table[(n1, *part, j1, out)], k.sum(n1, *part)
    )  # fmt: skip
    merged = 4 * points * count2 <= MERGED
    if not merged:
        first = _turned(k, first, dim, points, sign)
    second = _second(k, first, dim, points, sign, scale, real, merged)
    before, after = _around(k, x, pair, dim)
    j, outs = k.axis(bins, "n"), () if real else (k.axis(2, "p"),)
    return k.define(x.dtype, (*before, j, *after, *outs), second[(*before, j // count1, j % count1, *after, *outs)])


def _turned(k: Builder, first: Tensor, dim: int, points: int, sign: int) -> Tensor:
    """The first stage's results, n2 and j1 at `dim`, times exp(sign 2 pi i n2 j1 / points)."""
    table_axes = k.axes(first.shape[dim : dim + 2], "n")
    out = k.axis(2, "p")
    table = _table(k, first.dtype, (*table_axes, out), table_axes[0] * table_axes[1] * sign, points, -out, 1.0)
    axes = k.axes_like(first)
    at, p = axes[dim : dim + 2], axes[-1]
    cosine, sine = table[(*at, 0)], table[(*at, 1)]
    real, imaginary = first[(*axes[:-1], 0)], first[(*axes[:-1], 1)]
    value = call("where", call("eq", p, 0), real * cosine - imaginary * sine, imaginary * cosine + real * sine)
    return k.define(first.dtype, axes, value)


def _second(
    k: Builder, first: Tensor, dim: int, points: int, sign: int, scale: float, real: bool, merged: bool
) -> Tensor:
    """The second stage, j2 and j1 at `dim`; `merged`: its table turns too, and so differs for each j1."""
    count2, count1 = first.shape[dim : dim + 2]
    before, after = k.axes(first.shape[:dim], "b"), k.axes(first.shape[dim + 2 : -1], "b")
    n2, j1, j2 = k.axis(count2, "k"), k.axis(count1, "b"), k.axis(count2, "n")
    part = k.axis(2, "c")
    outs = () if real else (k.axis(2, "p"),)
    own = (j1,) if merged else ()
    steps = n2 * (j1 + count1 * j2) * sign if merged else n2 * j2 * sign
    quarters = _quarters(outs, (part,))
    table = _table(k, first.dtype, (*own, n2, part, j2, *outs), steps, points if merged else count2, quarters, scale)
    value = first[(*before, n2, j1, *after, part)] * table[(*own, n2, part, j2, *outs)]
    return k.define(first.dtype, (*before, j2, j1, *after, *outs), value, k.sum(n2, part))


def mirrored(k: Builder, x: Tensor, dim: int, points: int, sign: int, scale: float) -> Tensor:
    """The real result of a transform whose input is given up to half its points: the rest is its conjugate."""
    half = points // 2 + 1
    before, after = _around(k, x, True, dim)
    n, c = k.axis(points if points > DIRECT else min(half, x.shape[dim]), "k"), k.axis(2, "c")

    if points > DIRECT:

        def at(index: Expr) -> Expr:
            return x.at((*before, index, *after, c), other=0.0)

        upper = call("where", call("eq", c, 0), at(points - n), -at(points - n))
        value = call("where", call("lt", n, half), at(n), upper)
        whole = k.define(x.dtype, (*before, n, *after, c), value)
        return transform(k, whole, True, dim, points, sign, scale, points, real=True)
    # A point and its mirror give twice the same; zero and, of an even number, the middle have no mirror.
    j = k.axis(points, "n")
    single = call("or", call("eq", n, 0), call("eq", n * 2, points))
    weight = call("where", single, Cast(F64, Const(scale)), Cast(F64, Const(2.0 * scale)))
    table = _table(k, x.dtype, (n, c, j), n * j * sign, points, _quarters((), (c,)), weight)
    return k.define(x.dtype, (*before, j, *after), x[(*before, n, *after, c)] * table[(n, c, j)], k.sum(n, c))


# ---------------------------------------------------------------- ATen's three transforms


def _scale(points: int, normalization: int) -> float:
    """ATen's normalisation: 0 none, 1 by the root of the number of points, 2 by the number."""
    return (1.0, 1.0 / math.sqrt(points), 1.0 / points)[normalization]


def complex_transform(
    k: Builder, x: Tensor, pair: bool, sizes: Sequence[tuple[int, int]], sign: int, normalization: int
) -> Tensor:
    """Along each (dim, points), all bins kept."""
    for dim, points in sizes:
        x, pair = transform(k, x, pair, dim, points, sign, _scale(points, normalization), points), True
    return x


def real_transform(
    k: Builder, x: Tensor, sizes: Sequence[tuple[int, int]], sign: int, normalization: int, half: bool = True
) -> Tensor:
    """Of a real tensor: along the last (dim, points) first, whose bins up to half are kept, then along the others."""
    dim, points = sizes[-1]
    bins = points // 2 + 1 if half else points
    x = transform(k, x, False, dim, points, sign, _scale(points, normalization), bins)
    return complex_transform(k, x, True, sizes[:-1], sign, normalization)


def real_inverse(k: Builder, x: Tensor, sizes: Sequence[tuple[int, int]], sign: int, normalization: int) -> Tensor:
    """The real result for a tensor given up to half the points of the last dim."""
    x = complex_transform(k, x, True, sizes[:-1], sign, normalization)
    dim, points = sizes[-1]
    return mirrored(k, x, dim, points, sign, _scale(points, normalization))


def _dims(x: Tensor, pair: bool, dim: Sequence[int]) -> list[int]:
    rank = x.rank - pair
    return [d % rank for d in dim]


@op(name="fft_c2c")
def fft_c2c(
    k: Builder, self: Tensor, dim: Sequence[int], normalization: int, forward: bool, pairs: Sequence[int]
) -> Tensor:
    sizes = [(d, self.shape[d]) for d in _dims(self, True, dim)]
    return complex_transform(k, self, True, sizes, -1 if forward else 1, normalization)


@op(name="fft_r2c")
def fft_r2c(
    k: Builder, self: Tensor, dim: Sequence[int], normalization: int, onesided: bool, pairs: Sequence[int]
) -> Tensor:
    sizes = [(d, self.shape[d]) for d in _dims(self, False, dim)]
    return real_transform(k, self, sizes, -1, normalization, onesided)


@op(name="fft_c2r")
def fft_c2r(
    k: Builder, self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int, pairs: Sequence[int]
) -> Tensor:
    dims = _dims(self, True, dim)
    sizes = [(d, self.shape[d]) for d in dims[:-1]] + [(dims[-1], last_dim_size)]
    return real_inverse(k, self, sizes, 1, normalization)


# ---------------------------------------------------------------- torch.fft, which export keeps whole


def _normalization(norm: str | None, sign: int) -> int:
    """The norm's name as ATen's number: by default only the inverse divides."""
    if norm == "ortho":
        return 1
    return 2 if (norm or "backward") == ("forward" if sign < 0 else "backward") else 0


def _sizes(
    x: Tensor, pair: bool, size: Sequence[int] | None, dim: Sequence[int] | None, half: bool
) -> list[tuple[int, int]]:
    """(dim, points) of each transform. `half`: the last dim of x holds half of them and one."""
    rank = x.rank - pair
    dims = _dims(x, pair, dim) if dim is not None else list(range(rank - len(size or range(rank)), rank))
    given = list(size) if size is not None else [-1] * len(dims)
    points = [x.shape[d] if n == -1 else n for d, n in zip(dims, given, strict=True)]
    if half and given[-1] == -1:
        points[-1] = 2 * (x.shape[dims[-1]] - 1)
    return list(zip(dims, points, strict=True))


def _meaning(kind: str, sign: int) -> Callable[..., Tensor]:
    """A transform of torch.fft; `kind` says what goes in and comes out: complex (c) or real (r)."""

    def run(
        k: Builder, x: Tensor, size: Sequence[int] | None, dim: Sequence[int] | None, norm: str | None,
        pairs: Sequence[int],
    ) -> Tensor:  # fmt: skip
        sizes = _sizes(x, bool(pairs), size, dim, kind == "c2r")
        normalization = _normalization(norm, sign)
        if kind == "r2c":
            return real_transform(k, x, sizes, sign, normalization)
        if kind == "c2r":
            return real_inverse(k, x, sizes, sign, normalization)
        return complex_transform(k, x, bool(pairs), sizes, sign, normalization)

    return run


def _one(name: str, run: Callable[..., Tensor]) -> None:
    def meaning(
        k: Builder, self: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None,
        pairs: Sequence[int] = (),
    ) -> Tensor:  # fmt: skip
        return run(k, self, None if n is None else (n,), (dim,), norm, pairs)

    op(name=name)(meaning)


def _several(name: str, run: Callable[..., Tensor], default: tuple[int, ...] | None) -> None:
    def meaning(
        k: Builder, self: Tensor, s: Sequence[int] | None = None, dim: Sequence[int] | None = default,
        norm: str | None = None, pairs: Sequence[int] = (),
    ) -> Tensor:  # fmt: skip
        return run(k, self, s, dim, norm, pairs)

    op(name=name)(meaning)


for _base, _kind, _sign in (("fft", "c2c", -1), ("ifft", "c2c", 1), ("rfft", "r2c", -1), ("irfft", "c2r", 1),
                            ("hfft", "c2r", -1), ("ihfft", "r2c", 1)):  # fmt: skip
    _run = _meaning(_kind, _sign)
    _one(f"fft_{_base}", _run)
    _several(f"fft_{_base}2", _run, (-2, -1))
    _several(f"fft_{_base}n", _run, None)

#: ATen overloads of transforms -> op.
TRANSFORMS = {
    **{f"_fft_{kind}.default": f"fft_{kind}" for kind in ("c2c", "r2c", "c2r")},
    **{f"fft_{base}{rank}.default": f"fft_{base}{rank}" for base in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
       for rank in ("", "2", "n")},
}  # fmt: skip

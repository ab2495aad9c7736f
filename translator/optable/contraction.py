"""Linear layers and matrix products: sums of products over axes, accumulated in the compute type, rounded once."""

from __future__ import annotations

import string
from collections.abc import Sequence

from kvc.builder import Builder, Tensor
from kvc.dtypes import I32
from kvc.kernel import Axis, Cast, Const, Expr, call
from kvc.ops import op
from kvc.optable._common import (
    Scalar,
    at,
    broadcast,
    ints,
    result_dtype,
    sample,
    t,
    terms,
    unsupported,
)
from kvc.optable.views import permuted


def product(k: Builder, a: Expr, b: Expr, out: Sequence[Axis], inner: Sequence[Axis], like: Tensor) -> Tensor:
    """sum(inner) a * b over `out`, in the compute type of `like`."""
    if like.dtype.kind == "bool":
        raise unsupported("a product of bool matrices")
    return k.define(like.dtype.compute, out, a * b, k.sum(*inner) if inner else None)


@op(
    "linear.default",
    samples=(
        sample(t(3, 5), t(4, 5)),
        sample(t(2, 3, 5), t(4, 5), t(4)),
        sample(t(5), t(4, 5), t(4)),
        sample(t(3, 5, dtype="bf16"), t(4, 5, dtype="bf16"), t(4, dtype="bf16")),
        sample(t(2, 1, 3, 5), t(1, 5)),
    ),
)
def linear(k: Builder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input[.., k] * weight[n, k] + bias[n], rounded after the bias."""
    rows = k.axes(input.shape[:-1], "m")
    inner = k.axis(input.shape[-1], "k")
    columns = (k.axis(weight.shape[0], "n"),) if weight.rank == 2 else ()
    acc = product(k, input[(*rows, inner)], weight[(*columns, inner)], (*rows, *columns), (inner,), input)
    if bias is None:
        return k.round(acc, input.dtype)
    axes = k.axes_like(acc)
    return k.define(input.dtype, axes, acc[axes] + at(bias, axes, acc.shape))


@op(
    "matmul.default",
    "mm.default",
    "bmm.default",
    "mv.default",
    "dot.default",
    "vdot.default",
    samples=(
        sample(t(3, 5), t(5, 4)),
        sample(t(2, 3, 5), t(2, 5, 4)),
        sample(t(2, 3, 5), t(5, 4)),
        sample(t(5), t(5)),
        sample(t(3, 5), t(5)),
        sample(t(5), t(5, 4)),
        sample(t(5), t(2, 5, 4)),
        sample(t(2, 3, 5), t(5)),
        sample(t(2, 1, 3, 5), t(4, 5, 2)),
        sample(t(3, 5), t(2, 5, 4)),
        sample(ints(3, 5), ints(5, 4)),
        sample(t(2, 3, 5, dtype="bf16"), t(2, 5, 4, dtype="bf16")),
        sample(t(3, 4, 2, 5), t(3, 4, 5, 2)),
    ),
)
def matmul(k: Builder, self: Tensor, mat2: Tensor) -> Tensor:
    """torch.matmul for all ranks: 1-d operands are vectors, leading dims broadcast."""
    batch_shape = broadcast(self.shape[:-2], mat2.shape[:-2])
    batch = k.axes(batch_shape, "b")
    m = (k.axis(self.shape[-2], "m"),) if self.rank > 1 else ()
    n = (k.axis(mat2.shape[-1], "n"),) if mat2.rank > 1 else ()
    inner = k.axis(self.shape[-1], "k")
    a = self[(*_batch_index(self.shape[:-2], batch, batch_shape), *m, inner)]
    b = mat2[(*_batch_index(mat2.shape[:-2], batch, batch_shape), inner, *n)]
    return k.round(product(k, a, b, (*batch, *m, *n), (inner,), self), self.dtype)


def _batch_index(own: Sequence[int], batch: Sequence[Axis], shape: Sequence[int]) -> tuple[Expr, ...]:
    offset = len(batch) - len(own)
    return tuple(batch[offset + i] if n == shape[offset + i] else Const(0) for i, n in enumerate(own))


def _affine(k: Builder, base: Tensor, a: Tensor, b: Tensor, beta: Scalar, alpha: Scalar) -> Tensor:
    """beta * base + alpha * (a @ b), rounded once."""
    batch = k.axes(a.shape[:-2], "b")
    m, inner = k.axis(a.shape[-2], "m"), k.axis(a.shape[-1], "k")
    n = (k.axis(b.shape[-1], "n"),) if b.rank > 1 else ()
    acc = product(k, a[(*batch, m, inner)], b[(*batch, inner, *n)], (*batch, m, *n), (inner,), a)
    axes = k.axes_like(acc)
    value = acc[axes] if alpha == 1 else acc[axes] * alpha
    if beta != 0:
        bias = at(base, axes, acc.shape)
        value = value + (bias if beta == 1 else bias * beta)
    return k.define(a.dtype, axes, value)


@op(
    "addmm.default",
    samples=(
        sample(t(4), t(3, 5), t(5, 4)),
        sample(t(3, 4), t(3, 5), t(5, 4), beta=0.5, alpha=2),
        sample(t(3, 1), t(3, 5), t(5, 4), beta=0),
        sample(t(4, dtype="bf16"), t(3, 5, dtype="bf16"), t(5, 4, dtype="bf16")),
    ),
)
def addmm(k: Builder, self: Tensor, mat1: Tensor, mat2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    return _affine(k, self, mat1, mat2, beta, alpha)


@op(
    "baddbmm.default",
    samples=(sample(t(2, 3, 4), t(2, 3, 5), t(2, 5, 4)), sample(t(4), t(2, 3, 5), t(2, 5, 4), beta=0.5)),
)
def baddbmm(k: Builder, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    return _affine(k, self, batch1, batch2, beta, alpha)


@op(
    "addbmm.default",
    samples=(sample(t(3, 4), t(2, 3, 5), t(2, 5, 4)), sample(t(4), t(2, 3, 5), t(2, 5, 4), beta=0.5, alpha=2)),
)
def addbmm(k: Builder, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    """beta * self + alpha * the sum over the batch of products."""
    batch, m, inner, n = k.axes((*batch1.shape, batch2.shape[-1]), "m")
    acc = k.define(batch1.dtype.compute, (m, n), batch1[batch, m, inner] * batch2[batch, inner, n], k.sum(batch, inner))
    axes = k.axes_like(acc)
    value = acc[axes] if alpha == 1 else acc[axes] * alpha
    if beta != 0:
        bias = at(self, axes, acc.shape)
        value = value + (bias if beta == 1 else bias * beta)
    return k.define(batch1.dtype, axes, value)


@op("_int_mm.default", name="int_mm", samples=(sample(ints(20, 8, dtype="i8"), ints(8, 16, dtype="i8")),))
def int_mm(k: Builder, self: Tensor, mat2: Tensor) -> Tensor:
    """A product of int8 matrices, summed in int32."""
    m, inner, n = k.axes((*self.shape, mat2.shape[-1]), "m")
    return k.define(I32, (m, n), Cast(I32, self[m, inner]) * Cast(I32, mat2[inner, n]), k.sum(inner))


@op("addmv.default", samples=(sample(t(3), t(3, 5), t(5)), sample(t(1), t(3, 5), t(5), beta=2, alpha=0.5)))
def addmv(k: Builder, self: Tensor, mat: Tensor, vec: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Tensor:
    return _affine(k, self, mat, vec, beta, alpha)


@op("outer.default", "ger.default", samples=(sample(t(3), t(5)),))
def outer(k: Builder, self: Tensor, vec2: Tensor) -> Tensor:
    m, n = k.axes((self.shape[0], vec2.shape[0]))
    return k.define(result_dtype(self, vec2), (m, n), self[m] * vec2[n])


@op("tensordot.default", samples=(sample(t(3, 4, 5), t(4, 5, 2), (1, 2), (0, 1)), sample(t(3, 4), t(5, 3), (0,), (1,))))
def tensordot(k: Builder, self: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]) -> Tensor:
    left, right = list(k.axes_like(self, "m")), list(k.axes_like(other, "n"))
    for a, b in zip(dims_self, dims_other, strict=True):
        right[b] = left[a]
    inner = [left[a] for a in dims_self]
    out = [a for a in left if a not in inner] + [a for a in right if a not in inner]
    return k.round(product(k, self[tuple(left)], other[tuple(right)], out, inner, self), self.dtype)


# ---------------------------------------------------------------- einsum


def _labels(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Subscripts of each operand and of the result, ellipses spelled out with fresh letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms_ = left.split(",")
    free = iter(c for c in string.ascii_letters if c not in equation)
    widest = max(
        (x.rank - len(s.replace("...", "")) for s, x in zip(terms_, tensors, strict=True) if "..." in s), default=0
    )
    dots = "".join(next(free) for _ in range(widest))
    subscripts = []
    for s, x in zip(terms_, tensors, strict=True):
        count = x.rank - len(s.replace("...", ""))
        subscripts.append(s.replace("...", dots[widest - count :] if count else ""))
    if not arrow:
        once = sorted(c for c in set(left) - set(".,") if left.count(c) == 1)
        return subscripts, dots + "".join(once)
    return subscripts, right.replace("...", dots)


@op(
    "einsum.default",
    samples=(
        sample("ij,jk->ik", (t(3, 5), t(5, 4))),
        sample("bhqd,bhkd->bhqk", (t(2, 3, 4, 5), t(2, 3, 6, 5))),
        sample("ij->ji", (t(3, 5),)),
        sample("ij->", (t(3, 5),)),
        sample("ii->i", (t(4, 4),)),
        sample("i,j->ij", (t(3), t(5))),
        sample("...ij,...jk->...ik", (t(2, 3, 5), t(5, 4))),
        sample("ij,jk", (t(3, 5), t(5, 4))),
        sample("bld,bld,d->bl", (t(2, 3, 5), t(2, 3, 5), t(5))),
        sample("bijl,lk->bijk", (t(2, 3, 2, 5), t(5, 4))),
        sample("ij,ij->i", (t(3, 5, dtype="bf16"), t(3, 5, dtype="bf16"))),
    ),
)
def einsum(k: Builder, equation: str, tensors: Sequence[Tensor], path: Sequence[int] | None = None) -> Tensor:
    """Operands are contracted left to right, each label summed as soon as nothing later needs it."""
    subscripts, result = _labels(equation, tensors)
    value, labels = tensors[0], subscripts[0]
    dtype = result_dtype(*tensors)
    for n in range(1, max(len(tensors), 2)):
        rest = tensors[n : n + 1]
        later = set(result).union(*subscripts[n + 1 :])
        value, labels = _step(k, [value, *rest], [labels, *subscripts[n : n + 1]], later)
        value = k.round(value, dtype)
    return permuted(k, value, [labels.index(c) for c in result])


def _step(k: Builder, tensors: Sequence[Tensor], subscripts: Sequence[str], later: set[str]) -> tuple[Tensor, str]:
    """The product of one or two operands, summed over the labels that are not in `later`."""
    size: dict[str, int] = {}
    for x, s in zip(tensors, subscripts, strict=True):
        for c, n in zip(s, x.shape, strict=True):
            size[c] = max(n, size.get(c, 1))
    axis = {c: k.axis(n, c.lower() if c.lower() not in "ef" else "i") for c, n in size.items()}
    factors: list[Expr] = []
    for x, s in zip(tensors, subscripts, strict=True):
        factors.append(x[tuple(axis[c] if n == size[c] else Const(0) for c, n in zip(s, x.shape, strict=True))])
    kept = "".join(c for c in size if c in later)
    inner = [axis[c] for c in size if c not in later]
    compute = result_dtype(*tensors).compute if inner else result_dtype(*tensors)
    value = k.define(compute, [axis[c] for c in kept], terms(factors, "mul"), k.sum(*inner) if inner else None)
    return value, kept


@op("cosine_similarity.default", samples=(sample(t(3, 5), t(3, 5)), sample(t(2, 3, 5), t(3, 5), -1, 1e-6)))
def cosine_similarity(k: Builder, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """sum(a b) / (max(|a|, eps) max(|b|, eps))."""
    shape = broadcast(x1.shape, x2.shape)
    d = dim if dim >= 0 else dim + len(shape)
    axes = k.axes(shape)
    out = [a for i, a in enumerate(axes) if i != d]
    a, b = at(x1, axes, shape), at(x2, axes, shape)
    compute = x1.dtype.compute
    dot, na, nb = (k.define(compute, out, e, k.sum(axes[d])) for e in (a * b, a * a, b * b))
    o = k.axes_like(dot)

    def norm(n: Tensor) -> Expr:
        return call("maximum", call("sqrt", n[o]), eps)

    return k.define(result_dtype(x1, x2), o, dot[o] / (norm(na) * norm(nb)))


@op("cdist.default", "_cdist_forward.default", samples=(sample(t(3, 5), t(4, 5)), sample(t(2, 3, 5), t(2, 4, 5), 1.0)))
def cdist(k: Builder, x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Distances between all rows of x1 and x2 in the p-norm, by differences (no cancellation)."""
    if p not in (1.0, 2.0):
        raise unsupported(f"cdist with p = {p}")
    batch_shape = broadcast(x1.shape[:-2], x2.shape[:-2])
    batch = k.axes(batch_shape, "b")
    m, n, d = k.axis(x1.shape[-2], "m"), k.axis(x2.shape[-2], "n"), k.axis(x1.shape[-1], "k")
    a = x1[(*_batch_index(x1.shape[:-2], batch, batch_shape), m, d)]
    b = x2[(*_batch_index(x2.shape[:-2], batch, batch_shape), n, d)]
    gap = a - b
    total = k.define(x1.dtype.compute, (*batch, m, n), gap * gap if p == 2.0 else call("abs", gap), k.sum(d))
    axes = k.axes_like(total)
    return k.define(x1.dtype, axes, call("sqrt", total[axes]) if p == 2.0 else total[axes])

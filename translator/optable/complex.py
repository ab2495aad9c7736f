"""Complex numbers: a complex tensor is a real one with a last dim of 2, real and imaginary part, as it lies in memory.

The importer gives each call that has complex arguments or results the op of this file that `COMPLEX` names, and says in
`pairs` which of its tensors (counted in order, those in lists included) are complex. Whatever is linear in its complex
arguments is defined by the op for real numbers, applied to both parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL
from kvc.kernel import Const, call
from kvc.ops import OPS, op
from kvc.optable import arithmetic, compare, contraction, create, indexing, join, reduction, views
from kvc.optable._common import at, broadcast, unsupported
from kvc.optable.fft import TRANSFORMS

# Their ops are looked up by name.
_TABLES = (arithmetic, compare, contraction, create, indexing, join, reduction, views)

#: ATen overload -> op on pairs, for calls with a complex argument or result.
COMPLEX: dict[str, str] = dict(TRANSFORMS)


def part(k: Builder, x: Tensor, which: int) -> Tensor:
    """The real (0) or imaginary (1) part of a pair."""
    axes = k.axes(x.shape[:-1])
    return k.define(x.dtype, axes, x[(*axes, Const(which))])


def pair(k: Builder, real: Tensor, imaginary: Tensor) -> Tensor:
    """Two tensors that broadcast, as the parts of a complex one."""
    shape = broadcast(real.shape, imaginary.shape)
    axes, c = k.axes(shape), k.axis(2, "c")
    return k.define(
        real.dtype, (*axes, c), call("where", call("eq", c, 0), at(real, axes, shape), at(imaginary, axes, shape))
    )  # fmt: skip


def _paired(k: Builder, real: Any, imaginary: Any) -> Any:
    if isinstance(real, tuple):
        return tuple(pair(k, r, i) for r, i in zip(real, imaginary, strict=True))
    return pair(k, real, imaginary)


def _replaced(args: Sequence[Any], pairs: Sequence[int], of_pair: Any, of_real: Any, of_number: Any) -> tuple[Any, ...]:
    """The arguments with every complex tensor, every real one and every number outside lists exchanged."""
    position = count()

    def visit(arg: Any, inside: bool) -> Any:
        if isinstance(arg, tuple | list):
            return tuple(visit(a, True) for a in arg)
        if isinstance(arg, Tensor):
            return of_pair(arg) if next(position) in pairs else of_real(arg)
        return of_number(arg) if not inside and isinstance(arg, int | float) and not isinstance(arg, bool) else arg

    return tuple(visit(a, False) for a in args)


def _same(value: Any) -> Any:
    return value


def _linear(name: str, overloads: Sequence[str]) -> None:
    """An op that is linear in one complex argument (or all of a list): applied to each part, all else as it is."""
    base = OPS[name].meaning

    def meaning(k: Builder, *args: Any, pairs: Sequence[int], **attrs: Any) -> Any:
        parts = [
            base(k, *_replaced(args, pairs, lambda x, n=n: part(k, x, n), _same, _same), **attrs) for n in (0, 1)
        ]  # fmt: skip
        return _paired(k, *parts)

    _register(f"complex_{name}", overloads, meaning)


_ADDENDS = ("other", "value")  # arguments that hold a number to add or to put in


def _sum(name: str, overloads: Sequence[str]) -> None:
    """An op that adds or selects: a real argument has the imaginary part 0."""
    base = OPS[name].meaning

    def meaning(k: Builder, *args: Any, pairs: Sequence[int], **attrs: Any) -> Any:
        def zero(x: Tensor) -> Tensor:
            return x if x.dtype is BOOL else k.define(x.dtype, k.axes_like(x), 0.0)

        real = base(k, *_replaced(args, pairs, lambda x: part(k, x, 0), _same, _same), **attrs)
        named = {key: 0 if key in _ADDENDS else value for key, value in attrs.items()}
        imaginary = base(k, *_replaced(args, pairs, lambda x: part(k, x, 1), zero, lambda n: 0), **named)
        return _paired(k, real, imaginary)

    _register(f"complex_{name}", overloads, meaning)


def _product(name: str, overloads: Sequence[str]) -> None:
    """An op of two factors: four real products for two complex factors, two where one of them is real."""
    base = OPS[name].meaning

    def meaning(k: Builder, *args: Any, pairs: Sequence[int], **attrs: Any) -> Any:
        def real_op(which: dict[int, int]) -> Any:
            position = count()

            def visit(arg: Any) -> Any:
                if isinstance(arg, tuple | list):
                    return tuple(visit(a) for a in arg)
                if not isinstance(arg, Tensor):
                    return arg
                here = next(position)
                return part(k, arg, which[here]) if here in which else arg

            return base(k, *(visit(a) for a in args), **attrs)

        if len(pairs) == 1:
            return _paired(k, real_op({pairs[0]: 0}), real_op({pairs[0]: 1}))
        if len(pairs) != 2:
            raise unsupported(f"a product of {len(pairs)} complex tensors")
        a, b = pairs
        rr, ii, ri, ir = (real_op({a: m, b: n}) for m, n in ((0, 0), (1, 1), (0, 1), (1, 0)))
        axes, c = k.axes_like(rr), k.axis(2, "c")
        value = call("where", call("eq", c, 0), rr[axes] - ii[axes], ri[axes] + ir[axes])
        return k.define(rr.dtype, (*axes, c), value)

    _register(f"complex_{name}", overloads, meaning)


def _register(name: str, overloads: Sequence[str], meaning: Callable[..., Any]) -> None:
    op(name=name)(meaning)
    COMPLEX.update(dict.fromkeys(overloads, name))


_ADDING = ("add", "sub", "rsub", "cat", "stack", "where", "masked_fill")
_MULTIPLYING = ("mul", "matmul", "einsum", "outer")
_LINEAR = (
    "neg", "sum", "mean", "view", "unsqueeze", "squeeze", "squeeze_dims", "expand", "permute", "transpose", "t",
    "slice", "select", "split", "chunk", "unbind", "flip", "roll", "identity", "unflatten", "flatten", "repeat", "tril",
    "triu", "diagonal", "index_select",
)  # fmt: skip
for _name in _LINEAR:
    _linear(_name, OPS[_name].aten)
for _name in _ADDING:
    _sum(_name, OPS[_name].aten)
for _name in _MULTIPLYING:
    _product(_name, OPS[_name].aten)


# ---------------------------------------------------------------- between real and complex


def _op(*overloads: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(meaning: Callable[..., Any]) -> Callable[..., Any]:
        _register(meaning.__name__, overloads, meaning)
        return meaning

    return register


@_op("view_as_real.default", "view_as_complex.default", "resolve_conj.default")
def complex_same(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    """Only the type changes: the pair is the tensor."""
    return self


@_op("_to_copy.default", "to.dtype", "_conj_physical_.default")
def complex_convert(k: Builder, self: Tensor, pairs: Sequence[int], dtype: Any = None, **ignored: Any) -> Tensor:
    """A real tensor as a complex one, or a complex one in another precision."""
    to = dtype or self.dtype
    if pairs:
        return k.round(self, to)
    axes, c = k.axes_like(self), k.axis(2, "c")
    return k.define(to, (*axes, c), call("where", call("eq", c, 0), self[axes], 0.0))


@_op("complex.default")
def complex_of_parts(k: Builder, real: Tensor, imag: Tensor, pairs: Sequence[int]) -> Tensor:
    return pair(k, real, imag)


@_op("polar.default")
def complex_polar(k: Builder, abs: Tensor, angle: Tensor, pairs: Sequence[int]) -> Tensor:
    """abs * (cos(angle) + i sin(angle))."""
    axes, c = k.axes_like(abs), k.axis(2, "c")
    turned = call("where", call("eq", c, 0), call("cos", angle[axes]), call("sin", angle[axes]))
    return k.define(abs.dtype, (*axes, c), abs[axes] * turned)


@_op("_conj.default", "conj.default", "_conj_physical.default", "conj_physical.default")
def complex_conj(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    axes = k.axes_like(self)
    return k.define(self.dtype, axes, call("where", call("eq", axes[-1], 0), self[axes], -self[axes]))


@_op("real.default")
def complex_real(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    return part(k, self, 0)


@_op("imag.default")
def complex_imag(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    return part(k, self, 1)


@_op("abs.default")
def complex_abs(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    """The length, which neither overflows nor underflows where its parts do not."""
    hypot: Tensor = OPS["hypot"].meaning(k, part(k, self, 0), part(k, self, 1))  # type: ignore[assignment]
    return hypot


@_op("angle.default")
def complex_angle(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    axes = k.axes(self.shape[:-1])
    return k.define(self.dtype, axes, call("atan2", self[(*axes, 1)], self[(*axes, 0)]))


@_op("exp.default")
def complex_exp(k: Builder, self: Tensor, pairs: Sequence[int]) -> Tensor:
    """exp(re) * (cos(im) + i sin(im))."""
    axes = k.axes(self.shape[:-1])
    c = k.axis(2, "c")
    imaginary = self[(*axes, 1)]
    turned = call("where", call("eq", c, 0), call("cos", imaginary), call("sin", imaginary))
    return k.define(self.dtype, (*axes, c), call("exp", self[(*axes, 0)]) * turned)


@_op("div.Tensor", "div.Scalar")
def complex_div(k: Builder, self: Any, other: Any, pairs: Sequence[int]) -> Tensor:
    """By a real number: part by part. By a complex one: times its conjugate, over the square of its length."""
    divide = OPS["div"].meaning
    if pairs == (0,) or not isinstance(other, Tensor):
        return pair(k, *(divide(k, part(k, self, n), other) for n in (0, 1)))  # type: ignore[arg-type]
    a, b = part(k, other, 0), part(k, other, 1)
    axes = k.axes_like(a)
    square = k.define(a.dtype, axes, a[axes] * a[axes] + b[axes] * b[axes])
    conjugate = complex_conj(k, other, pairs)
    product = OPS["complex_mul"].meaning(k, self, conjugate, pairs=pairs)
    return pair(k, *(divide(k, part(k, product, n), square) for n in (0, 1)))  # type: ignore[arg-type]

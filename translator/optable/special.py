"""Special functions of one variable: gamma and its logarithmic derivatives, error functions, modified Bessel functions.

Those of the first and second kind (j0, y0 and kin) are left out: AMD's device library has them to eight digits in fp64.
"""

from __future__ import annotations

import math

from kvc.builder import Builder, Tensor
from kvc.kernel import Expr, call
from kvc.ops import op
from kvc.optable._common import Scalar, float_dtype, ints, pointwise, sample, t, unsupported
from kvc.optable.arithmetic import unary

for _name in ("lgamma", "digamma", "erfinv"):
    unary(_name, floats=True)
unary("bessel_i0", floats=True, aten="i0")
for _name in ("i1", "i0e", "i1e"):
    unary(f"bessel_{_name}", floats=True, aten=f"special_{_name}")


def _single(name: str, function: str) -> None:
    """A function that ATen computes in fp32 and fp64 only."""

    def meaning(k: Builder, self: Tensor) -> Tensor:
        axes = k.axes_like(self)
        return k.define(float_dtype(self.dtype), axes, call(function, self[axes]))

    op(f"special_{name}.default", name=name, samples=(sample(t(3, 5)), sample(t()), sample(ints(2, 3))))(meaning)


_single("erfcx", "erfcx")
for _name in ("i0", "i1"):
    _single(f"modified_bessel_{_name}", f"bessel_{_name}")
unary("ndtr", floats=True, aten="special_ndtr", body=lambda x: 0.5 * call("erfc", x * -math.sqrt(0.5)))


@op("polygamma.default", samples=(sample(0, t(3, 5)), sample(1, t(3, 5)), sample(1, t(7, dtype="bf16"))))
def polygamma(k: Builder, n: int, self: Tensor) -> Tensor:
    """The derivative of order n of digamma, n being 0 or 1."""
    if n not in (0, 1):
        raise unsupported(f"polygamma of order {n}")
    axes = k.axes_like(self)
    return k.define(float_dtype(self.dtype), axes, call(("digamma", "trigamma")[n], self[axes]))


@op("special_entr.default", name="entr", samples=(sample(t(3, 5)), sample(t(7, dtype="bf16"))))
def entr(k: Builder, self: Tensor) -> Tensor:
    """-x log(x): 0 at 0, minus infinity below."""

    def value(x: Expr) -> Expr:
        inside = call("where", call("eq", x, 0.0), 0.0, -math.inf)
        return call("where", call("gt", x, 0.0), -x * call("log", x), call("where", call("isnan", x), x, inside))

    return pointwise(k, value, self, floats=True)


@op(
    "special_xlog1py.default",
    "special_xlog1py.other_scalar",
    "special_xlog1py.self_scalar",
    name="xlog1py",
    samples=(sample(t(3, 5), t(3, 5)), sample(t(3, 5), 0.5), sample(0.5, t(3, 5))),
)
def xlog1py(k: Builder, self: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x log(1 + y), and 0 where x is 0 (NaN where y is NaN)."""

    def value(x: Expr, y: Expr) -> Expr:
        product = call("where", call("eq", x, 0.0), 0.0, x * call("log1p", y))
        return call("where", call("isnan", y), y, product)

    return pointwise(k, value, self, other, floats=True)


@op("angle.default", samples=(sample(t(3, 5)), sample(t(7, dtype="bf16"))))
def angle(k: Builder, self: Tensor) -> Tensor:
    """The angle of a real number in the complex plane: pi where it is negative, else 0; NaN stays."""
    axes = k.axes_like(self)
    x = self[axes]
    turned = call("where", call("lt", x, 0), math.pi, 0.0)
    value = call("where", call("isnan", x), x, turned) if self.dtype.is_float else turned
    return k.define(float_dtype(self.dtype), axes, value)

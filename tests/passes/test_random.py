"""Random models: whatever operations are chained, the partition means what the whole spec meant."""

from collections.abc import Callable

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvc.builder import Builder, Tensor
from kvc.check import RESERVED
from kvc.dtypes import F32
from kvc.interpret import interpret
from kvc.kernel import Axis, Expr, call
from kvc.passes.inline import drop_dead
from kvc.passes.partition import Cut, partition
from kvc.text import parse_kernel, print_kernel

Draw = Callable[[st.SearchStrategy], int]


def unary(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    axes = k.axes_like(x)
    fn = draw(st.sampled_from(["relu", "tanh", "neg", "gelu", "abs"]))
    return k.define(F32, axes, call(str(fn), x[axes]))


def affine(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    axes = k.axes_like(x)
    return k.define(F32, axes, x[axes] * 0.5 + 1.0)


def permute(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    axes = k.axes_like(x)
    order = draw(st.permutations(range(x.rank)))
    return k.define(F32, tuple(axes[i] for i in order), x[axes])  # type: ignore[attr-defined]


def reshape(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    """To one dim, or the first even dim split in two."""
    even = [i for i, n in enumerate(x.shape) if n % 2 == 0 and n > 2]
    shape = list(x.shape)
    if even and draw(st.booleans()):
        shape[even[0] : even[0] + 1] = [shape[even[0]] // 2, 2]
    else:
        shape = [x.shape[0], *([torch.Size(x.shape[1:]).numel()] if x.rank > 1 else [])]
    axes = k.axes(shape)
    flat: Expr = Axis(axes[0].name)
    for axis, n in zip(axes[1:], shape[1:], strict=True):
        flat = flat * n + axis
    index: list[Expr] = []
    for n in reversed(x.shape):
        index.insert(0, flat % n)
        flat = flat // n
    return k.define(F32, axes, x[tuple(index)])


def cut(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    if x.shape[-1] < 3:
        return x
    axes = k.axes((*x.shape[:-1], x.shape[-1] - 2))
    return k.define(F32, axes, x[(*axes[:-1], axes[-1] + draw(st.integers(0, 2)))])


def pad(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    axes = k.axes((*x.shape[:-1], x.shape[-1] + 2))
    value = draw(st.sampled_from([0.0, 2.0]))
    return k.define(F32, axes, x.at((*axes[:-1], axes[-1] - draw(st.integers(0, 2))), value))


def reduce(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    if x.rank < 2:
        return x
    dim = draw(st.integers(0, x.rank - 1))
    axes = k.axes_like(x)
    kept = [a for i, a in enumerate(axes) if i != dim]
    op = draw(st.sampled_from(["sum", "max"]))
    return k.define(F32, kept, x[axes], k.reduce(str(op), axes[dim]))


def normalise(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    """x minus the mean of its rows, over its last dim."""
    axes = k.axes_like(x)
    total = k.define(F32, axes[:-1], x[axes], k.sum(axes[-1]))
    back = k.axes_like(x)
    return k.define(F32, back, x[back] - total[back[:-1]] / float(x.shape[-1]))


def matmul(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    """With a weight that is part of the input, or with itself transposed."""
    *rows, kk = k.axes_like(x)
    if draw(st.booleans()) and x.rank > 1:
        n = k.axis(x.shape[-2], "n")
        return k.define(F32, (*rows, n), x[(*rows, kk)] * x[(*rows[:-1], n, kk)], k.sum(kk))
    n = k.axis(4, "n")
    weight = k.tensors["w"]
    return k.define(F32, (*rows, n), x[(*rows, kk)] * weight[n, kk % 6], k.sum(kk))


def twice(k: Builder, x: Tensor, draw: Draw) -> Tensor:
    """Joined with itself along the last dim."""
    n = x.shape[-1]
    axes = k.axes((*x.shape[:-1], 2 * n))
    last = axes[-1]
    halves = x.at((*axes[:-1], last), 0.0), x.at((*axes[:-1], last - n), 0.0)
    return k.define(F32, axes, call("where", call("lt", last, n), *halves))


STEPS = (unary, affine, permute, reshape, cut, pad, reduce, normalise, matmul, twice)


@st.composite
def models(draw: Callable) -> str:
    """The text of a random spec: short to print where a test fails."""
    k = Builder(RESERVED)
    x = k.operand("x", F32, draw(st.sampled_from([(4, 6), (2, 3, 8), (6,), (1, 4, 4)])))
    k.operand("w", F32, (4, 6))
    values = [x]
    for _ in range(draw(st.integers(1, 8))):
        source = draw(st.sampled_from(values[-3:]))
        result = draw(st.sampled_from(STEPS))(k, source, draw)
        same = [v for v in values if v.shape == result.shape and v is not result]
        if same and result is not source and draw(st.booleans()):
            other, axes = draw(st.sampled_from(same)), k.axes_like(result)
            result = k.define(F32, axes, result[axes] + other[axes])
        if torch.Size(result.shape).numel() <= 4096:
            values.append(result)
    outputs = [v.name for v in values[-2:] if v.name not in ("x", "w")]
    last = values[-1]
    if not outputs:
        axes = k.axes_like(last)
        outputs = [k.define(F32, axes, last[axes]).name]
    read = {load.tensor for s in k.stmts for load in s.loads()}
    spec = k.spec("model", [n for n in ("x", "w") if n in read], list(dict.fromkeys(outputs)))
    return print_kernel(drop_dead(spec))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_any_chain_of_operations_keeps_its_meaning(text: str) -> None:
    whole = parse_kernel(text)
    torch.manual_seed(0)
    inputs = {o.name: torch.randn(whole.shape_of(o.name), dtype=torch.float64) for o in whole.inputs}
    expected = interpret(whole, inputs)
    values = dict(inputs)
    for piece in partition(whole):
        assert isinstance(piece, Cut)
        assert parse_kernel(print_kernel(piece.spec)) == piece.spec
        operands = {o.name: values[o.name].reshape(piece.spec.shape_of(o.name)) for o in piece.spec.inputs}
        values |= interpret(piece.spec, operands)
    for name, value in expected.items():
        torch.testing.assert_close(values[name].reshape(value.shape), value, rtol=1e-10, atol=1e-10)

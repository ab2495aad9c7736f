"""Recurrent cells: one step each. Gates lie one after the other in the rows of the weights, in ATen's order."""

from __future__ import annotations

from collections.abc import Sequence

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Expr, call
from kvc.ops import op
from kvc.optable._common import sample, t
from kvc.optable.contraction import linear

_X, _H = t(3, 5), t(3, 4)


def _gates(
    k: Builder, x: Tensor, hx: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> list[Tensor]:
    """The linear layers of the input and of the state."""
    return [linear(k, v, w, b) for v, w, b in zip((x, hx), weights, biases, strict=True)]


def _gate(tensor: Tensor, axes: Sequence[Axis], number: int, width: int) -> Expr:
    *rows, column = axes
    return tensor[(*rows, column + number * width if number else column)]


def _cell(name: str, fn: str) -> None:
    def meaning(
        k: Builder,
        input: Tensor,
        hx: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        own, state = _gates(k, input, hx, (w_ih, w_hh), (b_ih, b_hh))
        axes = k.axes_like(own)
        return k.define(own.dtype, axes, call(fn, own[axes] + state[axes]))

    op(f"{name}.default", name=name, samples=(sample(_X, _H, t(4, 5), t(4, 4), t(4), t(4)),))(meaning)


_cell("rnn_tanh_cell", "tanh")
_cell("rnn_relu_cell", "relu")


@op("gru_cell.default", samples=(sample(_X, _H, t(12, 5), t(12, 4), t(12), t(12)), sample(_X, _H, t(12, 5), t(12, 4))))
def gru_cell(
    k: Builder,
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """r, z = sigmoid; n = tanh(x_n + r h_n); h' = n + z (h - n)."""
    own, state = _gates(k, input, hx, (w_ih, w_hh), (b_ih, b_hh))
    width = hx.shape[-1]
    axes = k.axes_like(hx)
    reset = call("sigmoid", _gate(own, axes, 0, width) + _gate(state, axes, 0, width))
    update = k.define(
        hx.dtype.compute, axes, call("sigmoid", _gate(own, axes, 1, width) + _gate(state, axes, 1, width))
    )
    new = k.define(
        hx.dtype.compute, axes, call("tanh", _gate(own, axes, 2, width) + reset * _gate(state, axes, 2, width))
    )
    axes = k.axes_like(hx)
    return k.define(hx.dtype, axes, new[axes] + update[axes] * (hx[axes] - new[axes]))


@op("lstm_cell.default", samples=(sample(_X, (_H, _H), t(16, 5), t(16, 4), t(16), t(16)),))
def lstm_cell(
    k: Builder,
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """i, f, o = sigmoid, g = tanh; c' = f c + i g; h' = o tanh(c')."""
    hidden, memory = hx
    own, state = _gates(k, input, hidden, (w_ih, w_hh), (b_ih, b_hh))
    width = hidden.shape[-1]

    def gate(axes: Sequence[Axis], number: int) -> Expr:
        return _gate(own, axes, number, width) + _gate(state, axes, number, width)

    axes = k.axes_like(memory)
    kept = call("sigmoid", gate(axes, 1)) * memory[axes]
    cell = k.define(memory.dtype, axes, kept + call("sigmoid", gate(axes, 0)) * call("tanh", gate(axes, 2)))
    axes = k.axes_like(memory)
    return k.define(hidden.dtype, axes, call("sigmoid", gate(axes, 3)) * call("tanh", cell[axes])), cell

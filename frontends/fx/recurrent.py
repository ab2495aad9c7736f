"""Shapes of recurrent layers while a model is traced.

Torch traces through LSTM, GRU and RNN step by step to learn the shape of their results (minutes for a few hundred
steps), although it records them as one operator. Here they say their shapes directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def _results(
    input: torch.Tensor, states: Sequence[torch.Tensor], bidirectional: bool, batch_first: bool
) -> tuple[torch.Tensor, ...]:
    """The layer's output, which lies in order of time whatever its dims say, and its final states."""
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    batch, steps = input.shape[:2] if batch_first else input.shape[1::-1]
    output = input.new_empty((steps, batch, width))
    return (output.transpose(0, 1) if batch_first else output, *(h.new_empty(h.shape) for h in states))


def _lstm(
    input: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    return _results(input, hx, bidirectional, batch_first)


def _one_state(
    input: torch.Tensor, hx: torch.Tensor, params: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    return _results(input, (hx,), bidirectional, batch_first)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within it, recurrent layers that run under torch's Python dispatcher or on fake tensors, as they do in a trace,
    give uninitialised results of the right shape. Layers that run for real are not touched."""
    import torch
    from torch._decomp import decomposition_table

    aten = torch.ops.aten
    short: dict[Any, Callable[..., Any]] = {
        aten.lstm.input: _lstm,
        **dict.fromkeys((aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input), _one_state),
    }
    saved = {op: dict(op.py_kernels) for op in short}
    rules = {op: decomposition_table[op] for op in short if op in decomposition_table}
    try:
        decomposition_table.update({op: short[op] for op in rules})
        for op, shape in short.items():
            op.py_kernels.update(dict.fromkeys(op.py_kernels, shape))
            op._dispatch_cache.clear()
        yield
    finally:
        decomposition_table.update(rules)
        for op, kernels in saved.items():
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


__all__ = ["shapes_only"]

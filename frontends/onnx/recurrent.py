"""LSTM, GRU and RNN: torch's own operator where it means the same, else step by step from ONNX's equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from kvc.frontends.onnx.pointwise import softplus
from kvc.frontends.onnx.values import Call

Activation = Callable[[torch.Tensor], torch.Tensor]

#: Where each of torch's gates stands among ONNX's: LSTM i, o, f, c -> i, f, g, o; GRU z, r, h -> r, z, n.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_DEFAULT = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_PLAIN: dict[str, Activation] = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
                                 "softsign": F.softsign, "softplus": softplus}  # fmt: skip


def _activations(c: Call, directions: int) -> list[str]:
    given = [a.decode() if isinstance(a, bytes) else str(a) for a in c.attrs.get("activations", ())]
    return given or list(_DEFAULT[c.op]) * directions


def _function(c: Call, name: str, position: int) -> Activation:
    alphas, betas = c.attrs.get("activation_alpha", ()), c.attrs.get("activation_beta", ())
    alpha = float(alphas[position]) if position < len(alphas) else None
    beta = float(betas[position]) if position < len(betas) else None
    low = name.lower()
    if low in _PLAIN:
        return _PLAIN[low]
    if low == "leakyrelu":
        return lambda x: F.leaky_relu(x, 0.01 if alpha is None else alpha)
    if low == "elu":
        return lambda x: F.elu(x, 1.0 if alpha is None else alpha)
    if low == "hardsigmoid":
        return lambda x: torch.clamp((0.2 if alpha is None else alpha) * x + (0.5 if beta is None else beta), 0.0, 1.0)
    if low == "affine":
        return lambda x: (1.0 if alpha is None else alpha) * x + (beta or 0.0)
    if low == "thresholdedrelu":
        return lambda x: F.threshold(x, 1.0 if alpha is None else alpha, 0.0)
    if low == "scaledtanh":
        return lambda x: (1.0 if alpha is None else alpha) * torch.tanh((1.0 if beta is None else beta) * x)
    raise c.fail(f"activation {name}")


def recurrent(c: Call) -> tuple[torch.Tensor, ...]:
    """Inputs: X, W, R, B, sequence_lens, initial_h, and for an LSTM initial_c and P. X is [time, batch, features], or
    [batch, time, features] with `layout` 1."""
    x, w, r = c.x(0), c.x(1), c.x(2)
    batch_first = bool(c.integer("layout"))
    x = x.transpose(0, 1) if batch_first else x
    directions, hidden = r.shape[0], r.shape[2]
    shape = (directions, x.shape[1], hidden)
    state = [_state(c, i, shape, x, batch_first) for i in ((5, 6) if c.op == "LSTM" else (5,))]
    run = _native if _is_native(c, directions) else _stepwise
    y, last = run(c, x, w, r, state)
    if batch_first:
        y, last = y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in last]
    return (y, *last)[: c.outputs]


def _state(c: Call, i: int, shape: tuple[int, ...], x: torch.Tensor, batch_first: bool) -> torch.Tensor:
    if not c.has(i):
        return torch.zeros(shape, dtype=x.dtype)
    return c.x(i).transpose(0, 1) if batch_first else c.x(i)


def _is_native(c: Call, directions: int) -> bool:
    """Whether torch's operator means the same."""
    full = c.has(4) and not _all_steps(c)
    odd = c.has(7) or c.decimal("clip") or c.integer("input_forget") or full
    names = [a.lower() for a in _activations(c, directions)]
    wanted = [a.lower() for a in _DEFAULT[c.op]] * directions
    if c.op == "RNN" and set(names) == {"relu"}:
        wanted = names
    return not odd and names == wanted and (c.op != "GRU" or bool(c.integer("linear_before_reset")))


def _all_steps(c: Call) -> bool:
    known = c.known(4)
    time = c.x(0).shape[1 if c.integer("layout") else 0]
    return known is not None and bool((known.array == time).all())


def _blocks(c: Call, t: torch.Tensor, hidden: int) -> torch.Tensor:
    """The gates of a weight or bias in torch's order."""
    return torch.cat([t.narrow(0, g * hidden, hidden) for g in _ORDER[c.op]], 0)


def _native(
    c: Call, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, state: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    hidden, gates = r.shape[2], len(_ORDER[c.op])
    relu = c.op == "RNN" and _activations(c, 1)[0].lower() == "relu"
    ys, lasts = [], []
    for d in range(r.shape[0]):
        backward = d == 1 or c.text("direction", "forward") == "reverse"
        parameters = [_blocks(c, w[d], hidden), _blocks(c, r[d], hidden)]
        if c.has(3):
            b = c.x(3)[d]
            parameters += [_blocks(c, b[: gates * hidden], hidden), _blocks(c, b[gates * hidden :], hidden)]
        given = x.flip(0) if backward else x
        start = [s[d : d + 1] for s in state]
        common = (parameters, c.has(3), 1, 0.0, False, False, False)
        if c.op == "LSTM":
            y, *last = torch.lstm(given, start, *common)
        elif c.op == "GRU":
            y, *last = torch.gru(given, start[0], *common)
        else:
            y, *last = (torch.rnn_relu if relu else torch.rnn_tanh)(given, start[0], *common)
        ys.append(y.flip(0) if backward else y)
        lasts.append(last)
    return torch.stack(ys, 1), [torch.cat(parts, 0) for parts in zip(*lasts, strict=True)]


def _stepwise(
    c: Call, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, state: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One direction after the other, one step after the other. A sequence that has ended keeps its state and gives
    zeros."""
    directions = r.shape[0]
    names = _activations(c, directions)
    each = len(_DEFAULT[c.op])
    lengths = c.x(4) if c.has(4) and not _all_steps(c) else None
    ys, lasts = [], []
    for d in range(directions):
        functions = [_function(c, n, d * each + i) for i, n in enumerate(names[d * each : (d + 1) * each])]
        backward = d == 1 or c.text("direction", "forward") == "reverse"
        step = _Cell(c, d, w[d], r[d], functions)
        now, rows = [s[d] for s in state], {}
        for t in reversed(range(x.shape[0])) if backward else range(x.shape[0]):
            new = step(x[t], now)
            rows[t] = new[0]
            if lengths is not None:
                alive = (lengths > t).unsqueeze(1)
                rows[t] = torch.where(alive, new[0], torch.zeros_like(new[0]))
                new = [torch.where(alive, a, b) for a, b in zip(new, now, strict=True)]
            now = new
        ys.append(torch.stack([rows[t] for t in range(x.shape[0])]))
        lasts.append(now)
    return torch.stack(ys, 1), [torch.stack(parts) for parts in zip(*lasts, strict=True)]


class _Cell:
    """One step of one direction: ONNX's equations of LSTM, GRU and RNN."""

    def __init__(self, c: Call, d: int, w: torch.Tensor, r: torch.Tensor, functions: Sequence[Activation]) -> None:
        self.op, self.w, self.r, self.functions = c.op, w, r, functions
        self.hidden = r.shape[1]
        gates = len(_ORDER[c.op])
        b = c.x(3)[d] if c.has(3) else torch.zeros(2 * gates * self.hidden, dtype=w.dtype)
        self.bw, self.br = b[: gates * self.hidden], b[gates * self.hidden :]
        self.peep = c.x(7)[d].split(self.hidden) if c.has(7) else None
        self.clip, self.coupled = c.decimal("clip"), bool(c.integer("input_forget"))
        self.after = bool(c.integer("linear_before_reset"))

    def __call__(self, x: torch.Tensor, state: list[torch.Tensor]) -> list[torch.Tensor]:
        wide = F.linear(x, self.w, self.bw)
        if self.op == "LSTM":
            return self.lstm(wide, *state)
        if self.op == "GRU":
            return self.gru(wide, *state)
        return [self.functions[0](self.bound(wide + F.linear(state[0], self.r, self.br)))]

    def bound(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, -self.clip, self.clip) if self.clip else x

    def lstm(self, wide: torch.Tensor, h: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        f, g, out = self.functions
        i, o, forget, c = (wide + F.linear(h, self.r, self.br)).split(self.hidden, -1)
        if self.peep is not None:
            i, forget = i + self.peep[0] * s, forget + self.peep[2] * s
        i = f(self.bound(i))
        forget = 1.0 - i if self.coupled else f(self.bound(forget))
        s = forget * s + i * g(self.bound(c))
        if self.peep is not None:
            o = o + self.peep[1] * s
        return [f(self.bound(o)) * out(s), s]

    def gru(self, wide: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        f, g = self.functions
        n = self.hidden
        z, r = f(self.bound(wide[..., : 2 * n] + F.linear(h, self.r[: 2 * n], self.br[: 2 * n]))).split(n, -1)
        if self.after:
            inner = r * F.linear(h, self.r[2 * n :], self.br[2 * n :])
        else:
            inner = F.linear(r * h, self.r[2 * n :], self.br[2 * n :])
        return [(1.0 - z) * g(self.bound(wide[..., 2 * n :] + inner)) + z * h]

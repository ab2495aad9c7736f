"""LSTM, GRU and plain RNN over sequences: layers of loops over time.

A layer first multiplies its whole input with the input weights (one contraction over all steps), then runs a loop that
multiplies the state with the recurrent weights. Both directions of a layer are points of one axis `d` of that loop: the
backward one reads its input from the end, and its results are put back in order of time where they leave the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvc.builder import Builder, Tensor
from kvc.kernel import Axis, Const, Expr, Load, Loop, call
from kvc.ops import Meaning, op
from kvc.optable._common import sample, t, unsupported

Drop = Callable[[Tensor, int], Tensor]  # dropout of the results of a layer


@dataclass(frozen=True)
class _Weights:
    """Weights of one layer, one entry a direction: input, recurrent, their biases, and the projection of the state."""

    own: tuple[Tensor, ...]
    state: tuple[Tensor, ...]
    own_bias: tuple[Tensor, ...]
    state_bias: tuple[Tensor, ...]
    projection: tuple[Tensor, ...]

    @staticmethod
    def take(params: Sequence[Tensor], layer: int, directions: int, has_biases: bool, projects: bool) -> _Weights:
        """The part of ATen's flat list (w_ih, w_hh, b_ih, b_hh, w_hr of each direction, layer by layer)."""
        each = 2 + 2 * has_biases + projects
        start = layer * directions * each
        rows = [params[start + d * each : start + (d + 1) * each] for d in range(directions)]
        own, state = (tuple(r[n] for r in rows) for n in (0, 1))
        own_bias, state_bias = (tuple(r[n] for r in rows) if has_biases else () for n in (2, 3))
        return _Weights(own, state, own_bias, state_bias, tuple(r[-1] for r in rows) if projects else ())


class _Layer:
    """One layer under construction. Axes: step, batch, direction, gate, unit."""

    def __init__(
        self, k: Builder, x: Tensor, weights: _Weights, gates: int, units: int, state: int, batch_first: bool
    ) -> None:
        self.k, self.x, self.weights = k, x, weights
        self.batch_first = batch_first
        self.directions = len(weights.own)
        self.gates, self.units, self.state_size = gates, units, state
        self.compute = x.dtype.compute
        self.batches, self.steps = x.shape[:2] if batch_first else x.shape[1::-1]
        self.recurrent = self.stacked(weights.state, gates, state)
        self.t = k.axis(self.steps, "t")  # of the loop

    def axes(self, *, gate: bool = False, size: int = 0, unit: str = "n") -> list[Axis]:
        """Fresh axes of a statement of the loop: its time, batch, direction, and gate and unit where asked."""
        k = self.k
        b = k.axis(self.batches, "b")
        outer = [b, self.t] if self.batch_first else [self.t, b]
        direction = [k.axis(self.directions, "d")] if self.directions > 1 else []
        return [*outer, *direction, *([k.axis(self.gates, "g")] if gate else []), k.axis(size or self.units, unit)]

    def parts(self, axes: Sequence[Axis]) -> tuple[Axis, Axis, Expr, Axis]:
        """(time, batch, direction, unit) of a statement's axes."""
        b, time = axes[:2] if self.batch_first else axes[1::-1]
        return time, b, axes[2] if self.directions > 1 else Const(0), axes[-1]

    def order(self, time: Expr, b: Expr, *rest: Expr) -> tuple[Expr, ...]:
        return (b, time, *rest) if self.batch_first else (time, b, *rest)

    def at(self, tensor: Tensor, time: Expr, b: Expr, d: Expr, *rest: Expr, other: float | None = None) -> Load:
        """A tensor of the loop; it has no dim for a single direction."""
        return tensor.at(self.order(time, b, *([d] if self.directions > 1 else []), *rest), other)

    def before(self, tensor: Tensor, loop: Loop, b: Expr, d: Expr, n: Expr, first: Load) -> Load:
        """A state at the step before, or its value before the first."""
        return replace(self.at(tensor, self.t + loop.back, b, d, n), other=first)

    def pick(self, d: Expr, tensors: Sequence[Tensor], index: Sequence[Expr]) -> Expr:
        """An element of the tensor of a direction."""
        values = [x[tuple(index)] for x in tensors]
        return values[0] if len(values) == 1 else call("where", call("eq", d, 0), *values)

    def stacked(self, weights: Sequence[Tensor], gates: int, depth: int) -> Tensor:
        """Weights of all directions as one tensor over (direction, gate, unit, depth)."""
        k = self.k
        rows = weights[0].shape[0] // gates
        d, g, n, i = k.axes((len(weights), gates, rows, depth))
        return k.define(weights[0].dtype, (d, g, n, i), self.pick(d, weights, (g * rows + n, i)))

    def input_part(self, biases: Callable[[Expr, Expr, Expr], Expr | None]) -> Tensor:
        """What each gate gets from the input, over (time, batch, direction, gate, unit); time runs forward in both
        directions. `biases(d, g, n)` is added."""
        k, x = self.k, self.x
        weights = self.stacked(self.weights.own, self.gates, x.shape[2])
        time, b, d = k.axis(self.steps, "t"), k.axis(self.batches, "b"), k.axis(self.directions, "d")
        g, n, i = k.axis(self.gates, "g"), k.axis(self.units, "n"), k.axis(x.shape[2], "k")
        axes = [*([b, time] if self.batch_first else [time, b]), d, g, n]
        total = k.define(self.compute, axes, x[self.order(time, b, i)] * weights[d, g, n, i], k.sum(i))
        bias = biases(d, g, n)
        return k.define(self.compute, axes, total[tuple(axes)] + bias) if bias is not None else total

    def bias(self, tensors: Sequence[Tensor], d: Expr, g: Expr | int, n: Expr) -> Expr | None:
        return self.pick(d, tensors, ((g if isinstance(g, Expr) else Const(g)) * self.units + n,)) if tensors else None

    def both_biases(self, d: Expr, g: Expr, n: Expr) -> Expr | None:
        own, state = (self.bias(b, d, g, n) for b in (self.weights.own_bias, self.weights.state_bias))
        return own + state if own is not None and state is not None else None

    def state_part(self, h: Tensor, loop: Loop, first: Callable[[Expr, Expr, Expr], Load]) -> Tensor:
        """What each gate gets from the state, in the loop."""
        axes = self.axes(gate=True)
        _, b, d, n = self.parts(axes)
        i = self.k.axis(self.state_size, "k")
        value = self.before(h, loop, b, d, i, first(d, b, i)) * self.recurrent[d, axes[-2], n, i]
        return self.k.define(self.compute, axes, value, self.k.sum(i))

    def gate(self, own: Tensor, state: Tensor, axes: Sequence[Axis], g: int) -> tuple[Expr, Expr]:
        """What one gate gets from the input (which the backward direction reads from the end) and from the state."""
        time, b, d, n = self.parts(axes)
        at: Expr = time
        if self.directions == 2:
            at = call("where", call("eq", d, 0), time, (self.steps - 1) - time)
        return own[self.order(at, b, d, Const(g), n)], self.at(state, time, b, d, Const(g), n)

    def project(self, hidden: Tensor, h: Tensor) -> None:
        """h = W_hr hidden."""
        k = self.k
        axes = self.axes(size=self.state_size, unit="p")
        time, b, d, p = self.parts(axes)
        i = k.axis(self.units, "k")
        weight = self.pick(d, self.weights.projection, (p, i))
        total = k.define(self.compute, axes, self.at(hidden, time, b, d, i) * weight, k.sum(i))
        k.define(h.dtype, axes, total[tuple(axes)], name=h.name)

    def output(self, h: Tensor) -> Tensor:
        """The layer's results in order of time, directions side by side."""
        if self.directions == 1:
            return h
        k, size = self.k, self.state_size
        time, b, j = k.axis(self.steps, "t"), k.axis(self.batches, "b"), k.axis(self.directions * size, "n")
        axes = [b, time, j] if self.batch_first else [time, b, j]
        forward = self.at(h, time, b, Const(0), j, other=0.0)
        back = self.at(h, (self.steps - 1) - time, b, Const(1), j - size, other=0.0)
        return k.define(h.dtype, axes, call("where", call("lt", j, size), forward, back))


def _final(k: Builder, layers: Sequence[_Layer], states: Sequence[Tensor]) -> Tensor:
    """The states after the last step over (layer * direction, batch, unit)."""
    directions, steps = layers[0].directions, layers[0].steps
    i, b, n = k.axes((len(layers) * directions, layers[0].batches, states[0].shape[-1]))
    value: Expr | None = None
    for number, (layer, state) in reversed(list(enumerate(zip(layers, states, strict=True)))):
        own = layer.at(state, Const(steps - 1), b, i % directions if directions > 1 else Const(0), n)
        value = own if value is None else call("where", call("lt", i, (number + 1) * directions), own, value)
    assert value is not None
    return k.define(states[0].dtype, (i, b, n), value)


def _first(state: Tensor, layer: int, directions: int) -> Callable[[Expr, Expr, Expr], Load]:
    """The state before the first step at (direction, batch, unit)."""
    return lambda d, b, n: state[layer * directions + d if layer else d, b, n]


def _between(y: Tensor, drop: Drop | None, dropout: float, train: bool, layer: int, layers: int) -> Tensor:
    """What the next layer reads."""
    if not train or not dropout or layer == layers - 1:
        return y
    if drop is None:
        raise unsupported("dropout between layers in training draws random numbers")
    return drop(y, layer)


# ---------------------------------------------------------------- samples


def _params(
    gates: int, size: int, units: int, layers: int = 1, directions: int = 1, biases: bool = True, projected: int = 0
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    rows = gates * units
    found = []
    for layer in range(layers):
        state = projected or units
        width = size if layer == 0 else state * directions
        for _ in range(directions):
            found += [t(rows, width), t(rows, state), *([t(rows), t(rows)] if biases else [])]
            found += [t(projected, units)] if projected else []
    return tuple(found)


_FLAGS = ((True, 1, 0.0, False, False, False), (True, 2, 0.0, True, True, True), (False, 2, 0.5, False, False, True))


def _samples(gates: int, pair: bool) -> tuple:
    found = []
    for biases, layers, dropout, train, both, batch_first in _FLAGS:
        directions = 2 if both else 1
        x = t(2, 4, 5) if batch_first else t(4, 2, 5)
        h = t(layers * directions, 2, 3)
        params = _params(gates, 5, 3, layers, directions, biases)
        found.append(sample(x, (h, h) if pair else h, params, biases, layers, dropout, train, both, batch_first))
    x, h = t(1, 2, 5), t(1, 2, 3)
    found.append(sample(x, (h, h) if pair else h, _params(gates, 5, 3), True, 1, 0.0, False, False, False))
    return tuple(found)


# ---------------------------------------------------------------- operators


@op(
    "lstm.input",
    name="lstm",
    samples=(
        *_samples(4, True),
        sample(t(4, 2, 5), (t(2, 2, 2), t(2, 2, 3)), _params(4, 5, 3, 1, 2, True, 2), True, 1, 0.0, False, True, False),
    ),
)
def lstm(
    k: Builder, input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool, drop: Drop | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """i, f, o = sigmoid, g = tanh of W x + U h + biases; c' = f c + i g; h' = o tanh(c'), projected by W_hr where the
    two states differ in size. Gates are in ATen's order i, f, g, o."""
    h0, c0 = hx
    units, state = c0.shape[-1], h0.shape[-1]
    directions = 2 if bidirectional else 1
    y, layers, hs, cs = input, [], [], []
    for number in range(num_layers):
        weights = _Weights.take(params, number, directions, has_biases, state != units)
        layer = _Layer(k, y, weights, 4, units, state, batch_first)
        own = layer.input_part(layer.both_biases)
        h = k.declare(h0.dtype, layer.axes(size=state))
        with k.loop(layer.t) as loop:
            z = layer.state_part(h, loop, _first(h0, number, directions))
            axes = layer.axes()
            _, b, d, n = layer.parts(axes)
            i, f, g, o = (own_ + state_ for own_, state_ in (layer.gate(own, z, axes, q) for q in range(4)))
            c = k.declare(c0.dtype, axes)
            kept = call("sigmoid", f) * layer.before(c, loop, b, d, n, _first(c0, number, directions)(d, b, n))
            k.define(c.dtype, axes, kept + call("sigmoid", i) * call("tanh", g), name=c.name)
            out = call("sigmoid", o) * call("tanh", c[tuple(axes)])
            if weights.projection:
                layer.project(k.define(layer.compute, axes, out), h)
            else:
                k.define(h.dtype, axes, out, name=h.name)
        layers.append(layer)
        hs.append(h)
        cs.append(c)
        y = _between(layer.output(h), drop, dropout, train, number, num_layers)
    return y, _final(k, layers, hs), _final(k, layers, cs)


@op("gru.input", name="gru", samples=_samples(3, False))
def gru(
    k: Builder, input: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool, drop: Drop | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """r, z = sigmoid of W x + U h + biases; n = tanh(W x + b + r (U h + b')); h' = n + z (h - n)."""
    units = hx.shape[-1]
    directions = 2 if bidirectional else 1
    y, layers, hs = input, [], []
    for number in range(num_layers):
        weights = _Weights.take(params, number, directions, has_biases, False)
        layer = _Layer(k, y, weights, 3, units, units, batch_first)
        own = layer.input_part(_gru_biases(layer))
        h = k.declare(hx.dtype, layer.axes())
        first = _first(hx, number, directions)
        with k.loop(layer.t) as loop:
            z = layer.state_part(h, loop, first)
            axes = layer.axes()
            _, b, d, n = layer.parts(axes)
            reset, update = (call("sigmoid", a + s) for a, s in (layer.gate(own, z, axes, q) for q in range(2)))
            given, kept = layer.gate(own, z, axes, 2)
            bias = layer.bias(weights.state_bias, d, 2, n)
            new = k.define(
                layer.compute, axes, call("tanh", given + reset * (kept + bias if bias is not None else kept))
            )
            fresh = new[tuple(axes)]
            value = fresh + update * (layer.before(h, loop, b, d, n, first(d, b, n)) - fresh)
            k.define(h.dtype, axes, value, name=h.name)
        layers.append(layer)
        hs.append(h)
        y = _between(layer.output(h), drop, dropout, train, number, num_layers)
    return y, _final(k, layers, hs)


def _gru_biases(layer: _Layer) -> Callable[[Expr, Expr, Expr], Expr | None]:
    """Both biases of r and z, the input's alone of n: the state's stands inside the product with r."""

    def biases(d: Expr, g: Expr, n: Expr) -> Expr | None:
        own, state = (layer.bias(b, d, g, n) for b in (layer.weights.own_bias, layer.weights.state_bias))
        return own + call("where", call("lt", g, 2), state, 0.0) if own is not None and state is not None else None

    return biases


def _plain(name: str, fn: str) -> Meaning:
    def meaning(
        k: Builder, input: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool, drop: Drop | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        units = hx.shape[-1]
        directions = 2 if bidirectional else 1
        y, layers, hs = input, [], []
        for number in range(num_layers):
            weights = _Weights.take(params, number, directions, has_biases, False)
            layer = _Layer(k, y, weights, 1, units, units, batch_first)
            own = layer.input_part(layer.both_biases)
            h = k.declare(hx.dtype, layer.axes())
            with k.loop(layer.t) as loop:
                z = layer.state_part(h, loop, _first(hx, number, directions))
                axes = layer.axes()
                given, kept = layer.gate(own, z, axes, 0)
                k.define(h.dtype, axes, call(fn, given + kept), name=h.name)
            layers.append(layer)
            hs.append(h)
            y = _between(layer.output(h), drop, dropout, train, number, num_layers)
        return y, _final(k, layers, hs)

    meaning.__doc__ = f"h' = {fn}(W x + U h + biases)."
    return op(f"{name}.input", name=name, samples=_samples(1, False))(meaning)


rnn_tanh = _plain("rnn_tanh", "tanh")
rnn_relu = _plain("rnn_relu", "relu")

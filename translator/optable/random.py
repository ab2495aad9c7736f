"""Random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), counter-based.

A random number is a pure function of (seed, pass, draw, element): the 64-bit key is the seed, the 128-bit counter holds
the element's row-major position (64 bits), the number of forward passes so far, and the number of the draw within the
pass. Seed and pass are the two elements of a buffer, `kvc_random`, that the importer adds to the model; each forward
pass adds one to the second, and writing either makes a run repeat. The streams are not torch's: distribution,
independence and reproducibility are promised, equality with `torch.manual_seed` is not.

Uniform numbers have 24 random bits (53 in float64) and lie in [0, 1). Normal ones are Box-Muller of two such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvc.builder import Builder, Tensor
from kvc.dtypes import BOOL, F32, F64, I64, DType
from kvc.kernel import Axis, Cast, Const, Expr, Order, call, lift
from kvc.ops import op
from kvc.optable._common import Scalar, at, flatten
from kvc.optable.rnn import gru, lstm, rnn_relu, rnn_tanh

BUFFER = "kvc_random"  # name of the model's buffer: i64 [seed, passes]
ROUNDS = 10
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # the key's steps
_STREAMS = 256  # draws that one operator may take


@dataclass(frozen=True)
class Draw:
    """An ATen overload that draws: the op that means it, and whether a call with these arguments draws at all."""

    op: str
    draws: Callable[[Mapping[str, Any]], bool] = lambda given: True


def _in_training(given: Mapping[str, Any]) -> bool:
    return given["train"] is not False and given["p"] > 0


def _between_layers(given: Mapping[str, Any]) -> bool:
    return bool(given["train"]) and given["dropout"] > 0 and given["num_layers"] > 1


RANDOM: dict[str, Draw] = {
    **{
        f"{name}.default": Draw(f"random_{name}")
        for name in (
            "rand", "randn", "rand_like", "randn_like", "uniform", "normal_functional", "exponential", "bernoulli",
            "randperm",
        )
    },
    "bernoulli.p": Draw("random_bernoulli"),
    "bernoulli.Tensor": Draw("random_bernoulli"),
    "randint.default": Draw("random_randint"),
    "randint.low": Draw("random_randint"),
    "dropout.default": Draw("random_dropout", _in_training),
    "native_dropout.default": Draw("random_native_dropout", _in_training),
    **{f"{name}.input": Draw(f"random_{name}", _between_layers) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}  # fmt: skip


# ---------------------------------------------------------------- the generator


def _low(word: Expr, which: int) -> Expr:
    """The low half of the product with a multiplier. M - 2^32 in the place of M keeps the product within 64 bits."""
    return call("bitand", word * (_MULTIPLIERS[which] - 2**32), _MASK)


def _high(word: Expr, which: int) -> Expr:
    """The high half: M c = (M - 2^32) c + 2^32 c."""
    product = call("shr", word * (_MULTIPLIERS[which] - 2**32), 32)
    return call("bitand", product + word, _MASK)


def random_words(
    k: Builder, rng: Tensor, draw: int, shape: Sequence[int], stream: int = 0
) -> tuple[tuple[Axis, ...], Expr, Expr]:
    """Two independent 32-bit words (in i64) for each element: (axes, first, second). The numbers of the draw and of the
    stream within it tell calls apart."""
    axes = k.axes(shape)
    position = flatten(axes, shape)
    large = math.prod(shape) > _MASK
    c0: Expr = call("bitand", position, _MASK) if large else position
    c1: Expr = call("shr", position, 32) if large else Const(0)
    c2: Expr = call("bitand", rng[1], _MASK)
    c3: Expr = lift(draw * _STREAMS + stream)
    for r in range(ROUNDS):
        keys = [
            call("bitand", (call("shr", rng[0], 32) if n else rng[0]) + (r * _WEYL[n] & _MASK), _MASK) for n in (0, 1)
        ]
        next0 = call("bitxor", call("bitxor", _high(c2, 1), c1), keys[0])
        next2 = call("bitxor", call("bitxor", _high(c0, 0), c3), keys[1])
        c1, c3 = _low(c2, 1), _low(c0, 0)
        c0, c2 = k.define(I64, axes, next0)[axes], k.define(I64, axes, next2)[axes]
    return axes, c0, c2


def _unit(word: Expr, other: Expr, dtype: DType) -> Expr:
    """A uniform number in [0, 1), exact in its type."""
    if dtype is F64:
        whole = call("shr", word, 5) * 2**26 + call("shr", other, 6)
        return Cast(F64, whole) * 2.0**-53
    return Cast(F32, call("shr", word, 8)) * 2.0**-24


def uniform_like(
    k: Builder, rng: Tensor, draw: int, shape: Sequence[int], dtype: DType, stream: int = 0
) -> tuple[tuple[Axis, ...], Expr]:
    """(axes, a uniform number in [0, 1) at each point)."""
    axes, first, second = random_words(k, rng, draw, shape, stream)
    return axes, _unit(first, second, dtype)


def _normal(k: Builder, rng: Tensor, draw: int, shape: Sequence[int], dtype: DType) -> tuple[tuple[Axis, ...], Expr]:
    """(axes, a standard normal number at each point), up to 5.8 in size."""
    axes, first, second = random_words(k, rng, draw, shape)
    positive = Cast(F32, call("shr", first, 8) + 1) * 2.0**-24  # in (0, 1], exact
    if dtype is F64:
        positive = Cast(F64, first + 1) * 2.0**-32
    angle = (Cast(F64, second) * 2.0**-32 if dtype is F64 else _unit(second, second, F32)) * (2.0 * math.pi)
    return axes, call("sqrt", call("log", positive) * -2.0) * call("cos", angle)


# ---------------------------------------------------------------- operators


@op(name="random_advance", samples=())
def random_advance(k: Builder, rng: Tensor) -> Tensor:
    """The state after a forward pass."""
    (i,) = k.axes_like(rng)
    return k.define(I64, (i,), call("where", call("eq", i, 1), rng[i] + 1, rng[i]))


@op(name="random_rand")
def random_rand(k: Builder, rng: Tensor, draw: int, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    axes, value = uniform_like(k, rng, draw, size, dtype or F32)
    return k.define(dtype or F32, axes, value)


@op(name="random_randn")
def random_randn(k: Builder, rng: Tensor, draw: int, size: Sequence[int], dtype: DType | None = None) -> Tensor:
    axes, value = _normal(k, rng, draw, size, dtype or F32)
    return k.define(dtype or F32, axes, value)


@op(name="random_rand_like")
def random_rand_like(k: Builder, rng: Tensor, draw: int, self: Tensor, dtype: DType | None = None) -> Tensor:
    return random_rand(k, rng, draw, self.shape, dtype or self.dtype)


@op(name="random_randn_like")
def random_randn_like(k: Builder, rng: Tensor, draw: int, self: Tensor, dtype: DType | None = None) -> Tensor:
    return random_randn(k, rng, draw, self.shape, dtype or self.dtype)


@op(name="random_uniform")
def random_uniform(k: Builder, rng: Tensor, draw: int, self: Tensor, **bounds: float) -> Tensor:
    """Uniform in [from, to); the bounds arrive by ATen's names, one of which is a keyword of Python."""
    low, high = float(bounds.get("from", 0.0)), float(bounds.get("to", 1.0))
    axes, value = uniform_like(k, rng, draw, self.shape, self.dtype)
    return k.define(self.dtype, axes, value * (high - low) + low)


@op(name="random_normal_functional")
def random_normal_functional(
    k: Builder, rng: Tensor, draw: int, self: Tensor, mean: float = 0.0, std: float = 1.0
) -> Tensor:
    axes, value = _normal(k, rng, draw, self.shape, self.dtype)
    return k.define(self.dtype, axes, value * float(std) + float(mean))


@op(name="random_exponential")
def random_exponential(k: Builder, rng: Tensor, draw: int, self: Tensor, lambd: float = 1.0) -> Tensor:
    """-log(1 - u) / lambd."""
    axes, value = uniform_like(k, rng, draw, self.shape, self.dtype)
    return k.define(self.dtype, axes, call("log", 1.0 - value) * (-1.0 / float(lambd)))


@op(name="random_bernoulli")
def random_bernoulli(k: Builder, rng: Tensor, draw: int, self: Tensor, p: Tensor | Scalar | None = None) -> Tensor:
    """1 with probability `p`, or where none is given with the probability that `self` holds."""
    axes, value = uniform_like(k, rng, draw, self.shape, F32)
    chance = self[axes] if p is None else at(p, axes, self.shape) if isinstance(p, Tensor) else Const(float(p))
    kind = (lambda v: float(v)) if self.dtype.is_float else int
    return k.define(self.dtype, axes, call("where", call("lt", value, chance), kind(1), kind(0)))


@op(name="random_randint")
def random_randint(
    k: Builder, rng: Tensor, draw: int, high: int, size: Sequence[int], low: int = 0, dtype: DType | None = None
) -> Tensor:
    """Integers in [low, high): a 32-bit word modulo the span, whose bias is below span / 2^32."""
    axes, word, _ = random_words(k, rng, draw, size)
    return k.define(dtype or I64, axes, word % (high - low) + low)


@op(name="random_randperm")
def random_randperm(k: Builder, rng: Tensor, draw: int, n: int, dtype: DType | None = None) -> Tensor:
    """The order of n random words; equal ones, which are rare, keep theirs."""
    axes, word, _ = random_words(k, rng, draw, (n,))
    order = k.define(I64, axes, word, Order("argsort", axes[0].name))
    return k.round(order, dtype or I64)


def _dropped(k: Builder, rng: Tensor, draw: int, x: Tensor, p: float, stream: int = 0) -> tuple[Tensor, Tensor]:
    """(x with each element zero with probability p, else divided by 1 - p; which were kept)."""
    axes, value = uniform_like(k, rng, draw, x.shape, F32, stream)
    kept = k.define(BOOL, axes, call("ge", value, float(p)))
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return k.define(x.dtype, axes, call("where", kept[axes], x[axes] * scale, 0.0)), kept


@op(name="random_dropout")
def random_dropout(k: Builder, rng: Tensor, draw: int, input: Tensor, p: float, train: bool = True) -> Tensor:
    return _dropped(k, rng, draw, input, p)[0]


@op(name="random_native_dropout")
def random_native_dropout(
    k: Builder, rng: Tensor, draw: int, input: Tensor, p: float, train: bool | None = None
) -> tuple[Tensor, Tensor]:
    return _dropped(k, rng, draw, input, p)


def _recurrent(name: str, meaning: Callable[..., Any]) -> None:
    def with_dropout(k: Builder, rng: Tensor, draw: int, *args: Any, **attrs: Any) -> Any:
        p = float(attrs["dropout"])
        return meaning(k, *args, **attrs, drop=lambda y, layer: _dropped(k, rng, draw, y, p, layer)[0])

    with_dropout.__doc__ = f"{name} with dropout between its layers."
    op(name=f"random_{name}")(with_dropout)


for _name, _meaning in (("lstm", lstm), ("gru", gru), ("rnn_tanh", rnn_tanh), ("rnn_relu", rnn_relu)):
    _recurrent(_name, _meaning)

__all__ = ["BUFFER", "RANDOM", "Draw", "random_words", "uniform_like"]

"""Training: forward and backward graphs as AOTAutograd makes them have no operator without a meaning, and mean what
torch computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kvc.frontends.fx.decompose import decompositions_for_tracing
from kvc.frontends.fx.traced import capture_traced
from kvc.graph import Ref
from kvc.interpret import interpret
from kvc.lower import fallbacks, lower
from torch import Tensor

Fn = Callable[..., Tensor]


def x(*shape: int) -> tuple[int, ...]:
    return shape


def index(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))


SPATIAL = ((9,), (9, 8), (7, 6, 5))


def pooling() -> dict[str, tuple[Fn, Sequence[Any]]]:
    cases: dict[str, tuple[Fn, Sequence[Any]]] = {}
    for d, sizes in enumerate(SPATIAL, 1):
        shape = x(2, 3, *sizes)
        for kind in ("max", "avg"):
            pool = getattr(F, f"{kind}_pool{d}d")
            cases[f"{kind}_pool{d}d"] = (lambda a, pool=pool: pool(a, 3, 2, 1), [shape])
            adaptive = getattr(F, f"adaptive_{kind}_pool{d}d")
            cases[f"adaptive_{kind}_pool{d}d"] = (lambda a, pool=adaptive, d=d: pool(a, (4,) * d), [shape])
        cases[f"max_pool{d}d disjoint"] = (lambda a, d=d: getattr(F, f"max_pool{d}d")(a, 2), [shape])
        cases[f"max_pool{d}d dilated"] = (lambda a, d=d: getattr(F, f"max_pool{d}d")(a, 2, 1, 0, 2), [shape])
        cases[f"replicate {d}d"] = (lambda a, d=d: F.pad(a, (1, 2) * d, mode="replicate"), [shape])
    return cases


CASES: dict[str, tuple[Fn, Sequence[Any]]] = {
    **pooling(),
    "batch_norm": (lambda a, w, b: F.batch_norm(a, None, None, w, b, True), [x(2, 3, 5, 4), x(3), x(3)]),
    "group_norm": (lambda a, w, b: F.group_norm(a, 2, w, b), [x(2, 4, 5), x(4), x(4)]),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (8,), w, b), [x(4, 8), x(8), x(8)]),
    "rms_norm": (lambda a, w: F.rms_norm(a, (8,), w), [x(4, 8), x(8)]),
    "softmax": (lambda a: F.softmax(a, -1), [x(4, 8)]),
    "log_softmax": (lambda a: F.log_softmax(a, -1), [x(4, 8)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [x(2, 2, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8)],
    ),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=1), [x(7, 4), index(7, 3, 5)]),
    "embedding_bag sum": (lambda w, i: F.embedding_bag(i, w, mode="sum"), [x(7, 4), index(7, 3, 5)]),
    "embedding_bag mean": (lambda w, i: F.embedding_bag(i, w, mode="mean"), [x(7, 4), index(7, 3, 5)]),
    "embedding_bag max": (lambda w, i: F.embedding_bag(i, w, mode="max"), [x(7, 4), index(7, 3, 5)]),
    "gather": (lambda a, i: a.gather(1, i), [x(4, 6), index(6, 4, 3)]),
    "scatter_add": (lambda a, b, i: a.scatter_add(1, i, b), [x(4, 6), x(4, 3), index(6, 4, 3)]),
    **{
        f"scatter_reduce {r} {s}": (
            lambda a, b, i, r=r, s=s: a.scatter_reduce(1, i, b, r, include_self=s),
            [x(4, 6), x(4, 3), index(6, 4, 3)],
        )
        for r in ("sum", "mean", "amax", "prod")
        for s in (True, False)
    },
    "index_put": (lambda a, b, i: a.index_put((i,), b, accumulate=True), [x(4, 6), x(3, 6), index(4, 3)]),
    "masked value": (lambda a: torch.index_put(a, (a > 0,), torch.tensor(1.0)), [x(4, 6)]),
    "masked_scatter": (lambda a, b: a.masked_scatter(a > 0, b), [x(4, 6), x(24)]),
    "take": (lambda a, i: a.take(i), [x(3, 4), index(12, 5)]),
    **{
        name: (getattr(F, name), [x(4, 6)])
        for name in ("gelu", "silu", "elu", "leaky_relu", "hardswish", "mish", "softplus", "selu", "logsigmoid")
    },
    "prelu": (F.prelu, [x(2, 4, 6), x(4)]),
    "cumsum": (lambda a: a.cumsum(1), [x(4, 6)]),
    "cumprod": (lambda a: a.cumprod(1), [x(4, 6)]),
    "median": (lambda a: a.median(1).values, [x(4, 7)]),
    "topk": (lambda a: a.topk(3).values, [x(4, 7)]),
    "cross_entropy": (lambda a, i: F.cross_entropy(a, i, label_smoothing=0.1, ignore_index=1), [x(4, 6), index(6, 4)]),
    "cdist": (torch.cdist, [x(4, 3), x(5, 3)]),
    "bilinear": (F.bilinear, [x(2, 3), x(2, 4), x(5, 3, 4)]),
    "grid_sample": (lambda a, g: F.grid_sample(a, g.tanh(), align_corners=False), [x(2, 3, 5, 6), x(2, 4, 4, 2)]),
    "grid_sample 3d": (
        lambda a, g: F.grid_sample(a, g.tanh(), padding_mode="border", align_corners=True),
        [x(2, 3, 5, 6, 4), x(2, 3, 4, 2, 3)],
    ),
    "bilinear resize": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), [x(2, 3, 4, 5)]),
    "antialiased resize": (
        lambda a: F.interpolate(a, size=(3, 4), mode="bilinear", antialias=True),
        [x(2, 3, 8, 9)],
    ),
    "unfold": (lambda a: F.unfold(a, 3, 1, 1, 2), [x(2, 3, 7, 8)]),
    "fold": (lambda a: F.fold(a, (6, 7), 3, 1, 1, 2), [x(2, 27, 12)]),
    "conv2d": (lambda a, w, b: F.conv2d(a, w, b, 2, 1), [x(2, 3, 9, 8), x(4, 3, 3, 3), x(4)]),
    "lstm": (
        lambda a, h, c, *w: torch.lstm(a, (h, c), list(w), True, 1, 0.0, True, False, True)[0],
        [x(2, 5, 3), x(1, 2, 4), x(1, 2, 4), x(16, 3), x(16, 4), x(16), x(16)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_graphs_mean_what_torch_computes(name: str) -> None:
    from torch._functorch.aot_autograd import aot_function
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fn, shapes = CASES[name]
    gen = torch.Generator().manual_seed(0)
    args = [
        s if isinstance(s, Tensor) else torch.randn(s, generator=gen, dtype=torch.float64).requires_grad_()
        for s in shapes
    ]
    seen: list[tuple[torch.fx.GraphModule, Sequence[Any], Sequence[Tensor], Sequence[Any]]] = []

    def compiler(module: torch.fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        def run(*values: Tensor) -> Any:
            results = module(*values)
            seen.append((module, fakes, values, results))
            return results

        return run

    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        result = aot_function(fn, compiler, compiler, decompositions=decompositions_for_tracing())(*args)
        weights = torch.randn(result.shape, generator=gen, dtype=torch.float64)
        (result * weights).sum().backward()
    assert len(seen) == 2
    for module, fakes, values, results in seen:
        captured = capture_traced(module, fakes, "graph")
        assert fallbacks(captured.graph) == {}
        spec, _ = lower(captured.graph)
        feed = {leaf.name: v for leaf, v in zip(captured.inputs, values, strict=True) if isinstance(leaf, Ref)}
        feed |= captured.state
        got = interpret(spec, {o.name: feed[o.name] for o in spec.inputs})
        for leaf, want in zip(captured.output, results, strict=True):
            # Integers are only what the backward graph is handed; the CPU leaves some of them unset.
            if isinstance(leaf, Ref) and leaf.name in got and want.is_floating_point():
                torch.testing.assert_close(
                    got[leaf.name].to(want.dtype), want, rtol=1e-6, atol=1e-8, check_stride=False, equal_nan=True
                )

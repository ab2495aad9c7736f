"""Attention becomes one kernel where the target writes it as one, and only there."""

from __future__ import annotations

import pytest
import torch
from kvc.attention import Attention, causal_reach, masked, match_attention
from kvc.emitter import Composite
from kvc.interpret import interpret
from kvc.kernel import Axis, Call, Const, KernelSpec
from kvc.passes.partition import Cut, partition
from kvc.simplify import IndexAlgebra
from kvc.text import parse_kernel

ATTENTION = (Composite("attention", frozenset({"bf16", "f16"}), 256),)

WHOLE = """kernel whole(x: {kind}[b=2,m=20,c=16], w: {kind}[d=8,c]) -> (y: {kind}[b,m,d]) {{
  q_t: f32[b,m,d] = sum(c) x[b,m,c] * w[d,c]
  q: {kind}[b,m,d] = q_t[b,m,d]
  s: f32[b,m,n=20] = sum(d) q[b,m,d] * q[b,n,d]
  u: f32[b,m,n] = where(n <= m, s[b,m,n] * 0.5, -inf)
  top: f32[b,m] = max(n) u[b,m,n]
  e: f32[b,m,n] = exp(u[b,m,n] - top[b,m])
  l: f32[b,m] = sum(n) e[b,m,n]
  p: {kind}[b,m,n] = e[b,m,n]
  o: f32[b,m,d] = sum(n) p[b,m,n] * q[b,n,d]
  y[b,m,d] = o[b,m,d] / l[b,m]
}}"""


def cuts(kind: str, composites: tuple[Composite, ...]) -> list[KernelSpec]:
    found = partition(parse_kernel(WHOLE.format(kind=kind)), composites=composites)
    return [piece.spec for piece in found if isinstance(piece, Cut)]


@pytest.mark.parametrize(
    ("kind", "composites", "kernels"),
    [
        ("bf16", ATTENTION, 2),
        ("bf16", (), 4),
        ("f32", ATTENTION, 4),
        ("bf16", (Composite("attention", frozenset({"bf16"}), 4),), 4),
        ("bf16", (Composite("attention", frozenset({"bf16"}), 128, rounded=True),), 2),
    ],
)
def test_formed_where_the_target_has_it(kind: str, composites: tuple[Composite, ...], kernels: int) -> None:
    assert len(cuts(kind, composites)) == kernels


def test_weights_that_are_not_rounded_are_not_joined_where_they_must_be() -> None:
    text = WHOLE.format(kind="bf16").replace("p: bf16[b,m,n]", "p: f32[b,m,n]")
    counts = [
        len([p for p in partition(parse_kernel(text), composites=(c,)) if isinstance(p, Cut)])
        for c in (ATTENTION[0], Composite("attention", frozenset({"bf16"}), 128, rounded=True))
    ]
    assert counts[0] < counts[1]


def test_meaning_is_kept() -> None:
    spec = parse_kernel(WHOLE.format(kind="bf16"))
    generator = torch.Generator().manual_seed(0)
    inputs = {o.name: torch.randn(spec.shape_of(o.name), generator=generator).bfloat16() for o in spec.inputs}
    values = {name: x.double() for name, x in inputs.items()}
    for cut in cuts("bf16", ATTENTION):
        given = {o.name: values[o.name].reshape(cut.shape_of(o.name)) for o in cut.inputs}
        values |= interpret(cut, given)
    want = interpret(spec, inputs)["y"]
    assert torch.allclose(values["y"].reshape(want.shape).double(), want, atol=1e-9)


def test_pattern_names_the_parts() -> None:
    found = match_attention(cuts("bf16", ATTENTION)[1])
    assert isinstance(found, Attention)
    assert found.weight is not None and found.weight.name == "bf16"
    assert not found.normalised
    (condition,) = masked(found.score).conditions
    algebra = IndexAlgebra(cuts("bf16", ATTENTION)[1].size)
    assert causal_reach(algebra, condition, found.m[0], found.n[0]) == 0


@pytest.mark.parametrize(
    ("condition", "reach"),
    [
        (Call("le", (Axis("n"), Axis("m"))), 0),
        (Call("lt", (Axis("n"), Call("add", (Axis("m"), Const(3))))), 2),
        (Call("ge", (Axis("m"), Axis("n"))), 0),
        (Call("gt", (Axis("m"), Axis("n"))), -1),
        (Call("le", (Axis("m"), Axis("n"))), None),
        (Call("eq", (Axis("m"), Axis("n"))), None),
    ],
)
def test_causal_reach(condition: Call, reach: int | None) -> None:
    spec = parse_kernel("kernel k(x: f32[m=9,n=7]) -> (y: f32[m,n]) { y[m,n] = x[m,n] }")
    assert causal_reach(IndexAlgebra(spec.size), condition, "m", "n") == reach

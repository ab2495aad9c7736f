"""Which schedule a spec gets, and why not another."""

import pytest
from kvc.patterns import (
    Contraction,
    Pointwise,
    Rows,
    Staged,
    Window,
    batch_is_finest,
    match,
    match_contraction,
    match_rows,
    stages,
    vanishing,
)
from kvc.text import parse_kernel

SPECS = {
    "gelu": ("kernel k(x: f32[m=3,n=5]) -> (y: f32[m,n]) { y[m,n] = gelu(x[m,n]) }", Pointwise),
    "softmax": (
        """kernel k(x: f32[m=37,k=301]) -> (y: f32[m,k]) {
        mx: f32[m] = max(k) x[m,k]
        e: f32[m,k] = exp(x[m,k] - mx[m])
        s: f32[m] = sum(k) e[m,k]
        y[m,k] = e[m,k] / s[m]
    }""",
        Rows,
    ),
    "linear": (
        """kernel k(x: bf16[m=65,k=72], w: bf16[n=130,k], b: bf16[n]) -> (y: bf16[m,n]) {
        t: f32[m,n] = sum(k) x[m,k] * w[n,k]
        u: bf16[m,n] = t[m,n] + b[n]
        y[m,n] = gelu(u[m,n])
    }""",
        Contraction,
    ),
    "max_pool": (
        """kernel k(x: f32[b=2,h=19,w=17]) -> (y: f32[b,i=9,j=8]) {
        y[b,i,j] = max(r=3,s=3) x[b,2*i+r,2*j+s]
    }""",
        Window,
    ),
    "depthwise": (
        """kernel k(x: f32[b=2,c=5,h=9], f: f32[c,r=3]) -> (y: f32[b,c,i=7]) {
        y[b,c,i] = sum(r) x[b,c,i+r] * f[c,r]
    }""",
        Window,
    ),
    "cumsum": ("kernel k(x: f32[m=3,k=50]) -> (y: f32[m,k]) { y[m,k] = scan sum(k) exp(x[m,k]) }", Staged),
}


@pytest.mark.parametrize("name", SPECS)
def test_match(name: str) -> None:
    text, pattern = SPECS[name]
    assert isinstance(match(parse_kernel(text)), pattern)


def test_contraction_puts_the_fastest_axis_of_the_output_into_n() -> None:
    conv = parse_kernel(
        """kernel k(x: f32[b=8,c=3,h=32,w=32], f: f32[o=16,c,r=3,s=3]) -> (y: f32[b,o,i=32,j=32]) {
        y[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
    }"""
    )
    found = match_contraction(conv)
    assert isinstance(found, Contraction)
    assert (found.batch, found.m, found.n, found.k) == ((), ("o",), ("b", "i", "j"), ("c", "r", "s"))


def test_grouped_query_attention_scores_share_their_batch_axes() -> None:
    scores = parse_kernel(
        """kernel k(q: f32[b=2,h=4,s=33,d=16], x: f32[b,g=2,t=33,d]) -> (y: f32[b,h,s,t]) {
        a: f32[b,h,s,t] = sum(d) q[b,h,s,d] * x[b,h // 2,t,d]
        y[b,h,s,t] = where(t <= s, a[b,h,s,t] * 0.25, -inf)
    }"""
    )
    found = match(scores)
    assert isinstance(found, Contraction) and found.batch == ("b", "h") and found.m == ("s",) and found.n == ("t",)


def test_rows_refuse_a_dependent_read_at_another_point() -> None:
    shifted = parse_kernel(
        """kernel k(x: f32[m=4,k=40]) -> (y: f32[m,k]) {
        s: f32[m] = sum(k) x[m,k]
        y[m,k] = x[m,k] / s[3 - m]
    }"""
    )
    assert match_rows(shifted) == "y reads s at other points than its owner's"
    assert [s.target for s in stages(shifted).stages] == ["s", "y"]


def test_stages_keep_what_would_be_recomputed_too_often() -> None:
    spec = parse_kernel(
        """kernel k(x: f32[m=4,k=40], w: f32[n=50,k], i: i64[m]) -> (y: f32[m,n]) {
        e: f32[m,k] = exp(x[m,k])
        r: f32[m,k] = relu(x[m,k])
        y[m,n] = sum(k) e[i[m],k] * w[n,k] + r[m,k]
    }"""
    )
    assert [s.target for s in stages(spec).stages] == ["e", "y"]


CLASSES = """kernel classes(x: f32[b=2,c=8,d=6,e=7], w: f32[c,o=9,r=3,s=3]) -> (y: f32[b,o,q=6,p=5,u=7,v=5]) {
  y[b,o,q,p,u,v] = sum(c) where(p * 3 % 5 < 3 && v * 3 % 5 < 3, x[b,c,q,u], 0.0) * w[c,o,p * 3 % 5,v * 3 % 5 | 0.0]
}"""


def test_classes_of_a_transposed_convolution_run_together_and_empty_ones_multiply_nothing() -> None:
    spec = parse_kernel(CLASSES)
    pattern = match_contraction(spec)
    assert isinstance(pattern, Contraction) and set(pattern.batch) == {"p", "v"}
    assert batch_is_finest(spec, pattern) and vanishing(spec, pattern) is not None
    # A weight without the guard may be infinite there, and zero times that is no zero.
    open_ended = parse_kernel(CLASSES.replace("p * 3 % 5,v * 3 % 5 | 0.0", "p % 3,v % 3"))
    pattern = match_contraction(open_ended)
    assert isinstance(pattern, Contraction) and vanishing(open_ended, pattern) is None
    plain = parse_kernel("kernel k(x: f32[b=3,m=8,k=9], w: f32[b,n=7,k]) -> (y: f32[b,m,n]) {"
                         " y[b,m,n] = sum(k) x[b,m,k] * w[b,n,k] }")  # fmt: skip
    pattern = match_contraction(plain)
    assert isinstance(pattern, Contraction) and not batch_is_finest(plain, pattern)

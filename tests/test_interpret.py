"""The reference interpreter against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from kvc.functions import FUNCTIONS
from kvc.interpret import interpret
from kvc.text import parse_kernel


def run(text: str, mode: str = "oracle", **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    return interpret(parse_kernel(text), inputs, mode)


def close(a: torch.Tensor, b: torch.Tensor, tol: float = 1e-9) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=tol, atol=tol, equal_nan=True))


def test_convolution_is_a_guarded_sum_of_products() -> None:
    x, f = torch.randn(2, 5, 11, 9), torch.randn(7, 5, 3, 3)
    y = run(
        """kernel conv(x: f32[b=2,c=5,h=11,w=9], f: f32[o=7,c,r=3,s=3]) -> (y: f32[b,o,i=6,j=5]) {
        y[b,o,i,j] = sum(c,r,s) x[b,c,2*i+r-1,2*j+s-1 | 0.0] * f[o,c,r,s]
    }""",
        x=x,
        f=f,
    )["y"]
    assert close(y, F.conv2d(x.double(), f.double(), stride=2, padding=1))


def test_softmax_argmax_and_reverse_exclusive_scan() -> None:
    x = torch.randn(7, 31)
    out = run(
        """kernel rows(x: f32[m=7,k=31]) -> (y: f32[m,k], a: i64[m], c: f32[m,k]) {
        mx: f32[m] = max(k) x[m,k]
        e: f32[m,k] = exp(x[m,k] - mx[m])
        s: f32[m] = sum(k) e[m,k]
        y[m,k] = e[m,k] / s[m]
        a[m] = argmax(k) x[m,k]
        c[m,k] = scan sum(k reverse exclusive) x[m,k]
    }""",
        x=x,
    )
    assert close(out["y"], x.double().softmax(-1))
    assert torch.equal(out["a"], x.argmax(-1))
    suffix = x.double().flip(-1).cumsum(-1).flip(-1) - x.double()
    assert close(out["c"], suffix)


def test_argmax_takes_the_first_of_equals_and_nan_before_all() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, float("nan"), 9.0]])
    text = "kernel a(x: f32[m=2,k=3]) -> (y: i64[m]) { y[m] = argmax(k) x[m,k] }"
    assert run(text, x=x)["y"].tolist() == [1, 1]


def test_indirect_access_and_scatter() -> None:
    w, i, g = torch.randn(9, 4), torch.tensor([3, 3, 0]), torch.randn(3, 4)
    out = run(
        """kernel emb(w: f32[v=9,d=4], i: i64[n=3], g: f32[n,d]) -> (y: f32[n,d], z: f32[v,d], last: f32[v,d]) {
        y[n,d] = w[i[n],d]
        z[v,d] = scatter sum(n,e=4 -> i[n],e ; w[v,d]) g[n,e]
        last[v,d] = scatter set(n,e -> i[n],e ; 0.0) g[n,e]
    }""",
        w=w,
        i=i,
        g=g,
    )
    assert close(out["y"], w[i])
    assert close(out["z"], w.double().index_add(0, i, g.double()))
    assert close(out["last"][3], g[1]) and not out["last"][5].any()


def test_masked_reduction_and_symbolic_sizes() -> None:
    x = torch.randn(5, 6)
    out = run(
        """kernel tri<m in 1..64 hint 8>(x: f32[m,k=6]) -> (y: f32[m], n: f32[m]) {
        y[m] = sum(k where k <= m) x[m,k]
        n[m] = max(k) x[m,k] / #m
    }""",
        x=x,
    )
    assert close(out["y"], x.double().tril().sum(-1))
    assert close(out["n"], x.double().amax(-1) / 5)


def test_working_mode_rounds_where_the_spec_says() -> None:
    x = torch.randn(64, dtype=torch.bfloat16)
    text = """kernel r(x: bf16[n=64]) -> (y: bf16[n], z: f32[n]) {
        t: bf16[n] = x[n] * 1.1
        y[n] = t[n] + x[n]
        z[n] = bf16(x[n] * 1.1) + x[n]
    }"""
    out = run(text, "working", x=x)
    assert torch.equal(out["y"], x * 1.1 + x)
    assert torch.equal(out["z"], (x * 1.1).float() + x.float())
    assert out["y"].dtype is torch.bfloat16


def test_slices_of_a_large_domain_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, f = torch.randn(6, 5, 9), torch.randn(4, 5, 3)
    text = """kernel conv(x: f32[b=6,c=5,h=9], f: f32[o=4,c,r=3]) -> (y: f32[b,o,i=9], m: f32[b,i]) {
        y[b,o,i] = sum(c,r) x[b,c,i+r-1 | 0.0] * f[o,c,r]
        m[b,i] = max(o) y[b,o,i]
    }"""
    whole = run(text, x=x, f=f)
    monkeypatch.setattr("kvc.interpret.MAX_POINTS", 16)
    sliced = run(text, x=x, f=f)
    assert close(whole["y"], sliced["y"]) and close(whole["m"], sliced["m"])


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.expand])
def test_composites_equal_torch(name: str) -> None:
    x = torch.linspace(-29.95, 30.05, 201)  # no integers, where gamma functions have poles
    torch_name = {"gelu_tanh": "gelu"}.get(name, name)
    functions = {"trigamma": lambda x: torch.polygamma(1, x), "bessel_i0e": torch.special.i0e,
                 "bessel_i1e": torch.special.i1e}  # fmt: skip
    function = functions.get(name) or getattr(F, torch_name, None) or getattr(torch, torch_name)
    kwargs = {"approximate": "tanh"} if name == "gelu_tanh" else {}
    y = run(f"kernel f(x: f32[n=201]) -> (y: f32[n]) {{ y[n] = {name}(x[n]) }}", x=x)["y"]
    assert close(y, function(x.double(), **kwargs), 1e-7)


@pytest.mark.parametrize(("name", "low"), [("bessel_i0", math.inf), ("bessel_i1", -math.inf), ("bessel_i0e", 0.0)])
def test_bessel_functions_have_their_limits(name: str, low: float) -> None:
    x = torch.tensor([-math.inf, math.inf])
    y = run(f"kernel f(x: f32[n=2]) -> (y: f32[n]) {{ y[n] = {name}(x[n]) }}", x=x)["y"]
    assert y.tolist() == [low, 0.0 if name == "bessel_i0e" else math.inf]

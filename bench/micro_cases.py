"""The kernels of the micro suite: a spec, and what torch would run in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: What to compare with: takes the spec's inputs in order, gives its outputs. In float64 it is the exact result too.
Baseline = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`group`: "compute" rows are compared with the baseline's time, "memory" rows with a copy of as many bytes. `bar`
    is the share of that speed (or the speedup) that the kernel should reach; `open`: the last measurement missed it,
    or there is none."""

    name: str
    group: str
    text: str
    baseline: Baseline
    against: str
    bar: float
    open: bool = False


def _matmul(name: str, kind: str, n: int, bar: float) -> Case:
    rounds = "f32" if kind == "f32" else kind
    text = f"""kernel {name}(x: {kind}[m={n},k={n}], y: {kind}[k,n={n}]) -> (z: {rounds}[m,n]) {{
  t: f32[m,n] = sum(k) x[m,k] * y[k,n]
  z[m,n] = t[m,n]
}}"""
    return Case(name, "compute", text, lambda x, y: x @ y, "torch.matmul", bar)


def _conv(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.conv2d(x, f, padding=1)


def _linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


def _gelu_add(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x + b)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def _layer_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def _rms_norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-5)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])


def _softmax_case(name: str, rows: int, columns: int) -> Case:
    text = f"""kernel {name}(x: f32[m={rows},k={columns}]) -> (y: f32[m,k]) {{
  top: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - top[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}}"""
    return Case(name, "memory", text, _softmax, "torch.softmax", 0.9)


def _sum_case(name: str, shape: str, read: str, kept: str, over: str, dim: int | tuple[int, ...]) -> Case:
    text = f"kernel {name}(x: f32[{shape}]) -> (y: f32[{kept}]) {{ y[{kept}] = sum({over}) x[{read}] }}"
    return Case(name, "memory", text, lambda x: x.sum(dim), "torch.sum", 0.9)


def _attention_case(name: str, heads: int, shared: int, head: int) -> Case:
    group = heads // shared
    kv = f"h // {group}" if group > 1 else "h"
    first, again = (f"g={shared}", "g") if group > 1 else ("h", "h")
    operands = f"q: bf16[b=4,h={heads},m=4096,d={head}], k: bf16[b,{first},n=4096,d], v: bf16[b,{again},n,d]"
    text = f"""kernel {name}({operands}) -> (o: bf16[b,h,m,d]) {{
  s: f32[b,h,m,n] = sum(d) q[b,h,m,d] * k[b,{kv},n,d]
  u: f32[b,h,m,n] = where(n <= m, s[b,h,m,n] * {head**-0.5!r}, -inf)
  top: f32[b,h,m] = max(n) u[b,h,m,n]
  e: f32[b,h,m,n] = exp(u[b,h,m,n] - top[b,h,m])
  l: f32[b,h,m] = sum(n) e[b,h,m,n]
  p: bf16[b,h,m,n] = e[b,h,m,n]
  w: f32[b,h,m,d] = sum(n) p[b,h,m,n] * v[b,{kv},n,d]
  o[b,h,m,d] = w[b,h,m,d] / l[b,h,m]
}}"""
    return Case(name, "compute", text, _attention, "the fastest SDPA backend", 0.85)


def conv3d_case(batch: int, size: int) -> Case:
    """3 channels to 64, 3 x 3 x 3: too few channels to be the depth of a tile."""
    out = size - 2
    text = f"""kernel conv3d_f32(x: f32[b={batch},c=3,d={size},h={size},w={size}], f: f32[o=64,c,r=3,s=3,t=3])
    -> (y: f32[b,o,i={out},j={out},l={out}]) {{
  y[b,o,i,j,l] = sum(c,r,s,t) x[b,c,i+r,j+s,l+t] * f[o,c,r,s,t]
}}"""

    def baseline(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.conv3d(x, f)

    return Case("conv3d_f32", "compute", text, baseline, "cuDNN, TF32 off", 1.0, open=True)


def conv_transpose_case(batch: int, height: int, width: int) -> Case:
    """Stride 5, dilation 2, 3 x 3: nine of the 25 parity classes have products. The result before it is cropped."""
    text = f"""kernel conv_transpose_dilated(x: f32[b={batch},c=32,d={height},e={width}], f: f32[c,o=64,r=3,s=3])
    -> (y: f32[b,o,q={height},p=5,u={width},v=5]) {{
  y[b,o,q,p,u,v] = sum(c) where(p * 3 % 5 < 3 && v * 3 % 5 < 3,
    x[b,c,q + (p - p * 3 % 5 * 2) // 5,u + (v - v * 3 % 5 * 2) // 5 | 0.0], 0.0) * f[c,o,p * 3 % 5,v * 3 % 5 | 0.0]
}}"""

    def baseline(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        import torch

        y = torch.nn.functional.conv_transpose2d(x, f, stride=5, dilation=2)
        return y.view(*y.shape[:2], height, 5, width, 5)

    return Case("conv_transpose_dilated", "compute", text, baseline, "cuDNN, TF32 off", 1.0, open=True)


def cumprod_case(rows: int, columns: int) -> Case:
    text = f"kernel cumprod_f32(x: f32[m={rows},k={columns}]) -> (y: f32[m,k]) {{ y[m,k] = scan prod(k) x[m,k] }}"
    return Case("cumprod_f32", "memory", text, lambda x: x.cumprod(-1), "torch.cumprod", 0.9, open=True)


#: Rows that the last measurement left below their bar (docs/performance.md).
_OPEN = frozenset({"linear_gelu_bf16", "attention_causal_128", "attention_causal_gqa", "gelu_add_bf16", "softmax_long"})

_MEASURED: tuple[Case, ...] = (
    _matmul("matmul_f32_4096", "f32", 4096, 1.85),
    Case(
        "conv3x3_f32",
        "compute",
        """kernel conv3x3_f32(x: f32[b=32,c=128,h=64,w=64], f: f32[o=256,c,r=3,s=3]) -> (y: f32[b,o,i=64,j=64]) {
  y[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
}""",
        _conv,
        "cuDNN, TF32 off",
        1.7,
    ),
    _matmul("matmul_bf16_4096", "bf16", 4096, 0.9),
    _matmul("matmul_bf16_8192", "bf16", 8192, 0.9),
    Case(
        "linear_gelu_bf16",
        "compute",
        """kernel linear_gelu_bf16(x: bf16[m=8192,k=4096], w: bf16[n=4096,k], b: bf16[n]) -> (y: bf16[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * w[n,k]
  u: bf16[m,n] = t[m,n] + b[n]
  y[m,n] = gelu(u[m,n])
}""",
        _linear_gelu,
        "linear, then gelu",
        1.0,
    ),
    _attention_case("attention_causal_64", 16, 16, 64),
    _attention_case("attention_causal_128", 16, 16, 128),
    _attention_case("attention_causal_gqa", 32, 8, 128),
    Case(
        "add_f32",
        "memory",
        "kernel add_f32(x: f32[n=67108864], y: f32[n]) -> (z: f32[n]) { z[n] = x[n] + y[n] }",
        lambda x, y: x + y,
        "torch.add",
        0.9,
    ),
    Case(
        "gelu_add_bf16",
        "memory",
        """kernel gelu_add_bf16(x: bf16[m=16384,k=8192], b: bf16[k]) -> (y: bf16[m,k]) {
  t: bf16[m,k] = x[m,k] + b[k]
  y[m,k] = gelu(t[m,k])
}""",
        _gelu_add,
        "add, then gelu",
        0.9,
    ),
    _softmax_case("softmax_short", 131072, 512),
    _softmax_case("softmax_f32", 16384, 4096),
    _softmax_case("softmax_32k", 2048, 32768),
    _softmax_case("softmax_long", 512, 262144),
    Case(
        "layer_norm_bf16",
        "memory",
        """kernel layer_norm_bf16(x: bf16[m=32768,k=4096], g: bf16[k], b: bf16[k]) -> (y: bf16[m,k]) {
  s: f32[m] = sum(k) x[m,k]
  mean: f32[m] = s[m] / 4096.0
  v: f32[m] = sum(k) (x[m,k] - mean[m]) * (x[m,k] - mean[m])
  r: f32[m] = rsqrt(v[m] / 4096.0 + 0.00001)
  y[m,k] = (x[m,k] - mean[m]) * r[m] * g[k] + b[k]
}""",
        _layer_norm,
        "torch.layer_norm",
        0.9,
    ),
    Case(
        "rms_norm_bf16",
        "memory",
        """kernel rms_norm_bf16(x: bf16[m=32768,k=4096], g: bf16[k]) -> (y: bf16[m,k]) {
  s: f32[m] = sum(k) x[m,k] * x[m,k]
  y[m,k] = x[m,k] * rsqrt(s[m] / 4096.0 + 0.00001) * g[k]
}""",
        _rms_norm,
        "torch.rms_norm",
        0.9,
    ),
    _sum_case("row_sum", "m=16384,k=8192", "m,k", "m", "k", 1),
    _sum_case("column_sum", "k=16384,m=8192", "k,m", "m", "k", 0),
    _sum_case("long_row_sum", "m=16,k=8388608", "m,k", "m", "k", 1),
    _sum_case("total_sum", "m=16384,k=8192", "m,k", "", "m,k", (0, 1)),
    _sum_case("channel_sum", "b=64,c=256,h=112,w=112", "b,c,h,w", "c", "b,h,w", (0, 2, 3)),
)

CASES: tuple[Case, ...] = (
    *(replace(case, open=case.name in _OPEN) for case in _MEASURED),
    conv3d_case(16, 64),
    conv_transpose_case(16, 64, 128),
    cumprod_case(8192, 32768),
)

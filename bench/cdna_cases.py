"""The kernels of `kvc bench cdna`: fixed specs of every kind of work, sized so that the simulator takes seconds.

Memory-bound cases run whole, so that their bytes can be compared with the least that the spec allows; the large
contractions run a few sampled workgroups, whose main loop is what counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`kind`: "matrix" (MFMA expected, main loop judged) or "memory" (bytes judged). `whole`: every workgroup runs, a
    handful otherwise. `gemm`: the bar on MFMA issue applies."""

    name: str
    kind: str
    text: str
    whole: bool = False
    gemm: bool = False


def _matmul(name: str, kind: str, m: int, n: int, k: int, gemm: bool = False, transposed: bool = False) -> Case:
    second = f"y: {kind}[n={n},k]" if transposed else f"y: {kind}[k,n={n}]"
    read = "y[n,k]" if transposed else "y[k,n]"
    text = f"""kernel {name}(x: {kind}[m={m},k={k}], {second}) -> (z: {kind}[m,n]) {{
  t: f32[m,n] = sum(k) x[m,k] * {read}
  z[m,n] = t[m,n]
}}"""
    return Case(name, "matrix", text, gemm=gemm)


def _conv(name: str, kind: str) -> Case:
    operands = f"x: {kind}[b=8,c=128,h=32,w=32], f: {kind}[o=256,c,r=3,s=3]"
    text = f"""kernel {name}({operands}) -> (y: {kind}[b,o,i=32,j=32]) {{
  t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
  y[b,o,i,j] = t[b,o,i,j]
}}"""
    return Case(name, "matrix", text)


def _conv_channels_last(name: str, kind: str) -> Case:
    """The same convolution between others, where the layout pass puts the channels last."""
    operands = f"x: {kind}[b=8,h=32,w=32,c=128], f: {kind}[o=256,r=3,s=3,c]"
    text = f"""kernel {name}({operands}) -> (y: {kind}[b,i=32,j=32,o]) {{
  t: f32[b,o,i,j] = sum(r,s,c) x[b,i+r-1,j+s-1,c | 0.0] * f[o,r,s,c]
  y[b,i,j,o] = t[b,o,i,j]
}}"""
    return Case(name, "matrix", text)


def _attention(name: str, head: int, causal: bool) -> Case:
    masked = f"where(n <= m, s[b,h,m,n] * {head**-0.5!r}, -inf)" if causal else f"s[b,h,m,n] * {head**-0.5!r}"
    text = f"""kernel {name}(q: bf16[b=1,h=16,m=1024,d={head}], k: bf16[b,h,n=1024,d], v: bf16[b,h,n,d]) \
-> (o: bf16[b,h,m,d]) {{
  s: f32[b,h,m,n] = sum(d) q[b,h,m,d] * k[b,h,n,d]
  u: f32[b,h,m,n] = {masked}
  top: f32[b,h,m] = max(n) u[b,h,m,n]
  e: f32[b,h,m,n] = exp(u[b,h,m,n] - top[b,h,m])
  l: f32[b,h,m] = sum(n) e[b,h,m,n]
  p: bf16[b,h,m,n] = e[b,h,m,n]
  w: f32[b,h,m,d] = sum(n) p[b,h,m,n] * v[b,h,n,d]
  o[b,h,m,d] = w[b,h,m,d] / l[b,h,m]
}}"""
    return Case(name, "matrix", text)


def _memory(name: str, text: str) -> Case:
    return Case(name, "memory", f"kernel {name}{text}", whole=True)


CASES: tuple[Case, ...] = (
    _matmul("gemm_f16_4096", "f16", 4096, 4096, 4096, gemm=True),
    _matmul("gemm_bf16_4096", "bf16", 4096, 4096, 4096, gemm=True),
    _matmul("gemm_f32_4096", "f32", 4096, 4096, 4096, gemm=True),
    _matmul("linear_bf16_4096", "bf16", 4096, 4096, 4096, gemm=True, transposed=True),
    _matmul("gemm_thin_m16", "bf16", 16, 4096, 4096, transposed=True),
    _matmul("gemm_thin_k64", "bf16", 4096, 4096, 64),
    _matmul("gemm_odd", "f16", 1000, 1010, 1001),
    _conv("conv3x3_f16", "f16"),
    _conv("conv3x3_f32", "f32"),
    _conv_channels_last("conv3x3_last_f16", "f16"),
    _conv_channels_last("conv3x3_last_f32", "f32"),
    _attention("attention_64", 64, False),
    _attention("attention_causal_128", 128, True),
    _memory("add_f32", "(x: f32[n=1048576], y: f32[n]) -> (z: f32[n]) { z[n] = x[n] + y[n] }"),
    _memory(
        "gelu_bf16",
        "(x: bf16[m=512,k=2048], b: bf16[k]) -> (y: bf16[m,k]) { y[m,k] = gelu(x[m,k] + b[k]) }",
    ),
    _memory("transpose_f32", "(x: f32[m=1024,n=1024]) -> (y: f32[n,m]) { y[n,m] = x[m,n] }"),
    _memory(
        "softmax_f32",
        """(x: f32[m=256,k=4096]) -> (y: f32[m,k]) {
  top: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - top[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}""",
    ),
    _memory(
        "layer_norm_bf16",
        """(x: bf16[m=512,k=4096], g: bf16[k], b: bf16[k]) -> (y: bf16[m,k]) {
  s: f32[m] = sum(k) x[m,k]
  mean: f32[m] = s[m] / 4096.0
  v: f32[m] = sum(k) (x[m,k] - mean[m]) * (x[m,k] - mean[m])
  r: f32[m] = rsqrt(v[m] / 4096.0 + 0.00001)
  y[m,k] = (x[m,k] - mean[m]) * r[m] * g[k] + b[k]
}""",
    ),
    _memory("row_sum", "(x: f32[m=512,k=4096]) -> (y: f32[m]) { y[m] = sum(k) x[m,k] }"),
    _memory("column_sum", "(x: f32[k=1024,m=2048]) -> (y: f32[m]) { y[m] = sum(k) x[k,m] }"),
    _memory("total_sum", "(x: f32[n=2097152]) -> (y: f32[]) { y[] = sum(n) x[n] }"),
    _memory("cumsum_f32", "(x: f32[m=64,k=16384]) -> (y: f32[m,k]) { y[m,k] = scan sum(k) x[m,k] }"),
    _memory(
        "max_pool_f32",
        """(x: f32[b=4,c=32,h=112,w=112]) -> (y: f32[b,c,i=56,j=56]) {
  y[b,c,i,j] = max(r=2,s=2) x[b,c,2*i+r,2*j+s]
}""",
    ),
)

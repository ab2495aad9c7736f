"""The specs of the ranking study: kinds and sizes that models have, from launch-bound to compute-bound."""

from __future__ import annotations

from kvc.bench.micro_cases import CASES

#: Cases of the micro-suite that are in the study too. The largest products are left out: a bad variant takes seconds.
_SHARED = (
    "conv3x3_f32", "matmul_bf16_4096", "linear_gelu_bf16", "attention_causal_64", "attention_causal_128", "add_f32",
    "gelu_add_bf16", "softmax_short", "softmax_f32", "softmax_32k", "layer_norm_bf16", "rms_norm_bf16", "row_sum",
    "column_sum", "channel_sum",
)  # fmt: skip


def _product(name: str, kind: str, m: int, n: int, k: int) -> str:
    return f"""kernel {name}(x: {kind}[m={m},k={k}], y: {kind}[k,n={n}]) -> (z: {kind}[m,n]) {{
  t: f32[m,n] = sum(k) x[m,k] * y[k,n]
  z[m,n] = t[m,n]
}}"""


def _softmax(name: str, rows: int, columns: int) -> str:
    return f"""kernel {name}(x: f32[m={rows},k={columns}]) -> (y: f32[m,k]) {{
  top: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - top[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}}"""


_OWN = (
    _product("matmul_f32_1024", "f32", 1024, 1024, 1024),
    _product("matmul_f32_2048", "f32", 2048, 2048, 2048),
    _product("matmul_f16_2048", "f16", 2048, 2048, 2048),
    _product("matmul_bf16_1024", "bf16", 1024, 1024, 1024),
    _product("matmul_bf16_wide", "bf16", 512, 8192, 1024),
    _product("matmul_bf16_deep", "bf16", 256, 256, 16384),
    """kernel batched_f16(x: f16[b=64,m=512,k=128], y: f16[b,n=512,k]) -> (z: f16[b,m,n]) {
  t: f32[b,m,n] = sum(k) x[b,m,k] * y[b,n,k]
  z[b,m,n] = t[b,m,n]
}""",
    """kernel conv_stem(x: f32[b=16,c=64,h=56,w=56], f: f32[o=64,c,r=3,s=3]) -> (y: f32[b,o,i=56,j=56]) {
  y[b,o,i,j] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
}""",
    """kernel max_pool(x: f32[b=32,c=128,h=112,w=112]) -> (y: f32[b,c,i=56,j=56]) {
  y[b,c,i,j] = max(r=2,s=2) x[b,c,2*i+r,2*j+s]
}""",
    """kernel depthwise(x: f32[b=16,c=256,h=56,w=56], f: f32[c,r=3,s=3]) -> (y: f32[b,c,i=56,j=56]) {
  y[b,c,i,j] = sum(r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[c,r,s]
}""",
    "kernel gelu_small(x: f32[n=1048576]) -> (y: f32[n]) { y[n] = gelu(x[n]) }",
    """kernel transpose_add(x: f32[m=4096,k=4096], y: f32[k,m]) -> (z: f32[m,k]) { z[m,k] = x[m,k] + y[k,m] }""",
    _softmax("softmax_small", 4096, 1024),
    _softmax("softmax_tall", 262144, 128),
    """kernel mean_columns(x: f32[b=64,k=196,m=768]) -> (y: f32[b,m]) {
  s: f32[b,m] = sum(k) x[b,k,m]
  y[b,m] = s[b,m] / 196.0
}""",
    """kernel layer_norm_768(x: f32[m=8192,k=768], g: f32[k], b: f32[k]) -> (y: f32[m,k]) {
  s: f32[m] = sum(k) x[m,k]
  mean: f32[m] = s[m] / 768.0
  v: f32[m] = sum(k) (x[m,k] - mean[m]) * (x[m,k] - mean[m])
  r: f32[m] = rsqrt(v[m] / 768.0 + 0.00001)
  y[m,k] = (x[m,k] - mean[m]) * r[m] * g[k] + b[k]
}""",
)

#: Spec texts of the study, in order. Every other one is held out from the fit of the model's constants.
STUDY: tuple[str, ...] = (*(c.text for c in CASES if c.name in _SHARED), *_OWN)

"""Specs with odd tails that the tests of this backend share, by name."""

from __future__ import annotations

from kvc.backends.triton.emitter import RuleEmitter
from kvc.emitter import Task
from kvc.kernel import KernelSpec
from kvc.text import parse_kernel

SPECS: dict[str, str] = {
    "gelu_add": """kernel gelu_add(x: bf16[m=37,k=301], b: f32[k]) -> (y: bf16[m,k]) {
  t: bf16[m,k] = x[m,k] + b[k]
  y[m,k] = gelu(t[m,k])
}""",
    "transposed": """kernel transposed(x: f32[k=31,m=37]) -> (y: f32[m,k], z: bool[m,k]) {
  y[m,k] = maximum(x[k,m], 0.0) % 3.0 + mish(x[k,m])
  z[m,k] = x[k,m] > 0.5 && k < m
}""",
    "padded": """kernel padded(x: f32[h=8,w=9]) -> (y: f32[i=12,j=13]) {
  t: f32[h,w] = exp(x[h,w])
  y[i,j] = t[i-2,j-2 | 1.5]
}""",
    "embedding": """kernel embedding(x: i64[n=10], w: f16[v=50,d=24]) -> (y: f16[n,d]) {
  y[n,d] = w[x[n],d]
}""",
    "scalar": """kernel scalar(x: f32[]) -> (y: f32[]) {
  y[] = x[] * 2.0
}""",
    "strided": """kernel strided(x: f32[m=7,k=9] strides(20,2), y: f32[m,k] strides(1,8))
    -> (z: f32[m,k] strides(12,1)) {
  z[m,k] = x[m,k] - y[m,k]
}""",
    "concat": """kernel concat(x: f32[m=7,k=9], y: f32[m,j=5]) -> (z: f32[m,n=14]) {
  z[m,n] = where(n < 9, x[m,n | 0.0], y[m,n - 9 | 0.0])
}""",
    "flip": """kernel flip(x: f32[a=6,b=8]) -> (z: f32[p=48]) {
  z[p] = x[5 - p // 8, 7 - p % 8]
}""",
    "depthwise": """kernel depthwise(x: f32[b=2,c=5,h=19,w=17], f: f32[c,r=3,s=3]) -> (y: f32[b,c,i=10,j=9]) {
  t: f32[b,c,i,j] = sum(r,s) x[b,c,2*i+r-1,2*j+s-1 | 0.0] * f[c,r,s]
  y[b,c,i,j] = relu(t[b,c,i,j])
}""",
    "max_pool": """kernel max_pool(x: f32[b=2,c=3,h=19,w=17]) -> (y: f32[b,c,i=9,j=8]) {
  y[b,c,i,j] = max(r=3,s=3) x[b,c,2*i+r,2*j+s | -inf]
}""",
    "avg_pool": """kernel avg_pool(x: bf16[b=2,c=3,h=19,w=17]) -> (y: bf16[b,c,i=9,j=8]) {
  t: bf16[b,c,i,j] = sum(r=7,s=7) x[b,c,2*i+r-2,2*j+s-2 | 0.0]
  y[b,c,i,j] = t[b,c,i,j] / 49.0
}""",
    "softmax": """kernel softmax(x: f32[m=37,k=301]) -> (y: f32[m,k]) {
  mx: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - mx[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}""",
    "softmax_columns": """kernel softmax_columns(x: f32[k=67,m=37]) -> (y: f32[k,m]) {
  mx: f32[m] = max(k) x[k,m]
  e: f32[k,m] = exp(x[k,m] - mx[m])
  s: f32[m] = sum(k) e[k,m]
  y[k,m] = e[k,m] / s[m]
}""",
    "layer_norm": """kernel layer_norm(x: bf16[a=3,m=7,k=77], g: bf16[k], b: bf16[k])
    -> (y: bf16[a,m,k], mean: f32[a,m]) {
  s: f32[a,m] = sum(k) x[a,m,k]
  mean[a,m] = s[a,m] / 77.0
  v: f32[a,m] = sum(k) (x[a,m,k] - mean[a,m]) * (x[a,m,k] - mean[a,m])
  r: f32[a,m] = rsqrt(v[a,m] / 77.0 + 0.00001)
  y[a,m,k] = (x[a,m,k] - mean[a,m]) * r[a,m] * g[k] + b[k]
}""",
    "total": """kernel total(x: f32[m=37,k=31]) -> (y: f32[], z: i64[]) {
  y[] = sum(m,k) x[m,k]
  z[] = sum(m,k where x[m,k] > 0.0) 1
}""",
    "arg_extrema": """kernel arg_extrema(x: f32[m=37,k=31]) -> (y: i64[m], z: i64[m], w: f32[m]) {
  y[m] = argmax(k) x[m,k]
  z[m] = argmin(k) round(x[m,k])
  w[m] = min(k) x[m,k]
}""",
    "any_all": """kernel any_all(x: bool[m=37,k=31], y: f32[m,k]) -> (p: bool[m], q: bool[m]) {
  p[m] = any(k) x[m,k] && y[m,k] > 1.0
  q[m] = all(k) x[m,k] || y[m,k] < 2.0
}""",
    "unit_row": """kernel unit_row(x: f32[k=40]) -> (y: f32[k]) {
  s: f32[] = sum(k) x[k] * x[k]
  y[k] = x[k] / sqrt(s[])
}""",
    "channels": """kernel channels(x: f32[b=4,c=6,h=5,w=5]) -> (y: f32[b,c,h,w]) {
  s: f32[c] = sum(b,h,w) x[b,c,h,w]
  v: f32[c] = sum(b,h,w) (x[b,c,h,w] - s[c] / 100.0) * (x[b,c,h,w] - s[c] / 100.0)
  y[b,c,h,w] = (x[b,c,h,w] - s[c] / 100.0) * rsqrt(v[c] / 100.0 + 0.00001)
}""",
    "linear_gelu": """kernel linear_gelu(x: bf16[m=65,k=72], w: bf16[n=130,k], b: bf16[n]) -> (y: bf16[m,n]) {
  t: f32[m,n] = sum(k) x[m,k] * w[n,k]
  u: bf16[m,n] = t[m,n] + b[n]
  y[m,n] = gelu(u[m,n])
}""",
    "conv_bn_relu": """kernel conv_bn_relu(x: f32[b=2,c=5,h=19,w=17], f: f32[o=9,c,r=3,s=3], scale: f32[o],
    shift: f32[o])
    -> (y: f32[b,o,i=10,j=9]) {
  t: f32[b,o,i,j] = sum(c,r,s) x[b,c,2*i+r-1,2*j+s-1 | 0.0] * f[o,c,r,s]
  y[b,o,i,j] = relu(t[b,o,i,j] * scale[o] + shift[o])
}""",
    "batched": """kernel batched(x: f16[b=3,h=2,m=33,k=40], y: f16[b,h,k,n=17]) -> (z: f16[b,h,m,n]) {
  t: f32[b,h,m,n] = sum(k) x[b,h,m,k] * y[b,h,k,n]
  z[b,h,m,n] = t[b,h,m,n] * 0.125
}""",
    "matmul_f32": """kernel matmul_f32(x: f32[m=33,k=50], y: f32[k,n=47]) -> (z: f32[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[k,n]
}""",
    "matmul_f64": """kernel matmul_f64(x: f64[m=33,k=50], y: f64[k,n=47]) -> (z: f64[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[k,n]
}""",
    "matmul_i64": """kernel matmul_i64(x: i64[m=33,k=50], y: i64[k,n=47]) -> (z: i64[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[k,n]
}""",
    "matmul_i8": """kernel matmul_i8(x: i8[m=33,k=50], y: i8[k,n=47]) -> (z: i32[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[k,n]
}""",
    "mat_vec": """kernel mat_vec(x: bf16[m=33,k=500], y: bf16[k]) -> (z: bf16[m]) {
  z[m] = sum(k) x[m,k] * y[k]
}""",
    "prologue": """kernel prologue(x: bf16[m=33,k=50], y: bf16[n=20,k]) -> (z: bf16[m,n]) {
  e: bf16[m,k] = silu(x[m,k])
  z[m,n] = sum(k) cos(tanh(e[m,k])) * y[n,k]
}""",
    "mixed": """kernel mixed(x: bf16[m=33,k=50], y: f32[n=20,k]) -> (z: f32[m,n]) {
  z[m,n] = sum(k) x[m,k] * y[n,k] * 2.0
}""",
    "scans": """kernel scans(x: f32[m=5,k=77]) -> (y: f32[m,k], z: f32[m,k], w: i64[m,k], v: f32[k,m], u: bf16[m,k]) {
  y[m,k] = scan sum(k) x[m,k]
  z[m,k] = scan max(k reverse) x[m,k]
  w[m,k] = scan sum(k exclusive) where(x[m,k] > 0.0, 1, 0)
  v[k,m] = scan prod(k reverse exclusive) sigmoid(x[m,k])
  u[m,k] = scan sum(k reverse) x[m,k]
}""",
    "sorts": """kernel sorts(x: f32[m=5,k=27]) -> (y: f32[m,k], z: i64[m,k]) {
  y[m,k] = sort(k descending) round(x[m,k])
  z[m,k] = argsort(k) round(x[m,k])
}""",
    "inverse": """kernel inverse(i: i64[n=70]) -> (y: i64[v=70]) {
      e: i64[v] = i64(0)
      y[v] = scatter set(n -> i[n] ; e[v]) n
    }""",
    "scatters": """kernel scatters(x: f32[n=13,d=3], i: i64[n]) -> (y: f32[v=20,d], z: f32[v,d], w: bf16[v,d]) {
  y[v,d] = scatter sum(n,e=3 -> i[n], e ; 1.0) x[n,e]
  z[v,d] = scatter set(n,e -> i[n], e ; 0.5) x[n,e]
  w[v,d] = scatter max(n,e -> i[n], e ; 0.0) x[n,e]
}""",
    "integers": """kernel integers(x: i32[n=50], y: i8[n], u: u8[n])
    -> (a: i32[n], b: i8[n], c: u8[n], d: f32[n], e: i64[n]) {
  a[n] = (x[n] - 25) // 7 + (x[n] - 20) % 6
  b[n] = y[n] * 100
  c[n] = u[n] - 7
  d[n] = x[n] / 3
  e[n] = n * 3000000000 + pow(x[n], 3)
}""",
    "casts": """kernel casts(x: f32[n=50]) -> (b: bf16[n], c: bool[n], e: f64[n]) {
  b[n] = f16(x[n]) * 0.1
  c[n] = x[n]
  e[n] = f64(x[n]) * 0.1 + where(n < 5, 0.1, f64(x[n]))
}""",
    "decay": """kernel decay(x: f32[t=9,n=70], a: f32[n], h0: f32[n]) -> (h: f32[t,n]) {
  loop t {
    h[t,n] = a[n] * h[t-1,n | h0[n]] + x[t,n]
  }
}""",
    "decay_back": """kernel decay_back(x: bf16[b=3,t=9,n=5], s: f32[b,n]) -> (g: bf16[b,t,n]) {
  loop t reverse {
    h: bf16[b,t,n] = sigmoid(x[b,t,n]) * h[b,t+1,n | s[b,n]]
    g[b,t,n] = h[b,t,n] + h[b,t+1,n | 0.5]
  }
}""",
    "rnn": """kernel rnn(x: f32[b=3,t=7,i=5], w: f32[n=11,i], u: f32[n,m=11], h0: f32[b,n]) -> (h: f32[b,t,n]) {
  a: f32[b,t,n] = sum(i) x[b,t,i] * w[n,i]
  loop t {
    r: f32[b,t,n] = sum(m) h[b,t-1,m | h0[b,m]] * u[n,m]
    h[b,t,n] = tanh(a[b,t,n] + r[b,t,n])
  }
}""",
    "rnn_norm": """kernel rnn_norm(x: bf16[b=2,t=5,n=100]) -> (h: bf16[b,t,n], s: f32[b,t]) {
  loop t {
    s[b,t] = sum(n) x[b,t,n] * h[b,t-1,n | 1.0]
    h[b,t,n] = tanh(s[b,t] + x[b,t,n])
  }
}""",
}

#: The schedule that each spec must get, beside the generic one.
SCHEDULE: dict[str, str] = {
    name: schedule
    for schedule, names in (
        ("pointwise", "gelu_add transposed padded embedding scalar strided concat flip integers casts"),
        ("window", "depthwise max_pool avg_pool"),
        ("rows", "softmax softmax_columns layer_norm total arg_extrema any_all unit_row channels mat_vec"),
        ("contraction", "linear_gelu conv_bn_relu batched matmul_f32 matmul_f64 matmul_i64 matmul_i8 prologue mixed"),
        ("generic", "scans sorts inverse scatters decay decay_back rnn rnn_norm"),
    )
    for name in names.split()
}


def spec(name: str) -> KernelSpec:
    return parse_kernel(SPECS[name])


def first(task: Task) -> RuleEmitter:
    """The preferred emitter of a task."""
    from kvc.backends.triton import TritonTarget

    emitters = (e for e in TritonTarget().emitters() if e.supports(task).ok)
    found = next(emitters)
    assert isinstance(found, RuleEmitter)
    return found

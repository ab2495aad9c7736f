"""What the HIP emitters write: golden text, support, knob spaces, compilation for every chip, and results on the
simulator against the float64 oracle, over specs with odd tails."""

from __future__ import annotations

import pytest
from kvc.arch import CDNA, arch
from kvc.backends.hip import HipTarget
from kvc.backends.hip.gemm import Problem, Tiling
from kvc.backends.hip.resources import parse
from kvc.backends.hip.toolchain import compile_hip
from kvc.emitter import Task
from kvc.patterns import Contraction, match_contraction

from tests.backends.hip.running import TARGET, emit, emitter, spec_of, verify

GFX = "gfx942"

POINTWISE = {
    "add_gelu": """kernel add_gelu(x: f32[m=64,k=132], b: f32[k]) -> (y: bf16[m,k]) {
      t: bf16[m,k] = x[m,k] + b[k]
      y[m,k] = gelu(t[m,k]) + mish(x[m,k])
    }""",
    "odd": """kernel odd(x: f16[m=37,k=301], b: f32[]) -> (y: f16[m,k]) {
      y[m,k] = where(k > m, relu(x[m,k]) * b[] % 3, -1.0)
    }""",
    "two_outputs": """kernel two_outputs(x: bf16[m=37,k=304], b: bf16[k], s: bf16[m]) -> (y: bf16[m,k], z: f32[m,k]) {
      y[m,k] = silu(x[m,k] + b[k])
      z[m,k] = y[m,k] * s[m]
    }""",
    "tail": """kernel tail(x: bf16[n=1003], s: bf16[n]) -> (y: bf16[n]) {
      y[n] = silu(x[n]) * s[n]
    }""",
    "permute": """kernel permute(x: f32[a=5,b=6,c=7]) -> (y: f32[c,a,b]) {
      y[c,a,b] = x[a,b,c] * 2.0
    }""",
    "concat": """kernel concat(x: f32[n=10,d=8], z: f32[n,e=12]) -> (y: f32[n,f=20]) {
      y[n,f] = where(f < 8, x[n,f | 0.0], z[n,f - 8 | 0.0])
    }""",
    "embedding": """kernel embedding(w: bf16[v=100,d=64], i: i64[n=11]) -> (y: bf16[n,d]) {
      y[n,d] = w[i[n],d]
    }""",
    "strided": """kernel strided(x: f32[m=9,k=13] strides(1,10), z: f32[m,k] align(4)) -> (y: f32[m,k] strides(20,1)) {
      y[m,k] = x[m,k] - z[m,k]
    }""",
    "in_place": """kernel in_place(x: f32[n=100], v: f32[n]) -> (y: f32[n] alias(x)) {
      y[n] = x[n] + v[n]
    }""",
}  # fmt: skip

WINDOWS = {
    "max_pool": """kernel max_pool(x: f32[b=2,c=3,h=19,w=17]) -> (y: f32[b,c,i=9,j=8]) {
      y[b,c,i,j] = max(r=3,s=3) x[b,c,2*i+r,2*j+s-1 | -inf]
    }""",
    "depthwise": """kernel depthwise(x: f16[b=2,c=6,h=19,w=17], f: f16[c,r=3,s=3]) -> (y: f16[b,c,h,w]) {
      t: f32[b,c,h,w] = sum(r,s) x[b,c,h+r-1,w+s-1 | 0.0] * f[c,r,s]
      y[b,c,h,w] = relu(t[b,c,h,w])
    }""",
}  # fmt: skip

ROWS = {
    "softmax": """kernel softmax(x: f32[m=37,k=301]) -> (y: f32[m,k]) {
      mx: f32[m] = max(k) x[m,k]
      e: f32[m,k] = exp(x[m,k] - mx[m])
      s: f32[m] = sum(k) e[m,k]
      y[m,k] = e[m,k] / s[m]
    }""",
    "layernorm": """kernel layernorm(x: bf16[m=7,k=1000], g: bf16[k], b: bf16[k]) -> (y: bf16[m,k], rstd: f32[m]) {
      s: f32[m] = sum(k) x[m,k]
      mean: f32[m] = s[m] / 1000.0
      d: f32[m,k] = x[m,k] - mean[m]
      v: f32[m] = sum(k) d[m,k] * d[m,k]
      rstd[m] = rsqrt(v[m] / 1000.0 + 1e-5)
      y[m,k] = d[m,k] * rstd[m] * g[k] + b[k]
    }""",
    "channel_norm": """kernel channel_norm(x: f32[b=3,c=4,h=5,w=6], g: f32[c]) -> (y: f32[b,c,h,w]) {
      s: f32[c] = sum(b,h,w) x[b,c,h,w]
      v: f32[c] = sum(b,h,w) (x[b,c,h,w] - s[c] / 90.0) * (x[b,c,h,w] - s[c] / 90.0)
      y[b,c,h,w] = (x[b,c,h,w] - s[c] / 90.0) * rsqrt(v[c] / 90.0) * g[c]
    }""",
    "channels": """kernel channels(x: f32[b=2,c=19,h=70]) -> (y: f32[b,c,h]) {
      mx: f32[b,h] = max(c) x[b,c,h]
      e: f32[b,c,h] = exp(x[b,c,h] - mx[b,h])
      s: f32[b,h] = sum(c) e[b,c,h]
      y[b,c,h] = e[b,c,h] / s[b,h]
    }""",
    "argmax": """kernel best(x: f32[m=6,k=77]) -> (y: i64[m], z: bool[m], w: i64[m]) {
      y[m] = argmax(k where k > 2) x[m,k]
      z[m] = any(k) x[m,k] > 2.5
      w[m] = argmin(k) x[m,k]
    }""",
    "gathered": """kernel gathered(x: f16[m=6,k=77], i: i64[k]) -> (y: f16[m,k]) {
      mx: f32[m] = max(k where k <= 60) x[m,i[k]]
      e: f32[m,k] = where(k <= 60, exp(x[m,i[k]] - mx[m]), 0.0)
      s: f32[m] = sum(k) e[m,k]
      y[m,k] = e[m,k] / s[m]
    }""",
    "total": """kernel total(x: f32[m=60,k=77]) -> (y: f32[]) {
      y[] = sum(m,k) x[m,k]
    }""",
}  # fmt: skip

LONG_ROWS = {
    "statistics": """kernel statistics(x: f16[b=1,c=2,h=97,w=96], g: f32[c]) -> (y: f16[b,c,h,w], s: f32[c]) {
      s[c] = sum(b,h,w) x[b,c,h,w]
      v: f32[c] = sum(b,h,w) (x[b,c,h,w] - s[c] / 9312.0) * (x[b,c,h,w] - s[c] / 9312.0)
      y[b,c,h,w] = (x[b,c,h,w] - s[c] / 9312.0) * rsqrt(v[c] / 9312.0) * g[c]
    }""",
    "loss": """kernel loss(x: f32[m=120,k=177], z: f32[m,k]) -> (y: f32[], a: bool[], mx: bf16[]) {
      s: f32[] = sum(m,k) (x[m,k] - z[m,k]) * (x[m,k] - z[m,k])
      y[] = s[] / 21240.0
      a[] = all(m,k) x[m,k] < 4.5
      mx[] = max(m,k) x[m,k]
    }""",
}  # fmt: skip

CONTRACTIONS = {
    "linear_gelu": """kernel linear_gelu(x: bf16[m=65,k=72], w: bf16[n=130,k], b: bf16[n]) -> (y: bf16[m,n]) {
      t: f32[m,n] = sum(k) x[m,k] * w[n,k]
      u: bf16[m,n] = t[m,n] + b[n]
      y[m,n] = gelu(u[m,n])
    }""",
    "conv": """kernel conv(x: f32[b=2,c=5,h=19,w=17], f: f32[o=19,c,r=3,s=3], scale: f32[o]) -> (y: f32[b,o,i=10,j=9]) {
      t: f32[b,o,i,j] = sum(c,r,s) x[b,c,2*i+r-1,2*j+s-1 | 0.0] * f[o,c,r,s]
      y[b,o,i,j] = relu(t[b,o,i,j] * scale[o])
    }""",
    "scores": """kernel scores(q: f16[b=2,h=3,m=33,d=40], k: f16[b,h,n=50,d]) -> (y: f16[b,h,m,n]) {
      t: f32[b,h,m,n] = sum(d) q[b,h,m,d] * k[b,h,n,d]
      y[b,h,m,n] = t[b,h,m,n] * 0.125
    }""",
    "transposed": """kernel transposed(q: bf16[d=48,m=40], k: bf16[d,n=56], r: bf16[m,n]) -> (y: bf16[m,n],
      z: f32[m,n]) {
      z[m,n] = sum(d) q[d,m] * k[d,n]
      y[m,n] = z[m,n] + r[m,n]
    }""",
    "f32_outer": """kernel f32_outer(q: f32[d=47,m=33], k: f32[d,n=52]) -> (y: f32[m,n]) {
      y[m,n] = sum(d) q[d,m] * k[d,n]
    }""",
    "prologue": """kernel prologue(q: bf16[m=20,d=48], k: f32[d,n=21]) -> (y: bf16[m,n]) {
      y[m,n] = sum(d) exp(q[m,d]) * k[d,n]
    }""",
    "f64": """kernel f64_product(q: f64[m=33,d=40], k: f64[d,n=50]) -> (y: f64[m,n]) {
      y[m,n] = sum(d) q[m,d] * k[d,n]
    }""",
    "i64": """kernel i64_product(q: i64[m=9,d=40], k: i64[d,n=50]) -> (y: i64[m,n]) {
      y[m,n] = sum(d) q[m,d] * k[d,n]
    }""",
    "shallow": """kernel shallow(q: f32[m=70,d=5], k: f32[n=33,d]) -> (y: f32[m,n]) {
      y[m,n] = sum(d) q[m,d] * k[n,d]
    }""",
}  # fmt: skip

SKINNY = {
    "decode": """kernel decode(q: f16[m=3,d=400], k: f16[n=50,d], b: f16[n]) -> (y: f16[m,n]) {
      t: f32[m,n] = sum(d) q[m,d] * k[n,d]
      y[m,n] = t[m,n] + b[n]
    }""",
    "decode_odd": """kernel decode_odd(q: f32[p=2,m=5,d=77], k: f32[p,n=11,d]) -> (y: f32[p,m,n]) {
      y[p,m,n] = sum(d) q[p,m,d] * k[p,n,d]
    }""",
}  # fmt: skip

GENERIC = {
    "cumsum": """kernel cumsum(x: f32[m=5,k=33]) -> (y: f32[m,k], z: f32[m,k]) {
      y[m,k] = scan sum(k reverse exclusive) x[m,k]
      z[m,k] = scan max(k) x[m,k]
    }""",
    "sort": """kernel sorted(x: f32[m=5,k=33]) -> (y: f32[m,k], i: i64[m,k]) {
      y[m,k] = sort(k descending) x[m,k]
      i[m,k] = argsort(k) x[m,k]
    }""",
    "scatter": """kernel scattered(x: f32[n=50,d=8], i: i64[n]) -> (y: bf16[v=20,d], z: f32[v,d],
      w: f32[v,d], p: f32[v,d]) {
      y[v,d] = scatter sum(n,e=8 -> i[n],e ; 0.0) x[n,e]
      z[v,d] = scatter max(n,e -> i[n],e ; -3.0) x[n,e]
      w[v,d] = scatter set(n,e -> i[n],e ; 1.0) x[n,e]
      p[v,d] = scatter prod(n,e -> i[n],e ; 1.0) x[n,e]
    }""",
    "reversed_in_place": """kernel reversed_in_place(x: f32[n=100], v: f32[n]) -> (y: f32[n] alias(x)) {
      y[n] = x[99-n] + v[n]
    }""",
    "symbolic": """kernel symbolic<m in 1..1000 hint 13, k in 1..1000 hint 21>(x: f32[m,k]) -> (y: f32[m,k]) {
      mx: f32[m] = max(k) x[m,k]
      e: f32[m,k] = exp(x[m,k] - mx[m])
      s: f32[m] = sum(k) e[m,k]
      y[m,k] = e[m,k] / s[m]
    }""",
}  # fmt: skip

CASES = [
    *(("hip.pointwise", POINTWISE[n]) for n in POINTWISE),
    *(("hip.window", WINDOWS[n]) for n in WINDOWS),
    *(("hip.rows", ROWS[n]) for n in ROWS),
    *(("hip.split_rows", LONG_ROWS[n]) for n in LONG_ROWS),
    *(("hip.contraction", CONTRACTIONS[n]) for n in CONTRACTIONS),
    *(("hip.skinny", SKINNY[n]) for n in SKINNY),
    *(("hip.generic", POINTWISE[n]) for n in ("two_outputs", "concat", "strided", "in_place")),
    *(("hip.generic", ROWS[n]) for n in ("argmax", "gathered", "total")),
    ("hip.generic", WINDOWS["depthwise"]),
    ("hip.generic", SKINNY["decode_odd"]),
    *(("hip.generic", GENERIC[n]) for n in GENERIC),
]
IDS = [f"{name.removeprefix('hip.')}-{text.split('(')[0].split('<')[0].split()[1]}" for name, text in CASES]


@pytest.mark.parametrize(("name", "text"), CASES, ids=IDS)
def test_results(name: str, text: str) -> None:
    verify(emit(text, name, GFX), text)


@pytest.mark.parametrize("input_set", ["special", "offset", "small"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hip.rows", ROWS["softmax"]),
        ("hip.contraction", CONTRACTIONS["f32_outer"]),
        ("hip.window", WINDOWS["max_pool"]),
    ],
)
def test_difficult_inputs(name: str, text: str, input_set: str) -> None:
    verify(emit(text, name, GFX), text, input_set)


@pytest.mark.parametrize("gfx", [g for g in CDNA if g != GFX])
@pytest.mark.parametrize("case", ["linear_gelu", "scores", "conv", "transposed"])
def test_matrix_cores_of_every_chip(case: str, gfx: str) -> None:
    """Each chip's own instructions are used, and give the right result."""
    candidate = emit(CONTRACTIONS[case], "hip.contraction", gfx)
    resources = parse(TARGET.compile(candidate).objects[candidate.launches[0].kernel].asm)
    assert resources[candidate.launches[0].kernel].matrix_instructions > 0
    verify(candidate, CONTRACTIONS[case])


@pytest.mark.parametrize(
    ("name", "text"), [("hip.pointwise", POINTWISE["two_outputs"]), ("hip.rows", ROWS["layernorm"])]
)
def test_every_width(name: str, text: str) -> None:
    """Vector accesses of each width give what scalar ones give."""
    task = Task(spec_of(text), arch(GFX))
    widths = {dict(c)["WIDTH"]: c for c in emitter(name).space(task).configurations}
    assert 8 in widths and 1 in widths
    for setting in widths.values():
        verify(emit(text, name, GFX, setting), text)


def test_rows_across_memory() -> None:
    """Where rows lie side by side, each thread takes one, so that a wave reads whole cache lines."""
    assert dict(emit(ROWS["channels"], "hip.rows", GFX).knobs)["ROW_THREADS"] == 1
    assert dict(emit(ROWS["softmax"], "hip.rows", GFX).knobs)["ROW_THREADS"] >= 64


def test_streaming_rows() -> None:
    """Rows that do not fit into registers are read again in each walk."""
    text = ROWS["softmax"].replace("k=301", "k=2051")
    setting = (("BLOCK", 64), ("ROW_THREADS", 16), ("WIDTH", 1))
    candidate = emit(text, "hip.rows", GFX, setting)
    assert "ITEMS" not in candidate.source
    verify(candidate, text)


@pytest.mark.parametrize("case", ["linear_gelu", "f64"])
def test_tilings(case: str) -> None:
    """Tilings of different shape agree with the oracle."""
    task = Task(spec_of(CONTRACTIONS[case]), arch(GFX))
    space = emitter("hip.contraction").space(task).configurations
    for setting in space[:: max(len(space) // 4, 1)]:
        verify(emit(CONTRACTIONS[case], "hip.contraction", GFX, setting), CONTRACTIONS[case])


def test_split_depth() -> None:
    """A deep contraction with few tiles is shared between workgroups, and the sums meet in a fixed order."""
    text = """kernel deep(x: f32[p=2,m=33,k=700], w: f32[p,k,n=50], b: f32[n]) -> (y: f32[p,m,n]) {
      t: f32[p,m,n] = sum(k) x[p,m,k] * w[p,k,n]
      y[p,m,n] = t[p,m,n] + b[n]
    }"""
    candidate = emit(text, "hip.contraction", GFX)
    assert dict(candidate.knobs)["SPLIT_K"] > 1
    assert [launch.kernel for launch in candidate.launches] == ["deep_partial", "deep"]
    verify(candidate, text)


@pytest.mark.parametrize("gfx", CDNA)
def test_tilings_fit_the_chip(gfx: str) -> None:
    text = """kernel mm(x: f16[m=4096,k=4096], w: f16[n=4096,k]) -> (y: f16[m,n]) {
      t: f32[m,n] = sum(k) x[m,k] * w[n,k]
      y[m,n] = t[m,n]
    }"""
    row = arch(gfx)
    task = Task(spec_of(text), row)
    pattern = match_contraction(task.spec)
    assert isinstance(pattern, Contraction)
    problem = Problem.of(task.spec, pattern)
    space = emitter("hip.contraction").space(task).configurations
    assert len(set(space)) == len(space) > 20
    for setting in space:
        tiling = Tiling.of(setting, row, problem.tile)
        assert tiling.shape is not None
        assert tiling.lds_bytes(problem.tile) <= row.lds_bytes and tiling.threads <= row.max_threads


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "i64"])
def test_every_size_has_a_tiling(dtype: str) -> None:
    for m, n, k in ((1, 2, 3), (2, 5, 512), (15, 700, 16), (16, 16, 16), (17, 31, 33), (1000, 3, 1), (3, 1000, 2000)):
        operands = f"x: {dtype}[m={m},k={k}], w: {dtype}[k,n={n}]"
        text = f"kernel mm({operands}) -> (y: {dtype}[m,n]) {{ y[m,n] = sum(k) x[m,k] * w[k,n] }}"
        for gfx in CDNA:
            task = Task(spec_of(text), arch(gfx))
            assert emitter("hip.contraction").supports(task).ok
            assert emitter("hip.contraction").space(task).configurations, (m, n, k)


WIDE = {
    "hip.pointwise": "kernel far(x: f32[m=64,k=64] strides(100000000,1)) -> (y: f32[m,k]) { y[m,k] = x[m,k] * 2.0 }",
    "hip.rows": "kernel far(x: f32[m=64,k=64] strides(100000000,1)) -> (y: f32[m]) { y[m] = sum(k) x[m,k] }",
    "hip.contraction": """kernel far(x: f16[m=64,k=64] strides(100000000,1), w: f16[n=64,k]) -> (y: f16[m,n]) {
      y[m,n] = sum(k) x[m,k] * w[n,k]
    }""",
    "hip.skinny": """kernel far(x: f16[m=64,k=64] strides(100000000,1), w: f16[n=2,k]) -> (y: f16[m,n]) {
      y[m,n] = sum(k) x[m,k] * w[n,k]
    }""",
    "hip.generic": """kernel far(x: f32[m=64,k=64] strides(100000000,1)) -> (y: f32[m,k], i: i64[m,k]) {
      y[m,k] = scan sum(k reverse) x[m,k]
      i[m,k] = argsort(k) x[m,k]
    }""",
}  # fmt: skip


@pytest.mark.parametrize("name", list(WIDE))
def test_offsets_beyond_32_bits(name: str) -> None:
    """Operands that reach further than 2^31 elements are indexed in 64 bits."""
    candidate = emit(WIDE[name], name, GFX)
    assert "long long" in candidate.source
    TARGET.compile(candidate)


def test_empty_domains() -> None:
    text = """kernel empty(x: f32[m=0,k=5], z: f32[n=4,j=0]) -> (y: f32[m,k], s: f32[n], t: f32[n]) {
      y[m,k] = x[m,k] + 1.0
      s[n] = sum(j) z[n,j]
      t[n] = max(j) z[n,j]
    }"""
    candidate = emit(text, "hip.generic", GFX)
    assert len(candidate.launches) == 2
    verify(candidate, text)


def test_order_of_emitters() -> None:
    """The first emitter that supports a spec is the schedule made for it; the last supports everything."""

    def first(text: str) -> str:
        task = Task(spec_of(text), arch(GFX))
        return next(e.name for e in HipTarget().emitters() if e.supports(task).ok)

    assert first(POINTWISE["odd"]) == "hip.pointwise"
    assert first(WINDOWS["max_pool"]) == "hip.window"
    assert first(ROWS["softmax"]) == "hip.rows"
    assert first(LONG_ROWS["loss"]) == "hip.split_rows"
    assert first(CONTRACTIONS["conv"]) == "hip.contraction"
    assert first(SKINNY["decode"]) == "hip.skinny"
    assert first(GENERIC["scatter"]) == "hip.generic"


def test_reasons() -> None:
    task = Task(spec_of(ROWS["softmax"]), arch(GFX))
    for name in ("hip.pointwise", "hip.window", "hip.contraction", "hip.skinny"):
        support = emitter(name).supports(task)
        assert not support.ok and support.reason


@pytest.mark.parametrize(
    ("name", "case", "text"),
    [
        ("hip.pointwise", "two_outputs", POINTWISE["two_outputs"]),
        ("hip.window", "max_pool", WINDOWS["max_pool"]),
        ("hip.rows", "softmax", ROWS["softmax"]),
        ("hip.split_rows", "loss", LONG_ROWS["loss"]),
        ("hip.contraction", "linear_gelu", CONTRACTIONS["linear_gelu"]),
        ("hip.contraction", "conv", CONTRACTIONS["conv"]),
        ("hip.skinny", "decode", SKINNY["decode"]),
        ("hip.generic", "scatter", GENERIC["scatter"]),
    ],
)
def test_golden(name: str, case: str, text: str, golden) -> None:
    golden(f"hip/{case}.hip", emit(text, name, GFX).source)


def test_text_is_deterministic() -> None:
    text = CONTRACTIONS["linear_gelu"]
    assert emit(text, "hip.contraction", GFX) == emit(text, "hip.contraction", GFX)


@pytest.mark.parametrize("name", ["std", "union", "half"])
def test_words_of_the_language_name_kernels(name: str) -> None:
    """An operator, and so a kernel, may be called like a keyword or a namespace."""
    for by, body in (("hip.rows", "y[m] = sum(n) x[m,n]"), ("hip.generic", "y[m] = x[m,0] + 1")):
        candidate = emit(f"kernel {name}(x: f32[m=5,n=70]) -> (y: f32[m]) {{ {body} }}", by, GFX)
        assert candidate.launches[0].kernel.startswith(f"{name}_")
        assert compile_hip(candidate.source, GFX).binary

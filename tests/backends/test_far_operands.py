"""Operands that reach beyond 2^31 elements: every emitter computes 64-bit offsets for them.

Elements lie far apart instead of being many: between the rows of such an operand there is no memory at all
(kvc.verify.buffers), so that an offset cut to 32 bits faults or finds the wrong row. That a domain of more than 2^31
points is counted in 64 bits is seen in the source.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvc.arch import arch
from kvc.emitter import Candidate, Emitter, Task, target
from kvc.kernel import KernelSpec, Operand
from kvc.simulator.executor import SimExecutor
from kvc.text import parse_kernel
from kvc.verify.buffers import bind, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.oracle import Examiner

GFX = "gfx942"
FAR = 2**31 + 2**12  # elements between neighbours along one dim; a multiple of every access's width
MOST = 48  # neighbours, each a segment of its own


def far_operand(spec: KernelSpec, operand: Operand) -> Operand:
    """The operand with its outermost dim of a few elements stretched, the rest dense."""
    shape = spec.shape_of(operand.name)
    stretched = next((d for d, n in enumerate(shape) if 1 < n <= MOST), None)
    if stretched is None:
        return operand
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d] = FAR if d == stretched else step
        step *= 1 if d == stretched else shape[d]
    return replace(operand, strides=tuple(strides))


def stretched(spec: KernelSpec) -> KernelSpec:
    inputs = tuple(far_operand(spec, o) for o in spec.inputs)
    return replace(spec, inputs=inputs, outputs=tuple(far_operand(spec, o) for o in spec.outputs))


SPECS = {
    "pointwise": """kernel f(x: f32[m=3,k=260], b: f32[k]) -> (y: f32[m,k]) {
      y[m,k] = x[m,k] * 2.0 + b[k]
    }""",
    "transposed": """kernel f(x: f16[a=5,b=7,c=40]) -> (y: f16[c,a,b]) {
      y[c,a,b] = x[a,b,c] * 2.0
    }""",
    "gathered": """kernel f(w: bf16[v=9,d=64], i: i64[n=11]) -> (y: bf16[n,d]) {
      y[n,d] = w[i[n],d]
    }""",
    "scattered": """kernel f(x: f32[n=40,e=8], i: i64[n]) -> (y: f32[v=9,k=8]) {
      y[v,k] = scatter sum(n,e -> i[n],e ; 0.0) x[n,e]
    }""",
    "softmax": """kernel f(x: f32[m=5,k=301]) -> (y: f32[m,k]) {
      mx: f32[m] = max(k) x[m,k]
      e: f32[m,k] = exp(x[m,k] - mx[m])
      s: f32[m] = sum(k) e[m,k]
      y[m,k] = e[m,k] / s[m]
    }""",
    "channel norm": """kernel f(x: f32[b=3,c=4,h=5,w=6], g: f32[c]) -> (y: f32[b,c,h,w]) {
      s: f32[c] = sum(b,h,w) x[b,c,h,w]
      v: f32[c] = sum(b,h,w) (x[b,c,h,w] - s[c] / 90.0) * (x[b,c,h,w] - s[c] / 90.0)
      y[b,c,h,w] = (x[b,c,h,w] - s[c] / 90.0) * rsqrt(v[c] / 90.0) * g[c]
    }""",
    "few terms": """kernel f(x: f32[m=6,k=50]) -> (y: f32[k], z: f32[k]) {
      y[k] = sum(m) x[m,k]
      z[k] = x[1,k] + x[2,7]
    }""",
    "argmax": """kernel f(x: f32[m=6,k=77]) -> (y: i64[m]) {
      y[m] = argmax(k) x[m,k]
    }""",
    "total": """kernel f(x: f32[m=24,k=1000]) -> (y: f32[]) {
      y[] = sum(m,k) x[m,k]
    }""",
    "scan": """kernel f(x: f32[m=3,k=300]) -> (y: f32[m,k]) {
      y[m,k] = scan sum(k) x[m,k]
    }""",
    "sorted": """kernel f(x: f32[m=3,k=30]) -> (y: f32[m,k]) {
      y[m,k] = sort(k) x[m,k]
    }""",
    "linear": """kernel f(x: bf16[m=40,k=96], w: bf16[n=44,k], b: bf16[n]) -> (y: bf16[m,n]) {
      t: f32[m,n] = sum(k) x[m,k] * w[n,k]
      y[m,n] = gelu(t[m,n] + b[n])
    }""",
    "batched, fp32": """kernel f(x: f32[b=3,m=33,k=40], w: f32[b,k,n=35]) -> (y: f32[b,m,n]) {
      y[b,m,n] = sum(k) x[b,m,k] * w[b,k,n]
    }""",
    "few rows": """kernel f(x: bf16[m=2,k=256], w: bf16[n=40,k]) -> (y: bf16[m,n]) {
      t: f32[m,n] = sum(k) x[m,k] * w[n,k]
      y[m,n] = t[m,n]
    }""",
    "convolution": """kernel f(x: f32[b=2,c=5,h=9,w=8], f: f32[o=17,c,r=3,s=3]) -> (y: f32[b,o,h,w]) {
      y[b,o,h,w] = sum(c,r,s) x[b,c,h+r-1,w+s-1 | 0.0] * f[o,c,r,s]
    }""",
    "pooling": """kernel f(x: f32[b=2,c=3,h=19,w=17]) -> (y: f32[b,c,i=9,j=8]) {
      y[b,c,i,j] = max(r=3,s=3) x[b,c,2*i+r,2*j+s-1 | -inf]
    }""",
    "recurrence": """kernel f(x: f32[b=3,t=6,h=8], u: f32[g=8,h]) -> (y: f32[b,t,g]) {
      loop t {
        r: f32[t,b,g] = sum(h) u[g,h] * y[b,t-1,h | 0.0]
        y[b,t,g] = tanh(x[b,t,g] + r[t,b,g])
      }
    }""",
    "attention": """kernel f(q: f16[b=2,m=33,d=16], k: f16[b,n=40,d], v: f16[b,n,d]) -> (y: f16[b,m,d]) {
      s: f32[b,m,n] = sum(d) q[b,m,d] * k[b,n,d]
      x: f32[b,m] = max(n) s[b,m,n]
      p: f32[b,m,n] = exp(s[b,m,n] - x[b,m])
      z: f32[b,m] = sum(n) p[b,m,n]
      o: f32[b,m,d] = sum(n) p[b,m,n] / z[b,m] * v[b,n,d]
      y[b,m,d] = o[b,m,d]
    }""",
}  # fmt: skip


def fitting(language: str, spec: KernelSpec) -> list[tuple[Emitter, Candidate]]:
    """The best guess of every emitter that takes the spec."""
    task = Task(spec, arch(GFX))
    emitters = [e for e in target(language).emitters() if e.supports(task).ok]
    return [(e, next(iter(e.propose(task, e.space(task).default, (), 0)))) for e in emitters]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("language", ["hip", "triton"])
def test_rows_far_apart(language: str, name: str) -> None:
    spec = stretched(parse_kernel(SPECS[name]))
    assert any(o.strides is not None and FAR in o.strides for o in spec.inputs)
    examiner = Examiner(spec, 0)
    reference = examiner.reference(examiner.input_sets[0])
    for emitter, candidate in fitting(language, spec)[:2]:
        compiled = target(language).compile(candidate)
        buffers, fresh = bind(candidate, reference.inputs)
        done = SimExecutor(arch(GFX)).execute(launch_plans(candidate, compiled), buffers, outputs=fresh)
        got = outputs_of(spec, done.buffers)
        for out in spec.outputs:
            result = compare(
                out.name, out.dtype, got[out.name], reference.oracle[out.name], reference.working[out.name],
                reference.probe[out.name], growth=examiner.growth,
            )  # fmt: skip
            assert result.diagnostic is None, f"{emitter.name}: {result.diagnostic}"


MANY = {
    "points": "kernel f(x: f16[n=3000000000]) -> (y: f16[n]) { y[n] = relu(x[n]) }",
    "rows": "kernel f(x: f32[m=3000000000,k=2]) -> (y: f32[m]) { y[m] = sum(k) x[m,k] }",
    "columns": "kernel f(x: f32[n=3000000000]) -> (y: f32[]) { y[] = sum(n) x[n] }",
    "results": """kernel f(x: bf16[m=60000,k=64], w: bf16[n=60000,k]) -> (y: bf16[m,n]) {
      t: f32[m,n] = sum(k) x[m,k] * w[n,k]
      y[m,n] = t[m,n]
    }""",
}


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("language", ["hip", "triton"])
def test_more_elements_than_31_bits_count(language: str, name: str) -> None:
    for emitter, candidate in fitting(language, parse_kernel(MANY[name]))[:2]:
        word = "long long" if language == "hip" else "tl.int64"
        assert word in candidate.source, emitter.name
        assert all(0 < n < 2**31 for launch in candidate.launches for n in launch.grid), emitter.name
        target(language).compile(candidate)

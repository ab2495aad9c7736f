"""Triton mutants: correct kernels, and one edit for each fault."""

from __future__ import annotations

from tests.adversarial.mutants import Mutant

_TOP = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n"

SCALE = f"""# Launch: k(x, y) on 4 programs of 256 threads, num_warps=4
{_TOP}
@triton.jit
def k(x_ptr, y_ptr):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + i, mask=i < 1003, other=0.0)
    tl.store(y_ptr + i, x * 2.0, mask=i < 1003)
"""
TWO = f"""# Launch: k(x, y, z) on 4 programs of 256 threads, num_warps=4
{_TOP}
@triton.jit
def k(x_ptr, y_ptr, z_ptr):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + i, mask=i < 1003, other=0.0)
    tl.store(y_ptr + i, x * 2.0, mask=i < 1003)
    tl.store(z_ptr + i, x + 1.0, mask=i < 1003)
"""
_LARGER = """@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


"""
SOFTMAX = f"""# Launch: k(x, y) on 5 programs of 64 threads, num_warps=1
{_TOP}
{_LARGER}@triton.jit
def k(x_ptr, y_ptr):
    j = tl.arange(0, 256)
    at = tl.program_id(0) * 200 + j
    x = tl.load(x_ptr + at, mask=j < 200, other=float("-inf"))
    mx = tl.reduce(x, 0, larger)
    e = tl.where(j < 200, libdevice.exp(x - mx), 0.0)
    s = tl.sum(e, axis=0)
    tl.store(y_ptr + at, e / s, mask=j < 200)
"""
VARIANCE = f"""# Launch: k(x, y) on 5 programs of 64 threads, num_warps=1
{_TOP}
@triton.jit
def k(x_ptr, y_ptr):
    j = tl.arange(0, 256)
    x = tl.load(x_ptr + tl.program_id(0) * 200 + j, mask=j < 200, other=0.0)
    mean = tl.sum(x, axis=0) / 200.0
    d = tl.where(j < 200, x - mean, 0.0)
    s = tl.sum(d * d, axis=0)
    tl.store(y_ptr + tl.program_id(0), s)
"""
PEAK = f"""# Launch: k(x, y) on 5 programs of 64 threads, num_warps=1
{_TOP}
{_LARGER}@triton.jit
def k(x_ptr, y_ptr):
    j = tl.arange(0, 256)
    x = tl.load(x_ptr + tl.program_id(0) * 200 + j, mask=j < 200, other=float("-inf"))
    tl.store(y_ptr + tl.program_id(0), tl.reduce(x, 0, larger))
"""
TOTAL = f"""# Launch: zero(y) on 1 programs of 64 threads, num_warps=1
# Launch: k(x, y) on 1 programs of 64 threads, num_warps=1
{_TOP}
@triton.jit
def zero(y_ptr):
    tl.store(y_ptr, 0.0)


@triton.jit
def k(x_ptr, y_ptr):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    x = tl.load(x_ptr + i, mask=i < 1003, other=0.0)
    tl.atomic_add(y_ptr, tl.sum(x, axis=0))
"""
GATE = f"""# Launch: k(x, b, y) on 4 programs of 256 threads, num_warps=4
{_TOP}
@triton.jit
def k(x_ptr, b_ptr, y_ptr):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + i, mask=i < 1003, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + i, mask=i < 1003, other=0.0).to(tl.float32)
    t = (x + b).to(tl.bfloat16).to(tl.float32)
    tl.store(y_ptr + i, (t * x).to(tl.bfloat16), mask=i < 1003)
"""
SCALE_BF16 = f"""# Launch: k(x, y) on 4 programs of 256 threads, num_warps=4
{_TOP}
@triton.jit
def k(x_ptr, y_ptr):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + i, mask=i < 1003, other=0.0).to(tl.float32)
    y = (x * 1.7).to(tl.bfloat16)
    tl.store(y_ptr + i, y, mask=i < 1003)
"""
DECODE_FNUZ = f"""# Launch: k(x, y) on 4 programs of 256 threads, num_warps=4
{_TOP}
BIAS: tl.constexpr = tl.constexpr(8)


@triton.jit
def k(x_ptr, y_ptr):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    c = tl.load(x_ptr + i, mask=i < 1003, other=0.0).to(tl.uint8, bitcast=True).to(tl.int32)
    exponent = (c // 8) % 16
    fraction = (c % 8).to(tl.float32)
    unit = libdevice.exp2((tl.where(exponent == 0, 1, exponent) - BIAS - 3).to(tl.float32))
    v = tl.where(exponent == 0, fraction, fraction + 8.0) * unit
    v = tl.where(c >= 128, -v, v)
    v = tl.where(c == 128, float("nan"), v)
    tl.store(y_ptr + i, v * 2.0, mask=i < 1003)
"""
FAR = f"""# Launch: k(x, y) on 1 programs of 64 threads, num_warps=1
{_TOP}
@triton.jit
def k(x_ptr, y_ptr):
    i = tl.arange(0, 128)
    x = tl.load(x_ptr + (i // 40).to(tl.int64) * 1500000000 + i % 40, mask=i < 120, other=0.0)
    tl.store(y_ptr + i, x * 2.0, mask=i < 120)
"""
ANY_SIZE = f"""# Launch: k(x, y, #n) on 4 programs of 256 threads, num_warps=4
{_TOP}
@triton.jit
def k(x_ptr, y_ptr, n):
    for start in range(tl.program_id(0) * 256, n, 1024):
        i = start + tl.arange(0, 256)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        tl.store(y_ptr + i, x * 2.0, mask=i < n)
"""

CORRECT = {
    "scale": SCALE, "two": TWO, "softmax": SOFTMAX, "variance": VARIANCE, "peak": PEAK, "total": TOTAL, "gate": GATE,
    "scale_bf16": SCALE_BF16, "decode_fnuz": DECODE_FNUZ, "far": FAR, "any_size": ANY_SIZE,
}  # fmt: skip


def _m(name: str, rule: str, spec: str, old: str, new: str, stage: str, code: str, lint: str = "") -> Mutant:
    return Mutant(name, rule, spec, CORRECT[spec], ((old, new),), stage, code, lint)


_STORE = "    tl.store(y_ptr + i, x * 2.0, mask=i < 1003)\n"
_JIT = "@triton.jit\ndef k("

MUTANTS = [
    _m(
        "unwritten half",
        "V1",
        "scale",
        "x * 2.0, mask=i < 1003",
        "x * 2.0, mask=(i < 1003) & (i % 2 == 0)",
        "compare",
        "KVC0702",
    ),
    _m(
        "earlier result",
        "V1",
        "scale",
        _STORE,
        "    old = tl.load(y_ptr + i, mask=i < 1003, other=0.0)\n"
        "    tl.store(y_ptr + i, tl.where(old == x * 2.0, old, x * 2.0), mask=i < 1003)\n",
        "execute",
        "KVC0905",
    ),
    _m(
        "torch does the work",
        "V2",
        "scale",
        "import triton\n",
        "import torch\nimport triton\n",
        "lint",
        "KVC0403",
        "import",
    ),
    _m(
        "torch by another way",
        "V2",
        "scale",
        "x * 2.0,",
        "triton.runtime.driver.torch.mul(x, 2.0),",
        "lint",
        "KVC0403",
        "attribute",
    ),
    _m(
        "fallback on failure",
        "V3",
        "scale",
        _STORE,
        "    try:\n    " + _STORE + "    except ValueError:\n        pass\n",
        "lint",
        "KVC0403",
        "statement",
    ),
    _m(
        "inherits the reference",
        "V3",
        "scale",
        _JIT,
        "class Model(Reference):\n    pass\n\n\n" + _JIT,
        "lint",
        "KVC0403",
        "module-code",
    ),
    _m("zeros", "V4", "softmax", "e / s", "e * 0.0", "compare", "KVC0701"),
    _m("constant mean", "V4", "softmax", "e / s", "e * 0.0 + 0.005", "compare", "KVC0701"),
    _m(
        "input overwritten",
        "V6",
        "scale",
        _STORE,
        _STORE + "    tl.store(x_ptr + i, x * 0.0, mask=i < 1003)\n",
        "execute",
        "KVC0703",
    ),
    _m(
        "background thread",
        "V7",
        "scale",
        "import triton\n",
        "import threading\nimport triton\n",
        "lint",
        "KVC0403",
        "import",
    ),
    _m(
        "lazy tensor",
        "V8",
        "scale",
        _JIT,
        "class Lazy(tl.tensor):\n    pass\n\n\n" + _JIT,
        "lint",
        "KVC0403",
        "module-code",
    ),
    _m(
        "timer patched on import",
        "V9",
        "scale",
        _JIT,
        'if __name__ != "__main__":\n    import time\n\n    time.time = abs\n\n\n' + _JIT,
        "lint",
        "KVC0403",
        "module-code",
    ),
    _m("replay by call count", "V10", "scale", _JIT, "CALLS = {}\n\n\n" + _JIT, "lint", "KVC0403", "module-code"),
    _m("other after N calls", "V11", "scale", _STORE, "    global CALLS\n" + _STORE, "lint", "KVC0403", "statement"),
    _m("tested size only", "V12", "any_size", "mask=i < n", "mask=i < 1003", "execute", "KVC0711"),
    _m("unstable softmax", "V13", "softmax", "libdevice.exp(x - mx)", "libdevice.exp(x)", "compare", "KVC0706"),
    _m(
        "cancelling variance",
        "V13",
        "variance",
        "s = tl.sum(d * d, axis=0)",
        "s = tl.sum(x * x, axis=0) - mean * mean * 200.0",
        "compare",
        "KVC0701",
    ),
    _m("NaN swallowed", "V13", "peak", ", propagate_nan=tl.PropagateNan.ALL", "", "compare", "KVC0706"),
    _m(
        "fp16 inside fp32",
        "V14",
        "softmax",
        "libdevice.exp(x - mx)",
        "libdevice.exp(x - mx).to(tl.float16).to(tl.float32)",
        "compare",
        "KVC0701",
    ),
    Mutant(
        "order of atomics",
        "V15",
        "total",
        TOTAL,
        (
            ("k(x, y) on 1 programs", "k(x, y) on 32 programs"),
            ("tl.program_id(0) * 1024 + tl.arange(0, 1024)", "tl.program_id(0) * 32 + tl.arange(0, 32)"),
        ),
        "determinism",
        "KVC0705",
    ),
    _m(
        "two programs, one place",
        "V15",
        "scale",
        "y_ptr + i, x * 2.0, mask=i < 1003",
        "y_ptr + i % 997, x * 2.0, mask=i < 1003",
        "compare",
        "KVC0702",
    ),
    _m(
        "walks the harness",
        "V17",
        "scale",
        "x * 2.0,",
        "x * float(open('/proc/self/maps').read()),",
        "lint",
        "KVC0403",
        "forbidden-name",
    ),
    _m(
        "second output missing",
        "V20",
        "two",
        "    tl.store(z_ptr + i, x + 1.0, mask=i < 1003)\n",
        "",
        "compare",
        "KVC0702",
    ),
    _m("argument unknown", "V20", "two", "k(x, y, z)", "k(x, y, w)", "propose", "KVC0302"),
    _m("reads past the end", "V21", "scale", "x_ptr + i, mask", "x_ptr + i + 1, mask", "execute", "KVC0903"),
    _m("writes past the end", "V21", "scale", "x * 2.0, mask=i < 1003", "x * 2.0, mask=i < 1004", "execute", "KVC0903"),
    _m("block of 32-lane waves", "A1", "scale", "of 256 threads", "of 128 threads", "compare", "KVC0702"),
    _m("missing store mask", "A2", "scale", "x * 2.0, mask=i < 1003", "x * 2.0", "lint", "KVC0403", "unmasked"),
    _m(
        "store mask of the padded size",
        "A2",
        "scale",
        "x * 2.0, mask=i < 1003",
        "x * 2.0, mask=i < 1024",
        "execute",
        "KVC0903",
    ),
    _m(
        "bf16 truncated",
        "A3",
        "scale_bf16",
        "y = (x * 1.7).to(tl.bfloat16)",
        "y = ((x * 1.7).to(tl.int32, bitcast=True) // 65536).to(tl.int16).to(tl.bfloat16, bitcast=True)",
        "compare",
        "KVC0701",
    ),
    _m(
        "32 warps",
        "A5",
        "scale",
        "of 256 threads, num_warps=4",
        "of 2048 threads, num_warps=32",
        "resources",
        "KVC0402",
    ),
    _m("OCP for FNUZ", "A6", "decode_fnuz", "constexpr(8)", "constexpr(7)", "compare", "KVC0701"),
    _m("bf16 rounding left out", "A8", "gate", "(x + b).to(tl.bfloat16).to(tl.float32)", "x + b", "compare", "KVC0710"),
    _m("int32 offset", "A9", "far", "(i // 40).to(tl.int64)", "(i // 40)", "execute", "KVC0903"),
    _m(
        "endless loop",
        "A10",
        "scale",
        _STORE,
        "    n = 1\n    while n > 0:\n        n = n % 1000 + 1\n        tl.store(y_ptr + i, x * n, mask=i < 1003)\n",
        "execute",
        "KVC0909",
    ),
]

#: A copy of SCALE with other names, layout and comments.
COPY = '''"""The same thing again."""
# Launch: fast(x, y) on 4 programs of 256 threads, num_warps=4
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def fast(source, target):
    element = tl.program_id(0) * 256 + tl.arange(0, 256)  # mine
    value = tl.load(source + element, mask=element < 1003, other=0.0)
    tl.store(target + element,
             value * 2.0, mask=element < 1003)
'''

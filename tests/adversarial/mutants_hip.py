"""HIP mutants: correct kernels, and one edit for each fault."""

from __future__ import annotations

from tests.adversarial.mutants import Mutant

_TOP = "#include <hip/hip_runtime.h>\n#include <hip/hip_bf16.h>\n"

SCALE = f"""// Launch: k(x, y), grid 4 x 1 x 1, block 256 x 1 x 1
{_TOP}
extern "C" __global__ void k(const float* x, float* y) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < 1003) y[i] = x[i] * 2.0f;
}}
"""
TWO = f"""// Launch: k(x, y, z), grid 4 x 1 x 1, block 256 x 1 x 1
{_TOP}
extern "C" __global__ void k(const float* x, float* y, float* z) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= 1003) return;
  y[i] = x[i] * 2.0f;
  z[i] = x[i] + 1.0f;
}}
"""
_REDUCE = """template <class T, class F>
__device__ T reduce(T v, F f) {
  __shared__ T part[4];
  for (int d = 32; d > 0; d /= 2) v = f(v, __shfl_xor(v, d));
  if (threadIdx.x % 64 == 0) part[threadIdx.x / 64] = v;
  __syncthreads();
  v = f(f(part[0], part[1]), f(part[2], part[3]));
  __syncthreads();
  return v;
}
__device__ float add(float a, float b) { return a + b; }
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }
"""
SOFTMAX = f"""// Launch: k(x, y), grid 5 x 1 x 1, block 256 x 1 x 1
{_TOP}{_REDUCE}
extern "C" __global__ void k(const float* x, float* y) {{
  const int j = threadIdx.x, at = blockIdx.x * 200 + j;
  const bool in = j < 200;
  const float v = in ? x[at] : -INFINITY;
  const float mx = reduce(v, larger);
  const float e = in ? expf(v - mx) : 0.0f;
  const float s = reduce(e, add);
  if (in) y[at] = e / s;
}}
"""
VARIANCE = f"""// Launch: k(x, y), grid 5 x 1 x 1, block 256 x 1 x 1
{_TOP}{_REDUCE}
extern "C" __global__ void k(const float* x, float* y) {{
  const int j = threadIdx.x;
  const float v = j < 200 ? x[blockIdx.x * 200 + j] : 0.0f;
  const float mean = reduce(v, add) / 200.0f;
  const float d = j < 200 ? v - mean : 0.0f;
  const float s = reduce(d * d, add);
  if (j == 0) y[blockIdx.x] = s;
}}
"""
PEAK = f"""// Launch: k(x, y), grid 5 x 1 x 1, block 256 x 1 x 1
{_TOP}{_REDUCE}
extern "C" __global__ void k(const float* x, float* y) {{
  const int j = threadIdx.x;
  const float mx = reduce(j < 200 ? x[blockIdx.x * 200 + j] : -INFINITY, larger);
  if (j == 0) y[blockIdx.x] = mx;
}}
"""
TOTAL = f"""// Launch: k(x, part), grid 4 x 1 x 1, block 256 x 1 x 1
// Launch: last(part, y), grid 1 x 1 x 1, block 64 x 1 x 1
// Scratch: part, 4 elements of f32.
{_TOP}{_REDUCE}
extern "C" __global__ void k(const float* x, float* part) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  const float s = reduce(i < 1003 ? x[i] : 0.0f, add);
  if (threadIdx.x == 0) part[blockIdx.x] = s;
}}
extern "C" __global__ void last(const float* part, float* y) {{
  if (threadIdx.x == 0) y[0] = part[0] + part[1] + part[2] + part[3];
}}
"""
GATE = f"""// Launch: k(x, b, y), grid 4 x 1 x 1, block 256 x 1 x 1
{_TOP}
extern "C" __global__ void k(const __hip_bfloat16* x, const __hip_bfloat16* b, __hip_bfloat16* y) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= 1003) return;
  const float v = __bfloat162float(x[i]);
  const float t = __bfloat162float(__float2bfloat16(v + __bfloat162float(b[i])));
  y[i] = __float2bfloat16(t * v);
}}
"""
SCALE_BF16 = f"""// Launch: k(x, y), grid 4 x 1 x 1, block 256 x 1 x 1
{_TOP}
extern "C" __global__ void k(const __hip_bfloat16* x, __hip_bfloat16* y) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < 1003) y[i] = __float2bfloat16(__bfloat162float(x[i]) * 1.7f);
}}
"""
DECODE = f"""// Launch: k(x, y), grid 4 x 1 x 1, block 256 x 1 x 1
{_TOP}
constexpr int BIAS = 7;
__device__ float decode(unsigned char c) {{
  const int exponent = c >> 3 & 15, fraction = c & 7;
  float v = exponent ? ldexpf(8.0f + fraction, exponent - BIAS - 3) : ldexpf(fraction, 1 - BIAS - 3);
  if ((c & 127) == 127) v = NAN;
  return c & 128 ? -v : v;
}}
extern "C" __global__ void k(const unsigned char* x, float* y) {{
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < 1003) y[i] = decode(x[i]) * 2.0f;
}}
"""
FAR = f"""// Launch: k(x, y), grid 1 x 1 x 1, block 128 x 1 x 1
{_TOP}
extern "C" __global__ void k(const float* x, float* y) {{
  const int i = threadIdx.x;
  if (i < 120) y[i] = x[i / 40 * 1500000000ll + i % 40] * 2.0f;
}}
"""
ANY_SIZE = f"""// Launch: k(x, y, #n), grid 4 x 1 x 1, block 256 x 1 x 1
{_TOP}
extern "C" __global__ void k(const float* x, float* y, long long n) {{
  for (long long i = blockIdx.x * 256 + threadIdx.x; i < n; i += 1024) y[i] = x[i] * 2.0f;
}}
"""
REVERSE = f"""// Launch: k(x, y), grid 1 x 1 x 1, block 256 x 1 x 1
{_TOP}
extern "C" __global__ void k(const float* x, float* y) {{
  __shared__ float t[256];
  t[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = t[255 - threadIdx.x];
}}
"""

CORRECT = {
    "scale": SCALE, "two": TWO, "softmax": SOFTMAX, "variance": VARIANCE, "peak": PEAK, "total": TOTAL, "gate": GATE,
    "scale_bf16": SCALE_BF16, "decode": DECODE, "far": FAR, "any_size": ANY_SIZE, "reverse": REVERSE,
}  # fmt: skip


def _m(name: str, rule: str, spec: str, old: str, new: str, stage: str, code: str, lint: str = "") -> Mutant:
    return Mutant(name, rule, spec, CORRECT[spec], ((old, new),), stage, code, lint)


_STORE = "y[i] = x[i] * 2.0f;"
_KERNEL = 'extern "C" __global__'

MUTANTS = [
    _m("unwritten half", "V1", "scale", "if (i < 1003)", "if (i < 1003 && i % 2)", "compare", "KVC0702"),
    _m(
        "earlier result",
        "V1",
        "scale",
        _STORE,
        "y[i] = y[i] == x[i] * 2.0f ? y[i] : x[i] * 2.0f;",
        "execute",
        "KVC0905",
    ),
    Mutant(
        "library call",
        "V2",
        "scale",
        SCALE,
        (
            (_KERNEL, 'extern "C" __device__ float rocblas_scale(float);\n' + _KERNEL),
            ("x[i] * 2.0f", "rocblas_scale(x[i])"),
        ),
        "lint",
        "KVC0403",
        "undefined-function",
    ),
    _m(
        "library header",
        "V2",
        "scale",
        "#include <hip/hip_bf16.h>",
        "#include <rocblas/rocblas.h>",
        "lint",
        "KVC0403",
        "include",
    ),
    _m(
        "fallback on failure",
        "V3",
        "scale",
        _STORE,
        "try { y[i] = x[i] * 2.0f; } catch (...) { y[i] = 0; }",
        "compile",
        "KVC0502",
    ),
    _m("zeros", "V4", "softmax", "y[at] = e / s;", "y[at] = 0.0f;", "compare", "KVC0701"),
    _m("constant mean", "V4", "softmax", "y[at] = e / s;", "y[at] = 0.005f;", "compare", "KVC0701"),
    _m(
        "input overwritten",
        "V6",
        "scale",
        _STORE,
        _STORE + " if (i < 1003) const_cast<float*>(x)[i] = 0;",
        "execute",
        "KVC0703",
    ),
    _m(
        "side stream",
        "V7",
        "scale",
        _KERNEL,
        "void host(float* x) { hipLaunchKernel(0, 0, 0, 0, 0, 0); }\n" + _KERNEL,
        "lint",
        "KVC0403",
        "host-code",
    ),
    _m("clock read", "V9", "scale", "* 2.0f;", "* 2.0f + (wall_clock64() < 0);", "lint", "KVC0403", "clock"),
    _m(
        "replay by call count",
        "V10",
        "scale",
        _KERNEL + " void k(const float* x, float* y) {",
        "__device__ float kept[1003];\n"
        + _KERNEL
        + " void k(const float* x, float* y) {\n  if (kept[0] != 0) { y[threadIdx.x] = kept[threadIdx.x]; return; }",
        "lint",
        "KVC0403",
        "device-state",
    ),
    _m(
        "other after N calls",
        "V11",
        "scale",
        _STORE,
        "static int calls; y[i] = x[i] * (atomicAdd(&calls, 1) > 4012 ? 0.0f : 2.0f);",
        "lint",
        "KVC0403",
        "device-state",
    ),
    _m("tested size only", "V12", "any_size", "i < n", "i < 1003", "execute", "KVC0711"),
    _m(
        "whole workgroups only",
        "V12",
        "any_size",
        "i < n; i += 1024)",
        "i < n - n % 17; i += 1024)",
        "compare",
        "KVC0711",
    ),
    _m("unstable softmax", "V13", "softmax", "expf(v - mx)", "expf(v)", "compare", "KVC0706"),
    _m(
        "cancelling variance",
        "V13",
        "variance",
        "const float s = reduce(d * d, add);",
        "const float s = reduce(v * v, add) - mean * mean * 200.0f;",
        "compare",
        "KVC0701",
    ),
    _m("NaN swallowed", "V13", "peak", "a > b || a != a ? a : b", "fmaxf(a, b)", "compare", "KVC0706"),
    _m("fp16 inside fp32", "V14", "softmax", "expf(v - mx)", "(float)(_Float16)expf(v - mx)", "compare", "KVC0701"),
    _m("race in LDS", "V15", "reverse", "  __syncthreads();\n", "", "execute", "KVC0906"),
    _m(
        "uninitialised LDS",
        "V15",
        "reverse",
        "  t[threadIdx.x] =",
        "  if (threadIdx.x < 200) t[threadIdx.x] =",
        "execute",
        "KVC0905",
    ),
    _m(
        "order of atomics",
        "V15",
        "total",
        "  const float s = reduce(i < 1003 ? x[i] : 0.0f, add);\n  if (threadIdx.x == 0) part[blockIdx.x] = s;",
        "  __shared__ float sum;\n  if (threadIdx.x == 0) sum = 0;\n  __syncthreads();\n  if (i < 1003)"
        " atomicAdd(&sum, x[i]);\n  __syncthreads();\n  if (threadIdx.x == 0) part[blockIdx.x] = sum;",
        "determinism",
        "KVC0705",
    ),
    _m(
        "barrier in a branch",
        "V15",
        "reverse",
        "  __syncthreads();",
        "  if (threadIdx.x < 192) __syncthreads();",
        "execute",
        "KVC0908",
    ),
    _m("threads over the limit", "V16", "scale", "block 256", "block 2048", "resources", "KVC0402"),
    _m(
        "dynamic LDS over the limit",
        "V16",
        "scale",
        "block 256 x 1 x 1",
        "block 256 x 1 x 1, 70000 bytes of LDS",
        "resources",
        "KVC0402",
    ),
    _m("walks the harness", "V17", "scale", _KERNEL, "#include <fstream>\n" + _KERNEL, "lint", "KVC0403", "include"),
    _m("second output missing", "V20", "two", "  z[i] = x[i] + 1.0f;\n", "", "compare", "KVC0702"),
    _m("argument unknown", "V20", "two", "k(x, y, z)", "k(x, y, w)", "propose", "KVC0302"),
    _m("reads past the end", "V21", "scale", _STORE, "y[i] = x[i] + x[i + 1] - x[i + 1] + x[i];", "execute", "KVC0903"),
    _m("writes past the end", "V21", "scale", "if (i < 1003)", "if (i < 1004)", "execute", "KVC0903"),
    _m(
        "waves of 32 in the reduction",
        "A1",
        "total",
        "const float s = reduce(i < 1003 ? x[i] : 0.0f, add);",
        "float s = x[i];\n  for (int d = 16; d > 0; d /= 2) s += __shfl_xor(s, d);",
        "lint",
        "KVC0403",
        "wave-reduction",
    ),
    _m(
        "waves of 32 behind a constant",
        "A1",
        "total",
        "for (int d = 32; d > 0; d /= 2)",
        "constexpr int HALF = 16;\n  for (int d = HALF; d > 0; d /= 2)",
        "compare",
        "KVC0701",
    ),
    _m(
        "32-bit ballot",
        "A1",
        "scale",
        _STORE,
        "unsigned m = __ballot(i < 1003); y[i] = x[i] * (m ? 2.0f : 1.0f);",
        "lint",
        "KVC0403",
        "ballot-width",
    ),
    _m("missing store mask", "A2", "scale", "if (i < 1003) ", "", "execute", "KVC0903"),
    _m(
        "bf16 truncated",
        "A3",
        "scale_bf16",
        "y[i] = __float2bfloat16(__bfloat162float(x[i]) * 1.7f);",
        "((unsigned short*)y)[i] = __float_as_uint(__bfloat162float(x[i]) * 1.7f) >> 16;",
        "compare",
        "KVC0701",
    ),
    _m("LDS of another chip", "A4", "reverse", "float t[256]", "float t[25600]", "lint", "KVC0403", "lds-bytes"),
    _m(
        "launch bounds over the limit",
        "A5",
        "scale",
        "void k(",
        "void __launch_bounds__(2048) k(",
        "lint",
        "KVC0403",
        "launch-bounds",
    ),
    _m("FNUZ for OCP", "A6", "decode", "BIAS = 7", "BIAS = 8", "compare", "KVC0701"),
    _m(
        "bf16 rounding left out",
        "A8",
        "gate",
        "__bfloat162float(__float2bfloat16(v + __bfloat162float(b[i])))",
        "v + __bfloat162float(b[i])",
        "compare",
        "KVC0710",
    ),
    _m("int32 offset", "A9", "far", "1500000000ll", "1500000000", "execute", "KVC0903"),
    _m("endless loop", "A10", "scale", _STORE, "while (x[i] == x[i]) y[i] = x[i];", "execute", "KVC0909"),
]

#: A copy of SCALE with other names, layout and comments.
COPY = """// the same thing again
// Launch: fast(x, y), grid 4 x 1 x 1, block 256 x 1 x 1
#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
extern "C" __global__ void fast(const float* in, float* out)
{
    const int element = blockIdx.x * 256 + threadIdx.x; /* mine */
    if (element < 1003) out[element] = in[element] * 2.0f;
}
"""

"""Each lint rule on a source with exactly its fault, and no finding on sources without one."""

import pytest
from kvc.arch import CDNA
from kvc.backends.device import selftest
from kvc.backends.hip.lint import RULES, lint

TOP = "#include <hip/hip_runtime.h>\n"
KERNEL = TOP + 'extern "C" __global__ void k(float* x) {{\n  {body}\n}}\n'

FAULTS = {
    "no-kernel": (TOP + "__device__ float f(float x) { return x; }\n", 0),
    "shuffle-width": (KERNEL.format(body="x[0] = __shfl_xor(x[1], 1, 32);"), 3),
    "wave-reduction": (KERNEL.format(body="for (int d = 16; d > 0; d >>= 1) x[0] += __shfl_down(x[1], d);"), 3),
    "lane-arithmetic": (KERNEL.format(body="int lane = threadIdx.x & 31; x[lane] = 1;"), 3),
    "ballot-width": (KERNEL.format(body="unsigned votes = __ballot(x[0] > 0); x[0] = votes;"), 3),
    "mask-literal": (KERNEL.format(body="if (__ballot(x[0] > 0) == 0xffffffffu) x[0] = 1;"), 3),
    "lds-bytes": (KERNEL.format(body="__shared__ float t[64 * 1024]; t[threadIdx.x] = 1; x[0] = t[0];"), 2),
    "launch-bounds": (TOP + '#define N 512\nextern "C" __global__ void __launch_bounds__(4 * N) k() {}\n', 3),
    "undefined-function": (
        TOP + '__device__ float f(float);\nextern "C" __global__ void k(float* x) { x[0] = f(1); }\n',
        3,
    ),
    "inline-asm": (KERNEL.format(body='asm volatile("s_nop 0");'), 3),
    "allocation": (KERNEL.format(body="float* p = new float[4]; x[0] = p[0];"), 3),
    "printf": (KERNEL.format(body='printf("%f", x[0]);'), 3),
    "include": ("#include <fstream>\n" + KERNEL.format(body="x[0] = 1;"), 1),
    "device-state": (TOP + '__device__ int calls;\nextern "C" __global__ void k(float* x) { x[0] = calls++; }\n', 2),
    "clock": (KERNEL.format(body="x[0] = wall_clock64();"), 3),
    "host-code": (KERNEL.format(body="") + "void host(float* x) { hipLaunchKernelGGL(k, 1, 1, 0, 0, x); }\n", 5),
}


def rules(source: str, arch: str = "gfx942", syntax: bool = False) -> list[str]:
    return [finding.details["rule"] for finding in lint(source, arch, syntax=syntax) if finding.code == "KVC0403"]


def test_every_rule_has_a_fault_here() -> None:
    assert set(FAULTS) == set(RULES)


@pytest.mark.parametrize("rule", FAULTS)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx950"])
def test_fault_is_found_where_it_is(rule: str, arch: str) -> None:
    source, line = FAULTS[rule]
    found = [item for item in lint(source, arch, syntax=False) if item.details["rule"] == rule]
    assert len(found) == 1
    assert found[0].code == "KVC0403" and found[0].message.startswith(f"{rule}: ") and found[0].hint
    assert found[0].location is not None and found[0].location.line == line


@pytest.mark.parametrize("arch", CDNA)
def test_clean_kernels_are_clean(arch: str) -> None:
    assert lint(selftest.source_of_all(), arch) == []


@pytest.mark.parametrize(
    "body",
    [
        "x[0] = __shfl_xor(x[1], 32);",  # a mask of 32 is the last step of a 64-lane butterfly
        "x[0] = __shfl_xor(x[1], 1, 16);",
        "for (int d = 16; d > 0; d >>= 1) x[0] += x[d];",
        "for (int d = 8; d > 0; d >>= 1) x[0] += __shfl_xor(x[1], d, 16);",
        "for (int d = KVC_WAVE_SIZE / 2; d > 0; d >>= 1) x[0] += __shfl_xor(x[1], d);",
        "int column = threadIdx.x % 32; x[column] = 1;",
        "unsigned long long votes = __ballot(x[0] > 0); x[0] = __popcll(votes);",
        "x[0] = __popcll(__ballot(x[0] > 0));",
        "if (__ballot(x[0] > 0)) x[0] = 1;",
        "bool some = __ballot(x[0] > 0) != 0; x[0] = some;",
        "// printf(1); malloc(2);\n  x[0] = 1;",
        "int alignment_free = 1; x[0] = alignment_free;",
        "static const float table[2] = {1, 2}; x[0] = table[threadIdx.x & 1];",
        "int clock = 3; x[0] = clock;",
    ],
)
def test_near_misses_pass(body: str) -> None:
    assert rules(KERNEL.format(body=body), syntax=True) == []


def test_lds_counts_what_is_called_and_knows_the_chip() -> None:
    source = (
        TOP + "__device__ float other(float v) { __shared__ float t[10240]; t[0] = v; return t[threadIdx.x]; }\n"
        'extern "C" __global__ void k(float* x) { __shared__ float t[10240]; t[0] = 1; x[0] = other(1) + other(2); }\n'
        'extern "C" __global__ void small(float* x) { __shared__ float t[10240]; t[0] = x[0]; x[0] = t[1]; }\n'
    )
    found = [item for item in lint(source, "gfx942") if item.code == "KVC0403"]
    assert [item.details["rule"] for item in found] == ["lds-bytes"]
    assert "k: __shared__ 81,920 B of 65,536 B" in found[0].message
    assert lint(source, "gfx950") == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("include", '#include "/etc/passwd"\n'),
        ("include", "#define NAME <hip/hip_runtime.h>\n#include NAME\n"),
        ("include", "#  include \\\n  </etc/passwd>\n"),
        ("include", "#include_next <hip/hip_runtime.h>\n"),
        ("inline-asm", 'asm(".incbin \\"/etc/passwd\\"");\n'),
        ("device-state", "namespace n { __device__ float kept[4]; }\n"),
        ("device-state", "__device__ int f() { static int calls; return ++calls; }\n"),
    ],
)
def test_ways_around_are_closed(rule: str, text: str) -> None:
    assert rule in rules(TOP + text + KERNEL.format(body="x[0] = 1;").removeprefix(TOP))


def test_dynamic_shared_is_not_counted() -> None:
    assert rules(KERNEL.format(body="extern __shared__ float t[]; t[threadIdx.x] = 1; x[0] = t[0];")) == []


def test_syntax_errors_come_from_the_compiler_with_their_line() -> None:
    (finding,) = lint(KERNEL.format(body="x[0] = undeclared;"), "gfx950", name="a.hip")
    assert finding.code == "KVC0502" and str(finding.location) == "a.hip:3"


def test_builtins_newer_than_libclang() -> None:
    body = """typedef _Float16 h8 __attribute__((ext_vector_type(8)));
  typedef float f4 __attribute__((ext_vector_type(4)));
  h8 a = {}; f4 c = {};
  c = __builtin_amdgcn_mfma_f32_16x16x32_f16(a, a, c, 0, 0, 0);
  x[0] = __shfl_xor(c[0], 1, 32);"""
    assert rules(KERNEL.format(body=body), "gfx950", syntax=True) == ["shuffle-width"]


def test_a_wave_of_32_lanes_has_no_wave_rules() -> None:
    source, _ = FAULTS["shuffle-width"]
    assert "shuffle-width" in rules(source, "gfx942")
    assert "shuffle-width" not in rules(source, "sm_90")

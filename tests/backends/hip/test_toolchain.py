"""The hermetic HIP toolchain: what compiles, what the errors say, and that the result depends on the source alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kvc.arch import CDNA
from kvc.backends.device import selftest
from kvc.backends.hip import toolchain
from kvc.backends.hip.toolchain import PROLOGUE, assemble, check_syntax, compile_hip, discover, isa_version, select
from kvc.diagnostics import KvcError

KERNEL = PROLOGUE + "#include <hip/hip_fp16.h>\n" + 'extern "C" __global__ void k(float* x) {{ {body} }}\n'


def body_of(asm: str, kernel: str = "k") -> str:
    text = asm[asm.index(f"\n{kernel}:") : asm.index("s_endpgm")]
    return "\n".join(line for line in text.splitlines() if line.startswith("\t") and not line.startswith("\t."))


def compile_body(body: str, arch: str = "gfx942") -> str:
    return body_of(compile_hip(KERNEL.format(body=body), arch).asm)


@pytest.mark.parametrize("arch", CDNA)
def test_the_selftest_kernels_compile_for_every_chip(arch: str) -> None:
    code = compile_hip(selftest.source_of_all(), arch)
    assert code.binary[:4] == b"\x7fELF" and f"--{arch}" in code.asm and code.log == ""
    assert all(f"\n{case.name}:" in code.asm for case in selftest.cases())


def test_same_source_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = KERNEL.format(body="x[threadIdx.x] = expf(x[threadIdx.x]);")
    first = compile_hip(source, "gfx942")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CPATH", "/nonexistent")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    second = compile_hip(source, "gfx942", name="another/name.hip")
    assert (first.asm, first.binary, first.toolchain) == (second.asm, second.binary, second.toolchain)
    assert b"/tmp" not in first.binary and str(tmp_path).encode() not in second.binary


def test_binary_is_what_the_text_says() -> None:
    code = compile_hip(KERNEL.format(body="x[0] = 1;"), "gfx942")
    assert assemble(code.asm, "gfx942") == code.binary


def test_record_names_everything_that_matters() -> None:
    record = compile_hip(KERNEL.format(body="x[0] = 1;"), "gfx942").toolchain
    assert record["name"] == "bundled" and "clang version" in record["version"]
    assert "-ffp-contract=on" in record["flags"] and re.fullmatch(r"[0-9a-f]{16}", record["device_headers"])
    assert record["device_libraries"].startswith("triton ")
    assert not any("/" in str(value) for value in record.values() if not isinstance(value, list))


def test_contraction_within_an_expression_alone() -> None:
    assert re.search(r"v_(pk_)?(fma|fmac)_f32", compile_body("x[0] = x[0] * x[1] + x[2];"))
    apart = compile_body("float t = x[0] * x[1]; x[0] = t + x[2];")
    assert not re.search(r"v_(pk_)?(fma|fmac)_f32", apart) and "v_mul_f32" in apart


def test_division_is_the_exact_sequence() -> None:
    asm = compile_body("x[0] = x[1] / x[2];")
    assert "v_div_fixup_f32" in asm and "v_div_fmas_f32" in asm
    assert "v_fma_f32" in compile_body("x[0] = sqrtf(x[1]);"), "a correctly rounded root needs refinement"


def test_matrix_path_is_on_for_every_chip() -> None:
    body = """
#if KVC_HAS_MFMA
  typedef float f4 __attribute__((ext_vector_type(4)));
  f4 c = {};
  c = __builtin_amdgcn_mfma_f32_16x16x4f32(x[0], x[1], c, 0, 0, 0);
  x[threadIdx.x] = c[0];
#endif
"""
    for arch in CDNA:
        assert "v_mfma_f32_16x16x4" in compile_body(body, arch)


def test_wide_loads_stay_wide() -> None:
    asm = compile_body("float4* v = (float4*)x; v[threadIdx.x] = v[threadIdx.x] * 2.0f;")
    assert "global_load_dwordx4" in asm and "global_store_dwordx4" in asm


@pytest.mark.parametrize(
    ("body", "opcode"),
    [
        ("unsafeAtomicAdd(x, 1.0f);", "global_atomic_add_f32"),
        ("unsafeAtomicAdd((double*)x, 1.0);", "global_atomic_add_f64"),
        ("unsafeAtomicAdd((__half2*)x, __floats2half2_rn(1, 2));", "global_atomic_pk_add_f16"),
        ("atomicMax((int*)x, 3);", "global_atomic_smax"),
        ("atomicCAS((unsigned long long*)x, 1ULL, 2ULL);", "global_atomic_cmpswap_x2"),
        ("__syncthreads();", "s_barrier"),
        ("x[0] = __shfl_xor(x[threadIdx.x], 3);", "ds_bpermute_b32"),
        ("__builtin_nontemporal_store(1.0f, x);", "nt"),
    ],
)
def test_instructions_chosen(body: str, opcode: str) -> None:
    assert opcode in compile_body(body)


def test_error_has_file_line_and_text() -> None:
    with pytest.raises(KvcError) as caught:
        compile_hip("#include <hip/hip_runtime.h>\n\nint x = y;\nint z = w;\n", "gfx942", name="soft.hip")
    found = caught.value.diagnostic
    assert found.code == "KVC0502" and str(found.location) == "soft.hip:3"
    assert "undeclared identifier 'y'" in found.message and "1 more" in found.message
    assert [(error["line"], error["column"]) for error in found.details["errors"]] == [(3, 9), (4, 9)]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('__device__ float f(float); extern "C" __global__ void k(float* x) { *x = f(*x); }', "undefined"),
        ('extern "C" __global__ void k(float* x) { printf("no"); }', "printf"),
        ("void host(); __global__ void k() { host(); }", "call to 'host'"),
        ('#include <rocblas.h>\nextern "C" __global__ void k() {}', "rocblas.h"),
    ],
)
def test_what_a_kernel_cannot_use(source: str, words: str) -> None:
    with pytest.raises(KvcError, match=words) as caught:
        compile_hip("#include <hip/hip_runtime.h>\n" + source, "gfx942")
    assert caught.value.code == "KVC0502"


def test_builtin_of_a_newer_chip() -> None:
    body = """
  typedef _Float16 h8 __attribute__((ext_vector_type(8)));
  typedef float f4 __attribute__((ext_vector_type(4)));
  h8 a = {}; f4 c = {};
  c = __builtin_amdgcn_mfma_f32_16x16x32_f16(a, a, c, 0, 0, 0);
  x[0] = c[0];
"""
    assert "v_mfma_f32_16x16x32_f16" in compile_body(body, "gfx950")
    with pytest.raises(KvcError, match="gfx950"):
        compile_body(body, "gfx942")


def test_sixteen_bit_types_need_their_headers_as_in_hip() -> None:
    kernel = 'extern "C" __global__ void k(%s* x) { x[0] = x[1]; }\n'
    for header, kind in (("hip_fp16", "__half"), ("hip_bf16", "__hip_bfloat16"), ("hip_bfloat16", "hip_bfloat16")):
        check_syntax(f"#include <hip/hip_runtime.h>\n#include <hip/{header}.h>\n" + kernel % kind, "gfx942")
        with pytest.raises(KvcError, match=r"unknown type name|undeclared identifier"):
            check_syntax("#include <hip/hip_runtime.h>\n" + kernel % kind, "gfx942")


@pytest.mark.skipif("clang-19" not in [info.name for info in discover()], reason="no Debian HIP packages here")
def test_real_headers_take_the_same_source() -> None:
    for case in selftest.cases():
        if "hip_bf16.h" not in case.source:  # younger than Debian's HIP
            compile_hip(PROLOGUE + case.source, "gfx90a", toolchain="clang-19")


def test_syntax_check_alone() -> None:
    check_syntax(KERNEL.format(body="x[0] = 1;"), "gfx950")
    with pytest.raises(KvcError) as caught:
        check_syntax(KERNEL.format(body="x[0] = ;"), "gfx950")
    assert caught.value.diagnostic.location is not None and caught.value.diagnostic.location.line == 11


def test_arch_must_be_amd() -> None:
    for arch in ("sm_90", "gfx1"):
        with pytest.raises(KvcError) as caught:
            compile_hip("", arch)
        assert caught.value.code == "KVC0105"


def test_missing_toolchains(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bundled" in [info.name for info in discover()]
    with pytest.raises(KvcError, match="no toolchain named"):
        select("gcc")
    monkeypatch.setattr(toolchain, "_find_bundled", lambda: None)
    monkeypatch.setattr(toolchain, "_find_hipcc", lambda path: None)
    monkeypatch.setattr(toolchain, "_find_debian", lambda: None)
    for name in ("auto", "bundled", "hipcc"):
        with pytest.raises(KvcError) as caught:
            select(name)
        assert caught.value.code == "KVC0501" and "pip install" in caught.value.diagnostic.hint


def test_hipcc_on_the_path_is_found_and_driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROCm tree made of wrappers around the bundled clang: what matters is which program gets which arguments."""
    bundled = select("bundled")
    tools = tmp_path / "llvm" / "bin"
    tools.mkdir(parents=True)
    hidden = " ".join(bundled.extra_flags)
    scripts = {
        tmp_path / "hipcc": f"""if [ "$1" = --version ]; then
  echo "HIP version: 7.1.0"; echo "AMD clang version 20.0.0"; echo "InstalledDir: {tools}"
else echo "$@" >> {tmp_path}/log; exec {bundled.compiler[0]} clang {hidden} "$@"; fi""",
        tools / "clang": f'exec {bundled.compiler[0]} clang "$@"',
        tools / "ld.lld": f'exec {bundled.compiler[0]} ld.lld "$@"',
    }
    for path, text in scripts.items():
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert [info.name for info in discover()][:2] == ["bundled", "hipcc"]
    code = compile_hip(KERNEL.format(body="x[0] = x[1];"), "gfx942", toolchain="hipcc")
    assert code.binary[:4] == b"\x7fELF"
    assert code.toolchain["name"] == "hipcc" and code.toolchain["version"].startswith("HIP version: 7.1.0")
    arguments = (tmp_path / "log").read_text()
    assert "--offload-arch=gfx942" in arguments and "-ffp-contract=on" in arguments and "-nogpulib" not in arguments


@pytest.mark.parametrize(("name", "number"), [("gfx90a", 9010), ("gfx942", 9402), ("gfx950", 9500), ("gfx1100", 11000)])
def test_isa_version(name: str, number: int) -> None:
    assert isa_version(name) == number


def test_heavy_packages_stay_out_of_the_import() -> None:
    modules = "kvc.backends.hip.toolchain, kvc.backends.hip.lint, kvc.backends.device.cuda, kvc.backends.device.amdgpu"
    probe = f"import sys, {modules}; print([m for m in ('torch', 'triton', 'clang') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("function", ["sinhf", "asinhf", "tanhf", "atanf", "roundf"])
def test_a_rounded_sign_compiles(function: str) -> None:
    """LLVM cannot select a bf16 copysign whose sign was rounded to bf16 before: the header must not lead it there."""
    source = (
        '#include <hip/hip_runtime.h>\n#include <hip/hip_bf16.h>\nextern "C" __global__ void k(const float* x, '
        "__hip_bfloat16* y) {\n  const float rounded = __bfloat162float(__float2bfloat16(x[threadIdx.x]));\n"
        f"  y[threadIdx.x] = __float2bfloat16({function}(rounded));\n}}\n"
    )
    assert compile_hip(source, "gfx942").binary

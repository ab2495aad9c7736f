"""One row per GPU: every hardware fact that kvc uses stands here and nowhere else.

Sources: AMD's public CDNA 2/3/4 white papers and instruction set documents; for sm_90 NVIDIA's Hopper white paper.
Peaks are the vendor's dense figures per device (MI250X: one of its two dies, as HIP presents it).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvc.diagnostics import KvcError


@dataclass(frozen=True)
class MatrixShape:
    """One matrix instruction: D[m,n] += A[m,k] * B[k,n], summed over `blocks` independent blocks.

    `builtin` is clang's name, `dtype` the operand type; the accumulator is fp32 (fp64 for f64).
    """

    dtype: str
    m: int
    n: int
    k: int
    builtin: str
    cycles: int  # issue cycles on one SIMD (passes * 4)


@dataclass(frozen=True)
class ArchSpec:
    name: str  # the compiler's name
    products: str
    vendor: str  # "amd" | "nvidia"
    wave_size: int
    lds_bytes: int  # per workgroup
    lds_banks: int
    vgprs: int  # per lane, architectural + accumulation
    sgprs: int
    max_threads: int  # per workgroup
    max_waves_per_simd: int
    simds_per_cu: int
    cu_count: int
    clock_ghz: float
    hbm_gbps: float
    l2_bytes: int
    cacheline_bytes: int
    fp8: str  # "none" | "fnuz" | "ocp"
    peak_tflops: tuple[tuple[str, float], ...]  # dtype -> dense matrix peak; "f32_vector" is the plain ALU
    matrix: tuple[MatrixShape, ...] = ()
    lds_direct_load_bytes: tuple[int, ...] = ()  # widths of global -> LDS loads that bypass registers
    vgpr_granule: int = 8  # vector registers are handed out a lane in multiples of this
    register_file: int = 512  # registers of a SIMD for each lane of a wave, shared by the waves on it
    max_workgroups: int = 32  # on a compute unit at once
    l2_bytes_per_clock: int = 64  # that a compute unit gets from L2

    def peak(self, dtype: str) -> float:
        """Dense peak in TFLOP/s for operands of `dtype`."""
        return dict(self.peak_tflops)[dtype]

    def matrix_for(self, dtype: str) -> tuple[MatrixShape, ...]:
        """Matrix instructions for operands of `dtype`, preferred first."""
        return tuple(shape for shape in self.matrix if shape.dtype == dtype)


def _mfma(dtype: str, m: int, k: int, builtin: str, cycles: int) -> MatrixShape:
    return MatrixShape(dtype, m, m, k, f"__builtin_amdgcn_mfma_f32_{builtin}", cycles)


_F32 = (_mfma("f32", 32, 2, "32x32x2f32", 64), _mfma("f32", 16, 4, "16x16x4f32", 32))
_F16 = (_mfma("f16", 32, 8, "32x32x8f16", 32), _mfma("f16", 16, 16, "16x16x16f16", 16))
_BF16_1K = (_mfma("bf16", 32, 8, "32x32x8bf16_1k", 32), _mfma("bf16", 16, 16, "16x16x16bf16_1k", 16))
# CDNA 2 takes twice the passes of CDNA 3 for 16-bit operands.
_F16_GFX90A = (_mfma("f16", 32, 8, "32x32x8f16", 64), _mfma("f16", 16, 16, "16x16x16f16", 32))
_BF16_GFX90A = (_mfma("bf16", 32, 8, "32x32x8bf16_1k", 64), _mfma("bf16", 16, 16, "16x16x16bf16_1k", 32))
_F16_GFX950 = (_mfma("f16", 32, 16, "32x32x16_f16", 32), _mfma("f16", 16, 32, "16x16x32_f16", 16))
_BF16_GFX950 = (_mfma("bf16", 32, 16, "32x32x16_bf16", 32), _mfma("bf16", 16, 32, "16x16x32_bf16", 16))


ARCHS: dict[str, ArchSpec] = {
    row.name: row
    for row in (
        ArchSpec(
            "gfx90a", "MI210, MI250, MI250X", "amd", 64, 65536, 32, 512, 102, 1024, 8, 4, 104, 1.7, 1638.0,
            8 << 20, 128, "none",
            (("f64", 47.9), ("f32", 47.9), ("f32_vector", 23.9), ("f16", 191.5), ("bf16", 191.5)),
            _F32 + _F16_GFX90A + _BF16_GFX90A, (4,),
        ),
        ArchSpec(
            "gfx942", "MI300A, MI300X, MI325X", "amd", 64, 65536, 32, 512, 102, 1024, 8, 4, 304, 2.1, 5300.0,
            4 << 20, 128, "fnuz",
            (("f64", 163.4), ("f32", 163.4), ("f32_vector", 163.4), ("f16", 1307.4), ("bf16", 1307.4)),
            _F32 + _F16 + _BF16_1K, (4,),
        ),
        ArchSpec(
            "gfx950", "MI350X, MI355X", "amd", 64, 163840, 64, 512, 102, 1024, 8, 4, 256, 2.4, 8000.0,
            4 << 20, 128, "ocp",
            (("f64", 78.6), ("f32", 157.3), ("f32_vector", 157.3), ("f16", 2516.6), ("bf16", 2516.6)),
            _F32 + _F16_GFX950 + _BF16_GFX950 + _F16 + _BF16_1K, (4, 12, 16),
        ),
        ArchSpec(
            "sm_90", "H100, H200", "nvidia", 32, 232448, 32, 255, 0, 1024, 16, 4, 132, 1.98, 4800.0,
            50 << 20, 128, "ocp",
            (("f64", 67.0), ("f32", 67.0), ("f32_vector", 67.0), ("f16", 989.0), ("bf16", 989.0)),
        ),
    )
}  # fmt: skip

DEFAULT_ARCH = "gfx942"
CDNA = tuple(row.name for row in ARCHS.values() if row.vendor == "amd")


def arch(name: str) -> ArchSpec:
    """The row of a GPU by its compiler name; KVC0105 when there is none."""
    if name not in ARCHS:
        raise KvcError("KVC0105", f"no architecture {name!r}", hint=f"one of: {', '.join(ARCHS)} (see `kvc arch`)")
    return ARCHS[name]

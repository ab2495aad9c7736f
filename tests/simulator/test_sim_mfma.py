"""Matrix instructions of the three chips against the published register layouts, spelled out lane by lane."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from kvc.simulator.mfma import small_float_table

from tests.simulator.tinyasm import kernel_text, run_body

RNG = np.random.default_rng(7)
ALL = ("gfx90a", "gfx942", "gfx950")
OLD, NEW, LAST = ("gfx90a",), ("gfx942", "gfx950"), ("gfx950",)


@dataclass(frozen=True)
class Case:
    """`names` per group of chips; operand type; M = N, K, blocks; `out` type of the accumulator."""

    names: dict[tuple[str, ...], str]
    dtype: str
    m: int
    k: int
    blocks: int
    out: str = "f32"


def case(old: str, new: str, dtype: str, m: int, k: int, blocks: int = 1, out: str = "f32") -> Case:
    return Case({OLD: f"v_mfma_{out}_{old}", NEW: f"v_mfma_{out}_{new}"}, dtype, m, k, blocks, out)


CASES = [
    case("32x32x1f32", "32x32x1_2b_f32", "f32", 32, 1, 2),
    case("16x16x1f32", "16x16x1_4b_f32", "f32", 16, 1, 4),
    case("4x4x1f32", "4x4x1_16b_f32", "f32", 4, 1, 16),
    case("32x32x2f32", "32x32x2_f32", "f32", 32, 2),
    case("16x16x4f32", "16x16x4_f32", "f32", 16, 4),
    case("32x32x4f16", "32x32x4_2b_f16", "f16", 32, 4, 2),
    case("16x16x4f16", "16x16x4_4b_f16", "f16", 16, 4, 4),
    case("4x4x4f16", "4x4x4_16b_f16", "f16", 4, 4, 16),
    case("32x32x8f16", "32x32x8_f16", "f16", 32, 8),
    case("16x16x16f16", "16x16x16_f16", "f16", 16, 16),
    case("32x32x4bf16_1k", "32x32x4_2b_bf16", "bf16", 32, 4, 2),
    case("16x16x4bf16_1k", "16x16x4_4b_bf16", "bf16", 16, 4, 4),
    case("4x4x4bf16_1k", "4x4x4_16b_bf16", "bf16", 4, 4, 16),
    case("32x32x8bf16_1k", "32x32x8_bf16", "bf16", 32, 8),
    case("16x16x16bf16_1k", "16x16x16_bf16", "bf16", 16, 16),
    Case({OLD: "v_mfma_f32_32x32x2bf16"}, "bf16", 32, 2, 2),
    Case({OLD: "v_mfma_f32_32x32x4bf16"}, "bf16", 32, 4, 1),
    Case({OLD: "v_mfma_f32_16x16x8bf16"}, "bf16", 16, 8, 1),
    Case({OLD: "v_mfma_f32_4x4x2bf16"}, "bf16", 4, 2, 16),
    case("32x32x4i8", "32x32x4_2b_i8", "i8", 32, 4, 2, "i32"),
    case("16x16x4i8", "16x16x4_4b_i8", "i8", 16, 4, 4, "i32"),
    case("4x4x4i8", "4x4x4_16b_i8", "i8", 4, 4, 16, "i32"),
    Case({OLD: "v_mfma_i32_32x32x8i8"}, "i8", 32, 8, 1, "i32"),
    Case({OLD: "v_mfma_i32_16x16x16i8"}, "i8", 16, 16, 1, "i32"),
    Case({NEW: "v_mfma_i32_32x32x16_i8"}, "i8", 32, 16, 1, "i32"),
    Case({NEW: "v_mfma_i32_16x16x32_i8"}, "i8", 16, 32, 1, "i32"),
    case("16x16x4f64", "16x16x4_f64", "f64", 16, 4, 1, "f64"),
    case("4x4x4f64", "4x4x4_4b_f64", "f64", 4, 4, 4, "f64"),
    Case({("gfx942",): "v_mfma_f32_16x16x8_xf32"}, "xf32", 16, 8, 1),
    Case({("gfx942",): "v_mfma_f32_32x32x4_xf32"}, "xf32", 32, 4, 1),
    Case({NEW: "v_mfma_f32_16x16x32_fp8_fp8"}, "fp8", 16, 32, 1),
    Case({NEW: "v_mfma_f32_32x32x16_bf8_bf8"}, "bf8", 32, 16, 1),
    Case({LAST: "v_mfma_f32_16x16x32_f16"}, "f16", 16, 32, 1),
    Case({LAST: "v_mfma_f32_32x32x16_f16"}, "f16", 32, 16, 1),
    Case({LAST: "v_mfma_f32_16x16x32_bf16"}, "bf16", 16, 32, 1),
    Case({LAST: "v_mfma_f32_32x32x16_bf16"}, "bf16", 32, 16, 1),
    Case({LAST: "v_mfma_i32_16x16x64_i8"}, "i8", 16, 64, 1, "i32"),
    Case({LAST: "v_mfma_i32_32x32x32_i8"}, "i8", 32, 32, 1, "i32"),
    Case({LAST: "v_mfma_f32_16x16x128_f8f6f4"}, "fp8", 16, 128, 1),
    Case({LAST: "v_mfma_f32_32x32x64_f8f6f4"}, "fp8", 32, 64, 1),
]
RUNS = [(item, chip, name) for item in CASES for chips, name in item.names.items() for chip in chips]
FLOATS = {  # exponent and mantissa bits, bias, rule of the special values; fnuz on gfx942, OCP on gfx950
    ("fp8", "gfx942"): (4, 3, 8, "fnuz"), ("fp8", "gfx950"): (4, 3, 7, "fn"), ("bf8", "gfx942"): (5, 2, 16, "fnuz"),
    ("bf8", "gfx950"): (5, 2, 15, "ieee"),
}  # fmt: skip


def elements(dtype: str, chip: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random raw elements and their values in float64: small integers, so that sums are exact in any order."""
    small = RNG.integers(-3, 4, count)
    if dtype in ("f32", "xf32", "f64", "f16"):
        raw = small.astype({"f16": np.float16, "f64": np.float64}.get(dtype, np.float32))
        return raw, small.astype(float)
    if dtype == "bf16":
        return (small.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), small.astype(float)
    if dtype == "i8":
        raw = RNG.integers(-128, 128, count).astype(np.int8)
        return raw, raw.astype(float)
    table = small_float_table(*FLOATS[dtype, chip]).astype(float)
    codes = np.array([int(np.flatnonzero(table == value)[0]) for value in small], np.uint8)
    return codes, table[codes]


def operand(item: Case, values: np.ndarray) -> np.ndarray:
    """Lane-major elements [64, P] to [blocks, M, K]."""
    per_lane = values.shape[1]
    out = np.zeros((item.blocks, item.m, item.k))
    for lane in range(64):
        row, rest = lane % item.m, lane // item.m
        for j in range(per_lane):
            out[rest % item.blocks, row, rest // item.blocks * per_lane + j] = values[lane, j]
    return out


def place(item: Case, register: int, lane: int) -> tuple[int, int, int]:
    """Block, row and column of a result register (a register pair in fp64)."""
    if item.out == "f64":
        if item.m == 16:
            return 0, 4 * register + lane // 16, lane % 16
        return lane // 4 % 4, lane // 16, lane % 4
    if item.m == 4:
        return lane // 4, register, lane % 4
    if item.m == 16:
        return register // 4, 4 * (lane // 16) + register % 4, lane % 16
    block, inner = divmod(register, 16)
    return block, 8 * (inner // 4) + 4 * (lane // 32) + inner % 4, lane % 32


@pytest.mark.parametrize(("item", "chip", "name"), RUNS, ids=[f"{name}-{chip}" for _, chip, name in RUNS])
def test_layout_and_result(item: Case, chip: str, name: str) -> None:
    per_lane = item.m * item.k * item.blocks // 64
    raw_a, a = elements(item.dtype, chip, 64 * per_lane)
    raw_b, b = elements(item.dtype, chip, 64 * per_lane)
    words = raw_a.nbytes // 256
    registers = item.m * item.m * item.blocks // 64
    size = registers * (2 if item.out == "f64" else 1)
    c = RNG.integers(-50, 50, (registers, 64))
    body = [
        "\ts_load_dwordx4 s[8:11], s[0:1], 0x10",
        "\ts_waitcnt lgkmcnt(0)",
        f"\tv_mul_u32_u24_e32 v2, {4 * words}, v0",
    ]
    for i in range(words):
        body += [f"\tglobal_load_dword v{4 + i}, v2, s[6:7] offset:{4 * i}"]
        body += [f"\tglobal_load_dword v{12 + i}, v2, s[8:9] offset:{4 * i}"]
    step = 8 if item.out == "f64" else 4
    body += [f"\tv_mul_u32_u24_e32 v3, {step}, v0"]
    for i in range(registers):
        wide, reg = ("x2", f"v[{24 + 2 * i}:{25 + 2 * i}]") if item.out == "f64" else ("", f"v{24 + i}")
        body += [f"\tglobal_load_dword{wide} {reg}, v3, s[10:11] offset:{64 * step * i}"]
    body += ["\ts_waitcnt vmcnt(0)"]
    span = lambda at, n: f"v[{at}:{at + n - 1}]" if n > 1 else f"v{at}"  # noqa: E731
    body += [f"\t{name} {span(24, size)}, {span(4, words)}, {span(12, words)}, {span(24, size)}", "\ts_nop 15"]
    for i in range(registers):
        wide, reg = ("x2", f"v[{24 + 2 * i}:{25 + 2 * i}]") if item.out == "f64" else ("", f"v{24 + i}")
        body += [f"\tglobal_store_dword{wide} v3, {reg}, s[4:5] offset:{64 * step * i}"]
    dtype = {"f32": np.float32, "f64": np.float64, "i32": np.int32}[item.out]
    out, report = run_body("\n".join(body), [raw_a, raw_b, c.astype(dtype)], arch=chip, out_bytes=64 * step * registers)
    left, right = operand(item, a.reshape(64, per_lane)), operand(item, b.reshape(64, per_lane))
    product = np.einsum("bik,bjk->bij", left, right)
    got = out.view(dtype).reshape(registers, 64)
    for register in range(registers):
        for lane in range(64):
            block, row, column = place(item, register, lane)
            assert got[register, lane] == product[block, row, column] + c[register, lane]
    assert report.counters.mfma_flops == 2 * item.m * item.m * item.k * item.blocks


def test_names_and_operand_widths_are_llvms() -> None:
    for chip in ALL:
        lines = []
        for item, own, name in RUNS:
            if own == chip:
                words = (
                    item.m
                    * item.k
                    * item.blocks
                    * {"f64": 8, "f32": 4, "xf32": 4, "f16": 2, "bf16": 2}.get(item.dtype, 1)
                    // 256
                )
                size = item.m * item.m * item.blocks // 64 * (2 if item.out == "f64" else 1)
                one = lambda at, n: f"v[{at}:{at + n - 1}]" if n > 1 else f"v{at}"  # noqa: E731
                lines.append(f"{name} {one(24, size)}, {one(4, words)}, {one(12, words)}, {one(24, size)}")
        command = [sys.executable, "-m", "ziglang", "clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={chip}", "-x",
                   "assembler", "-c", "-", "-o", "/dev/null"]  # fmt: skip
        done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:2000]


def accumulate(body: str, buffers: list[np.ndarray], chip: str = "gfx942") -> np.ndarray:
    head = "\ts_load_dwordx2 s[8:9], s[0:1], 0x10\n\ts_waitcnt lgkmcnt(0)\n\tv_lshlrev_b32_e32 v2, 2, v0\n"
    loads = "\tglobal_load_dword v4, v2, s[6:7]\n\tglobal_load_dword v5, v2, s[8:9]\n\ts_waitcnt vmcnt(0)\n"
    stores = "".join(f"\tglobal_store_dword v2, v{24 + i}, s[4:5] offset:{256 * i}\n" for i in range(4))
    out, _ = run_body(head + loads + body + stores, buffers, arch=chip, out_bytes=1024)
    return out.view(np.float32).reshape(4, 64)


def test_broadcast_of_a_and_permuted_b() -> None:
    a, b = RNG.integers(-3, 4, 64).astype(np.float32), RNG.integers(-3, 4, 64).astype(np.float32)
    blocks_a, blocks_b = a.reshape(16, 4), b.reshape(16, 4)
    got = accumulate("\tv_mfma_f32_4x4x1_16b_f32 v[24:27], v4, v5, 0 cbsz:2 abid:1\n", [a, b])
    for lane in range(64):
        block = lane // 4
        assert (got[:, lane] == blocks_a[(block & ~3) + 1] * blocks_b[block, lane % 4]).all()
    got = accumulate("\tv_mfma_f32_4x4x1_16b_f32 v[24:27], v4, v5, 0 blgp:3\n", [a, b])
    rotated = np.roll(b, -16)
    for lane in range(64):
        assert (got[:, lane] == blocks_a[lane // 4] * rotated[lane]).all()


def test_scaled_product() -> None:
    codes_a, a = elements("fp8", "gfx950", 64 * 32)
    codes_b, b = elements("fp8", "gfx950", 64 * 32)
    scale_a, scale_b = RNG.integers(124, 131, 64).astype(np.uint32), RNG.integers(124, 131, 64).astype(np.uint32)
    packed = (scale_a << 8 | scale_b).astype(np.uint32)
    item = Case({}, "fp8", 16, 128, 1)
    body = ["\ts_load_dwordx4 s[8:11], s[0:1], 0x10", "\ts_waitcnt lgkmcnt(0)", "\tv_lshlrev_b32_e32 v2, 5, v0"]
    for i in (0, 4):
        body += [f"\tglobal_load_dwordx4 v[{4 + i}:{7 + i}], v2, s[6:7] offset:{4 * i}"]
        body += [f"\tglobal_load_dwordx4 v[{12 + i}:{15 + i}], v2, s[8:9] offset:{4 * i}"]
    body += ["\tglobal_load_dword v20, v1, s[10:11]", "\ts_waitcnt vmcnt(0)"]
    body += [
        "\tv_mfma_scale_f32_16x16x128_f8f6f4 v[24:27], v[4:11], v[12:19], 0, v20, v20 op_sel:[1,0,0] op_sel_hi:[0,0,0]"
    ]
    body += [f"\tglobal_store_dword v1, v{24 + i}, s[4:5] offset:{256 * i}" for i in range(4)]
    out, _ = run_body("\n".join(body), [codes_a, codes_b, packed], arch="gfx950", out_bytes=1024)
    left, right = np.zeros((1, 16, 128)), np.zeros((1, 16, 128))
    for lane in range(64):
        for j in range(32):  # 16 elements of the lower half of K, 16 of the upper; lane group g scales k in 32 g...
            k = 64 * (j // 16) + 16 * (lane // 16) + j % 16
            holder = 16 * (k // 32) + lane % 16
            left[0, lane % 16, k] = a[32 * lane + j] * 2.0 ** (float(scale_a[holder]) - 127)
            right[0, lane % 16, k] = b[32 * lane + j] * 2.0 ** (float(scale_b[holder]) - 127)
    product = left[0] @ right[0].T
    got = out.view(np.float32).reshape(4, 64)
    expected = [[product[place(item, r, lane)[1:]] for lane in range(64)] for r in range(4)]
    assert np.allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_small_formats_match_torch() -> None:
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8)
    for parameters, dtype in [
        ((4, 3, 7, "fn"), torch.float8_e4m3fn), ((4, 3, 8, "fnuz"), torch.float8_e4m3fnuz),
        ((5, 2, 15, "ieee"), torch.float8_e5m2), ((5, 2, 16, "fnuz"), torch.float8_e5m2fnuz),
    ]:  # fmt: skip
        expected = torch.from_numpy(codes.copy()).view(dtype).float().numpy()
        np.testing.assert_array_equal(small_float_table(*parameters), expected)


def test_stale_input_spoils_the_result_of_its_wave_only_where_kept() -> None:
    assert "v_mfma" in kernel_text("\tv_mfma_f32_4x4x1_16b_f32 v[24:27], v4, v5, 0")
    a = np.ones(64, np.float32)
    got = accumulate(
        "\tv_mfma_f32_4x4x1_16b_f32 v[28:31], v40, v41, 0\n\tv_mfma_f32_4x4x1_16b_f32 v[24:27], v4, v5, 0\n", [a, a]
    )
    assert (got == 1).all()

"""DPP, SDWA and lane movement against per-lane Python."""

import numpy as np
import pytest
from kvc.simulator import SimOptions

from tests.simulator.tinyasm import run_body

RNG = np.random.default_rng(6)
LOAD = "\tglobal_load_dword v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n"
STORE_V3 = "\tglobal_store_dword v1, v3, s[4:5]"

CONTROLS = {
    "quad_perm:[3,0,2,1]": lambda i: (i & ~3) + (3, 0, 2, 1)[i & 3],
    "row_shl:3": lambda i: i + 3 if i % 16 + 3 < 16 else None,
    "row_shr:5": lambda i: i - 5 if i % 16 >= 5 else None,
    "row_ror:4": lambda i: (i & ~15) + (i % 16 - 4) % 16,
    "wave_shl:1": lambda i: i + 1 if i < 63 else None,
    "wave_shr:1": lambda i: i - 1 if i > 0 else None,
    "wave_rol:1": lambda i: (i + 1) % 64,
    "wave_ror:1": lambda i: (i - 1) % 64,
    "row_mirror": lambda i: (i & ~15) + 15 - i % 16,
    "row_half_mirror": lambda i: (i & ~7) + 7 - i % 8,
    "row_bcast:15": lambda i: (i & ~15) - 1 if i >= 16 else None,
    "row_bcast:31": lambda i: 31 if i >= 32 else None,
    "row_newbcast:7": lambda i: (i & ~15) + 7,
}


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("masks", [(15, 15), (10, 12)])
@pytest.mark.parametrize("half", [False, True])
def test_dpp(control: str, bound: bool, masks: tuple[int, int], half: bool) -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    active = [i % 2 == 0 or not half for i in range(64)]
    narrow = "\ts_mov_b32 exec_lo, 0x55555555\n\ts_mov_b32 exec_hi, exec_lo\n" if half else ""
    body = LOAD + "\tv_mov_b32_e32 v3, 7\n" + narrow
    body += f"\tv_mov_b32_dpp v3, v2 {control} row_mask:{masks[0]:#x} bank_mask:{masks[1]:#x}"
    body += (" bound_ctrl:1" if bound else "") + "\n\ts_mov_b64 exec, -1\n" + STORE_V3
    expected = []
    for i in range(64):
        source = CONTROLS[control](i)
        known = source is not None and active[source]
        writes = active[i] and masks[0] >> i // 16 & 1 and masks[1] >> i // 4 % 4 & 1 and (known or bound)
        expected.append(7 if not writes else int(data[source]) if known else 0)
    assert run_body(body, [data])[0].tolist() == expected


def test_dpp_arithmetic_reads_the_second_operand_in_place() -> None:
    data = RNG.integers(0, 1 << 20, 64, dtype=np.uint32)
    body = LOAD + "\tv_add_u32_dpp v3, v2, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1\n" + STORE_V3
    shifted = np.where(np.arange(64) % 16 == 0, 0, np.roll(data, 1))
    assert (run_body(body, [data])[0] == data + shifted).all()


@pytest.mark.parametrize("select", ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"])
@pytest.mark.parametrize("unused", ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"])
def test_sdwa_target_and_source(select: str, unused: str) -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = LOAD + "\tv_mov_b32_e32 v3, 0x12345678\n"
    body += f"\tv_mov_b32_sdwa v3, v2 dst_sel:{select} dst_unused:{unused} src0_sel:BYTE_2\n" + STORE_V3
    width = 32 if select == "DWORD" else 8 if select.startswith("BYTE") else 16
    shift = 0 if select == "DWORD" else width * int(select[-1])
    field = ((1 << width) - 1) << shift
    value = (data >> 16 & 0xFF).astype(np.int64)
    expected = (value << shift) & field
    if unused == "UNUSED_PRESERVE":
        expected |= 0x12345678 & ~field
    if unused == "UNUSED_SEXT":
        sign = value >> (width - 1) & 1
        expected |= np.where(sign, ~((1 << shift + width) - 1) & 0xFFFFFFFF, 0)
    assert (run_body(body, [data])[0] == expected.astype(np.uint32)).all()


def test_sdwa_sign_extension() -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = (
        LOAD + "\tv_mov_b32_e32 v4, 0\n"
        "\tv_add_u32_sdwa v3, sext(v2), v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:DWORD\n"
    )
    assert (run_body(body + STORE_V3, [data])[0].view(np.int32) == (data >> 8).astype(np.uint8).view(np.int8)).all()


def test_permutes() -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    perm = RNG.permutation(64).astype(np.uint32)
    head = LOAD + "\tglobal_load_dword v4, v1, s[8:9]\n\ts_waitcnt vmcnt(0)\n\tv_lshlrev_b32_e32 v4, 2, v4\n"
    head = "\ts_load_dwordx2 s[8:9], s[0:1], 0x10\n\ts_waitcnt lgkmcnt(0)\n" + head
    tail = "\ts_waitcnt lgkmcnt(0)\n" + STORE_V3
    pull, _ = run_body(head + "\tds_bpermute_b32 v3, v4, v2\n" + tail, [data, perm])
    push, _ = run_body(head + "\tds_permute_b32 v3, v4, v2\n" + tail, [data, perm])
    assert (pull == data[perm]).all() and (push[perm] == data).all()
    narrow = "\tv_mov_b32_e32 v3, 1\n\ts_mov_b32 exec_hi, 0\n\tds_bpermute_b32 v3, v4, v2\n\ts_mov_b64 exec, -1\n"
    half, _ = run_body(head + narrow + tail, [data, perm])
    assert half.tolist() == [int(data[p]) if i < 32 and p < 32 else 0 if i < 32 else 1 for i, p in enumerate(perm)]


@pytest.mark.parametrize(
    ("offset", "source"),
    [
        ("0x8000", lambda i: i & ~3),
        ("swizzle(QUAD_PERM,3,2,1,0)", lambda i: i ^ 3),
        ("swizzle(SWAP,8)", lambda i: i ^ 8),
        ("swizzle(REVERSE,16)", lambda i: i ^ 15),
        ("swizzle(BROADCAST,4,2)", lambda i: (i & ~3) + 2),
        ("0x401f", lambda i: i ^ 16),
        ('swizzle(BITMASK_PERM,"01pip")', lambda i: (i & 32) | 8 | (i & 4) | (2 - (i & 2)) | (i & 1)),
    ],
)
def test_swizzle(offset: str, source) -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = LOAD + f"\tds_swizzle_b32 v3, v2 offset:{offset}\n\ts_waitcnt lgkmcnt(0)\n" + STORE_V3
    assert run_body(body, [data])[0].tolist() == [int(data[source(i)]) for i in range(64)]


def test_read_and_write_lane() -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = (
        LOAD + "\tv_readlane_b32 s8, v2, 17\n\ts_mov_b32 s9, 40\n\tv_mov_b32_e32 v3, s8\n\tv_writelane_b32 v3, s9, 5\n"
        "\ts_mov_b64 exec, 0xf0\n\tv_readfirstlane_b32 s10, v2\n\ts_mov_b64 exec, -1\n\tv_writelane_b32 v3, s10, s9\n"
    )
    expected = np.full(64, data[17])
    expected[5], expected[40] = 40, data[4]
    assert (run_body(body + STORE_V3, [data])[0] == expected).all()


def test_permlane_swaps() -> None:
    data = RNG.integers(0, 1 << 32, 128, dtype=np.uint32)
    head = LOAD + "\tglobal_load_dword v3, v1, s[6:7] offset:256\n\ts_waitcnt vmcnt(0)\n"
    tail = "\n\tglobal_store_dword v1, v2, s[4:5]\n\tglobal_store_dword v1, v3, s[4:5] offset:256"
    for width in (16, 32):
        out, _ = run_body(
            head + f"\tv_permlane{width}_swap_b32_e32 v2, v3" + tail, [data], arch="gfx950", out_bytes=512
        )
        a, b = data[:64].copy().reshape(-1, width), data[64:].copy().reshape(-1, width)
        a[1::2], b[0::2] = b[0::2].copy(), a[1::2].copy()
        assert (out == np.concatenate([a.reshape(-1), b.reshape(-1)])).all()


def test_mbcnt_numbers_the_lanes() -> None:
    body = "\tv_mbcnt_lo_u32_b32 v2, -1, 0\n\tv_mbcnt_hi_u32_b32 v3, -1, v2\n" + STORE_V3
    assert (run_body(body, [])[0] == np.arange(64)).all()


def test_carry_select_and_masks_under_exec() -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = (
        LOAD + "\tv_mov_b32_e32 v3, 9\n\tv_cmp_gt_i32_e32 vcc, 0, v2\n\ts_and_saveexec_b64 s[8:9], vcc\n"
        "\ts_xor_b64 s[8:9], exec, s[8:9]\n\tv_mov_b32_e32 v3, 1\n\ts_mov_b64 exec, s[8:9]\n\tv_mov_b32_e32 v3, 2\n"
        "\ts_mov_b64 exec, -1\n"
    )
    assert (run_body(body + STORE_V3, [data])[0] == np.where(data.view(np.int32) < 0, 1, 2)).all()


def test_checks_do_not_change_results() -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = LOAD + "\tv_mul_lo_u32 v3, v2, v2\n" + STORE_V3
    off = SimOptions(race=False, waits=False, uninit=False)
    assert (run_body(body, [data])[0] == run_body(body, [data], options=off)[0]).all()

"""Loads, stores and atomics of every width, in global memory, buffers, LDS and scratch."""

import numpy as np
import pytest
from kvc.arch import CDNA
from kvc.simulator import Memory

from tests.simulator.tinyasm import run_body

RNG = np.random.default_rng(5)
STORE_V2 = "\tglobal_store_dword v1, v2, s[4:5]"


@pytest.mark.parametrize(("suffix", "count"), [("", 1), ("x2", 2), ("x3", 3), ("x4", 4)])
@pytest.mark.parametrize("space", ["global", "flat", "buffer"])
def test_wide_copies(space: str, suffix: str, count: int) -> None:
    data = RNG.integers(0, 1 << 32, 64 * count, dtype=np.uint32)
    last = 7 + count
    reg = f"v[8:{last}]" if count > 1 else "v8"
    head = f"\tv_mul_u32_u24_e32 v1, {4 * count}, v0\n"
    if space == "global":
        body = f"\tglobal_load_dword{suffix} {reg}, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n"
        body += f"\tglobal_store_dword{suffix} v1, {reg}, s[4:5]"
    elif space == "flat":
        body = "\tv_mov_b32_e32 v3, s7\n\tv_add_co_u32_e32 v2, vcc, s6, v1\n\tv_addc_co_u32_e32 v3, vcc, 0, v3, vcc\n"
        body += "\tv_mov_b32_e32 v5, s5\n\tv_add_co_u32_e32 v4, vcc, s4, v1\n\tv_addc_co_u32_e32 v5, vcc, 0, v5, vcc\n"
        body += f"\tflat_load_dword{suffix} {reg}, v[2:3]\n\ts_waitcnt vmcnt(0) lgkmcnt(0)\n"
        body += f"\tflat_store_dword{suffix} v[4:5], {reg}"
    else:
        body = "\ts_mov_b32 s8, s6\n\ts_mov_b32 s9, s7\n\ts_mov_b32 s10, 0x7ffffffe\n\ts_mov_b32 s11, 0x27000\n"
        body += "\ts_mov_b32 s12, s4\n\ts_mov_b32 s13, s5\n\ts_mov_b32 s14, 0x7ffffffe\n\ts_mov_b32 s15, 0x27000\n"
        body += f"\tbuffer_load_dword{suffix} {reg}, v1, s[8:11], 0 offen\n\ts_waitcnt vmcnt(0)\n"
        body += f"\tbuffer_store_dword{suffix} {reg}, v1, s[12:15], 0 offen"
    out, report = run_body(head + body, [data], out_bytes=256 * count)
    assert (out == data).all()
    assert report.counters.global_read_bytes >= 256 * count
    assert report.counters.global_write_bytes == 256 * count


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("ubyte", lambda b, h: b.astype(np.uint32)),
        ("sbyte", lambda b, h: b.view(np.int8).astype(np.int32).view(np.uint32)),
        ("ushort", lambda b, h: h.astype(np.uint32)),
        ("sshort", lambda b, h: h.view(np.int16).astype(np.int32).view(np.uint32)),
        ("short_d16", lambda b, h: 0xABCD0000 | h.astype(np.uint32)),
        ("short_d16_hi", lambda b, h: h.astype(np.uint32) << 16 | 0x1234),
        ("ubyte_d16_hi", lambda b, h: b.astype(np.uint32) << 16 | 0x1234),
    ],
)
def test_narrow_loads(name: str, reference) -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    body = f"\tv_mov_b32_e32 v2, 0xabcd1234\n\tglobal_load_{name} v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n" + STORE_V2
    out, _ = run_body(body, [data])
    assert (out == reference(data.astype(np.uint8), data.astype(np.uint16))).all()
    lds_name = {"ubyte": "u8", "sbyte": "i8", "ushort": "u16", "sshort": "i16", "short_d16": "u16_d16",
                "short_d16_hi": "u16_d16_hi", "ubyte_d16_hi": "u8_d16_hi"}[name]  # fmt: skip
    body = (
        f"\tglobal_load_dword v3, v1, s[6:7]\n\tv_mov_b32_e32 v2, 0xabcd1234\n\ts_waitcnt vmcnt(0)\n"
        f"\tds_write_b32 v1, v3\n\tds_read_{lds_name} v2, v1\n\ts_waitcnt lgkmcnt(0)\n"
    )
    assert (run_body(body + STORE_V2, [data], lds=256)[0] == out).all()


@pytest.mark.parametrize(("name", "mask", "shift"), [("byte", 0xFF, 0), ("short", 0xFFFF, 0), ("byte_d16_hi", 0xFF, 16),
                                                     ("short_d16_hi", 0xFFFF, 16)])  # fmt: skip
def test_narrow_stores(name: str, mask: int, shift: int) -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    load = "\tglobal_load_dword v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n"
    out, _ = run_body(load + f"\tglobal_store_{name} v1, v2, s[4:5]", [data])
    assert (out == (0xCDCDCDCD & ~np.uint32(mask) | (data >> np.uint32(shift) & np.uint32(mask)))).all()
    size = {"byte": "b8", "short": "b16", "byte_d16_hi": "b8_d16_hi", "short_d16_hi": "b16_d16_hi"}[name]
    body = (
        load + f"\tv_mov_b32_e32 v3, 0xcdcdcdcd\n\tds_write_b32 v1, v3\n\tds_write_{size} v1, v2\n"
        f"\tds_read_b32 v2, v1\n\ts_waitcnt lgkmcnt(0)\n"
    )
    assert (run_body(body + STORE_V2, [data], lds=256)[0] == out).all()


def test_buffer_lanes_out_of_range_read_zero_and_are_not_written() -> None:
    data = np.arange(1, 65, dtype=np.uint32)
    body = (
        "\ts_mov_b32 s8, s6\n\ts_mov_b32 s9, s7\n\ts_mov_b32 s10, 0x80\n\ts_mov_b32 s11, 0x27000\n"
        "\tbuffer_load_dword v2, v1, s[8:11], 0 offen\n\ts_waitcnt vmcnt(0)\n\ts_mov_b32 s8, s4\n\ts_mov_b32 s9, s5\n"
        "\ts_mov_b32 s10, 0xc0\n\tbuffer_store_dword v2, v1, s[8:11], 0 offen"
    )
    out, _ = run_body(body, [data])
    assert (out[:32] == data[:32]).all() and (out[32:48] == 0).all() and (out[48:] == 0xCDCDCDCD).all()


def test_lds_wide_and_two_address_forms() -> None:
    data = RNG.integers(0, 1 << 32, 256, dtype=np.uint32)
    body = (
        "\tv_lshlrev_b32_e32 v1, 4, v0\n\tglobal_load_dwordx4 v[8:11], v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n"
        "\tds_write_b128 v1, v[8:11]\n\tv_lshlrev_b32_e32 v4, 3, v0\n"
        "\tds_read2st64_b64 v[12:15], v4 offset1:1\n\ts_waitcnt lgkmcnt(0)\n"
        "\tds_write2_b64 v1, v[12:13], v[14:15] offset1:1\n\tds_read_b96 v[16:18], v1\n"
        "\tds_read2_b32 v[18:19], v1 offset0:2 offset1:3\n"
        "\ts_waitcnt lgkmcnt(0)\n\tglobal_store_dwordx4 v1, v[16:19], s[4:5]"
    )
    out, report = run_body(body, [data], lds=1024, out_bytes=1024)
    pairs = data.view(np.uint64)
    assert (out.view(np.uint64).reshape(64, 2) == np.stack([pairs[:64], pairs[64:]], axis=1)).all()
    assert report.counters.lds_bytes > 0


def test_lds_bank_conflicts_are_counted() -> None:
    none = run_body("\tds_write_b32 v1, v0", [], lds=256)[1].counters.lds_conflict_cycles
    many = run_body("\tv_lshlrev_b32_e32 v3, 7, v0\n\tds_write_b32 v3, v0", [], lds=8192)[
        1
    ].counters.lds_conflict_cycles
    assert none == 0 and many == 2 * 31


@pytest.mark.parametrize("arch", CDNA)
def test_scratch(arch: str) -> None:
    if arch == "gfx90a":
        pytest.skip("scratch through buffers is covered by compiled kernels")
    body = "\tscratch_store_dword off, v0, off offset:8\n\ts_mov_b32 s8, 4\n\tscratch_load_dword v2, off, s8 offset:4\n"
    out, _ = run_body(body + "\ts_waitcnt vmcnt(0)\n" + STORE_V2, [], arch=arch, scratch=16)
    assert (out == np.arange(64)).all()


INTEGER = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "umax": max, "umin": min,
    "smax": lambda a, b: max(a, b, key=lambda v: v - (v >> 31 << 32)),
    "smin": lambda a, b: min(a, b, key=lambda v: v - (v >> 31 << 32)), "swap": lambda a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1, "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}  # fmt: skip
DS = {"umax": "max_u32", "umin": "min_u32", "smax": "max_i32", "smin": "min_i32", "swap": "wrxchg", "and": "and_b32",
      "or": "or_b32", "xor": "xor_b32"}  # fmt: skip


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("returns", [False, True])
def test_integer_atomics_take_turns(name: str, returns: bool) -> None:
    data = RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
    memory = [0xCDCDCDCD] * 4
    before = []
    for lane in range(64):
        before.append(memory[lane % 4])
        memory[lane % 4] = INTEGER[name](memory[lane % 4], int(data[lane])) & 0xFFFFFFFF
    head = "\tv_and_b32_e32 v3, 12, v1\n\tglobal_load_dword v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n"
    if not returns:
        out, report = run_body(head + f"\tglobal_atomic_{name} v3, v2, s[4:5]", [data])
        assert out[:4].tolist() == memory and report.counters.atomics == 64
        return
    tail = "\ts_waitcnt vmcnt(0)\n\tglobal_store_dword v1, v4, s[4:5] offset:16"
    out, _ = run_body(head + f"\tglobal_atomic_{name} v4, v3, v2, s[4:5] sc0\n" + tail, [data], out_bytes=272)
    assert out[:4].tolist() == memory and out[4:].tolist() == before
    word = DS.get(name, f"{name}_u32")
    mnemonic = "ds_wrxchg_rtn_b32" if name == "swap" else f"ds_{word.replace('_', '_rtn_')}"
    body = (
        head
        + f"\tv_mov_b32_e32 v5, 0xcdcdcdcd\n\tds_write_b32 v3, v5\n\t{mnemonic} v4, v3, v2\n\ts_waitcnt lgkmcnt(0)\n"
    )
    local, _ = run_body(body + "\tglobal_store_dword v1, v4, s[4:5]", [data], lds=16)
    assert local.tolist() == before


def test_compare_and_swap() -> None:
    # Lanes add 1 to one word by compare and swap, each trying until it gets through.
    body = (
        "\tv_mov_b32_e32 v3, 0\n\tv_mov_b32_e32 v5, 0xcdcdcdcd\n\ts_mov_b64 s[8:9], exec\nagain:\n"
        "\tv_add_u32_e32 v4, 1, v5\n\tglobal_atomic_cmpswap v6, v3, v[4:5], s[4:5] sc0\n\ts_waitcnt vmcnt(0)\n"
        "\tv_cmp_ne_u32_e32 vcc, v6, v5\n\tv_mov_b32_e32 v5, v6\n\ts_and_b64 exec, exec, vcc\n"
        "\ts_cbranch_execnz again"
    )
    out, report = run_body(body, [])
    assert out[0] == 0xCDCDCDCD + 64 and report.counters.atomics == 64 * 65 // 2


@pytest.mark.parametrize(("name", "dtype"), [("add_f32", np.float32), ("add_f64", np.float64), ("max_f64", np.float64),
                                             ("pk_add_f16", np.float16)])  # fmt: skip
def test_float_atomics(name: str, dtype) -> None:
    wide = dtype == np.float64
    count = 2 if dtype == np.float16 else 1
    data = RNG.integers(-8, 8, 64 * count).astype(dtype)
    scale = 8 if wide else 4
    reg, load = ("v[2:3]", "x2") if wide else ("v2", "")
    body = (
        f"\tv_mul_u32_u24_e32 v1, {scale}, v0\n\tglobal_load_dword{load} {reg}, v1, s[6:7]\n\tv_mov_b32_e32 v4, 0\n"
        f"\tv_mov_b32_e32 v6, 0\n\tv_mov_b32_e32 v7, 0\n\tglobal_store_dwordx2 v4, v[6:7], s[4:5]\n"
        f"\ts_waitcnt vmcnt(0)\n"
        f"\tglobal_atomic_{name} v4, {reg}, s[4:5]"
    )
    out, _ = run_body(body, [data])
    sums = data.reshape(64, count).astype(np.float64)
    expected = np.maximum(sums.max(axis=0), 0) if "max" in name else sums.sum(axis=0)
    assert (out.view(dtype)[:count] == expected).all()


def test_constant_data_tables_and_calls() -> None:
    body = (
        "\ts_getpc_b64 s[8:9]\n\ts_add_u32 s8, s8, table@rel32@lo+4\n\ts_addc_u32 s9, s9, table@rel32@hi+12\n"
        "\ts_load_dwordx2 s[10:11], s[8:9], 0x4\n\ts_getpc_b64 s[12:13]\n\ts_add_u32 s12, s12, twice@rel32@lo+4\n"
        "\ts_addc_u32 s13, s13, twice@rel32@hi+12\n\ts_waitcnt lgkmcnt(0)\n\ts_swappc_b64 s[30:31], s[12:13]\n"
        "\tv_mov_b32_e32 v2, s10\n"
        + STORE_V2
        + "\n\ts_endpgm\ntwice:\n\ts_add_u32 s10, s10, s11\n\ts_setpc_b64 s[30:31]\n"
        "\t.section .rodata\n\t.p2align 2\ntable:\n\t.long 1, 20\n\t.long 0x16\n\t.text\n"
    )
    out, _ = run_body(body, [])
    assert (out == 42).all()


def test_buffers_are_apart_and_keep_their_contents() -> None:
    mem = Memory("gfx942")
    array = RNG.standard_normal((3, 5)).astype(np.float32)
    one, two = mem.upload(array, "one"), mem.alloc(100, fill=b"\x01\x02", name="two")
    assert (one.view(np.float32, (3, 5)) == array).all()
    assert one.addr % 256 == 0 and two.addr >= one.end + (1 << 20)
    assert two.view(np.uint16).tolist() == [0x0201] * 50
    assert mem.find(one.addr + 59) is one and mem.find(one.end) is None
    mem.unmap(one)
    assert mem.find(two.addr) is two and mem.find(one.addr) is None

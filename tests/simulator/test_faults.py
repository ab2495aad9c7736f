"""Each thing that must not happen is caught, with its code and its place."""

import numpy as np
import pytest
from kvc.diagnostics import KvcError
from kvc.simulator import Memory, SimFault, SimOptions, launch, load

from tests.simulator.tinyasm import kernel_text, run_body

STORE_V2 = "\tglobal_store_dword v1, v2, s[4:5]"
DATA = np.arange(64, dtype=np.uint32)


def fault(body: str, code: str, **kwargs) -> SimFault:
    with pytest.raises(SimFault) as caught:
        run_body(body, kwargs.pop("buffers", [DATA]), **kwargs)
    assert caught.value.code == code, str(caught.value)
    return caught.value


def test_load_past_the_end_names_buffer_wave_and_lane() -> None:
    error = fault("\tglobal_load_dword v2, v1, s[6:7] offset:128", "KVC0903")
    assert error.diagnostic.details["lane"] == 32
    assert error.diagnostic.details["instruction"].startswith("global_load_dword")
    assert "'in0'" in error.diagnostic.message and "0 bytes past the end" in error.diagnostic.message


def test_store_past_the_end() -> None:
    error = fault("\tv_mov_b32_e32 v2, 1\n\tglobal_store_dword v1, v2, s[4:5] offset:4", "KVC0903")
    assert error.diagnostic.details["lane"] == 63


def test_store_outside_is_not_seen_under_the_mask() -> None:
    body = "\tv_mov_b32_e32 v2, 7\n\tv_cmp_gt_u32_e32 vcc, 32, v0\n\ts_and_saveexec_b64 s[8:9], vcc\n"
    out, _ = run_body(body + "\tglobal_store_dword v1, v2, s[4:5] offset:128", [DATA])
    assert (out[:32] == 0xCDCDCDCD).all() and (out[32:] == 7).all()


def test_scalar_load_out_of_bounds() -> None:
    fault("\ts_load_dword s8, s[6:7], 0x100\n\ts_waitcnt lgkmcnt(0)", "KVC0903")


def test_lds_out_of_bounds() -> None:
    error = fault("\tv_mov_b32_e32 v2, 0\n\tds_write_b32 v1, v2", "KVC0903", lds=128)
    assert error.diagnostic.details["lane"] == 32


def test_misaligned_global_and_lds() -> None:
    body = "\tv_or_b32_e32 v3, 2, v1\n\tglobal_load_dword v2, v3, s[6:7]"
    fault(body, "KVC0904", buffers=[np.zeros(65, np.uint32)])
    fault("\tv_or_b32_e32 v3, 2, v1\n\tds_write_b32 v3, v1", "KVC0904", lds=512)


def test_register_never_written_is_refused_where_it_matters() -> None:
    assert "v2" in fault(STORE_V2, "KVC0905").diagnostic.message
    fault("\tglobal_load_dword v2, v5, s[6:7]", "KVC0905")
    fault("\ts_cmp_eq_u32 s20, 0\n\ts_cbranch_scc1 out\n\tv_mov_b32_e32 v2, 0\nout:\n\ts_nop 0", "KVC0905")
    fault("\tv_cmp_eq_u32_e32 vcc, 0, v9\n\ts_and_saveexec_b64 s[8:9], vcc", "KVC0905")


def test_register_never_written_may_be_masked_out() -> None:
    # v9 is never written; its low half is dropped, its high half replaced.
    body = "\tv_and_b32_e32 v2, 0, v9\n\tv_lshlrev_b32_e32 v3, 16, v9\n\tv_and_b32_e32 v3, 0xffff, v3\n"
    out, _ = run_body(body + "\tv_or_b32_e32 v2, v2, v3\n\tv_add_u32_e32 v2, 5, v2\n" + STORE_V2, [DATA])
    assert (out == 5).all()


def test_half_of_a_register_may_be_unwritten() -> None:
    body = "\tglobal_load_short_d16 v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n"
    out, _ = run_body(body + "\tv_and_b32_e32 v2, 0xffff, v2\n" + STORE_V2, [DATA])
    assert (out == DATA).all()
    fault(body + STORE_V2, "KVC0905")


def test_uninitialised_lds() -> None:
    body = "\tds_read_b32 v2, v1\n\ts_waitcnt lgkmcnt(0)\n" + STORE_V2
    fault(body, "KVC0905", lds=256)
    out, _ = run_body(body, [DATA], lds=256, options=SimOptions(uninit=False))
    assert out.shape == (64,)


def test_read_of_a_buffer_nobody_wrote() -> None:
    text = kernel_text("\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\tv_lshlrev_b32_e32 v1, 2, v0\n\ts_waitcnt lgkmcnt(0)\n"
                       "\tglobal_load_dword v2, v1, s[6:7]\n\ts_waitcnt vmcnt(0)\n" + STORE_V2, args=2)  # fmt: skip
    mem = Memory("gfx942")
    with pytest.raises(SimFault) as caught:
        launch(load(text, "gfx942"), "k", (1, 1, 1), (64, 1, 1), [mem.alloc(256), mem.alloc(256)], mem)
    assert caught.value.code == "KVC0905"


EXCHANGE = (
    "\tv_mov_b32_e32 v2, v0\n\tds_write_b32 v1, v2\n\ts_waitcnt lgkmcnt(0)\n{barrier}"
    "\tv_xor_b32_e32 v3, 0x100, v1\n\tds_read_b32 v2, v3\n\ts_waitcnt lgkmcnt(0)\n" + STORE_V2
)


def test_race_between_waves() -> None:
    out, _ = run_body(EXCHANGE.format(barrier="\ts_barrier\n"), [DATA], threads=128, lds=512, out_bytes=512)
    assert (out == np.arange(128) ^ 64).all()
    assert (
        "s_barrier"
        in fault(EXCHANGE.format(barrier=""), "KVC0906", threads=128, lds=512, out_bytes=512).diagnostic.hint
    )


def test_waves_that_write_the_same_value_do_not_race() -> None:
    body = "\tv_mov_b32_e32 v2, 3\n\tv_and_b32_e32 v3, 0xfc, v1\n\tds_write_b32 v3, v2\n\ts_waitcnt lgkmcnt(0)\n"
    run_body(body + "\ts_barrier\n", [DATA], threads=128, lds=256)
    fault(body.replace("v2, 3", "v2, v0") + "\ts_barrier\n", "KVC0906", threads=128, lds=256)


@pytest.mark.parametrize(("number", "same"), [("0x7fc00000", True), ("0x7f800000", False), ("0x7c000000", False)])
def test_two_nans_are_the_same_value(number: str, same: bool) -> None:
    """Waves write a number or its negative: of NaN, but of no infinity, either is as good."""
    body = (
        f"\tv_mov_b32_e32 v2, {number}\n\tv_and_b32_e32 v3, 64, v0\n\tv_lshlrev_b32_e32 v3, 25, v3\n"
        "\tv_or_b32_e32 v2, v2, v3\n\tv_and_b32_e32 v3, 0xfc, v1\n\tds_write_b32 v3, v2\n\ts_waitcnt lgkmcnt(0)\n"
        "\ts_barrier\n"
    )
    if same:
        run_body(body, [DATA], threads=128, lds=256)
    else:
        fault(body, "KVC0906", threads=128, lds=256)


def test_race_of_a_late_read_with_the_next_write() -> None:
    body = (
        "\tds_write_b32 v1, v0\n\ts_waitcnt lgkmcnt(0)\n\ts_barrier\n\tv_xor_b32_e32 v3, 0x100, v1\n"
        "\tds_read_b32 v2, v3\n{wait}\ts_barrier\n\tds_write_b32 v1, v1\n\ts_waitcnt lgkmcnt(0)\n"
    )
    run_body(body.format(wait="\ts_waitcnt lgkmcnt(0)\n"), [DATA], threads=128, lds=512)
    fault(body.format(wait=""), "KVC0906", threads=128, lds=512)


def test_collected_hazards_do_not_stop_the_run() -> None:
    body = EXCHANGE.format(barrier="")
    _, report = run_body(body, [DATA], threads=128, lds=512, out_bytes=512, options=SimOptions(collect=True))
    assert [hazard.code for hazard in report.hazards] == ["KVC0906"]


@pytest.mark.parametrize(
    "body",
    [
        "\tglobal_load_dword v2, v1, s[6:7]\n\tv_add_u32_e32 v2, 1, v2",
        "\tglobal_load_dword v2, v1, s[6:7]\n\tv_mov_b32_e32 v2, 1",
        "\tglobal_load_dword v2, v1, s[6:7]\n\tglobal_load_dword v3, v1, s[6:7]\n\ts_waitcnt vmcnt(1)\n"
        "\tv_add_u32_e32 v2, 1, v3",
        "\ts_load_dword s8, s[6:7], 0x0\n\ts_add_u32 s8, s8, 1",
        "\ts_load_dword s8, s[6:7], 0x0\n\ts_load_dword s9, s[6:7], 0x4\n\ts_waitcnt lgkmcnt(1)\n\ts_add_u32 s8, s8, 1",
        "\tds_write_b32 v1, v0\n\tds_read_b32 v2, v1\n\tv_add_u32_e32 v2, 1, v2",
    ],
)
def test_missing_wait(body: str) -> None:
    assert "s_waitcnt" in fault(body, "KVC0907", lds=256).diagnostic.hint


def test_counted_waits_are_enough() -> None:
    body = (
        "\tglobal_load_dword v2, v1, s[6:7]\n\tglobal_load_dword v3, v1, s[6:7]\n\ts_waitcnt vmcnt(1)\n"
        "\tv_add_u32_e32 v2, 1, v2\n\ts_waitcnt vmcnt(0)\n\tv_add_u32_e32 v2, v2, v3\n" + STORE_V2
    )
    out, _ = run_body(body, [DATA])
    assert (out == 2 * DATA + 1).all()


def test_full_counter_implies_a_wait() -> None:
    """64 loads cannot be outstanding: when the last is issued the first has returned."""
    use = "\tv_add_u32_e32 v2, 1, v2\n" + STORE_V2
    first = "\tglobal_load_dword v2, v1, s[6:7]\n"
    later = "\tglobal_load_dword v3, v1, s[6:7]\n"
    out, _ = run_body(first + 63 * later + use, [DATA])
    assert (out == DATA + 1).all()
    fault(first + 62 * later + use, "KVC0907")


def test_lds_write_must_land_before_the_barrier() -> None:
    error = fault("\tds_write_b32 v1, v0\n\ts_barrier\n", "KVC0907", lds=512, threads=128)
    assert error.diagnostic.details["instruction"] == "s_barrier"


def test_divergent_barrier() -> None:
    skip = "\tv_readfirstlane_b32 s8, v0\n\ts_cmp_lt_u32 s8, 64\n\ts_cbranch_scc1 {target}\n\ts_barrier\n{target}:\n"
    fault(skip.format(target="out") + "\ts_nop 0", "KVC0908", threads=128)
    fault(skip.format(target="other") + "\ts_barrier", "KVC0908", threads=128)


def test_livelock() -> None:
    fault("again:\n\ts_branch again", "KVC0909", options=SimOptions(max_instructions=5000))


def test_spin_wait_on_another_wave_ends() -> None:
    # Wave 0 spins on a word that wave 1 writes: a scheduler that is not fair would never let wave 1 go.
    body = (
        "\tv_mov_b32_e32 v4, 0\n\tv_readfirstlane_b32 s8, v0\n\ts_cmp_lt_u32 s8, 64\n\ts_cbranch_scc0 write\n"
        "spin:\n\tglobal_load_dword v2, v4, s[4:5]\n\ts_waitcnt vmcnt(0)\n\tv_readfirstlane_b32 s9, v2\n"
        "\ts_cmp_eq_u32 s9, 1\n\ts_cbranch_scc0 spin\n\ts_endpgm\n"
        "write:\n\tv_mov_b32_e32 v3, 1\n\tglobal_store_dword v4, v3, s[4:5]"
    )
    out, _ = run_body(body, [DATA], threads=128)
    assert out[0] == 1


def test_unknown_opcode_and_modifier_are_named() -> None:
    with pytest.raises(KvcError) as caught:
        run_body("\tv_frobnicate_b32 v1, v2", [DATA])
    assert caught.value.code == "KVC0902" and "v_frobnicate_b32" in str(caught.value)
    with pytest.raises(KvcError) as caught:
        run_body("\tds_read_b32 v2, v1 gds", [DATA], lds=256)
    assert caught.value.code == "KVC0902" and "gds" in str(caught.value)


def test_opcode_of_another_chip() -> None:
    with pytest.raises(KvcError) as caught:
        run_body("\tv_mfma_f32_16x16x32_f16 v[4:7], v[8:11], v[8:11], 0", [DATA], arch="gfx942")
    assert caught.value.code == "KVC0902"


def test_kernel_for_another_chip() -> None:
    with pytest.raises(KvcError) as caught:
        load(kernel_text("", "gfx90a"), "gfx942")
    assert caught.value.code == "KVC0901"

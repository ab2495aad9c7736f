"""The compiled tier against the NumPy tier: same bits, same counts, and nothing that one of them misses."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from kvc.diagnostics import KvcError
from kvc.simulator import Memory, SimOptions, launch, load

from tests.simulator.tinyasm import kernel_text, run_body
from tests.simulator.triton_cases import CASES, Launcher

_EXACT = (
    "waves", "workgroups", "instructions", "by_class", "global_read_bytes", "global_write_bytes", "lds_bytes",
    "mfma_flops", "atomics", "barriers",
)  # fmt: skip
_COMPARED = [("gfx942", name) for name in ("softmax", "gelu", "gemm_f16", "gemm_f32", "flash", "scan", "layernorm")]
_COMPARED += [("gfx90a", "gemm_bf16"), ("gfx90a", "flash"), ("gfx950", "gemm_f16"), ("gfx950", "flash")]
_COMPARED += [("gfx942", "scaled_e5m2_e2m1"), ("gfx942", "argmax"), ("gfx950", "gather")]


def _outcome(case: str, arch: str, tier: str) -> tuple[bytes, dict[str, Any], set[int]]:
    go = Launcher(case, arch, tier=tier)
    got, _, _ = CASES[case].run(go, np.random.default_rng(3))
    assert go.report is not None and go.report.tier == tier, go.report
    counters = go.report.counters.to_json()
    return np.ascontiguousarray(got).tobytes(), {name: counters[name] for name in _EXACT}, go.report.executed


@pytest.mark.parametrize(("arch", "case"), _COMPARED)
def test_same_bits_and_counts(arch: str, case: str) -> None:
    compiled, plain = (_outcome(case, arch, tier) for tier in ("c", "numpy"))
    assert compiled[1] == plain[1]
    assert compiled[2] == plain[2]
    assert compiled[0] == plain[0]


@pytest.fixture
def no_launch_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["kvc.simulator.launch"], "_FEW_WAVES", 0)


@pytest.mark.usefixtures("no_launch_is_too_small")
def test_what_the_compiled_tier_runs_and_says() -> None:
    body = "\tv_add_u32_e32 v2, 5, v0\n\tglobal_store_dword v1, v2, s[4:5]"
    out, report = run_body(body)
    assert report.tier == "c" and report.notes == []
    assert (out == np.arange(64) + 5).all()
    refused = f"{body}\n\ts_memtime s[8:9]\n\ts_waitcnt lgkmcnt(0)"
    out, report = run_body(refused)
    assert report.tier == "numpy" and "s_memtime" in report.notes[0]
    assert (out == np.arange(64) + 5).all()
    with pytest.raises(KvcError) as caught:
        run_body(refused, options=SimOptions(tier="c"))
    assert caught.value.code == "KVC0902"
    with pytest.raises(KvcError) as caught:
        run_body(refused, options=SimOptions(tier="fast"))
    assert caught.value.code == "KVC0603"


def test_a_kernel_starts_at_its_own_entry() -> None:
    body = "\ts_load_dwordx2 s[4:5], s[0:1], 0x0\n\tv_lshlrev_b32_e32 v1, 2, v0\n\ts_waitcnt lgkmcnt(0)\n"
    text = kernel_text(f"{body}\tglobal_store_dword v1, v0, s[4:5]")
    text = text.replace("\t.text\nk:", "\t.text\nother:\n\tv_mov_b32_e32 v0, 7\n\ts_endpgm\nk:")
    mem = Memory("gfx942")
    out = mem.alloc(256, name="out")
    report = launch(load(text, "gfx942"), "k", (1, 1, 1), (64, 1, 1), [out], mem, options=SimOptions(tier="c"))
    assert report.tier == "c" and (out.view(np.uint32) == np.arange(64)).all()


@pytest.mark.usefixtures("no_launch_is_too_small")
def test_memory_is_put_back_before_the_numpy_tier_judges() -> None:
    """The kernel increments its output and then meets what the compiled tier does not know: one increment in all."""
    body = (
        "\ts_load_dwordx2 s[4:5], s[0:1], 0x0\n\tv_lshlrev_b32_e32 v1, 2, v0\n\ts_waitcnt lgkmcnt(0)\n"
        "\tglobal_load_dword v2, v1, s[4:5]\n\ts_waitcnt vmcnt(0)\n\tv_add_u32_e32 v2, 1, v2\n"
        "\tglobal_store_dword v1, v2, s[4:5]\n\ts_memtime s[8:9]\n\ts_waitcnt lgkmcnt(0)"
    )
    mem = Memory("gfx942")
    out = mem.upload(np.arange(128, dtype=np.uint32), "out")
    report = launch(load(kernel_text(body), "gfx942"), "k", (1, 1, 1), (64, 1, 1), [out], mem)
    assert report.tier == "numpy"
    assert (out.view(np.uint32) == np.arange(128) + (np.arange(128) < 64)).all()


def test_a_small_straight_launch_is_not_prepared_for_the_compiled_tier() -> None:
    _, report = run_body("\tv_mov_b32_e32 v2, 1\n\tglobal_store_dword v1, v2, s[4:5]")
    assert report.tier == "numpy" and report.notes == []

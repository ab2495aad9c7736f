"""The model: what makes a launch slower must make its estimate larger, and the study must meet its bars."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvc.arch import ARCHS, arch
from kvc.autotune.features import Features
from kvc.autotune.model import Constants, launch_time, resident
from kvc.autotune.work import Work
from kvc.bench import ranking, ranking_fit

WORK = Work(
    4096, 4, 64, lds_bytes=8192, vector=200, lds=20, lds_cycles=40, memory=8, read_bytes=4096, write_bytes=1024,
    moved_bytes=5120, access_cycles=40, barriers=2, exposed=2, flight_bytes=2048,
)  # fmt: skip
FOOTPRINT = 4096 * 4 * 5120


@pytest.mark.parametrize("name", sorted(ARCHS))
@pytest.mark.parametrize(
    "more",
    [
        {"vector": 20000.0},
        {"lds_cycles": 9000.0},
        {"moved_bytes": 400000.0},
        {"exposed": 300.0},
        {"barriers": 2000.0},
        {"scratch_bytes": 4000, "vector": 2000.0},
        {"workgroups": 40960},
        {"matrix_flops": 1e9, "matrix_type": "bf16"},
    ],
)
def test_more_work_takes_longer(name: str, more: dict) -> None:
    row = arch(name)
    assert launch_time(replace(WORK, **more), row, FOOTPRINT).us > launch_time(WORK, row, FOOTPRINT).us


def test_occupancy_is_what_registers_lds_and_waves_allow() -> None:
    row = arch("gfx942")
    assert resident(Work(1, 4, 64), row) == 8  # 8 waves a SIMD
    assert resident(Work(1, 4, 256), row) == 2  # 512 registers a lane, 2 waves a SIMD
    assert resident(Work(1, 4, 64, lds_bytes=32768), row) == 2
    assert resident(Work(1, 16, 512), row) == 1


def test_waits_are_hidden_by_other_waves() -> None:
    row = arch("gfx942")
    waiting = replace(WORK, exposed=64.0)
    crowded, alone = replace(waiting, registers=64), replace(waiting, registers=512)
    assert launch_time(alone, row, FOOTPRINT).us > 1.5 * launch_time(crowded, row, FOOTPRINT).us
    assert launch_time(alone, row, FOOTPRINT).bound == "latency"


def test_one_workgroup_too_many_costs_a_round() -> None:
    row = arch("gfx942")
    big = replace(WORK, registers=512, matrix_flops=1e8, matrix_type="bf16")
    exact = launch_time(replace(big, workgroups=row.cu_count), row, FOOTPRINT).us
    over = launch_time(replace(big, workgroups=row.cu_count + 1), row, FOOTPRINT).us
    assert over > 1.5 * exact


def test_the_stored_study_meets_the_bars() -> None:
    result = ranking.compare(ranking.stored_table())
    assert result["fit"]["specs"] + result["held_out"]["specs"] >= 20
    for half in ("fit", "held_out"):
        assert result[half]["median_rho"] >= ranking_fit.RHO
        assert result[half]["median_pick"] <= ranking_fit.PICK
    assert all(len(spec["variants"]) >= 10 for spec in ranking.stored_table()["specs"])
    assert "| held out |" in ranking.markdown(result)


def test_spearman_knows_order_and_ties() -> None:
    assert ranking_fit.spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert ranking_fit.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert ranking_fit.spearman([1, 1, 1], [3, 2, 1]) == 0
    assert ranking_fit.ranks([5.0, 1.0, 5.0]) == [1.5, 0.0, 1.5]


def test_a_fit_lowers_the_loss_and_repeats() -> None:
    specs = ranking_fit.read_table(ranking.stored_table())[6:9]
    row = arch("sm_90")
    found = [ranking_fit.fit(specs, row, Constants(), 15, seed=3) for _ in range(2)]
    assert found[0] == found[1]
    assert ranking_fit.loss(specs, row, found[0]) <= ranking_fit.loss(specs, row, Constants())


def test_features_travel_as_json() -> None:
    assert Features.from_json(Features(WORK, 17).to_json()) == Features(WORK, 17)

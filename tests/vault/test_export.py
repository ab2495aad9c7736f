"""Exports and statistics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvc.diagnostics import KvcError
from kvc.vault.card import card
from kvc.vault.export import export, preference, rl, sft
from kvc.vault.record import column_texts
from kvc.vault.shards import ShardWriter
from kvc.vault.stats import page, statistics

from tests.vault.samples import candidates, record, row


def test_chat_messages_hold_the_spec_and_the_kernel() -> None:
    good, bad = record(candidates()[0]), record(candidates()[1], rejected="wrong")
    (only,) = sft([good, bad])
    user, assistant = only["messages"]
    assert good.spec_text.strip() in user["content"]
    assert good.source.rstrip() in assistant["content"]


def test_rl_rows_take_the_lowest_estimate() -> None:
    slow, fast = (record(c, estimate_us=t) for c, t in zip(candidates()[:2], (9.0, 4.0), strict=True))
    (only,) = rl([slow, fast])
    truth = only["reward_model"]["ground_truth"]
    assert truth["hip_code"] == fast.source
    assert {"pytorch_module_code", "pytorch_functional_code", "atol", "rtol", "kernel_name"} <= set(truth)


def test_preferences_pair_verified_with_rejected() -> None:
    good, bad = record(candidates()[0]), record(candidates()[1], rejected="wrong")
    (pair,) = preference([bad, good])
    assert good.source.rstrip() in pair["chosen"][0]["content"]
    assert bad.source.rstrip() in pair["rejected"][0]["content"]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvcError, match="format 'csv'"):
        export([], "csv", tmp_path / "x")


def test_statistics_page_and_card(tmp_path: Path) -> None:
    made = candidates()
    with ShardWriter(tmp_path, "hip") as writer:
        writer.add("a", [row(made[0]), row(made[1], rejected="wrong <tag>")])
    found = statistics(tmp_path)
    assert found["verified"] == {"hip": 1, "triton": 0}
    assert (found["specs"], found["distinct_structures"], found["rejected"]) == (1, 1, 1)
    assert found["pass_rates"]["hip"]["compare"] == 0.5
    assert json.dumps(found)
    html = page(found)
    assert html.startswith("<!doctype html>")
    assert "<svg" in html
    text = card(found)
    assert all(f"`{name}`" in text for name in column_texts())

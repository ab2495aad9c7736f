"""The table of rules: its codes and stages exist, a rejection is explained, impossible times are refused."""

from __future__ import annotations

import pytest
from kvc.arch import arch
from kvc.diagnostics import CODES, KvcError
from kvc.text import parse_kernel
from kvc.verify.judge import hidden_specs, judge
from kvc.verify.likeness import source_hash
from kvc.verify.physics import impossible
from kvc.verify.roundings import alternatives, left_out
from kvc.verify.rules import RULES, explain, rules_of
from kvc.verify.verdict import STAGES, Rejected, Verified

from tests.verify.fakes import LINEAR, SOFTMAX, bench_for, correct, spoiled

COPY = "kernel copy(x: f32[n=1000000]) -> (y: f32[n]) {\n  y[n] = x[n] + 1.0\n}"


def test_keys_are_unique_and_codes_and_stages_exist() -> None:
    assert len({rule.key for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert set(rule.codes) <= set(CODES)
        assert rule.stage == "-" or {s.strip() for s in rule.stage.split(",")} <= set(STAGES)


def test_a_rejection_names_check_element_values_and_replay() -> None:
    candidate, bench = bench_for(SOFTMAX, spoiled(lambda r: r["y"][3:4, 5:6].mul_(1.5)))
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Rejected)
    text = "\n".join(explain(verdict, 0, "kvc verify --spec a.kir --source a.hip"))
    assert "rejected at compare" in text and "element y[3, 5]: expected" in text and "times eager's own" in text
    assert "--replay 0/normal" in text and "V14" in text
    assert "V14" in {rule.key for rule in rules_of(verdict)}


def test_one_input_set_is_run_alone() -> None:
    candidate, bench = bench_for(SOFTMAX, correct)
    verdict = judge(candidate, bench, only="large")
    assert isinstance(verdict, Verified) and verdict.evidence.input_sets == ("large",)
    with pytest.raises(KvcError, match="no input set"):
        judge(candidate, bench, only="huge")


def test_the_seed_turns_the_order_of_the_sets() -> None:
    candidate, bench = bench_for(SOFTMAX, correct)
    verdict = judge(candidate, type(bench)(bench.pool, bench.executor, 2))
    assert isinstance(verdict, Verified)
    later = ("large", "rows", "small", "negative", "spread", "special", "offset")
    assert verdict.evidence.input_sets == ("normal", *later)


def test_a_time_below_the_roofline_is_no_measurement() -> None:
    spec, row = parse_kernel(COPY), arch("gfx942")
    floor = 8e6 / (row.hbm_gbps * 1e9) * 1e6
    assert impossible(spec, row, 2 * floor) is None
    found = impossible(spec, row, floor / 3)
    assert found is not None and found.code == "KVC0713"


def test_hidden_sizes_stay_within_bounds_and_multiples() -> None:
    text = (
        "kernel f<n in 8..1000 hint 104 multiple 8, m in 1..90 hint 13>(x: f32[n,m]) -> (y: f32[n,m]) {\n"
        "  y[n,m] = x[n,m] * 2.0\n}"
    )
    found = [(s.extent("n"), s.extent("m")) for s in hidden_specs(parse_kernel(text))]
    assert len(found) >= 5 and (8, 1) in found
    assert all(8 <= n <= 1000 and n % 8 == 0 and 1 <= m <= 90 for n, m in found)
    assert hidden_specs(parse_kernel(SOFTMAX)) == []


def test_a_rounding_that_is_left_out_is_named() -> None:
    import torch

    spec = parse_kernel(
        "kernel gate(x: bf16[n=999], b: bf16[n]) -> (y: bf16[n]) {\n  t: bf16[n] = x[n] + b[n]\n  y[n] = t[n] * x[n]\n}"
    )
    generator = torch.Generator().manual_seed(0)
    x, b = (torch.randn(999, generator=generator).bfloat16() for _ in range(2))
    without = alternatives(spec, {"x": x, "b": b})
    right = {"y": ((x.float() + b.float()).bfloat16().float() * x.float()).bfloat16()}
    wrong = {"y": ((x.float() + b.float()) * x.float()).bfloat16()}
    assert left_out(right, right, without) is None
    found = left_out(wrong, right, without)
    assert found is not None and found.code == "KVC0710" and found.details["rounding"] == "t"
    assert alternatives(parse_kernel(LINEAR), {}) == {}


@pytest.mark.parametrize("suffix", [".hip", ".py"])
def test_likeness_ignores_names_and_layout_and_nothing_else(suffix: str) -> None:
    one = {".hip": "int f(int a) {\n  // sum\n  return a + 1;\n}", ".py": "def f(a):\n    # sum\n    return a + 1\n"}
    two = {
        ".hip": "int g(int b) { return b\n+ 1; }",
        ".py": 'def g(b):\n    """Sum."""\n    return (b +\n            1)\n',
    }
    first = source_hash(one[suffix], suffix)
    if suffix == ".hip":
        assert first == source_hash(two[suffix], suffix)
    assert first == source_hash(one[suffix].replace("f(", "other(").replace("a", "value"), suffix) or suffix == ".hip"
    assert first != source_hash(one[suffix].replace("1", "2"), suffix)
    assert first != source_hash(one[suffix].replace("+", "-"), suffix)

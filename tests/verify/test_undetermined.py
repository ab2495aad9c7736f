"""Results that no standard fixes are nobody's fault; what stands beside them is judged as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kvc.interpret import interpret
from kvc.text import parse_kernel
from kvc.verify.judge import judge
from kvc.verify.oracle import Examiner
from kvc.verify.verdict import Rejected, Verified

from tests.verify.fakes import Behaviour, Buffers, bench_for, inputs_of, store

INTEGERS = """kernel integers(x: f32[n=80]) -> (y: i64[n], z: f32[n]) {
  y[n] = i64(x[n]) + 1
  z[n] = f32(i64(x[n])) * 2.0
}"""
PRODUCT = """kernel product(q: bf16[m=20,d=48], k: f32[d,n=21]) -> (y: f32[m,n]) {
  y[m,n] = sum(d) exp(q[m,d]) * k[d,n]
}"""
EXP = """kernel exps(q: bf16[m=300]) -> (y: f32[m]) {
  y[m] = exp(q[m])
}"""


def changed(change: Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], None]) -> Behaviour:
    """The spec in its working dtype, its outputs changed by `change(inputs, outputs)`."""

    def run(spec, buffers: Buffers, seed: int) -> None:
        inputs = inputs_of(spec, buffers)
        outputs = interpret(spec, inputs, "working")
        change(inputs, outputs)
        store(spec, buffers, outputs)

    return run


def verdict_of(text: str, change: Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], None]):
    return judge(*bench_for(text, changed(change)))


@pytest.mark.parametrize("value", [0, 2**32, -(2**63), 2**63 - 1])
def test_an_integer_of_what_is_no_number_may_be_anything(value: int) -> None:
    def change(inputs: dict, outputs: dict) -> None:
        bad = ~inputs["x"].isfinite()
        outputs["y"][bad] = value
        outputs["z"][bad] = float(value)

    assert isinstance(verdict_of(INTEGERS, change), Verified)


def test_an_integer_of_a_number_may_not() -> None:
    def change(inputs: dict, outputs: dict) -> None:
        outputs["y"][int(inputs["x"].isfinite().nonzero()[-1])] += 1

    verdict = verdict_of(INTEGERS, change)
    assert isinstance(verdict, Rejected) and verdict.diagnostic.code == "KVC0701"


def test_only_conversions_that_do_not_fit_are_undefined() -> None:
    spec = parse_kernel(
        "kernel k(x: f32[n=6]) -> (y: i32[n], b: bool[n]) {\n  y[n] = i32(x[n])\n  b[n] = bool(x[n])\n}"
    )
    examiner = Examiner(spec)
    x = torch.tensor([1.5, -(2.0**31), 2.0**31, -(2.0**31) * 1.5, float("nan"), -float("inf")])
    found = examiner.undefined(examiner.evaluate("normal", {"x": x}))
    assert found["y"].tolist() == [False, False, True, True, True, True]
    assert not found["b"].any()


def overflowing(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Elements with a positive and a negative term, or sum of terms, beyond fp32, by hand."""
    terms = inputs["q"].double().exp()[:, :, None] * inputs["k"].double()[None]
    largest = torch.finfo(torch.float32).max
    return (terms.clamp(min=0).sum(1) > largest) & (terms.clamp(max=0).sum(1) < -largest)


def test_a_sum_that_overflows_both_ways_may_be_nan() -> None:
    seen: list[int] = []

    def change(inputs: dict, outputs: dict) -> None:
        where = overflowing(inputs)
        seen.append(int(where.sum()))
        outputs["y"][where] = float("nan")

    assert isinstance(verdict_of(PRODUCT, change), Verified)
    assert any(seen)


@pytest.mark.parametrize("text", [PRODUCT, EXP])
def test_what_overflows_one_way_may_not(text: str) -> None:
    def change(inputs: dict, outputs: dict) -> None:
        where = outputs["y"].isinf()
        if "k" in inputs:
            where &= ~overflowing(inputs)
        outputs["y"][where] = float("nan")

    verdict = verdict_of(text, change)
    assert isinstance(verdict, Rejected) and verdict.diagnostic.code == "KVC0706"


LINES = """kernel lines(x: f32[n=4,k=1021]) -> (y: f32[n]) {
  y[n] = sum(k) x[n,k]
}"""


@pytest.mark.parametrize("seed", range(3))
def test_roundings_of_equal_terms_add_up(seed: int) -> None:
    """Adding one after the other, as a lane does, is right on rows of one value too."""

    def in_turn(spec, buffers: Buffers, seed: int) -> None:
        x = inputs_of(spec, buffers)["x"]
        total = torch.zeros(4)
        for k in range(x.shape[1]):
            total = total + x[:, k]
        store(spec, buffers, {"y": total})

    candidate, bench = bench_for(LINES, in_turn)
    assert isinstance(judge(candidate, replace(bench, seed=seed)), Verified)


MASKED = """kernel masked(s: f32[m=20,n=40], v: f32[n,e=9]) -> (y: f32[m,e]) {
  u: f32[m,n] = where(n <= m, s[m,n], -inf)
  top: f32[m] = max(n) u[m,n]
  c: f32[m,n] = exp(u[m,n] - top[m])
  y[m,e] = sum(n) c[m,n] * v[n,e]
}"""


def skipping(spec, buffers: Buffers, seed: int) -> None:
    """Never visits what is masked."""
    inputs = inputs_of(spec, buffers)
    y = torch.zeros(20, 9)
    for m in range(20):
        s = inputs["s"][m, : m + 1]
        y[m] = torch.exp(s - s.max()) @ inputs["v"][: m + 1]
    store(spec, buffers, {"y": y})


def swallowing(spec, buffers: Buffers, seed: int) -> None:
    """Takes NaN for zero wherever it is."""
    inputs = inputs_of(spec, buffers)
    y = interpret(spec, {**inputs, "v": inputs["v"].nan_to_num(0.0, 0.0, 0.0)}, "working")["y"]
    store(spec, buffers, {"y": y})


def test_masked_values_need_not_be_visited() -> None:
    candidate, bench = bench_for(MASKED, skipping)
    assert isinstance(judge(candidate, bench), Verified)


def test_values_that_count_are_not_swallowed() -> None:
    candidate, bench = bench_for(MASKED, swallowing)
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Rejected) and verdict.diagnostic.code == "KVC0706"

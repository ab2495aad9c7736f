"""Each gate turns down the fault that it is there for, with its stage and code; a right kernel passes all."""

from __future__ import annotations

import pytest
import torch
from kvc.interpret import interpret
from kvc.text import parse_kernel
from kvc.verify.inputs import INPUT_SETS
from kvc.verify.judge import CHECKS, judge
from kvc.verify.verdict import Artifact, Evidence, Rejected, Verified

from tests.verify.fakes import (
    ARGMAX,
    LINEAR,
    SOFTMAX,
    Buffers,
    bench_for,
    candidate_for,
    correct,
    failing,
    inputs_of,
    spoiled,
    store,
)


@pytest.mark.parametrize("text", [SOFTMAX, LINEAR, ARGMAX])
def test_a_right_kernel_is_verified(text: str) -> None:
    candidate, bench = bench_for(text, correct)
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Verified), verdict
    assert verdict.evidence.input_sets == INPUT_SETS
    assert verdict.evidence.checks == CHECKS
    assert all(e.error <= max(e.tolerance, e.allowed) for e in verdict.evidence.errors)
    assert Evidence.from_json(verdict.evidence.to_json()) == verdict.evidence
    assert Artifact(candidate, verdict).verified is verdict


def test_an_artifact_cannot_be_built_from_a_rejection() -> None:
    candidate, bench = bench_for(SOFTMAX, failing("KVC0903"))
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Rejected)
    with pytest.raises(TypeError):
        Artifact(candidate, verdict)  # type: ignore[arg-type]


def lowered(spec, buffers: Buffers, seed: int) -> None:
    """fp32 softmax computed through fp16."""
    inputs = {k: v.half().float() for k, v in inputs_of(spec, buffers).items()}
    store(spec, buffers, interpret(spec, inputs, "working"))


def truncating(spec, buffers: Buffers, seed: int) -> None:
    """bf16 by cutting off the low half of the fp32 pattern."""
    exact = interpret(spec, inputs_of(spec, buffers))["y"].float()
    cut = (exact.view(torch.int32) & -65536).view(torch.float32)
    store(spec, buffers, {"y": torch.where(exact.isfinite(), cut, exact)})


def changing_input(spec, buffers: Buffers, seed: int) -> None:
    correct(spec, buffers, seed)
    buffers["x"][3] ^= 1


def racy(spec, buffers: Buffers, seed: int) -> None:
    correct(spec, buffers, seed)
    if seed:
        buffers["y"][0] ^= 1


def zero(results: dict[str, torch.Tensor]) -> None:
    results["y"].zero_()


def mean(results: dict[str, torch.Tensor]) -> None:
    results["y"].fill_(float(results["y"].nanmean()))


def tail(results: dict[str, torch.Tensor]) -> None:
    results["y"].view(torch.uint8)[-1, -8:] = 0xFF


def hide_nan(results: dict[str, torch.Tensor]) -> None:
    results["y"].nan_to_num_(0.0)


MUTANTS = {
    "zeros": (SOFTMAX, spoiled(zero), "compare", "KVC0701"),
    "constant mean": (SOFTMAX, spoiled(mean), "compare", "KVC0701"),
    "unwritten tail": (SOFTMAX, spoiled(tail), "compare", "KVC0702"),
    "nothing written": (SOFTMAX, lambda spec, buffers, seed: None, "compare", "KVC0702"),
    "NaN replaced": (SOFTMAX, spoiled(hide_nan), "compare", "KVC0706"),
    "lowered precision": (SOFTMAX, lowered, "compare", "KVC0701"),
    "truncating bf16": (LINEAR, truncating, "compare", "KVC0701"),
    "input changed": (SOFTMAX, changing_input, "execute", "KVC0703"),
    "order of waves": (SOFTMAX, racy, "determinism", "KVC0705"),
    "out of bounds": (SOFTMAX, failing("KVC0903"), "execute", "KVC0903"),
    "worker died": (SOFTMAX, failing("KVC0604"), "execute", "KVC0604"),
    "index out of range": (ARGMAX, spoiled(lambda r: r["y"].fill_(21)), "compare", "KVC0701"),
    "index of another value": (ARGMAX, spoiled(lambda r: r["y"].add_(1).remainder_(21)), "compare", "KVC0701"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_fault_is_turned_down(name: str) -> None:
    text, behaviour, stage, code = MUTANTS[name]
    candidate, bench = bench_for(text, behaviour)
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Rejected), f"{name} passed"
    assert (verdict.stage, verdict.diagnostic.code) == (stage, code), verdict


def test_any_of_tied_indices_passes() -> None:
    """On equal values (the set "rows") the last index is as good as the first."""

    def last(spec, buffers: Buffers, seed: int) -> None:
        x = inputs_of(spec, buffers)["x"]
        filled = x.masked_fill(x.isnan(), float("inf"))
        flipped = filled.flip(-1).argmax(-1)
        nan_first = torch.where(x.isnan().any(-1), x.isnan().int().argmax(-1), x.shape[-1] - 1 - flipped)
        store(spec, buffers, {"y": nan_first})

    candidate, bench = bench_for(ARGMAX, last)
    assert isinstance(judge(candidate, bench), Verified)


def test_too_many_threads_are_seen_before_anything_is_compiled() -> None:
    spec = parse_kernel(SOFTMAX)
    _, bench = bench_for(SOFTMAX, correct)
    verdict = judge(candidate_for(spec, block=(2048, 1, 1)), bench)
    assert isinstance(verdict, Rejected)
    assert (verdict.stage, verdict.diagnostic.code) == ("resources", "KVC0402")
    assert bench.pool.runs == 0  # type: ignore[attr-defined]


def test_an_unknown_launch_argument_is_turned_down() -> None:
    _, bench = bench_for(SOFTMAX, correct)
    verdict = judge(candidate_for(parse_kernel(SOFTMAX), args=("x", "z")), bench)
    assert isinstance(verdict, Rejected)
    assert verdict.stage == "propose"


def test_a_degenerate_reference_is_reported() -> None:
    text = "kernel ones(x: f32[m=9]) -> (y: f32[m]) {\n  y[m] = x[m] * 0.0 + 1.0\n}"
    candidate, bench = bench_for(text, correct)
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Verified)
    assert "KVC0707" in verdict.evidence.warnings[0]


def test_sums_by_atomics_need_not_repeat_bitwise() -> None:
    text = (
        "kernel add(x: f32[m=64,c=3], at: i64[m]) -> (y: f32[k=5,n=3]) {\n"
        "  y[k,n] = scatter sum(m,c -> at[m],c ; 0.0) x[m,c]\n}"
    )
    candidate, bench = bench_for(text, racy)
    verdict = judge(candidate, bench)
    assert isinstance(verdict, Verified), verdict
    assert "deterministic" not in verdict.evidence.checks

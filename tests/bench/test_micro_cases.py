"""The micro suite's cases say the same as their baselines, and every one has a kernel for the GPU that times it."""

from __future__ import annotations

import pytest
import torch
from kvc.arch import arch
from kvc.bench.micro import Request, chosen_cases
from kvc.bench.micro_cases import CASES, Case, conv3d_case, conv_transpose_case, cumprod_case
from kvc.diagnostics import KvcError
from kvc.emitter import Task, target
from kvc.interpret import interpret
from kvc.text import parse_kernel
from kvc.verify.inputs import draw


@pytest.mark.parametrize(
    "case", [conv3d_case(1, 6), conv_transpose_case(2, 4, 5), cumprod_case(3, 50)], ids=lambda case: case.name
)
def test_a_case_is_its_baseline(case: Case) -> None:
    spec = parse_kernel(case.text)
    inputs = draw(spec, "normal", 0)
    (expected,) = interpret(spec, inputs).values()
    got = case.baseline(*(inputs[o.name].double() for o in spec.inputs))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_every_case_has_a_kernel_for_the_gpu_that_times_it() -> None:
    row = arch("sm_90")
    schedules = {}
    for case in CASES:
        task = Task(parse_kernel(case.text), row)
        schedules[case.name] = next(e for e in target("triton").emitters() if e.supports(task).ok).schedule
    assert schedules["softmax_long"] == "rows_shared" and schedules["conv3d_f32"] == "contraction_split"
    assert schedules["gelu_add_bf16"] == "pointwise" and schedules["attention_causal_128"] == "attention"


def test_open_cases_can_be_had_by_themselves() -> None:
    open_ones = chosen_cases(Request(open=True))
    assert {"softmax_long", "cumprod_f32"} <= {c.name for c in open_ones} and len(open_ones) < len(CASES)
    assert [c.name for c in chosen_cases(Request(names=("add_f32",)))] == ["add_f32"]
    with pytest.raises(KvcError):
        chosen_cases(Request(names=("add_f32",), open=True))

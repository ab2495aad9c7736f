"""Cutting a model into kernels: the cut means what the whole meant, and kernels are the ones a person would write."""

from collections.abc import Callable

import pytest
import torch
from kvc.check import check_kernel
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.passes.fuse import Barrier
from kvc.passes.partition import Cut, partition
from kvc.patterns import Staged, match
from kvc.text import parse_kernel, print_kernel

from tests.passes.models import BATCH_NORM_TRAIN, MODELS

PATTERNS = {
    "mlp": ["Contraction", "Contraction", "Rows"],
    "convnet": ["Contraction", "Contraction", "Window", "Rows", "Contraction"],
    "decoder": [
        *["Rows", "Contraction", "Contraction", "Contraction"],  # norm, q, k, v
        *["Pointwise", "Pointwise", "Contraction", "Rows", "Contraction"],  # rope of q and k, attention
        *["Contraction", "Rows", "Contraction", "Contraction", "Contraction"],  # output, norm, SwiGLU
    ],
    "group_norm": ["Rows"],
    "heads": ["Contraction", "Contraction"],
    "heads_out": ["Contraction"],
    "guards": ["Contraction", "Pointwise"],
    "scan": ["Staged", "Pointwise"],
}


def cuts(text: str) -> list[Cut]:
    return [piece for piece in partition(parse_kernel(text)) if isinstance(piece, Cut)]


def run(steps: list[Cut], whole: KernelSpec, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    values = dict(inputs)
    for cut in steps:
        operands = {o.name: values[o.name].reshape(cut.spec.shape_of(o.name)) for o in cut.spec.inputs}
        values |= interpret(cut.spec, operands)
    return {o.name: values[o.name].reshape(whole.shape_of(o.name)) for o in whole.outputs}


def make_inputs(spec: KernelSpec) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {o.name: torch.randn(spec.shape_of(o.name), dtype=torch.float64) for o in spec.inputs}
    return {n: t.abs() + 0.1 if n == "var" else t for n, t in made.items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_partition_computes_what_the_whole_model_does(name: str) -> None:
    whole = parse_kernel(MODELS[name])
    inputs = make_inputs(whole)
    expected, found = interpret(whole, inputs), run(cuts(MODELS[name]), whole, inputs)
    for output in expected:
        torch.testing.assert_close(found[output], expected[output], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_the_expected_ones(name: str, golden: Callable[[str, str], None]) -> None:
    steps = cuts(MODELS[name])
    golden(f"partition/{name}.kir", "\n\n".join(print_kernel(c.spec) for c in steps) + "\n")
    assert [type(match(c.spec)).__name__ for c in steps] == PATTERNS[name]


@pytest.mark.parametrize("name", MODELS)
def test_kernels_hold_their_invariants_and_only_what_they_need(name: str) -> None:
    for cut in cuts(MODELS[name]):
        spec = check_kernel(cut.spec)
        read = {load.tensor for s in spec.body for load in s.loads()}
        assert {s.target for s in spec.temps} <= read and {o.name for o in spec.inputs} <= read
        assert all(o.alias is None for o in (*spec.inputs, *spec.outputs))
        assert parse_kernel(print_kernel(spec)) == spec


def test_few_long_rows_do_not_take_in_the_pointwise_pass() -> None:
    """16 rows cannot keep 304 compute units busy, so the normalisation runs apart from the statistics."""
    steps = cuts(BATCH_NORM_TRAIN)
    assert [type(match(c.spec)).__name__ for c in steps] == ["Rows", "Pointwise"]
    assert {o.name for o in steps[0].spec.outputs} >= {"mean", "r", "m2"}


def test_a_fallback_stands_between_what_it_reads_and_what_reads_it() -> None:
    whole = """kernel k(x: f32[m=5,n=7], given: f32[m,n]) -> (sent: f32[m,n], y: f32[m,n]) {
    sent[m,n] = exp(x[m,n])
    a: f32[m,n] = x[m,n] * 2.0
    y[m,n] = a[m,n] + given[m,n]
}"""
    steps = partition(parse_kernel(whole), [Barrier("node", ("given",), ("sent",))])
    kinds = [s.name if isinstance(s, Barrier) else [o.name for o in s.spec.outputs] for s in steps]
    assert kinds == [["sent"], "node", ["y"]]


def test_strides_of_an_output_follow_its_axes() -> None:
    whole = """kernel k(x: f32[m=6,c=4], w: f32[n=8,c]) -> (y: f32[h=2,m,d=4] strides(4,8,1)) {
    t: f32[m,n] = sum(c) x[m,c] * w[n,c]
    y[h,m,d] = t[m,h*4+d]
}"""
    (step,) = cuts(whole)
    assert step.spec.outputs[0].strides == (4, 8, 1) and step.spec.shape_of("y") == (2, 6, 4)


def test_no_model_needs_the_generic_pattern_where_a_schedule_exists() -> None:
    for name in set(MODELS) - {"scan"}:
        assert not any(isinstance(match(c.spec), Staged) for c in cuts(MODELS[name]))

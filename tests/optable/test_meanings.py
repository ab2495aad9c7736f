"""Every sample of every op: its meaning in float64 equals eager in float64, with eager's shape and dtype."""

from __future__ import annotations

import inspect

import pytest
import torch
from kvc.ops import OpDef, Sample, by_aten, op_table
from kvc.optable.create import DROPPED

from tests.optable.harness import packet_of, run

CASES = [pytest.param(d, s, n, id=f"{d.name}-{n}") for d in op_table().values() for n, s in enumerate(d.samples)]


@pytest.mark.parametrize(("definition", "sample", "number"), CASES)
def test_meaning_equals_eager(definition: OpDef, sample: Sample, number: int) -> None:
    results, reference, _ = run(definition, sample, number)
    assert len(results) == len(reference)
    for got, want in zip(results, reference, strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(
            got, want, rtol=1e-7, atol=1e-9, equal_nan=True, check_dtype=False, check_stride=False
        )


def test_every_op_has_samples() -> None:
    """Ops that no ATen overload imports as, those that draw random numbers, have tests of their own."""
    assert [d.name for d in op_table().values() if d.aten and not d.samples] == []


@pytest.mark.parametrize("overload", sorted(by_aten()))
def test_overloads_exist_and_their_arguments_fit(overload: str) -> None:
    """Literal arguments are passed by ATen's names, so each must be a parameter of the meaning."""
    packet, _, name = overload.partition(".")
    schema = getattr(packet_of(packet), name)._schema
    parameters = inspect.signature(by_aten()[overload].meaning).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    accepted = {"k" if n == "k_" else n for n in list(parameters)[1:]}
    for argument in schema.arguments:
        is_tensor = "Tensor" in str(argument.type) and "Optional" not in str(argument.type)
        assert argument.name in accepted | DROPPED or is_tensor, f"{overload} has {argument.name}"

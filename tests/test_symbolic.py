"""From two specs to one with symbolic sizes, and back: numbers that follow from sizes, guards, what is no instance."""

from __future__ import annotations

import pytest
import torch
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.symbolic import generalised, instance, sizes_for
from kvc.text import parse_kernel, print_kernel


def mean(m: int, k: int, divisor: str = "") -> KernelSpec:
    return parse_kernel(
        f"kernel mean(x: f32[m={m},k={k}]) -> (y: f32[m]) {{\n"
        f"  s: f32[m] = sum(k) x[m,k]\n  y[m] = s[m] / {divisor or f'{k}.0'}\n}}",
        "mean",
    )


def flat(m: int, k: int) -> KernelSpec:
    return parse_kernel(
        f"kernel flat(x: f32[m={m},k={k}]) -> (y: f32[i={m * k}]) {{ y[i] = x[i // {k}, i % {k}] * 2.0 }}", "flat"
    )


def gram(m: int) -> KernelSpec:
    return parse_kernel(
        f"kernel gram(x: f32[m={m},k=4]) -> (y: f32[m,n={m}]) {{ y[m,n] = sum(k) x[m,k] * x[n,k] }}", "gram"
    )


def joined(first: KernelSpec, second: KernelSpec) -> KernelSpec:
    found = generalised(first, second)
    assert isinstance(found, KernelSpec), found
    return found


def test_sizes_that_differ_become_symbolic() -> None:
    spec = joined(mean(6, 10), mean(9, 15))
    assert {s.name for s in spec.sizes if s.size is None} == {"m", "k"}
    assert "#k" in print_kernel(spec)
    assert sizes_for(spec, mean(70, 3)) == {"m": 70, "k": 3}
    one = joined(mean(6, 10), mean(9, 10))
    assert {s.name for s in one.sizes if s.size is None} == {"m"}
    assert sizes_for(one, mean(4, 10)) == {"m": 4} and sizes_for(one, mean(4, 11)) is None


def test_what_two_sizes_make_believe_is_no_instance_at_a_third() -> None:
    spec = joined(mean(6, 10, "10.0"), mean(9, 15, "15.0"))
    assert sizes_for(spec, mean(8, 12, "12.0")) is not None
    assert sizes_for(spec, mean(8, 12, "13.0")) is None
    assert sizes_for(spec, flat(8, 12)) is None


@pytest.mark.parametrize("make", [lambda n: flat(n, n + 2), gram])
def test_views_and_equal_axes_are_guarded_and_mean_the_same(make) -> None:  # type: ignore[no-untyped-def]
    spec = joined(make(6), make(9))
    third = make(13)
    sizes = sizes_for(spec, third)
    assert sizes is not None
    x = torch.randn(third.shape_of("x"))
    expected = interpret(third, {"x": x})["y"]
    torch.testing.assert_close(interpret(instance(spec, sizes), {"x": x})["y"], expected)


def test_learned_at_other_sizes_it_is_the_same_kernel() -> None:
    assert joined(mean(9, 12), mean(14, 15)).hash == joined(mean(15, 10), mean(10, 13)).hash


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (mean(6, 10), flat(6, 10), "other"),
        (mean(6, 10), mean(9, 10, "3.0"), "does not follow"),
        (gram(6), flat(6, 4), "other"),
    ],
)
def test_why_two_specs_are_not_one(first: KernelSpec, second: KernelSpec, why: str) -> None:
    found = generalised(first, second)
    assert isinstance(found, str) and why in found

"""The comparison rule on its own, and the input sets."""

from __future__ import annotations

import pytest
import torch
from kvc.dtypes import BF16, F32, I64
from kvc.interpret import interpret
from kvc.text import parse_kernel
from kvc.verify.compare import compare, tells_constants_apart
from kvc.verify.inputs import INPUT_SETS, draw, integer_ranges, nonfinite
from kvc.verify.oracle import Examiner
from kvc.verify.ties import replay

from tests.verify.fakes import LINEAR, SOFTMAX

X = torch.linspace(-3.0, 3.0, 1001, dtype=torch.float64)


def code(result) -> str:
    return result.diagnostic.code if result.diagnostic is not None else ""


def test_rounding_to_nearest_passes_and_a_relative_error_beyond_the_working_one_fails() -> None:
    working = X.float()
    assert code(compare("y", F32, X.float(), X, working)) == ""
    off = (X * (1 + 2e-5)).float()  # within the tolerance, far beyond fp32's own error
    assert code(compare("y", F32, off, X, working)) == "KVC0701"
    assert code(compare("y", F32, off, X, (X * (1 - 2e-5)).float())) == ""  # as bad as the working dtype itself


def test_a_tolerance_that_the_working_dtype_misses_itself_does_not_decide() -> None:
    # Near zero the tolerance is a tenth of what it is at the scale: cancellation exceeds it there first.
    x = torch.cat([X, torch.zeros(1, dtype=torch.float64)])
    step = torch.zeros_like(x)
    step[-1] = 3e-5
    assert code(compare("y", F32, (x + step).float(), x, (x - step).float())) == ""
    assert code(compare("y", F32, (x + 3 * step).float(), x, (x - step).float())) == "KVC0701"
    assert code(compare("y", F32, (x + step).float(), x, x.float())) == "KVC0701"


def test_one_ill_conditioned_element_excuses_no_others() -> None:
    x = torch.cat([X, torch.full((1,), 1e-9, dtype=torch.float64)])
    working = x.float()
    working[-1] = 3.0  # cancellation: eager itself is off by the tensor's whole magnitude
    assert code(compare("y", F32, working, x, working)) == ""
    assert code(compare("y", F32, torch.zeros_like(working), x, working)) == "KVC0701"
    assert code(compare("y", F32, working * 1.5, x, working)) == "KVC0701"


def test_a_lowered_precision_inside_shows_in_the_mean_square() -> None:
    x = torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    oracle = x * 1.7
    twice = (x.bfloat16().double() * 1.7).bfloat16()  # every element within the largest error allowed
    assert code(compare("y", BF16, oracle.bfloat16(), oracle, oracle.float().bfloat16())) == ""
    assert code(compare("y", BF16, twice, oracle, oracle.float().bfloat16())) == "KVC0701"


def test_zeros_and_copies_of_the_mean_fail_at_any_scale() -> None:
    for scale in (1e-20, 1.0, 1e20):
        x = X * scale
        assert code(compare("y", F32, torch.zeros_like(x).float(), x, x.float())) == "KVC0701"
        assert tells_constants_apart(x, F32)
    assert not tells_constants_apart(torch.ones(100, dtype=torch.float64), F32)
    assert not tells_constants_apart(torch.zeros(100, dtype=torch.float64), F32)


def test_structure_is_compared_first() -> None:
    assert code(compare("y", F32, X[:-1].float(), X, X.float())) == "KVC0708"
    assert code(compare("y", F32, X.bfloat16(), X, X.float())) == "KVC0708"


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1.0])
def test_non_finite_values_must_stand_where_the_oracle_has_them(value: float) -> None:
    oracle = X.clone()
    oracle[10] = float("inf")
    got = X.float().clone()
    got[10] = value
    assert code(compare("y", F32, got, oracle, oracle.float())) == ("" if value == float("inf") else "KVC0706")


def test_an_overflow_of_the_working_dtype_may_go_either_way() -> None:
    working = X.float().clone()
    working[10] = float("inf")
    assert code(compare("y", F32, X.float(), X, working)) == ""
    assert code(compare("y", F32, working, X, working)) == ""


def test_bf16_that_truncates_is_biased() -> None:
    oracle = torch.rand(5000, dtype=torch.float64) + 1.0
    cut = (oracle.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    result = compare("y", BF16, cut, oracle, oracle.bfloat16())
    assert code(result) == "KVC0701" and "biased towards zero" in result.diagnostic.message


def test_integers_are_exact_but_may_follow_the_working_dtype() -> None:
    oracle, working = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert code(compare("y", I64, working, oracle, working)) == ""
    assert code(compare("y", I64, torch.tensor([1, 2, 5]), oracle, working)) == "KVC0701"
    assert code(compare("y", I64, torch.tensor([1, 2, -1]), oracle, working)) == "KVC0702"


def test_poison_is_told_from_a_wrong_value() -> None:
    got = X.float().clone()
    got.view(torch.int32)[500:] = -1
    assert code(compare("y", F32, got, X, X.float())) == "KVC0702"


def test_subnormal_results_are_judged_by_absolute_error() -> None:
    x = X * 2.0**-135
    assert code(compare("y", F32, torch.zeros_like(x).float(), x, x.float())) == ""


def test_indices_stay_inside_what_they_index() -> None:
    spec = parse_kernel(
        "kernel embed(i: i64[m=200], j: i32[m], w: f32[v=7,d=3]) -> (y: f32[m,d]) {\n"
        "  k: i64[m] = i[m] + j[m] * 0\n"
        "  y[m,d] = where(j[m] == d, w[k[m],d], 0.0)\n}"
    )
    assert integer_ranges(spec) == {"i": (0, 7), "j": (0, 3)}
    drawn = draw(spec, "normal", 0)
    assert set(drawn["i"].tolist()) == set(range(7))
    assert interpret(spec, drawn)["y"].isfinite().all()


def test_draws_depend_on_set_and_seed_and_on_nothing_else() -> None:
    spec = parse_kernel(SOFTMAX)
    renamed = parse_kernel(SOFTMAX.replace("x[", "input[").replace("x:", "input:").replace("softmax", "other"))
    one, two = draw(spec, "normal", 0)["x"], draw(renamed, "normal", 0)["input"]
    assert torch.equal(one, two)
    assert not torch.equal(one, draw(spec, "normal", 1)["x"])
    assert not torch.equal(one, draw(spec, "large", 0)["x"])


def test_special_values_are_few_and_all_kinds_occur() -> None:
    x = draw(parse_kernel(SOFTMAX), "special", 0)["x"]
    assert x.isnan().any() and x.isposinf().any() and x.isneginf().any() and (x == 0).any()
    assert (x.abs()[x != 0] < torch.finfo(torch.float32).tiny).any()
    assert (~x.isfinite()).sum() <= 8


def test_variances_are_drawn_positive() -> None:
    text = "kernel bn(x: f32[m=37,k=31], v: f32[k]) -> (y: f32[m,k]) {\n  y[m,k] = x[m,k] * rsqrt(v[k] + 1e-5)\n}"
    examiner = Examiner(parse_kernel(text))
    reference = examiner.reference("normal")
    assert nonfinite(reference.oracle) == 0.0
    assert (reference.inputs["v"] > 0).all() and (reference.inputs["x"] < 0).any()


@pytest.mark.parametrize("text", [SOFTMAX, LINEAR])
def test_the_working_interpretation_passes_its_own_rule(text: str) -> None:
    examiner = Examiner(parse_kernel(text))
    out = examiner.spec.outputs[0]
    for name in INPUT_SETS:
        r = examiner.reference(name)
        working = r.working[out.name]
        result = compare(
            out.name, out.dtype, working, r.oracle[out.name], working, r.probe[out.name], growth=examiner.growth
        )
        assert result.diagnostic is None, result


def test_what_underflows_in_the_working_dtype_ties() -> None:
    """float64 orders numbers that are all zero in bf16."""
    spec = parse_kernel("""kernel order(x: bf16[i=2,j=9]) -> (y: i64[i,j]) {
      t: bf16[i,j] = exp(x[i,j])
      y[i,j] = argsort(j) t[i,j]
    }""")
    x = {"x": torch.linspace(-300, -200, 18).reshape(2, 9).bfloat16()}
    reverse = torch.arange(8, -1, -1).expand(2, 9)
    assert replay(spec, x, {"y": reverse}).diagnostic is None
    apart = {"x": x["x"] / 100}
    assert replay(spec, apart, {"y": reverse}).diagnostic is not None

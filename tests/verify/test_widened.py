"""The float64 run of a model means what the model means in its own dtype, and only rounds less."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kvc.verify.model import reference_of_module
from kvc.verify.widened import own_dtype, to_double, widened
from torch import Tensor, nn


class Norms(nn.Module):
    """Three ways to take the epsilon of the dtype, on rows so small that it decides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        by_hand = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps)
        return self.norm(x), F.rms_norm(x, (8,)), torch.rms_norm(x, (8,), None), by_hand


def test_the_limits_of_a_dtype_are_those_of_the_models_own() -> None:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)) * 1e-5
    made = reference_of_module(Norms(), (x,), {})
    for name, oracle in made.oracle.items():
        assert oracle.dtype == torch.float64
        torch.testing.assert_close(oracle.float(), made.working[name], atol=0.0, rtol=1e-5)


def test_an_epsilon_that_is_given_is_kept() -> None:
    x = torch.randn(5, 8, dtype=torch.float64) * 1e-5
    outside = F.rms_norm(x, (8,), None, 1e-3)
    with widened(torch.float32):
        assert torch.equal(F.rms_norm(x, (8,), None, 1e-3), outside)
        assert torch.equal(torch.rms_norm(x, (8,), eps=1e-3), outside)


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_limits_come_back(own: torch.dtype) -> None:
    before = torch.finfo
    with pytest.raises(ZeroDivisionError), widened(own):
        assert torch.finfo(torch.float64).eps == before(own).eps
        assert torch.finfo(torch.float16).eps == before(torch.float16).eps
        assert torch.finfo().eps == before(torch.float32).eps
        _ = 1 / 0
    assert torch.finfo is before


def test_what_was_float64_stays_as_it_is() -> None:
    x = torch.randn(5, 8, dtype=torch.float64) * 1e-9
    with widened(own_dtype(nn.Identity(), (x,))):
        assert torch.equal(F.rms_norm(x, (8,)), F.rms_norm(x, (8,), eps=torch.finfo(torch.float64).eps))


def test_only_floats_are_widened() -> None:
    made = to_double({"a": torch.ones(2, dtype=torch.float16), "b": [torch.ones(2, dtype=torch.int32), 3]})
    assert made["a"].dtype == torch.float64 and made["b"][0].dtype == torch.int32 and made["b"][1] == 3

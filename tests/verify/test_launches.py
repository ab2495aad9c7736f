"""A model followed launch by launch: rounding does not grow on the way, faults of kernels and of wiring show."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from kvc.frontends.fx.capture import Captured, capture
from kvc.interpret import interpret
from kvc.pipeline_graph import plan
from kvc.plan import Plan
from kvc.verify.launches import Followed, follow
from torch import Tensor, nn


class Amplifying(nn.Module):
    """Batch norms over two nearly equal rows: a difference of one ulp becomes one of the result's own size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.BatchNorm1d(8, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sigmoid(self.norm(layer(x)) * 1e-3)
        return self.norm(x)


def made() -> tuple[Captured, Plan]:
    torch.manual_seed(0)
    captured = capture(Amplifying(), (1 + 1e-5 * torch.randn(2, 8),), mode="train")
    return captured, plan(captured.graph)


def followed(wrong: int | None = None) -> Followed:
    """Every kernel interpreted in its working dtypes, on inputs moved by an ulp; number `wrong` is a percent off."""
    captured, found = made()

    def run(number: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        moved = {n: x * (1 + 6e-8) if x.is_floating_point() else x for n, x in inputs.items()}
        results = interpret(found.kernels[number], moved, "working")
        off = 1.01 if number == wrong else 1.0
        return {n: x * off if x.is_floating_point() else x for n, x in results.items()}

    return follow(found, captured.feed(), run)


def test_right_kernels_agree_however_much_the_model_amplifies() -> None:
    result = followed()
    assert result.diagnostic is None and result.kernel is None
    assert result.launches == len(made()[1].steps)


def test_the_first_wrong_kernel_is_named() -> None:
    numbers = [s.kernel for s in made()[1].launches]
    result = followed(wrong=numbers[-1])
    assert result.kernel == numbers[-1]
    assert result.diagnostic is not None and result.diagnostic.code == "KVC0701"

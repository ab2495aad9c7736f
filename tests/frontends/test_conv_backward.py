"""Gradients of convolutions, as convolutions, against torch's own."""

from __future__ import annotations

import itertools

import pytest
import torch
from kvc.frontends.fx.conv_backward import convolution_backward

CASES = [
    (dims, stride, padding, dilation, groups, transposed)
    for dims, stride, padding, dilation, groups, transposed in itertools.product(
        (1, 2), (1, 2, 3), (0, 1), (1, 2), (1, 2), (False, True)
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_torch(case: tuple[int, int, int, int, int, bool]) -> None:
    dims, stride, padding, dilation, groups, transposed = case
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = drawn(2, 4, *(11, 8)[:dims])
    weight = drawn(4, 3, *(3, 2)[:dims]) if transposed else drawn(6, 4 // groups, *(3, 2)[:dims])
    rest = [stride - 1] * dims if transposed else [0] * dims
    settings = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, rest, groups)
    y = torch.ops.aten.convolution.default(x, weight, None, *settings)
    arguments = (torch.ones_like(y) + y, x, weight, [y.shape[1]], *settings)
    expected = torch.ops.aten.convolution_backward.default(*arguments, [True, True, True])
    got = convolution_backward(*arguments, [True, True, True])
    torch.testing.assert_close(got, tuple(expected))
    assert convolution_backward(*arguments, [False, False, False]) == (None, None, None)

"""The gradients of a convolution as convolutions, so that training graphs hold no operator that only torch knows.

With x [N, C, S], weight [O, C/G, K] and grad [N, O, T]: the gradient of x is the transposed convolution of grad with
the weight; that of the weight is a convolution over the batch, of x with grad as its filter, in which stride and
dilation change places (Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016, chapter 4). A
transposed convolution is a convolution from grad to x, so its gradients are the same two with x and grad exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """aten.convolution_backward: gradients of input, weight and bias, None where `output_mask` does not ask."""
    import torch

    dims = x.dim() - 2
    stride, padding, dilation = (list(v) * (dims // len(v)) for v in (stride, padding, dilation))
    convolution = torch.ops.aten.convolution.default
    to_input = to_weight = to_bias = None
    if output_mask[0]:
        zero = [0] * dims
        if transposed:
            to_input = convolution(grad, weight, None, stride, padding, dilation, False, zero, groups)
        else:
            # What a strided convolution never reached at the end of x.
            reached = [
                (t - 1) * s - 2 * p + d * (k - 1) + 1
                for t, s, p, d, k in zip(grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
            ]
            rest = [n - r for n, r in zip(x.shape[2:], reached, strict=True)]
            to_input = convolution(grad, weight, None, stride, padding, dilation, True, rest, groups)
    if output_mask[1]:
        large, small = (grad, x) if transposed else (x, grad)
        to_weight = _to_weight(large, small, list(weight.shape), stride, padding, dilation, groups)
    if output_mask[2]:
        to_bias = grad.sum([0, *range(2, grad.dim())])
    return to_input, to_weight, to_bias


def _to_weight(
    large: torch.Tensor, small: torch.Tensor, shape: list[int], stride: list[int], padding: list[int],
    dilation: list[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    """Correlate `large` with `small` over the batch, group by group; gives [channels of small, large / groups, K]."""
    import torch

    batch, spatial = large.shape[0], range(3, large.dim() + 1)
    rows = large.reshape(batch, groups, -1, *large.shape[2:]).permute(2, 1, 0, *spatial).flatten(1, 2)
    filters = small.reshape(batch, groups, -1, *small.shape[2:]).permute(1, 2, 0, *spatial).flatten(0, 1)
    zero = [0] * len(stride)
    found = torch.ops.aten.convolution.default(rows, filters, None, dilation, padding, stride, False, zero, groups)
    found = found.transpose(0, 1)
    for dim, extent in enumerate(shape[2:], 2):  # a strided convolution may leave a rest of x unread
        found = found.narrow(dim, 0, extent)
    return found

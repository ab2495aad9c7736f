"""Torch's inference-only fused operators for attention layers, by their definition.

nn.TransformerEncoderLayer and nn.MultiheadAttention call them in evaluation where no gradient is wanted; torch itself
has no decomposition of them. Calls with a mask are left as they are (NotImplemented): what a mask means depends on
its kind and on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def multi_head_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, num_head: int,
    qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """`aten._native_multi_head_attention`: (output [batch, length, embed_dim], weights, averaged over the heads or not;
    an empty tensor where none are wanted)."""
    import torch

    if mask is not None:
        return NotImplemented
    batch, length, _ = query.shape
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)

    def heads(x: torch.Tensor, which: int) -> torch.Tensor:
        projected = torch.nn.functional.linear(x, weights[which], biases[which])
        return projected.reshape(batch, x.shape[1], num_head, embed_dim // num_head).transpose(1, 2)

    q, k, v = heads(query, 0), heads(key, 1), heads(value, 2)
    if need_weights:
        shares = torch.softmax(q @ k.transpose(-1, -2) * (embed_dim // num_head) ** -0.5, -1)
        mixed = shares @ v
        shares = shares.mean(1) if average_attn_weights else shares
    else:
        mixed, shares = torch.nn.functional.scaled_dot_product_attention(q, k, v), query.new_empty(0)
    output = torch.nn.functional.linear(mixed.transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)
    return output, shares


def encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """`aten._transformer_encoder_layer_fwd`: attention and feed-forward with their residuals and norms."""
    from torch.nn.functional import gelu, layer_norm, linear, relu

    if mask is not None:
        return NotImplemented

    def attended(x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, need_weights=False
        )[0]
        return mixed

    def fed(x: torch.Tensor) -> torch.Tensor:
        hidden = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(gelu(hidden) if use_gelu else relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attended(norm(src, norm_weight_1, norm_bias_1))
        return x + fed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attended(src), norm_weight_1, norm_bias_1)
    return norm(x + fed(x), norm_weight_2, norm_bias_2)


def fast_paths() -> dict[Any, Callable[..., Any]]:
    """The decompositions, by overload."""
    import torch

    return {
        torch.ops.aten._native_multi_head_attention.default: multi_head_attention,
        torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
    }


__all__ = ["fast_paths"]

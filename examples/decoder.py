"""One decoder block of Qwen3, from the classes of `transformers` with random weights: RMS norm, rotary embedding,
grouped-query attention under a causal mask, SwiGLU.

kvc translate examples/decoder.py --target triton -o out/decoder
"""

import torch
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

BATCH, SEQUENCE = 1, 135


def config() -> Qwen3Config:
    """The architecture in small: the real sizes are 4096, 12288, 32, 8 and 128."""
    small = Qwen3Config(
        hidden_size=264,
        intermediate_size=296,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=40,
        max_position_embeddings=SEQUENCE,
    )
    small._attn_implementation = "sdpa"
    return small


class Model(nn.Module):
    """Hidden states [batch, sequence, hidden] -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Qwen3DecoderLayer(config(), layer_idx=0)
        self.rotary = Qwen3RotaryEmbedding(config())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        out = self.block(hidden, position_embeddings=self.rotary(hidden, positions))
        return out[0] if isinstance(out, tuple) else out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, SEQUENCE, 264)]

"""The decoder in plain PyTorch, with the parameter names of Qwen3 checkpoints: what is trained from zero.

Sequences start at position 0 and are padded on the right, so that causal attention needs no mask. Writing token by
token is kvc.model.train.decode's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from kvc.model.shape import Shape
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(size)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.epsilon).to(x.dtype)


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, time, head]; cosine and sine are [time, head / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head, s.hidden, bias=False)
        self.q_norm, self.k_norm = Norm(s.head, s.epsilon), Norm(s.head, s.epsilon)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        s, (batch, time, _) = self.s, x.shape
        q = turn(self.q_norm(self.q_proj(x).view(batch, time, s.heads, s.head)).transpose(1, 2), cosine, sine)
        k = turn(self.k_norm(self.k_proj(x).view(batch, time, s.kv_heads, s.head)).transpose(1, 2), cosine, sine)
        v = self.v_proj(x).view(batch, time, s.kv_heads, s.head).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, time, -1))


class Block(nn.Module):
    def __init__(self, s: Shape, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = Norm(s.hidden, s.epsilon)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = Norm(s.hidden, s.epsilon)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(s.hidden, s.inner, bias=False),
                "up_proj": nn.Linear(s.hidden, s.inner, bias=False),
                "down_proj": nn.Linear(s.inner, s.hidden, bias=False),
            }
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cosine, sine))
        y = self.post_attention_layernorm(x)
        gated = F.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y)
        return x + self.dropout(self.mlp["down_proj"](gated))


class Stem(nn.Module):
    """Embedding, blocks and the last norm, under the names that Qwen3 checkpoints have."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)


class Decoder(nn.Module):
    """Logits [batch, time, vocabulary] of tokens [batch, time]. `dropout`: of what each half-layer adds."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Stem(shape, dropout)
        half = torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.theta**-half)
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                deep = 1 / (2 * shape.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(p, 0.0, 0.02 * deep)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        cosine, sine = (t[: tokens.shape[1]].to(x.dtype) for t in (self.cosine, self.sine))
        for block in self.model.layers:
            x = block(x, cosine, sine)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def compile_blocks(self) -> None:
        """Compile one block; all share its code, so that each new shape costs seconds, not a minute."""
        torch._dynamo.config.recompile_limit = 64
        for block in self.model.layers:
            block.compile(dynamic=False)

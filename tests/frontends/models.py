"""Models as users write them, small."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        gate = torch.sigmoid(self.up(F.silu(self.down(y.mean((2, 3), keepdim=True)))))
        return x + y * gate


class UnrolledGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.new_zeros(x.shape[0], 7)
        states = []
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
            states.append(h)
        return torch.stack(states, 1), h


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inc, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.down, self.bn = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(24, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.norm(self.inc(x)))
        b = F.leaky_relu(self.bn(self.down(F.max_pool2d(a, 2))))
        wide = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)[:, :8]
        return self.out(torch.cat([self.up(b), wide, a], 1))


class ViTBlock(nn.Module):
    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(b, n, c))
        return (x + self.mlp(self.norm2(x)))[:, 0]


class TiedDecoder(nn.Module):
    """Embedding tied to the head, a causal mask as a buffer, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 24), nn.Linear(24, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.tril(torch.ones(11, 11)))

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(ids)
        n = ids.shape[1]
        scores = (x @ x.transpose(1, 2)).masked_fill(self.mask[:n, :n] == 0, float("-inf"))
        logits = self.head(F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0])
        logits = logits + (scores.softmax(-1) @ x).sum(-1, keepdim=True)
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), target.flatten())}


class InPlace(nn.Module):
    """Mutation of temporaries, sliced assignment, several kinds of output."""

    def forward(self, x: torch.Tensor, scale: float, *, shift: torch.Tensor) -> tuple[object, ...]:
        y = x.clone()
        y[:, 0] = 1.0
        y[0, 1:3] += x[0, 1:3]
        y.mul_(scale).add_(shift)
        values, where = y.max(1)
        return values, {"where": where, "none": None, "three": 3}, x + torch.tensor(0.5)


CASES: dict[str, tuple[nn.Module, tuple[object, ...], dict[str, object]]] = {
    "squeeze_excite": (SqueezeExcite(), (torch.randn(2, 8, 9, 7),), {}),
    "gru": (UnrolledGRU(), (torch.randn(2, 3, 5),), {}),
    "unet": (UNet(), (torch.randn(2, 3, 10, 14),), {}),
    "vit": (ViTBlock(), (torch.randn(2, 3, 16, 16),), {}),
    "decoder": (TiedDecoder(), (torch.randint(0, 50, (2, 9)), torch.randint(0, 50, (2, 9))), {}),
    "encoder_layer": (nn.TransformerEncoderLayer(24, 3, 48, batch_first=True), (torch.randn(2, 9, 24),), {}),
    "in_place": (InPlace(), (torch.randn(3, 4), 1.5), {"shift": torch.randn(4)}),
}

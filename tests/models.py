"""Small models with the structure of well-known ones. `KERNELS`: how many kernels each is cut into."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class SqueezeExcite(nn.Module):
    """Convolution, group norm, channel gates."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.down, self.up = nn.Linear(32, 8), nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        gate = torch.sigmoid(self.up(torch.relu(self.down(y.mean((2, 3))))))
        return y * gate[:, :, None, None]


class UNet(nn.Module):
    """Two levels, skip connections by concatenation, transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.last = self.block(3, 8), self.block(8, 16), self.block(16, 8)
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(8, 2, 1)

    @staticmethod
    def block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        y = self.mid(F.max_pool2d(a, 2))
        return torch.softmax(self.head(self.last(torch.cat([self.up(y), a], 1))), 1)


class VisionTransformer(nn.Module):
    """Patches, class token, one block with a joint qkv projection and hand-written attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 8, stride=8)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 48)), nn.Parameter(torch.randn(1, 17, 48))
        self.norm1, self.norm2 = nn.LayerNorm(48), nn.LayerNorm(48)
        self.qkv, self.proj = nn.Linear(48, 144), nn.Linear(48, 48)
        self.up, self.down, self.head = nn.Linear(48, 96), nn.Linear(96, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        b, s, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, s, 3, 4, 12).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2) * 12**-0.5).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, s, c))
        return self.head((x + self.down(F.gelu(self.up(self.norm2(x)))))[:, 0])


class UnrolledGRU(nn.Module):
    """A gated recurrent unit written by hand, five steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.hidden = nn.Linear(12, 48), nn.Linear(16, 48)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        states, gates = [], self.inside(x)
        for t in range(x.shape[1]):
            xr, xz, xn = gates[:, t].chunk(3, -1)
            hr, hz, hn = self.hidden(h).chunk(3, -1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            h = (1 - z) * torch.tanh(xn + r * hn) + z * h
            states.append(h)
        return torch.stack(states, 1), h


class Dense(nn.Module):
    """Pre-activation convolutions whose inputs are concatenated, and several outputs of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (16, 28))
        self.convs = nn.ModuleList(nn.Conv2d(n, 12, 3, padding=1, bias=False) for n in (16, 28))
        self.table = nn.Embedding(7, 5)

    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        pooled = F.avg_pool2d(x, 2).permute(0, 2, 3, 1)
        values, where = torch.topk(pooled.mean((1, 2)), 3)
        return pooled, values, where, self.table(i).cumsum(1)


class Block(nn.Module):
    """A transformer block with attention kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        b, s, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, s, 3, 4, 8).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(a.transpose(1, 2).reshape(b, s, c))


def _seeded(make: Callable[[], Made]) -> Callable[[], Made]:
    def seeded() -> Made:
        torch.manual_seed(0)
        return make()

    return seeded


MODELS: dict[str, Callable[[], Made]] = {
    name: _seeded(make)
    for name, make in {
        "squeeze_excite": lambda: (SqueezeExcite(), (torch.randn(2, 8, 17, 15),)),
        "unet": lambda: (UNet(), (torch.randn(2, 3, 32, 24),)),
        "vision_transformer": lambda: (VisionTransformer(), (torch.randn(2, 3, 32, 32),)),
        "unrolled_gru": lambda: (UnrolledGRU(), (torch.randn(3, 5, 12), torch.randn(3, 16))),
        "dense": lambda: (Dense(), (torch.randn(2, 16, 12, 10), torch.randint(0, 7, (4,)))),
        "attention_block": lambda: (Block(), (torch.randn(2, 19, 32),)),
    }.items()
}

KERNELS = {
    "squeeze_excite": 6,
    "unet": 8,
    "vision_transformer": 11,
    "unrolled_gru": 12,
    "dense": 8,
    "attention_block": 6,
}

"""A multi-layer perceptron: linear, GELU, layer norm, softmax.

kvc translate examples/mlp.py --target hip -o out/mlp

Every extent is more than one tile and leaves a tail: tiles are 64 to 128 rows and columns, 32 deep.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, FEATURES, HIDDEN, CLASSES = 193, 135, 270, 131


class Model(nn.Module):
    """[batch, features] -> probabilities [batch, classes]."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.down = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.up(x))
        h = self.norm(h)
        return F.softmax(self.down(h), dim=-1)


def get_init_inputs() -> list[int]:
    return [FEATURES, HIDDEN, CLASSES]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, FEATURES)]

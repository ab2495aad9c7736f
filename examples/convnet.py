"""A small ResNet: convolution, batch norm, ReLU, max and average pooling, residual connections.

kvc translate examples/convnet.py --target hip -o out/convnet
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEIGHT, WIDTH, CLASSES = 2, 37, 35, 67
STEM, WIDE = 72, 136


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is projected where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class Model(nn.Module):
    """[batch, 3, height, width] -> logits [batch, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(STEM)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.block1 = Block(STEM, STEM, 1)
        self.block2 = Block(STEM, WIDE, 2)
        self.head = nn.Linear(WIDE, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.bn(self.stem(x))))
        x = self.block2(self.block1(x))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.head(x)


def get_init_inputs() -> list[int]:
    return [CLASSES]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, 3, HEIGHT, WIDTH)]

"""Reduced sizes: the problem stays the same problem, within its budget, with tiles and tails where there were any."""

from __future__ import annotations

import pytest
from kvc.bench.measure import measure
from kvc.bench.reduce import Budget, reduce

HEAD = "import torch\nfrom torch import nn\n"

MATMUL = (
    HEAD
    + """
M = 1024 * 4
K = 8192
N = 2048

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.rand(M, K), torch.rand(K, N)]

def get_init_inputs():
    return []
"""
)

GROUPED = (
    HEAD
    + """
batch_size = 128
in_channels = 64
out_channels = 256
groups = 8
size = 512

class Model(nn.Module):
    def __init__(self, cin, cout, groups):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, groups=groups)
        self.norm = nn.GroupNorm(groups, cout)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))

def get_inputs():
    return [torch.rand(batch_size, in_channels, size, size)]

def get_init_inputs():
    return [in_channels, out_channels, groups]
"""
)

BUILT = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 1024))

    def forward(self, x):
        return self.layers(x)

def get_inputs():
    return [torch.rand(256, 4096)]

def get_init_inputs():
    return []
"""
)


def test_a_contraction_keeps_two_tiles_a_tail_and_three_blocks_of_k() -> None:
    found = reduce(MATMUL, "matmul.py")
    (product,) = [o for o in found.reduced.operations if o.matrix]
    m, n, k = product.matrix
    assert found.within and found.coverage == 1.0
    assert min(m, n) > 64 and m % 64 and n % 64
    assert k > 64 and k % 32


def test_groups_still_divide_channels() -> None:
    found = reduce(GROUPED, "grouped.py")
    sizes = {what: value for what, _, value in found.sizes}
    assert found.within
    assert sizes.get("in_channels", 64) % 8 == sizes.get("out_channels", 256) % 8 == 0
    assert "groups" not in sizes
    assert found.reduced.structure == found.full.structure


def test_widths_that_constructors_spell_out_are_divided_together() -> None:
    found = reduce(BUILT, "built.py", Budget(macs=200_000))
    assert found.within
    assert found.reduced.inputs[0][1] == found.reduced.state[0][1]


def test_a_small_problem_stays_as_it_is() -> None:
    small = MATMUL.replace("1024 * 4", "9").replace("8192", "17").replace("2048", "5")
    found = reduce(small, "small.py")
    assert found.source == small and found.sizes == ()


def test_the_search_is_deterministic() -> None:
    assert reduce(GROUPED, "a.py").source == reduce(GROUPED, "a.py").source


def test_a_problem_that_does_not_run_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        reduce(MATMUL.replace("a @ b", "a @ a"), "broken.py")


def test_a_recurrent_layer_counts_every_step() -> None:
    source = HEAD + (
        "Model = lambda: nn.LSTM(8, 16, batch_first=True)\n"
        "def get_inputs(): return [torch.rand(2, steps, 8)]\ndef get_init_inputs(): return []\n"
    )
    one, ten = (measure(source + f"steps = {n}\n").macs for n in (1, 10))
    assert ten == 10 * one > 0


def test_constructors_may_look_at_values() -> None:
    source = HEAD + (
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.factor = torch.linspace(0, 1, 3)[1].item()\n"
        "    def forward(self, x): return x * self.factor\n"
        "def get_inputs(): return [torch.rand(4)]\ndef get_init_inputs(): return []\n"
    )
    assert measure(source).inputs == ((4,),)


def test_a_length_that_bounds_another_follows_it_down() -> None:
    source = (
        HEAD
        + """
longest, length, width = 1024, 512, 256

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(longest, longest).tril())

    def forward(self, x):
        t = x.shape[1]
        return ((x @ x.transpose(1, 2)) * self.mask[:t, :t]) @ x

def get_inputs():
    return [torch.rand(128, length, width)]

def get_init_inputs():
    return []
"""
    )
    found = reduce(source, "masked.py", Budget(bytes=2_000_000))
    sizes = {value: reduced for _, value, reduced in found.sizes}
    assert found.within and found.coverage > 0.9
    assert sizes[512] <= sizes[1024] < 1024 and sizes[512] > 64


NORMED = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride=2),
            nn.GroupNorm(4, width), nn.AvgPool2d(POOL), nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return self.layers(x)

def get_inputs():
    return [torch.rand(16, 3, 224, 224)]

def get_init_inputs():
    return []
"""
)


@pytest.mark.parametrize(("pool", "full"), [(8, 16 * 36), (55, 16)])
def test_norms_keep_enough_values_for_their_statistics(pool: int, full: int) -> None:
    """Of two values, or of one, a norm makes nothing but amplified rounding."""
    found = reduce(NORMED.replace("POOL", str(pool)), "p.py", Budget(macs=2_000_000, elements=400_000))
    assert found.full.sampled == full
    assert 8 <= found.reduced.sampled < full

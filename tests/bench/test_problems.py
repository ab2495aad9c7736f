"""Finding problems in a checkout, and the sizes in a problem's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvc.bench.literals import find_literals, rewrite
from kvc.bench.problems import find, numbers
from kvc.diagnostics import KvcError

SOURCE = """import torch
from torch import nn

width, depth = 64, 2
rows = 1024 * 2
sizes = [512] * 3


class Model(nn.Module):
    def __init__(self, width, hidden=96):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = self._make(128)

    def _make(self, n):
        return nn.Linear(96, n)

    def scaled(self, x):
        return x * 7

    def forward(self, x):
        return self.scaled(self.second(self.first(x)))[:, :100]


def get_inputs():
    return [torch.rand(rows, width).sum(dim=31)]


def get_init_inputs():
    return [width]
"""


def kinds() -> dict[int, str]:
    return {x.value: x.kind for x in find_literals(SOURCE)}


def test_literals_are_told_apart_by_where_they_stand() -> None:
    found = kinds()
    assert found[64] == found[2048] == found[512] == "given"
    assert found[96] == "built"  # the last of the two: in _make
    assert found[128] == "built"
    assert [x.kind for x in find_literals(SOURCE) if x.value == 96] == ["default", "built"]


def test_what_forward_does_is_no_size() -> None:
    assert not {7, 100, 31} & set(kinds())


def test_a_product_of_literals_is_one_size_with_a_name() -> None:
    (rows,) = [x for x in find_literals(SOURCE) if x.value == 2048]
    assert rows.name == "rows"
    assert "rows = 33\n" in rewrite(SOURCE, {rows: 33})


def test_rewriting_keeps_lines_and_everything_else() -> None:
    literals = find_literals(SOURCE)
    assert rewrite(SOURCE, {x: x.value for x in literals}) == SOURCE
    other = rewrite(SOURCE, dict.fromkeys(literals, 5))
    assert len(other.splitlines()) == len(SOURCE.splitlines())
    assert "width, depth = 5, 5" in other


def test_numbers_and_ranges() -> None:
    assert numbers("1,5,7-9") == {1, 5, 7, 8, 9}
    with pytest.raises(KvcError, match="KVC0106"):
        numbers("1,x")


def test_problems_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for name in ("10_ReLU.py", "2_Matmul_.py", "notes.txt"):
        (folder / name).touch()
    assert [(p.key, p.name) for p in find(tmp_path, [1])] == [("1/2", "Matmul"), ("1/10", "ReLU")]
    assert [p.number for p in find(tmp_path, [1], numbers("9-12"))] == [10]
    with pytest.raises(KvcError, match="KVC0101"):
        find(tmp_path, [2])
    with pytest.raises(KvcError, match="KVC0106"):
        find(tmp_path, [1], numbers("3"))

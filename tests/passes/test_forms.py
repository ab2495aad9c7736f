"""Groups of statements that differ only in names have one form, and plans do not depend on finding it."""

from __future__ import annotations

import pytest
import torch
from kvc.frontends.fx.capture import capture
from kvc.lower import lower
from kvc.passes import fuse
from kvc.passes.forms import Forms
from kvc.pipeline_graph import plan
from kvc.text import print_kernel


class Blocks(torch.nn.Module):
    """Equal blocks, one after the other."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
            for _ in range(depth)
        )
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return torch.nn.functional.softmax(self.norm(x), -1)


@pytest.fixture(scope="module")
def captured() -> object:
    return capture(Blocks(), (torch.randn(2, 4, 6, 6),), mode="train").graph


def test_equal_statements_have_equal_forms(captured: object) -> None:
    whole, _ = lower(captured)  # type: ignore[arg-type]
    forms = Forms(whole)
    sums = [s.target for s in whole.body if s.target.startswith("conv2d") and s.over is not None]
    found = [forms.of((t,), (t,)) for t in sums]
    assert len(sums) == 4 and all(f is not None for f in found)
    assert len({f[0] for f in found if f is not None}) == 1
    assert len({f[1] for f in found if f is not None}) == 4
    relu = next(s.target for s in whole.body if s.target.startswith("relu"))
    other = forms.of((relu,), (relu,))
    assert other is not None and other[0] != found[0][0]  # type: ignore[index]


def test_the_tensors_of_a_group_are_told_apart(captured: object) -> None:
    """x + x and x + y have statements of one form, and are two groups."""
    a = capture(_Sum(), (torch.randn(3), torch.randn(3))).graph
    whole, _ = lower(a)
    forms = Forms(whole)
    made = [forms.of((s.target,), (s.target,)) for s in whole.body]
    assert made[0] is not None and made[1] is not None and made[0][0] != made[1][0]


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + x, x + y


def test_plans_do_not_depend_on_forms(captured: object, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = plan(captured)  # type: ignore[arg-type]
    monkeypatch.setattr(Forms, "of", lambda self, targets, outputs: None)
    slow = plan(captured)  # type: ignore[arg-type]
    assert [print_kernel(k) for k in quick.kernels] == [print_kernel(k) for k in slow.kernels]
    assert quick.steps == slow.steps


def test_equal_blocks_are_tried_once(captured: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of planning grows with what is new in a model, not with its depth."""
    count = [0]
    extract = fuse.extract

    def counted(*args: object) -> object:
        count[0] += 1
        return extract(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(fuse, "extract", counted)
    tried = []
    for depth in (4, 12):
        count[0] = 0
        plan(capture(Blocks(depth), (torch.randn(2, 4, 6, 6),), mode="train").graph)
        tried.append(count[0])
    assert tried[1] < 1.5 * tried[0]

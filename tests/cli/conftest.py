"""Runs the command line in this process, and gives one translated folder to all tests that read one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from kvc.cli import app
from typer.testing import CliRunner

TINY = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.fc = nn.Linear(features, 7)
        self.bn = nn.BatchNorm1d(7)
        self.register_buffer("shift", torch.arange(7.0), persistent=False)

    def forward(self, x, mask=None, *, flip: bool = False):
        y = torch.relu(self.bn(self.fc(x))) + self.shift
        return {"y": y, "parts": (y.sum(-1), x[:, ::2].t() + 1)}


def get_init_inputs():
    return [5]


def get_inputs():
    return [torch.randn(9, 5)]
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def run_kvc(*args: object) -> Ran:
    result = CliRunner().invoke(app, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def kvc() -> Run:
    return run_kvc


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def private_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_CACHE_DIR", str(cache))
    monkeypatch.delenv("KVC_DEBUG", raising=False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.py"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def folder(tiny: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translation of the tiny model. Tests must not change it."""
    out = tmp_path_factory.mktemp("out") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVC_CACHE_DIR", str(cache))
        ran = run_kvc("translate", tiny, "-o", out, "--quiet")
    assert ran.code == 0, ran.err
    return out

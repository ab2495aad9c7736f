"""The emitted text of a few kernels, as a reviewer would see it (`pytest --update-golden` rewrites it)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvc.arch import arch
from kvc.emitter import Task

from tests.backends.triton.cases import first, spec


@pytest.mark.parametrize(
    "name", ["gelu_add", "softmax", "layer_norm", "linear_gelu", "conv_bn_relu", "max_pool", "scans", "sorts", "rnn"]
)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    task = Task(spec(name), arch("gfx942"))
    golden(f"triton/{name}.py", next(first(task).propose(task, (), (), 0)).source)


def test_a_row_in_passes(golden: Callable[[str, str], None]) -> None:
    task = Task(spec("softmax"), arch("gfx942"))
    golden("triton/softmax_passes.py", next(first(task).propose(task, (("COLUMNS", 64),), (), 0)).source)

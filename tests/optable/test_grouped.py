"""Grouped products in forms that the op's first overload does not have."""

from __future__ import annotations

import torch
from kvc.builder import Builder
from kvc.dtypes import F64
from kvc.interpret import interpret
from kvc.ops import op_table


def test_without_offsets_each_matrix_meets_its_own() -> None:
    k = Builder()
    a, b = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 4, 2, dtype=torch.float64)
    left, right = k.operand("a", F64, (3, 5, 4)), k.operand("b", F64, (3, 4, 2))
    result = op_table()["grouped_mm"].meaning(k, left, right)
    got = interpret(k.spec("grouped", ["a", "b"], [result.name]), {"a": a, "b": b})
    torch.testing.assert_close(got[result.name], torch.bmm(a, b))

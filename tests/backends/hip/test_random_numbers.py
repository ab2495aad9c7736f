"""The random-number generator as compiled code: 64-bit products and shifts, on the simulator against the oracle."""

from __future__ import annotations

import pytest
from kvc.builder import Builder
from kvc.dtypes import F32, I64
from kvc.ops import op_table
from kvc.text import print_kernel

from tests.backends.hip.running import emit, verify


def drawing(name: str, reads: bool, **attrs: object) -> str:
    """The text of a spec that draws once."""
    k = Builder()
    rng = k.operand("rng", I64, (2,))
    given = [k.operand("x", F32, (3, 70))] if reads else []
    result = op_table()[f"random_{name}"].meaning(k, rng, 3, *given, **attrs)
    outputs = [t.name for t in result] if isinstance(result, tuple) else [result.name]
    return print_kernel(k.spec(f"draw_{name}", ["rng", *(x.name for x in given)], outputs))


@pytest.mark.parametrize(
    "text", [drawing("native_dropout", True, p=0.3, train=True), drawing("randn", False, size=(5, 60))]
)
def test_draws_are_the_oracles(text: str) -> None:
    verify(emit(text, "hip.pointwise", "gfx942"), text)

"""Long lines are broken without a change of meaning."""

import ast

import pytest
from kvc.backends.triton.source import WIDTH, wrapped

LONG = "a_rather_long_name_of_a_value"
LINES = {
    "call": f"    y = tl.load(x_ptr + {LONG} * 1295 + {LONG} * 35, mask={LONG} & {LONG}, other=0.0)",
    "rounded group": f"    y = ({LONG} - {LONG}) * {LONG} + ({LONG} + {LONG} * {LONG})",
    "group with a method": f"    y = (({LONG} - {LONG}) * {LONG} + {LONG} * {LONG}).to(tl.bfloat16).to(tl.float32)",
    "tuple": f"    y = ({LONG}, {LONG}, {LONG}, {LONG}, {LONG})",
    "nested": f"    y = f(g({LONG}, {LONG} + ({LONG} * {LONG})), ({LONG} + {LONG} + {LONG} + {LONG} + {LONG}))",
}


@pytest.mark.parametrize("name", LINES)
def test_a_wrapped_line_means_the_same(name: str) -> None:
    line = LINES[name]
    assert len(line) > WIDTH
    whole, parts = "def k():\n" + line, "def k():\n" + "\n".join(wrapped(line))
    assert ast.dump(ast.parse(parts)) == ast.dump(ast.parse(whole))

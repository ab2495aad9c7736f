"""Long lines are broken without a change of meaning; names that mean something elsewhere are not taken."""

import ast

import pytest
from kvc.arch import arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.source import WIDTH, wrapped
from kvc.emitter import Task
from kvc.text import parse_kernel

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


def test_tensors_may_have_names_that_the_lint_forbids() -> None:
    """A model's parameter is often called `input`."""
    text = """kernel named(input: f32[m=32,k=16], open: f32[n=48,k]) -> (exec: f32[m,n]) {
  exec[m,n] = sum(k) input[m,k] * open[n,k]
}"""
    task = Task(parse_kernel(text), arch("gfx942"))
    emitter = next(e for e in TritonTarget().emitters() if e.supports(task).ok)
    candidate = next(emitter.propose(task, (), (), 0))
    assert TritonTarget().lint(candidate.source, task.arch) == []

"""One clean file, and one mutant of it for each rule."""

from __future__ import annotations

import pytest
from kvc.arch import arch
from kvc.backends.triton.lint import RULES, lint

CLEAN = '''"""A matmul."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK: tl.constexpr = tl.constexpr(64)
SCALE = -2.0


@triton.jit
def activation(x):
    return libdevice.tanh(x) * SCALE


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, n):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row_in = row < n
    a = tl.load(a_ptr + row * n + tl.arange(0, BLOCK)[None, :], mask=row_in, other=0.0)
    b = tl.load(b_ptr + tl.arange(0, BLOCK)[:, None] * n + column, mask=column < n, other=0.0)
    c = tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + row * n + column, activation(c), mask=row_in & (column < n))


if __name__ == "__main__":
    import torch

    print(torch.cuda.is_available())
'''

MUTANTS = [
    ("no-kernel", "@triton.jit\n", ""),
    ("import", "import triton\n", "import triton\nimport numpy as np\n"),
    ("import", "extra import libdevice", "extra import libdevice, cuda"),
    ("import", "    c = tl.dot", "    import os\n    c = tl.dot"),
    ("module-code", "SCALE = -2.0", "SCALE = min(1, 2)"),
    ("module-code", "SCALE = -2.0", "SCALE = -2.0\nfor i in range(3):\n    pass"),
    ("module-code", "SCALE = -2.0", "def host():\n    return 1"),
    ("forbidden-name", "activation(c)", "torch.tanh(c)"),
    ("forbidden-name", "activation(c)", "eval('c')"),
    ("dunder", "activation(c)", "c.__class__"),
    ("module-code", '__name__ == "__main__"', '__name__ != "__main__"'),
    ("module-code", "    print(torch.cuda.is_available())", "    pass\nelse:\n    1 + 1"),
    ("attribute", "activation(c)", "triton.runtime.jit.os"),
    ("attribute", "activation(c)", "tl.core.builtins"),
    ("attribute", "activation(c)", "tl.math.core"),
    ("attribute", "activation(c)", "activation(tl)"),
    ("statement", "    c = tl.dot", "    try:\n        pass\n    except ValueError:\n        pass\n    c = tl.dot"),
    ("statement", "    c = tl.dot", "    class C:\n        pass\n    c = tl.dot"),
    ("statement", "activation(c)", "(lambda c: c)(c)"),
    ("decorator", "@triton.jit\ndef matmul", "@triton.jit(do_not_specialize=open('x'))\ndef matmul"),
    ("decorator", "@triton.jit\ndef matmul", "@cached\n@triton.jit\ndef matmul"),
    ("decorator", "c_ptr, n)", "c_ptr, n=max(1, 2))"),
    ("unmasked", ", mask=row_in, other=0.0", ""),
    ("unmasked", "mask=row_in & (column < n)", "mask=None"),
    ("dot-precision", ', input_precision="ieee"', ""),
    ("dot-precision", '"ieee"', '"tf32"'),
    ("inline-asm", "activation(c)", "tl.inline_asm_elementwise('nop', '=r,r', [c], tl.float32, True, 1)"),
    ("num-warps", "activation(c)", "activation(c, num_warps=32)"),
    ("device-print", "    c = tl.dot", "    tl.device_print('c', n)\n    c = tl.dot"),
]


def rules(source: str, **options: str) -> list[str]:
    return [d.details["rule"] for d in lint(source, arch("gfx942"), **options)]


def test_clean_source_passes() -> None:
    assert rules(CLEAN) == []


@pytest.mark.parametrize(("rule", "old", "new"), MUTANTS)
def test_mutant_is_found(rule: str, old: str, new: str) -> None:
    mutant = CLEAN.replace(old, new)
    assert mutant != CLEAN
    assert rule in rules(mutant)


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, _, _ in MUTANTS} == set(RULES)


def test_findings_have_lines_and_ways_out() -> None:
    (found,) = lint(CLEAN.replace(', input_precision="ieee"', ""), arch("gfx942"))
    assert found.code == "KVC0403"
    assert found.location is not None and found.location.line == 23
    assert "input_precision" in found.hint


def test_fast_numerics_allow_any_precision() -> None:
    assert rules(CLEAN.replace('"ieee"', '"tf32"'), numerics="fast") == []


def test_asserted_blocks_need_no_mask() -> None:
    assert rules(CLEAN.replace(", mask=row_in, other=0.0", "").replace(
        "    row_in = row < n", "    tl.static_assert(4096 // BLOCK * BLOCK == 4096)\n    row_in = row < n"
    )) == []  # fmt: skip


def test_wave_size_decides_how_many_warps_fit() -> None:
    source = CLEAN.replace("activation(c)", "activation(c, num_warps=32)")
    assert [d.details["rule"] for d in lint(source, arch("sm_90"))] == []


def test_syntax_error() -> None:
    (found,) = lint("def f(:\n", arch("gfx942"))
    assert (found.code, found.location and found.location.line) == ("KVC0502", 1)

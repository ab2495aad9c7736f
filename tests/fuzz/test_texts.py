"""Readers of texts refuse or read; nothing else. A few hundred changed texts each; `python -m tests.fuzz.run` for more.

Texts that were a fault once stand in FOUND."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvc.diagnostics import KvcError
from kvc.lock_shape import problems
from kvc.package import read_lock_text
from kvc.text import parse_graph, parse_kernels

from tests.fuzz.graphs import Program, generate
from tests.fuzz.run import outcome
from tests.fuzz.texts import READERS, texts
from tests.simulator.tinyasm import PROLOGUE, kernel_text

EXAMPLES = {"kernel": 60, "graph": 100, "assembly": 100, "lock": 150, "model": 25}


@pytest.mark.parametrize("name", READERS)
def test_valid_texts_are_read(name: str) -> None:
    for text in READERS[name].seeds():
        assert outcome(READERS[name], text) == "read"


@pytest.mark.parametrize("name", READERS)
def test_changed_texts_are_read_or_refused(name: str) -> None:
    @settings(
        max_examples=EXAMPLES[name], deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(texts(name))
    def check(text: str) -> None:
        assert not outcome(READERS[name], text).startswith("!"), text

    check()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("depth", [10, 3000])
def test_nesting_is_no_crash(name: str, depth: int) -> None:
    assert not outcome(READERS[name], READERS[name].nest(depth)).startswith("!")


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.text())
def test_any_text_at_all(text: str) -> None:
    for read in (parse_kernels, parse_graph, lambda t: read_lock_text(t, "lock")):
        try:
            read(text)
        except KvcError as error:
            assert error.code in ("KVC0301", "KVC0302", "KVC0802")


def _asm(old: str, new: str) -> str:
    text = kernel_text(PROLOGUE + "  s_or_b64 exec, exec, s[8:9]\n", args=2)
    assert old in text
    return text.replace(old, new)


FOUND = {
    "metadata without an offset": _asm(".offset: 8", ".ofset: 8"),
    "metadata of another kind": _asm("amdhsa.kernels:", "amdhsa.kernels: 3"),
    "registers that run backwards": _asm("s[8:9]", "s[255:9]"),
    "registers that no chip has": _asm("s[8:9]", "s[4294967296:4294967297]"),
    "vectors that no chip has": _asm("v0\n", "v4000\n"),
    "more user registers than there are": _asm("user_sgpr_count 2", "user_sgpr_count 4294967296"),
    "arguments without end": _asm("kernarg_segment_size: 16", "kernarg_segment_size: 99999999999999"),
    "a load without operands": _asm("s[4:7], s[0:1], 0x0", ""),
    "a branch to nowhere": _asm("s_or_b64 exec, exec, s[8:9]", "s_branch"),
}


@pytest.mark.parametrize("name", FOUND)
def test_assembly_that_was_a_crash_once(name: str) -> None:
    assert outcome(READERS["assembly"], FOUND[name]) in ("KVC0901", "KVC0902", "KVC0603")


def test_a_deep_expression_is_refused_by_its_depth() -> None:
    for body in ("-" * 900 + "x[m]", " + ".join(["x[m]"] * 900), "9" * 5000):
        with pytest.raises(KvcError) as caught:
            parse_kernels(f"kernel k(x: f32[m=2]) -> (y: f32[m]) {{\n  y[m] = {body}\n}}")
        assert caught.value.code == "KVC0301"


def test_a_lock_cannot_lead_out_of_its_folder() -> None:
    import json

    good = json.loads(READERS["lock"].seeds()[0])
    assert list(problems(good)) == []
    for path in ("../../etc/passwd", "/etc/passwd", "kernels/../../x", "a\\..\\b"):
        bad = json.loads(READERS["lock"].seeds()[0])
        bad["kernels"][0]["file"] = path
        assert "leads out of the folder" in next(problems(bad))


def test_a_seed_is_a_graph() -> None:
    (first, inputs), (again, same) = generate(5), generate(5)
    assert isinstance(first, Program) and [str(s) for s in first.steps] == [str(s) for s in again.steps]
    assert [x.shape for x in inputs] == [x.shape for x in same]
    assert len(first(*inputs)) == len(first.outputs)

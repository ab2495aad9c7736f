"""Scans of contiguous lines: every operation and direction, lines with a rest, what stays with the generic emitter."""

from __future__ import annotations

import pytest
from kvc.arch import CDNA, arch
from kvc.backends.hip import HipTarget
from kvc.emitter import Task

from tests.backends.hip.running import emit, spec_of, verify

NAME = "hip.scan"


def scan(over: str, kind: str = "f32", length: int = 1100, expr: str = "x[m,k]", extra: str = "") -> str:
    return f"""kernel scan(x: {kind}[m=3,k={length}]{extra}) -> (y: {kind}[m,k]) {{
  y[m,k] = scan {over} {expr}
}}"""


SPECS = {
    "sum": scan("sum(k)"),
    "sum_f16": scan("sum(k)", "f16"),
    "odd": scan("sum(k)", length=1101),
    "reverse": scan("sum(k reverse)"),
    "exclusive": scan("sum(k exclusive)"),
    "both": scan("sum(k reverse exclusive)", length=1102),
    "max": scan("max(k)", "bf16"),
    "prod": scan("prod(k)", expr="1.0 + 0.001 * x[m,k]"),
    "integers": scan("sum(k)", "i64"),
    "masked": scan("sum(k)", expr="where(t[m,k], x[m,k], 0.0)", extra=", t: bool[m,k]"),
}


@pytest.mark.parametrize("name", SPECS)
def test_result(name: str) -> None:
    verify(emit(SPECS[name], NAME, "gfx942"), SPECS[name])


@pytest.mark.parametrize("gfx", CDNA)
def test_every_chip(gfx: str) -> None:
    verify(emit(SPECS["sum"], NAME, gfx), SPECS["sum"])


@pytest.mark.parametrize("knobs", [(("THREADS", 64), ("WIDTH", 1)), (("THREADS", 512), ("WIDTH", 2))])
@pytest.mark.parametrize("name", ["sum", "both"])
def test_settings(name: str, knobs: tuple[tuple[str, int], ...]) -> None:
    verify(emit(SPECS[name], NAME, "gfx942", knobs), SPECS[name])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kernel s(x: f32[m=300,k=8]) -> (y: f32[m,k]) { y[m,k] = scan sum(m) x[m,k] }", "across memory"),
        (scan("sum(k)", length=40), "shorter"),
        (scan("sum(k)", "bool"), "booleans"),
    ],
)
def test_left_to_the_generic_emitter(text: str, words: str) -> None:
    task = Task(spec_of(text), arch("gfx942"))
    reasons = {e.name: e.supports(task).reason for e in HipTarget().emitters()}
    assert words in reasons[NAME]
    assert next(e.name for e in HipTarget().emitters() if e.supports(task).ok) == "hip.generic"

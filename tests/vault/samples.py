"""Records and references for the tests of the vault."""

from __future__ import annotations

from typing import Any

from kvc.arch import arch
from kvc.diagnostics import Diagnostic
from kvc.emitter import Candidate, Compiled, Task, target
from kvc.text import parse_kernel
from kvc.vault.harvest import Item
from kvc.vault.judging import spec_columns, verdict_columns
from kvc.vault.record import Record, columns_of
from kvc.verify.verdict import Evidence, Rejected, Verdict, Verified

SPEC = """
kernel f(x: f32[m=5,n=130], b: f32[n]) -> (y: f32[m,n]) {
  y[m,n] = exp(x[m,n] * 0.5) + b[n]
}
"""
ROWS = """
kernel g(x: f16[m=5,n=130]) -> (y: f16[m]) {
  y[m] = max(n) x[m,n]
}
"""
REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, b):
        return torch.relu(x * 0.5 + b)


def get_inputs():
    return [torch.randn(3, 37), torch.randn(37)]


def get_init_inputs():
    return []
"""


def candidates(spec: str = SPEC, language: str = "hip") -> list[Candidate]:
    """Candidates of every emitter that writes the spec, all settings."""
    task = Task(parse_kernel(spec), arch("gfx942"))
    found: list[Candidate] = []
    for emitter in target(language).emitters():
        if emitter.supports(task).ok:
            for knobs in emitter.space(task).configurations:
                found += emitter.propose(task, knobs, [], 0)
    return found


def row(candidate: Candidate, rejected: str = "", **changes: Any) -> dict[str, Any]:
    """The row of a candidate with a verdict made up for it."""
    verdict: Verdict = Verified(Evidence("sim", "gfx942", 0, ("compile",), ("normal",), ()), Compiled({}))
    if rejected:
        verdict = Rejected("compare", Diagnostic("KVC0701", rejected))
    spec = candidate.task.spec
    item = Item(spec.name, spec.hash, "user", "a test", "Apache-2.0", REFERENCE, "")
    rest = {
        "attempts": 1, "feedback": "[]", "measured_us": None, "measured_on": "", "baseline_us": None, "parent": "",
        "seed": 0, "kvc_version": "0",
    }  # fmt: skip
    return {
        **columns_of(candidate), **spec_columns(spec, item), **verdict_columns(candidate, verdict), **rest, **changes,
    }  # fmt: skip


def record(candidate: Candidate, rejected: str = "", **changes: Any) -> Record:
    return Record.from_row(row(candidate, rejected, **changes))

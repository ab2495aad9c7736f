"""Findings for machines that review code: SARIF 2.1.0 and GitHub workflow annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kvc

#: What a finding can be, for SARIF's table of rules and for the documentation.
RULES: dict[str, str] = {
    "kernel-added": "a kernel is new",
    "kernel-removed": "a kernel is gone",
    "kernel-changed": "a kernel's source, spec or launch changed",
    "kernel-worse": "a kernel uses more of the GPU, or its error grew",
    "kernel-better": "a kernel uses less of the GPU",
    "model-changed": "the module, its graph or its settings changed",
    "fallback-added": "an operator runs eagerly that did not",
    "fallback-removed": "an operator no longer runs eagerly",
    "toolchain-changed": "it was made with other versions",
    "file-altered": "a file is not what was verified",
    "not-reproduced": "this model and this kvc write something else",
    "not-verified": "a kernel or the model does not verify",
}

LEVELS = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing worth a reviewer's look; `file` and `line` say where it is shown."""

    rule: str
    level: str
    message: str
    file: str = ""
    line: int = 1

    def __post_init__(self) -> None:
        if self.rule not in RULES or self.level not in LEVELS:
            raise ValueError(f"no rule {self.rule!r} of level {self.level!r}")

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "level": self.level, "message": self.message, "file": self.file, "line": self.line}


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """A SARIF 2.1.0 log (OASIS) with one run."""
    used = sorted({f.rule for f in findings})
    results = []
    for f in findings:
        result: dict[str, Any] = {
            "ruleId": f.rule,
            "ruleIndex": used.index(f.rule),
            "level": f.level,
            "message": {"text": f.message},
        }
        if f.file:
            where = {"artifactLocation": {"uri": f.file}, "region": {"startLine": max(f.line, 1)}}
            result["locations"] = [{"physicalLocation": where}]
        results.append(result)
    rules = [{"id": rule, "shortDescription": {"text": RULES[rule]}} for rule in used]
    driver = {"name": "kvc", "version": kvc.__version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _escaped(text: str, more: str = "") -> str:
    """Percent-escapes of workflow commands: %, line ends, and for properties : and ,."""
    for char in "%\r\n" + more:
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def github(findings: Sequence[Finding]) -> str:
    """GitHub workflow commands, a line a finding."""
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    lines = []
    for f in findings:
        where = [f"file={_escaped(f.file, ':,')}", f"line={f.line}"] if f.file else []
        properties = ",".join([*where, f"title={_escaped('kvc ' + f.rule, ':,')}"])
        lines.append(f"::{kinds[f.level]} {properties}::{_escaped(f.message)}")
    return "\n".join(lines)

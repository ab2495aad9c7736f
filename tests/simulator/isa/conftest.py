"""The run says how much of the opcode table was checked."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line: opcodes checked against the document, and those checked against a hand-written oracle."""
    from tests.simulator.isa.isa_harness import CHECKED

    if CHECKED["document"] or CHECKED["errata"]:
        document, errata = len(CHECKED["document"]), len(CHECKED["errata"])
        terminalreporter.write_line(
            f"opcodes checked: {document} against the document, {errata} against errata oracles"
        )

"""Helpers of these tests import each other by plain name, and the run says how much of the table was checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line: opcodes checked against the document, and those checked against a hand-written oracle."""
    from isa_harness import CHECKED

    if CHECKED["document"] or CHECKED["errata"]:
        document, errata = len(CHECKED["document"]), len(CHECKED["errata"])
        terminalreporter.write_line(
            f"opcodes checked: {document} against the document, {errata} against errata oracles"
        )

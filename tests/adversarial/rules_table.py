"""The table of docs/verification.md: every rule with the mutants that prove it.

python -m tests.adversarial.rules_table --write
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvc.verify.rules import RULES, Rule

from tests.adversarial import mutants_hip, mutants_triton

PAGE = Path(__file__).parents[2] / "docs" / "verification.md"
BEGIN, END = "<!-- rules: written by tests.adversarial.rules_table -->", "<!-- end of rules -->"
MUTANTS = {"hip": mutants_hip.MUTANTS, "triton": mutants_triton.MUTANTS}
#: V22 is no edit of a kernel: the copies of test_mutants.test_a_copy_with_other_names_is_no_new_kernel.
COPIES = {"V22": "copy with other names"}


def proofs(rule: Rule, target: str) -> str:
    """Names of the mutants of a rule, or why there are none."""
    if rule.key in COPIES:
        return COPIES[rule.key]
    names = [m.name for m in MUTANTS[target] if m.rule == rule.key]
    return ", ".join(names) if names else f"({dict(rule.absent).get(target, '')})"


def table() -> str:
    lines = [
        "| rule | | stage | codes | what is done | HIP mutants | Triton mutants |",
        "|---|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        codes = " ".join(rule.codes) or "-"
        lines.append(
            f"| {rule.key} | {rule.title} | {rule.stage} | {codes} | {rule.how} | {proofs(rule, 'hip')} | "
            f"{proofs(rule, 'triton')} |"
        )
    return "\n".join(lines)


def page_with_table(page: str) -> str:
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true")
    page = PAGE.read_text()
    new = page_with_table(page)
    if options.parse_args().write:
        PAGE.write_text(new)
    return int(new != page)


if __name__ == "__main__":
    sys.exit(main())

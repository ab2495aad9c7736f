"""Every rule of docs/verification.md turns down a kernel with exactly its fault, at its stage, with its code."""

from __future__ import annotations

import pytest
from kvc.verify.likeness import source_hash
from kvc.verify.rules import RULES
from kvc.verify.verdict import Rejected, Verified

from tests.adversarial import mutants_hip, mutants_triton, rules_table
from tests.adversarial.mutants import Mutant, candidate, verdict_of

FILES = {"hip": mutants_hip, "triton": mutants_triton}
ALL = [pytest.param(t, m, id=f"{t}-{m.rule}-{m.name}") for t, file in FILES.items() for m in file.MUTANTS]
CORRECT = [pytest.param(t, s, id=f"{t}-{s}") for t, file in FILES.items() for s in file.CORRECT]


@pytest.mark.parametrize(("target", "spec"), CORRECT)
def test_the_kernel_without_the_fault_passes(target: str, spec: str) -> None:
    verdict = verdict_of(candidate(spec, FILES[target].CORRECT[spec], target))
    # A sum by atomics of one workgroup is deterministic; that of many is the mutant.
    assert isinstance(verdict, Verified), verdict


@pytest.mark.parametrize(("target", "mutant"), ALL)
def test_the_fault_is_turned_down(target: str, mutant: Mutant) -> None:
    verdict = verdict_of(candidate(mutant.spec, mutant.text, target, mutant.chip))
    assert isinstance(verdict, Rejected), f"{mutant.name} passed"
    assert (verdict.stage, verdict.diagnostic.code) == (mutant.stage, mutant.code), verdict
    if mutant.lint:
        assert verdict.diagnostic.details["rule"] == mutant.lint, verdict


@pytest.mark.parametrize("target", FILES)
def test_a_copy_with_other_names_is_no_new_kernel(target: str) -> None:
    suffix = {"hip": ".hip", "triton": ".py"}[target]
    original, copy = FILES[target].SCALE, FILES[target].COPY
    known = (source_hash(original, suffix),)
    verdict = verdict_of(candidate("scale", copy, target), known)
    assert isinstance(verdict, Rejected)
    assert (verdict.stage, verdict.diagnostic.code) == ("propose", "KVC0712")
    other = (
        original.replace("256", "128").replace("4 x 1", "8 x 1").replace("on 4", "on 8").replace("warps=4", "warps=2")
    )
    assert source_hash(other, suffix) not in known  # another tile size is another kernel


def test_every_rule_has_a_mutant_or_says_why_not() -> None:
    for rule in RULES:
        for target in FILES:
            assert rules_table.proofs(rule, target) != "()", f"{rule.key} has no mutant for {target}"
    keys = {rule.key: rule for rule in RULES}
    for file in FILES.values():
        for mutant in file.MUTANTS:
            assert mutant.code in keys[mutant.rule].codes or mutant.code == "KVC0302", mutant.name
            assert mutant.stage in keys[mutant.rule].stage, mutant.name


def test_the_page_has_the_table() -> None:
    page = rules_table.PAGE.read_text()
    assert rules_table.page_with_table(page) == page, "run python -m tests.adversarial.rules_table --write"

"""Every rule of docs/verification.md turns down a kernel with exactly its fault, at its stage, with its code."""

from __future__ import annotations

import pytest
from kvc.verify.likeness import source_hash
from kvc.verify.verdict import Rejected, Verified

from tests.adversarial import mutants_hip, mutants_triton
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
    other = original.replace("256", "128").replace("4 x 1", "8 x 1").replace("on 4", "on 8").replace("warps=4", "warps=2")
    assert source_hash(other, suffix) not in known  # another tile size is another kernel

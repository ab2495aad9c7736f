"""Constrained decoding: what rules write is never in the way, and undeclared names are."""

from pathlib import Path

import numpy as np
import pytest
from kvc.model.constrain import Guard
from kvc.model.infer.generate import Sampling, sample
from kvc.model.lift import lift
from kvc.model.prompt import Asked, prompt
from kvc.model.tokenizer import Tokenizer, train

from tests.model.test_lift import SPECS, written

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One whose long tokens span names and ends of expressions."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    texts = [lift(c, r, others=0).answer for name in ("softmax", "scaled") for r, c in written(name)]
    train(texts * 3, path, 600, 2)
    return Tokenizer(path)


@pytest.mark.parametrize("name", SPECS)
def test_every_answer_of_a_rule_may_be_written(name: str, tokenizer: Tokenizer) -> None:
    for rule, candidate in written(name):
        guard = Guard(prompt(Asked(candidate.task), candidate.target), tokenizer)
        for token in tokenizer.encode(lift(candidate, rule, others=0).answer):
            assert guard.allows(token), (rule.name, guard._text[-60:], tokenizer.decode([token]))
            guard.take(token)


def told(tokenizer: Tokenizer, text: str) -> Guard:
    guard = Guard("triton gfx942 strict best\n(a0:f32[d0=4,d1=9]) -> (y0:f32[d0])\nc0=0.125\n", tokenizer)
    for token in tokenizer.encode(text):
        guard.take(token)
    return guard


@pytest.mark.parametrize(
    ("before", "allowed", "refused"),
    [
        ("rows\nset BLOCK=4\nrun fused(", "a0", "a1"),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) $cdiv(", "d1", "d2"),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) $cdiv(d0,BLO", "CK)", "OM)"),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) $", "BLOCK", "WIDTH"),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) 1\nuse ", "relu", "magic"),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) 1\n\nx = ", "a0_value", "a7_value"),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) 1\n\nx = p * ", "$d1 ", "$d9 "),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) 1\n\nx = p * ", "$c0 ", "$c1 "),
        ("rows\nset BLOCK=4\nrun fused(a0,y0) 1\n\nx = p * $(d0*", "d1)", "t1)"),
    ],
)
def test_only_declared_names_may_follow(tokenizer: Tokenizer, before: str, allowed: str, refused: str) -> None:
    def passes(text: str) -> bool:
        guard = told(tokenizer, before)
        for token in tokenizer.encode(text):
            if not guard.allows(token):
                return False
            guard.take(token)
        return True

    assert passes(allowed) and not passes(refused)


def test_the_likeliest_allowed_token_is_taken(tokenizer: Tokenizer, tmp_path: Path) -> None:
    guard = told(tokenizer, "rows\nrun fused(")
    (right,), (wrong,) = tokenizer.encode("a0"), tokenizer.encode("a1")
    logits = np.zeros(len(tokenizer), np.float32)
    logits[wrong], logits[right] = 5.0, 4.0
    rng = np.random.default_rng(0)
    assert sample(logits, Sampling(), rng) == wrong
    assert sample(logits, Sampling(), rng, guard) == right
    assert {sample(logits, Sampling(0.3), rng, guard) for _ in range(20)} == {right}

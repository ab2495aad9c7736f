"""Integers that know what they were made of: their value is the int's, their text the expression's."""

import math
import re

import pytest
from kvc.arch import arch
from kvc.emitter import Task
from kvc.model.lift import asked_names, lift
from kvc.model.prompt import Asked
from kvc.model.sizes import evaluate
from kvc.model.trace import MARK, Trace, Traced, name, traced_knobs, traced_task, tracing
from kvc.text import parse_kernel

from tests.model.test_lift import SPECS, written

NAMES = {"d0": 6, "d1": 35, "d2": 8, "BLOCK": 64}


def text_of(trace: Trace, value: int) -> str:
    return MARK.sub(trace.expression, f"{value}")


def without_marks(trace: Trace, source: str, names: dict[str, int]) -> str:
    return MARK.sub(lambda m: str(evaluate(trace.expression(m), names)), source)


@pytest.mark.parametrize(
    ("expected", "make"),
    [
        ("d0*d1", lambda d0, d1, d2, b: d1 * d0),
        ("d0*d1*d2", lambda d0, d1, d2, b: math.prod([d2, d0, d1])),
        ("2*d1+d2-1", lambda d0, d1, d2, b: d2 + 2 * d1 - 1),
        ("d1", lambda d0, d1, d2, b: d0 * d1 // d0),
        ("cdiv(d0*d1,BLOCK)", lambda d0, d1, d2, b: -(-(d0 * d1) // b)),
        ("d1//d2", lambda d0, d1, d2, b: d1 // d2),
        ("cdiv(d0,BLOCK//d2)", lambda d0, d1, d2, b: -(-d0 // (b // d2))),
        ("d0*d1", lambda d0, d1, d2, b: divmod(d0 * d1, 1)[0]),
    ],
)
def test_arithmetic_keeps_value_and_origin(expected: str, make: object) -> None:
    with tracing() as trace:
        made = make(*(name(v, k) for k, v in NAMES.items()))  # type: ignore[operator]
        plain = make(*NAMES.values())  # type: ignore[operator]
        assert isinstance(made, Traced) and made == plain and hash(made) == hash(plain)
        assert text_of(trace, made) == expected
        if plain > 0:
            assert evaluate(expected, NAMES) == plain


def test_what_loses_its_name_is_a_plain_number() -> None:
    with tracing() as trace:
        d0, d1 = name(6, "d0"), name(35, "d1")
        for value in (d0 - d0, math.gcd(d0, d1), d0 % 4, int(d0), d0 // d1, d0 & 3):
            assert not isinstance(value, Traced)
        assert trace.only(210) is None and d0 * d1 == 210 and trace.only(210) == "d0*d1"
        assert str(d0).isdigit() and int(str(d0)) == 6 and not str(d0).isascii()
    assert str(d0) == "6"  # outside a trace it is printed like any other


@pytest.mark.parametrize("spec", SPECS)
def test_a_rule_writes_the_same_kernel_with_marks_for_numbers(spec: str) -> None:
    for rule, candidate in written(spec):
        with tracing() as trace:
            (made,) = list(rule.propose(traced_task(candidate.task), traced_knobs(candidate.knobs), [], 0))[:1]
            source = without_marks(trace, made.source, asked_names(candidate))
        kept = [re.sub(r"\s", "", s.partition("\n\n")[2]) for s in (source, candidate.source)]
        assert kept[0] == kept[1], rule.name


def test_no_answer_holds_a_number_that_the_model_would_have_to_work_out() -> None:
    text = """
        kernel rows(x: bf16[a=23,b=19,c=29]) -> (y: bf16[b,a,c]) {
          m: f32[a,b] = max(c) x[a,b,c]
          y[b,a,c] = x[a,b,c] - m[a,b]
        }"""
    asked = Asked(Task(parse_kernel(text), arch("gfx942")))
    from kvc.emitter import targets
    from kvc.model.lift import emit

    for target in targets().values():
        for rule in target.emitters():
            if rule.supports(asked.canonical_task).ok:
                made = emit(asked, rule, rule.space(asked.canonical_task).default)
                assert made is not None
                answer = lift(made, rule, others=0).answer
                for number in (23 * 19, 19 * 29, 23 * 29, 23 * 19 * 29, 23, 19, 29):
                    assert not re.search(rf"(?<![\w.]){number}(?![\w.])", answer), (rule.name, number)
                assert not re.search(r"^use ", answer, re.MULTILINE) or "attention" in rule.name

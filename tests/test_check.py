"""Every invariant of a KernelSpec has a spec that breaks it."""

import pytest
from kvc.diagnostics import CODES, Diagnostic, KvcError, Location
from kvc.text import parse_kernel

HEAD = "kernel k(x: f32[m=4,n=5], i: i64[m]) -> (y: f32[m,n])"
BROKEN = {
    "is not defined before it": HEAD + " { y[m,n] = z[m,n] }",
    "is defined twice": HEAD + " { y[m,n] = x[m,n] y[m,n] = x[m,n] }",
    "is never defined": HEAD + " { t: f32[m,n] = x[m,n] }",
    "has 2 dims, not 1": HEAD + " { y[m,n] = x[m] }",
    "may fall outside it; it needs a guard": HEAD + " { y[m,n] = x[m + 1,n] }",
    "is not an integer": HEAD + " { y[m,n] = x[x[m,n],n] }",
    "reads axis q outside its domain": HEAD + " { y[m,n] = x[m,n] * q }",
    "names an axis twice": HEAD + " { y[m,n] = sum(n) x[m,n] }",
    "takes one axis and gives i64": HEAD + " { t: f32[m] = argmax(n) x[m,n] y[m,n] = x[m,n] }",
    "condition is not bool": HEAD + " { y[m,n] = sum(r=3 where r) x[m,n] }",
    "is a reserved word": "kernel k(exp: f32[m=4]) -> (y: f32[m]) { y[m] = exp[m] }",
    "names both a tensor and an axis": "kernel k(m: f32[m=4]) -> (y: f32[m]) { y[m] = m[m] }",
    "is defined over axes of other sizes": HEAD + " { y[n,m] = x[m,n] }",
    "aliases z, which is no input": "kernel k(x: f32[m=4]) -> (y: f32[m] alias(z)) { y[m] = x[m] }",
    "strides for 1 dims": "kernel k(x: f32[m=4] strides(4,1)) -> (y: f32[m]) { y[m] = x[m] }",
}


@pytest.mark.parametrize("problem", BROKEN)
def test_broken_invariant_is_named(problem: str) -> None:
    with pytest.raises(KvcError) as e:
        parse_kernel(BROKEN[problem])
    assert e.value.code == "KVC0302"
    assert problem in str(e.value)


def test_guarded_and_indirect_accesses_pass() -> None:
    parse_kernel(HEAD + " { y[m,n] = x[m + 1,n | 0.0] + x[i[m],n] }")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + " { y[m,n] = x[m,n }", "unexpected input"),
        (HEAD + " {\n y[m,n] = foo(x[m,n]) }", "no function 'foo'"),
        (HEAD + " { y[m,n] = exp(x[m,n], 1.0) }", "exp takes 1 arguments, not 2"),
        (HEAD + " { t[m,n] = x[m,n] }", "must declare its dtype"),
        (HEAD + " { y[m,n] = sum(r) x[m,n] }", "must give its size"),
        (HEAD + " { y[m=7,n] = x[m,n] }", "was declared with size 4"),
    ],
)
def test_text_that_does_not_parse_has_a_line_and_a_reason(text: str, message: str) -> None:
    with pytest.raises(KvcError) as e:
        parse_kernel(text, "broken.kir")
    assert e.value.code == "KVC0301"
    assert message in str(e.value)
    location = e.value.diagnostic.location
    assert location is not None and location.file == "broken.kir" and location.line == text[:-3].count("\n") + 1


def test_diagnostics_print_location_code_title_and_hint() -> None:
    d = Diagnostic("KVC0101", "no file m.py", Location("m.py", 3), "check the path")
    assert str(d) == "m.py:3: KVC0101: model file not found: no file m.py\n  hint: check the path"
    assert d.to_json()["title"] == CODES["KVC0101"]
    with pytest.raises(ValueError, match="not in the table"):
        Diagnostic("KVC9999", "")

"""Rule kernels become answers with expressions, and answers become the very kernels again."""

import pytest
from kvc.arch import arch
from kvc.canonical import AXIS, canonical
from kvc.dtypes import DTYPES
from kvc.emitter import Candidate, Emitter, Origin, Task, targets
from kvc.model.frame import assemble, parse
from kvc.model.lift import emit, is_exact, lift
from kvc.model.prompt import Asked, Tried, prompt, setting, without_setting
from kvc.model.sizes import NotAFrame
from kvc.text import parse_kernel

SPECS = {
    "softmax": """
        kernel softmax(x: f32[r=37,c=129]) -> (y: f32[r,c]) {
          m: f32[r] = max(c) x[r,c]
          e: f32[r,c] = exp(x[r,c] - m[r])
          s: f32[r] = sum(c) e[r,c]
          y[r,c] = e[r,c] / s[r]
        }""",
    "linear": """
        kernel linear(x: bf16[m=35,k=72], w: bf16[n=48,k], b: bf16[n]) -> (y: bf16[m,n]) {
          t: f32[m,n] = sum(k) x[m,k] * w[n,k]
          u: bf16[m,n] = t[m,n] + b[n]
          y[m,n] = gelu(u[m,n])
        }""",
    "conv": """
        kernel conv(x: f32[b=2,c=5,h=17,w=15], f: f32[o=24,c,p=3,q=3]) -> (y: f32[b,o,u=17,v=15]) {
          y[b,o,u,v] = sum(c,p,q) x[b,c,u + p - 1,v + q - 1 | 0.0] * f[o,c,p,q]
        }""",
    "scaled": """
        kernel scaled(x: f16[a=6,b=5,c=21], g: f16[b]) -> (y: f16[c,a,b]) {
          y[c,a,b] = (x[a,b,c] // g[b]) * 0.7071067811865476
        }""",
    "cumulative": """
        kernel cumulative(x: f32[a=9,b=33]) -> (y: f32[a,b], i: i64[a,b]) {
          y[a,b] = scan sum(b) x[a,b]
          i[a,b] = argsort(b) x[a,b]
        }""",
    "window": """
        kernel window(x: f32[n=6,h=21,w=19]) -> (y: f32[n,u=11,v=10]) {
          y[n,u,v] = max(p=3,q=3) x[n,u * 2 + p - 1,v * 2 + q - 1 | -inf]
        }""",
}


def written(name: str) -> list[tuple[Emitter, Candidate]]:
    """What every rule of every target writes for a spec, with its default setting."""
    found = []
    for target in targets().values():
        asked = Asked(Task(parse_kernel(SPECS[name]), arch("gfx942")))
        for rule in target.emitters():
            if rule.supports(asked.canonical_task).ok:
                made = emit(asked, rule, rule.space(asked.canonical_task).default)
                assert made is not None
                found.append((rule, made))
    return found


@pytest.mark.parametrize("name", SPECS)
def test_every_rules_kernel_goes_into_a_frame_and_back(name: str) -> None:
    kernels = written(name)
    assert {c.target for _, c in kernels} == {"hip", "triton"}
    for rule, candidate in kernels:
        lifted = lift(candidate, rule)
        assert is_exact(lifted, candidate)
        assert lifted.witnesses > 0, rule.name
        assert all(is_exact(lifted, candidate) for _ in lifted.alike[:1])


def test_products_of_sizes_are_not_written_as_numbers() -> None:
    for rule, candidate in written("conv"):
        answer = lift(candidate, rule).answer
        for number in ("255", "1275", "2040", "6120", "510"):
            assert f" {number}" not in answer, (rule.name, number)


def test_long_constants_are_named_in_prompt_and_answer() -> None:
    rule, candidate = written("scaled")[0]
    assert "c0=0.7071067811865476" in prompt(Asked(candidate.task), candidate.target)
    assert "$c0" in lift(candidate, rule).answer


def test_operands_get_the_names_of_the_task() -> None:
    rule, candidate = next((r, c) for r, c in written("linear") if c.target == "triton")
    answer = lift(candidate, rule).answer
    theirs = Asked(Task(parse_kernel(SPECS["linear"]), arch("gfx942")))
    made = assemble(parse(answer), theirs, "triton", Origin("model", "1"))
    assert made.launches[-1].args[:3] == ("x", "w", "b")
    assert made.launches[-1].kernel == "linear" and "def linear(" in made.source
    assert "Launch: linear(x, w, b, y)" in made.source


def test_verdicts_of_earlier_tries_are_one_line_each() -> None:
    asked = Asked(Task(parse_kernel(SPECS["softmax"]), arch("gfx942")))
    text = prompt(asked, "hip", [Tried("rows", "compile", "KVC0502", "error: no\nmore")])
    assert text.splitlines()[-1] == "tried rows: compile KVC0502 error: no"


BROKEN = {
    "nothing": "",
    "prose": "Sure! Here is a kernel.\n\n```\nint main() {}\n```",
    "no body": "rows\nrun fused(a0,y0) 4 block 64\n\n",
    "no launch": 'rows\nset A=1\n\nextern "C" __global__ void fused() {}\n',
    "unknown operand": 'rows\nrun fused(a7,y0) 4 block 64\n\nextern "C" __global__ void fused() {}\n',
    "unknown size": 'rows\nrun fused(a0,y0) $i77 block 64\n\nextern "C" __global__ void fused() {}\n',
    "unknown helper": 'rows\nrun fused(a0,y0) 4 block 64\nuse magic\n\nextern "C" __global__ void fused() {}\n',
    "division by zero": 'rows\nrun fused(a0,y0) $cdiv(d0,0) block 64\n\nextern "C" __global__ void fused() {}\n',
    "huge": 'rows\nrun fused(a0,y0) $(d1*99999999999999*d1) block 64\n\nextern "C" __global__ void fused() {}\n',
    "open parenthesis": 'rows\nrun fused(a0,y0) 4 block 64\n\nextern "C" __global__ void fused() { $(d0 }\n',
    "no kernel": "rows\nrun fused(a0,y0) 4 block 64\n\nint x = $d0;\n",
    "no block": 'rows\nrun fused(a0,y0) 4\n\nextern "C" __global__ void fused() {}\n',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_whatever_is_no_frame_is_said_to_be_none(text: str) -> None:
    asked = Asked(Task(parse_kernel(SPECS["softmax"]), arch("gfx942")))
    with pytest.raises(NotAFrame):
        assemble(parse(text), asked, "hip", Origin("model", "1"))


def test_no_canonical_axis_is_called_like_a_dtype() -> None:
    names = [f"axis{n}" for n in range(70)]
    dims = ",".join(f"{n}=1" for n in names)
    spec = parse_kernel(
        f"kernel k(x: f32[{dims}]) -> (y: f32[{','.join(names)}]) {{\n  y[{','.join(names)}] = x[{','.join(names)}]\n}}"
    )
    axes = [s.name for s in canonical(spec).sizes]
    assert len(axes) == 70
    for dtype in DTYPES:
        assert dtype not in axes and not dtype.startswith(AXIS)


def test_an_offset_that_a_literal_and_a_stride_make_is_their_product() -> None:
    text = """
        kernel last(x: f32[a=5,b=101,c=3] strides(3,15,1)) -> (y: f32[a,c]) {
          y[a,c] = x[a,100,c]
        }"""
    asked = Asked(Task(parse_kernel(text), arch("gfx942")))
    for rule in targets()["hip"].emitters():
        if rule.supports(asked.canonical_task).ok:
            made = emit(asked, rule, rule.space(asked.canonical_task).default)
            assert made is not None
            answer = lift(made, rule).answer
            assert "1500" not in answer and "$(100*15" in answer


def test_a_prompt_may_ask_for_a_setting_and_leave_it_open() -> None:
    asked = Asked(Task(parse_kernel(SPECS["softmax"]), arch("gfx942")))
    wanted = prompt(asked, "hip", rank="good", wanted=setting("row_reduction", (("BLOCK", 256), ("WIDTH", 1))))
    assert wanted.endswith("with row_reduction BLOCK=256 WIDTH=1\n")
    assert without_setting(wanted) == prompt(asked, "hip", rank="good")

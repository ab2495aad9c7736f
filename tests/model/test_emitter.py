"""The learned emitter in the pipeline: verified like any other, rules behind it, no text that makes it crash."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Task, targets
from kvc.model.emitter import Budget, ModelEmitter
from kvc.model.instructions import instructions
from kvc.model.lift import emit, lift
from kvc.model.prompt import Asked
from kvc.model.writer import Recorded, SmallWriter
from kvc.pipeline import emitters_for, solve
from kvc.text import parse_kernel
from kvc.verify.judge import Bench
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Rejected, Verified

SPEC = """
kernel row_sum(x: f32[r=6,c=35], w: f32[c]) -> (y: f32[r]) {
  y[r] = sum(c) x[r,c] * w[c]
}"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with WorkerPool(1, 120.0) as pool:
        yield Bench(pool, "sim")


@pytest.fixture
def task() -> Task:
    return Task(parse_kernel(SPEC), arch("gfx942"))


def answer(task: Task, target: str) -> str:
    """A right answer: what the target's generic rule writes, lifted."""
    rule = targets()[target].emitters()[-1]
    asked = Asked(task)
    made = emit(asked, rule, rule.space(asked.canonical_task).default)
    assert made is not None
    return lift(made, rule).answer


@pytest.mark.parametrize("target", ["hip", "triton"])
def test_a_lifted_answer_verifies_after_a_useless_one(task: Task, target: str, bench: Bench) -> None:
    model = ModelEmitter("model", target, Recorded(("I cannot do that.", answer(task, target)), "0123"))
    artifact, attempts = solve(task, targets()[target], bench, None, [model])
    assert artifact is not None
    assert artifact.candidate.origin.emitter == "model" and artifact.candidate.origin.weights == "0123"
    first, second = (a.verdict for a in attempts)
    assert isinstance(first, Rejected) and first.stage == "propose" and first.diagnostic.code == "KVC0301"
    assert isinstance(second, Verified)


def test_the_verdict_is_shown_and_a_wrong_kernel_is_rejected(task: Task, bench: Bench) -> None:
    wrong = answer(task, "triton").replace("tl.fma(", "tl.fma(2.0 * ", 1)
    seen: list[str] = []

    class Watched(Recorded):
        def write(self, prompts, sampling, seeds):  # type: ignore[no-untyped-def]
            seen.extend(prompts)
            return super().write(prompts, sampling, seeds)

    assert wrong != answer(task, "triton")
    model = ModelEmitter("model", "triton", Watched((wrong, answer(task, "triton"))), Budget(turns=2))
    artifact, attempts = solve(task, targets()["triton"], bench, None, [model])
    assert artifact is not None and isinstance(attempts[0].verdict, Rejected)
    assert attempts[0].verdict.stage == "compare"
    assert "tried" not in seen[0] and f"compare {attempts[0].verdict.diagnostic.code}" in seen[1]


def test_rules_stand_behind_a_model_unless_some_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModelEmitter("model", "hip", Recorded(()))
    monkeypatch.setattr("kvc.pipeline.external_emitter", lambda name, _: made if name == "model" else None)
    hip = targets()["hip"]
    rules = [e.name for e in hip.emitters()]
    assert [e.name for e in emitters_for(hip, ("model",))] == ["model", *rules]
    assert [e.name for e in emitters_for(hip, ("model", "hip.rows"))] == ["model", "hip.rows"]
    assert [e.name for e in emitters_for(hip, ())] == rules
    with pytest.raises(KvcError, match="KVC0105"):
        emitters_for(hip, ("nothing",))


def test_symbolic_sizes_are_left_to_the_rules() -> None:
    spec = parse_kernel("kernel k<n in 1..64 hint 16>(x: f32[n]) -> (y: f32[n]) {\n  y[n] = x[n] + 1.0\n}")
    assert not ModelEmitter("model", "hip", Recorded(())).supports(Task(spec, arch("gfx942"))).ok


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "rows\n",
                "run fused(a0,y0) ",
                "$cdiv(d0,",
                "$(d1",
                ")",
                "4 block 64",
                "\n\n",
                "use Pack\n",
                "set A=1\n",
                'extern "C" __global__ void fused() {}',
                "scratch t f32 8\n",
                "lds $d0",
                "`",
                "$",
                "\x00",
                "é",
                "```\n",
            ]
        ),
        max_size=14,
    ).map("".join)
)
def test_any_text_is_a_candidate_or_a_rejection(text: str) -> None:
    asked = Asked(Task(parse_kernel(SPEC), arch("gfx942")))
    made = ModelEmitter("model", "hip", Recorded(())).read(text, asked)
    assert isinstance(made, Candidate | Rejected)


@pytest.mark.parametrize("target", ["hip", "triton"])
def test_the_example_that_other_models_are_shown_is_right(target: str, bench: Bench) -> None:
    shown = instructions(target).rpartition("Its answer:\n")[2].removesuffix("Your task:\n")
    spec = parse_kernel("kernel scale(x: f32[i=8,j=15], s: f32[i]) -> (y: f32[i,j]) {\n  y[i,j] = x[i,j] * s[i]\n}")
    model = ModelEmitter("model", target, Recorded((f"<think>hm</think>\n```cpp\n{shown}```\n",)))
    artifact, attempts = solve(Task(spec, arch("gfx942")), targets()[target], bench, None, [model])
    assert artifact is not None, attempts


def test_missing_weights_are_an_error_with_a_way_out(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(KvcError, match="KVC0101"):
        SmallWriter(tmp_path)


def test_first_answers_to_all_specs_of_a_model_are_written_in_one_call(bench: Bench) -> None:
    calls: list[int] = []

    class Side(Recorded):
        together = 4

        def write(self, prompts, sampling, seeds):  # type: ignore[no-untyped-def]
            calls.append(len(prompts))
            return [right if p.startswith("hip") and "d0=6" in p else "no kernel" for p in prompts]

    specs = [parse_kernel(SPEC), parse_kernel(SPEC.replace("r=6", "r=9"))]
    tasks = [Task(s, arch("gfx942")) for s in specs]
    right = answer(tasks[0], "hip")
    model = ModelEmitter("model", "hip", Side(()), Budget(turns=2))
    model.prepare(tasks, 0)
    assert calls == [2]
    assert isinstance(next(iter(model.propose(tasks[0], (), [], 0))), Candidate) and calls == [2]
    made = list(model.propose(tasks[1], (), [], 0))
    assert [isinstance(m, Rejected) for m in made] == [True, True] and calls == [2, 1]

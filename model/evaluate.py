"""How good a model is at writing kernels: no rule stands behind it here.

Pass@k of held-out specs with confidence intervals, compile rate, tokens, seconds, near-copies, and a table by class of
operation; and KernelBench problems whole: every kernel of a problem written by the model at the first try.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvc.model.train.reward import Judge, Judged, Outcome

if TYPE_CHECKING:
    from kvc.model.emitter import ModelEmitter


@dataclass(frozen=True)
class Question:
    """A spec to write a kernel for."""

    spec: str
    target: str
    arch: str
    op_class: str


@dataclass(frozen=True)
class Scored:
    """A question with the outcomes of its answers, in the order in which they were written."""

    question: Question
    outcomes: tuple[Outcome, ...]
    tokens: tuple[int, ...] = ()
    seconds: float = 0.0
    has_first: bool = True  # whether the first outcome is the greedy answer's

    @property
    def passes(self) -> int:
        return sum(o.correct for o in self.outcomes)


def wilson(passed: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if total == 0:
        return 0.0, 1.0
    p, n = passed / total, total
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def pass_at(k: int, total: int, passed: int) -> float:
    """The unbiased estimate of Pass@k from `total` answers of which `passed` are right (Chen et al., 2021)."""
    if total - passed < k:
        return 1.0
    return 1.0 - math.prod((total - passed - n) / (total - n) for n in range(k))


def bootstrap(values: Sequence[float], rounds: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a mean by resampling."""
    if not values:
        return 0.0, 1.0
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(rounds))
    return means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1]


def questions(rows: Iterable[dict[str, Any]], target: str, most: int, seed: int = 0) -> list[Question]:
    """Distinct held-out specs of a vault's rows for a target, at most `most`, drawn evenly."""
    found: dict[str, Question] = {}
    for row in rows:
        if row["split"] == "heldout" and row["target"] == target and row["status"] == "verified":
            found.setdefault(row["spec_hash"], Question(row["spec_text"], target, row["arch"], row["op_class"]))
    ordered = [found[h] for h in sorted(found)]
    random.Random(seed).shuffle(ordered)
    return ordered[:most]


@dataclass
class Report:
    """Figures of a set of scored questions. `by_class`: op class -> [passed at the first try, questions]."""

    questions: int = 0
    first: int = 0
    compiled: int = 0
    answers: int = 0
    pass_k: dict[int, float] = field(default_factory=dict)
    interval: tuple[float, float] = (0.0, 1.0)
    interval_k: dict[int, tuple[float, float]] = field(default_factory=dict)
    median_tokens: float = 0.0
    median_seconds: float = 0.0
    near_copies: int = 0
    verified: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    by_class: dict[str, list[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        low, high = self.interval
        lines = [
            f"{self.questions} specs: Pass@1 {100 * self.first / max(self.questions, 1):.1f} % "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f})"
        ]
        lines += [
            f"  Pass@{k} {100 * p:.1f} % ({100 * self.interval_k[k][0]:.1f} to {100 * self.interval_k[k][1]:.1f})"
            for k, p in sorted(self.pass_k.items())
            if k > 1
        ]
        lines.append(
            f"  answers that compile {100 * self.compiled / max(self.answers, 1):.1f} %; "
            f"median {self.median_tokens:.0f} tokens, {self.median_seconds:.1f} s; "
            f"near-copies of a rule {self.near_copies} of {self.verified} verified"
        )
        lines.append("  " + ", ".join(f"{stage} {n}" for stage, n in sorted(self.stages.items(), key=lambda i: -i[1])))
        width = max(map(len, self.by_class), default=0)
        lines += [
            f"  {name:<{width}}  {passed:>4} of {total}" for name, (passed, total) in sorted(self.by_class.items())
        ]
        return "\n".join(lines)


def report(rows: Sequence[Scored]) -> Report:
    """The figures of scored questions; the first answer of each is the greedy one."""
    made = Report(questions=len(rows))
    classes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    stages: dict[str, int] = defaultdict(int)
    for s in rows:
        made.first += s.outcomes[0].correct
        made.compiled += sum(o.compiled for o in s.outcomes)
        made.answers += len(s.outcomes)
        made.verified += s.passes
        made.near_copies += sum(o.copy for o in s.outcomes)
        classes[s.question.op_class][0] += s.outcomes[0].correct
        classes[s.question.op_class][1] += 1
        stages[_stage(s.outcomes[0])] += 1
    made.interval = wilson(made.first, made.questions)
    tries = min((len(s.outcomes) for s in rows), default=0)
    for k in (1, 2, 4, 5, 8):
        if k <= tries:
            values = [pass_at(k, len(s.outcomes), s.passes) for s in rows]
            made.pass_k[k], made.interval_k[k] = sum(values) / len(values), bootstrap(values)
    made.median_tokens = _median([t for s in rows for t in s.tokens])
    made.median_seconds = _median([s.seconds for s in rows])
    made.stages, made.by_class = dict(stages), {k: list(v) for k, v in classes.items()}
    return made


def _stage(o: Outcome) -> str:
    return o.stage if o.correct else f"{o.stage} {o.code}"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2]) if ordered else 0.0


def evaluate(
    emitter: ModelEmitter, asked: Sequence[Question], judge: Judge, samples: int = 1, seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Scored]:  # fmt: skip
    """Write and judge: the first answer greedy, the others sampled, all from the plain prompt (no verdict is shown)."""
    from kvc.arch import arch
    from kvc.emitter import Task
    from kvc.model.emitter import seed_of
    from kvc.model.prompt import Asked
    from kvc.text import parse_kernel

    warm = replace(emitter.sampling, temperature=max(emitter.sampling.temperature, 0.1))
    cold = replace(warm, temperature=0.0)
    for number, question in enumerate(asked):
        task = Asked(Task(parse_kernel(question.spec), arch(question.arch)))
        text, started = emitter.text(task, ()), time.perf_counter()
        texts = emitter.write([text], cold, [seed_of(seed, task.task, 0)])
        seconds = time.perf_counter() - started
        seeds = [seed_of(seed, task.task, n) for n in range(1, samples)]
        texts += emitter.write([text] * (samples - 1), warm, seeds) if samples > 1 else []
        answers = [Judged(question.spec, question.target, question.arch, t, seed, copies=True) for t in texts]
        made = Scored(question, tuple(judge.outcomes(answers)), tuple(emitter.count(t) for t in texts), seconds)
        say(f"{number + 1}/{len(asked)} {question.op_class}: {_stage(made.outcomes[0])}, {seconds:.1f} s")
        yield made


def judge_written(rows: Sequence[dict[str, Any]], judge: Judge, seed: int = 0) -> list[Scored]:
    """Score answers that were written elsewhere: rows with spec, target, arch, op_class, text and tokens, in any order
    of `sample`. A row that was judged there (`outcome`) keeps its verdict."""
    open_ = [r for r in rows if "outcome" not in r]
    answers = [Judged(r["spec"], r["target"], r["arch"], r["text"], seed, copies=True) for r in open_]
    found = {id(r): o for r, o in zip(open_, judge.outcomes(answers), strict=True)}
    return scored([(r, found[id(r)] if id(r) in found else Outcome(**r["outcome"])) for r in rows])


def scored(rows: Sequence[tuple[dict[str, Any], Outcome]]) -> list[Scored]:
    """Rows of answers and their outcomes by question; of each the answers in order of `sample`, 0 the greedy one."""
    groups: dict[Question, list[tuple[int, Outcome, int]]] = {}
    for row, outcome in rows:
        question = Question(row["spec"], row["target"], row["arch"], row["op_class"])
        groups.setdefault(question, []).append((row.get("sample", 0), outcome, row["tokens"]))
    ordered = {q: sorted(members, key=lambda m: m[0]) for q, members in groups.items()}
    return [
        Scored(q, tuple(m[1] for m in ms), tuple(m[2] for m in ms), has_first=ms[0][0] == 0)
        for q, ms in ordered.items()
    ]


@dataclass(frozen=True)
class Problem:
    """A KernelBench problem: whether every kernel of it passed at the first try, and where it fell short."""

    name: str
    kernels: int
    passed: int
    problem: str = ""

    @property
    def whole(self) -> bool:
        return self.kernels > 0 and self.passed == self.kernels and not self.problem


def problem(
    path: str, emitter: ModelEmitter, target: str, arch_name: str, judge: Judge, mode: str = "train"
) -> Problem:
    """One problem, captured as the suite runs it, cut as translation does, every distinct spec asked once."""
    from kvc.commands import captured_model
    from kvc.diagnostics import KvcError
    from kvc.emitter import composites
    from kvc.emitter import target as find
    from kvc.pipeline_graph import plan
    from kvc.text import print_kernel
    from kvc.vault.normalize import op_class

    name = path.rpartition("/")[2].removesuffix(".py")
    try:
        captured, _ = captured_model(path, mode, None)
        cut = plan(captured.graph, composites(find(target)))
    except KvcError as error:
        return Problem(name, 0, 0, str(error))
    if cut.fallbacks:
        return Problem(name, len(cut.kernels), 0, f"{cut.fallbacks[0].node.op} runs eagerly")
    asked = [Question(print_kernel(s), target, arch_name, op_class(s)) for s in cut.kernels]
    passed = 0
    for answered in evaluate(emitter, asked, judge):
        first = answered.outcomes[0]
        if not first.correct:
            return Problem(
                name, len(asked), passed, f"{answered.question.op_class}: {_stage(first)} {first.message[:100]}"
            )
        passed += 1
    return Problem(name, len(asked), passed)

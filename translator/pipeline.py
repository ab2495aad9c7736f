"""The pipeline: from a captured model to a verified translation.

capture -> graph passes -> partition -> for each distinct kernel: propose, store look-up, gates -> assemble -> verify
the whole model -> write. The graph passes are data in kvc.pipeline_graph, the gates are the stages of kvc.verify.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvc.arch import CDNA, ArchSpec
from kvc.diagnostics import KvcError
from kvc.emitter import NUMERICS, Batched, Candidate, Emitter, Target, Task, composites, external_emitter
from kvc.kernel import KernelSpec
from kvc.logs import tell
from kvc.patterns import match, why_not
from kvc.plan import Fallback, Invoke, Plan
from kvc.store import Store, key_of
from kvc.verify.judge import Bench, judge
from kvc.verify.oracle import Examiner
from kvc.verify.verdict import Artifact, Rejected, Verdict, Verified

if TYPE_CHECKING:
    from kvc.frontends.fx.capture import Captured
    from kvc.library import LibraryChoice
    from kvc.verify.model import ModelEvidence

#: Gives a task an artifact that exists already, or None, with what was tried for it.
Supply = Callable[[Task], tuple[Artifact | None, list["Attempt"]]]

#: Called with (event, details) as work goes on: "stage" {"name"}, "kernel" {"index", "name", "state", ...}.
Listener = Callable[[str, dict[str, Any]], None]


def silent(event: str, details: dict[str, Any]) -> None:
    """A listener that says nothing."""


@dataclass(frozen=True)
class Options:
    """Settings of a translation. `executor` is resolved ("auto" is not one); `emitters` empty means all of the
    target's, in its order; `jobs` worker processes."""

    executor: str
    numerics: str = "strict"
    seed: int = 0
    strict: bool = False
    emitters: tuple[str, ...] = ()
    jobs: int = 2
    timeout_s: float = 300.0
    library: bool = False  # whether library calls may take kernels' places (kvc.library)

    def __post_init__(self) -> None:
        if self.numerics not in NUMERICS:
            raise KvcError("KVC0106", f"numerics {self.numerics!r}", hint=f"one of: {', '.join(NUMERICS)}")
        if self.jobs < 1:
            raise KvcError("KVC0106", f"{self.jobs} jobs", hint="at least 1")


@dataclass(frozen=True)
class Attempt:
    """A candidate that was proposed for a kernel, and what became of it."""

    emitter: str
    schedule: str
    verdict: Verdict | None  # None: the emitter does not support the kernel
    reason: str = ""
    cached: bool = False


@dataclass(frozen=True)
class Translation:
    """A model with a verified artifact for each distinct kernel (`artifacts[i]` belongs to `plan.kernels[i]`)."""

    captured: Captured | None  # None where it was read back from a written folder
    plan: Plan
    target: Target
    arch: ArchSpec
    options: Options
    artifacts: tuple[Artifact, ...]
    attempts: tuple[tuple[Attempt, ...], ...] = ()
    evidence: tuple[ModelEvidence, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    tuning: dict[str, dict[str, Any]] = field(default_factory=dict)  # by kernel name: what kvc.autotune tried
    library: tuple[LibraryChoice, ...] = ()  # one a kernel, where libraries were allowed

    @property
    def library_calls(self) -> dict[int, LibraryChoice]:
        """The library calls that take kernels' places, by kernel."""
        return {n: choice for n, choice in enumerate(self.library) if choice.chosen}

    @property
    def origins(self) -> tuple[tuple[str, ...], ...]:
        """For each distinct kernel, where in the model its operators stand."""
        found: list[dict[str, None]] = [{} for _ in self.plan.kernels]
        for step in self.plan.steps:
            if isinstance(step, Invoke):
                found[step.kernel].update(dict.fromkeys(str(loc) for loc in step.origin))
        return tuple(tuple(f) for f in found)


class NotVerified(KvcError):
    """A kernel or model that no candidate could make pass: exit code 1, not 2. `attempts` say what was tried."""

    def __init__(self, code: str, message: str, attempts: Sequence[Attempt] = (), hint: str = "", **details: Any):
        super().__init__(code, message, hint=hint, **details)
        self.attempts = tuple(attempts)


def emitters_for(target: Target, names: tuple[str, ...]) -> list[Emitter]:
    """The target's emitters in order of preference, restricted to `names` where given. External ones (models) come
    first, and all rules stand behind them unless some rules are named as well. KVC0105 for an unknown name."""
    known = {e.name: e for e in target.emitters()}
    external: list[Emitter] = []
    for name in names:
        made = external_emitter(name, target.name) if name not in known else None
        if made is not None:
            external.append(made)
        elif name not in known:
            raise KvcError(
                "KVC0105", f"target {target.name} has no emitter {name!r}", hint=f"one of: {', '.join(known)}"
            )
    rules = [e for e in known.values() if e.name in names]
    return [*external, *(rules or ([] if names and not external else known.values()))]


def solve(
    task: Task, target: Target, bench: Bench, store: Store | None, emitters: Sequence[Emitter]
) -> tuple[Artifact | None, list[Attempt]]:
    """The first verified candidate of the first emitter that has one, with its default knobs; and all attempts."""
    examiner = Examiner(task.spec, bench.seed)
    attempts: list[Attempt] = []
    history: list[tuple[Candidate, Verdict]] = []
    for emitter in emitters:
        support = emitter.supports(task)
        if not support.ok:
            attempts.append(Attempt(emitter.name, "", None, support.reason))
            continue
        space = emitter.space(task)
        if not space.configurations:
            attempts.append(Attempt(emitter.name, "", None, f"no setting of its knobs fits {task.arch.name}"))
            continue
        for candidate in emitter.propose(task, space.default, history, bench.seed):
            if isinstance(candidate, Rejected):  # a model's answer that is no kernel
                attempts.append(Attempt(emitter.name, "", candidate))
                continue
            verdict, cached = verdict_of(candidate, target, bench, store, examiner)
            history.append((candidate, verdict))
            attempts.append(Attempt(emitter.name, candidate.schedule, verdict, cached=cached))
            if isinstance(verdict, Verified):
                return Artifact(candidate, verdict), attempts
    return None, attempts


def verdict_of(
    candidate: Candidate, target: Target, bench: Bench, store: Store | None, examiner: Examiner
) -> tuple[Verdict, bool]:
    """The verdict on a candidate, and whether it came from the store."""
    if store is None:
        return judge(candidate, bench, examiner), False
    key = key_of(candidate, target, bench.executor, bench.seed)
    known = store.get(key)
    if known is not None:
        return known, True
    verdict = judge(candidate, bench, examiner)
    store.put(key, verdict)
    return verdict, False


def failure(spec_name: str, attempts: Sequence[Attempt]) -> KvcError:
    """What to say when no emitter had a verified candidate: the most telling rejection, or KVC0401 when none tried."""
    rejected = [a for a in attempts if isinstance(a.verdict, Rejected)]
    if not rejected:
        reasons = "; ".join(f"{a.emitter}: {a.reason}" for a in attempts) or "no emitter was asked"
        return KvcError("KVC0401", f"{spec_name} ({reasons})")
    last = rejected[-1]
    assert isinstance(last.verdict, Rejected)
    found = last.verdict.diagnostic
    message = f"kernel {spec_name} ({last.emitter}, {last.schedule}) failed at {last.verdict.stage}: {found.message}"
    return NotVerified(found.code, message, attempts, found.hint, **found.details)


def translate_kernels(
    plan: Plan,
    target: Target,
    arch: ArchSpec,
    options: Options,
    bench: Bench,
    store: Store | None,
    listen: Listener,
    supply: Supply | None = None,
) -> tuple[tuple[Artifact, ...], tuple[tuple[Attempt, ...], ...]]:
    """An artifact for each distinct kernel, worked out on `options.jobs` threads (each drives a worker process).
    Kernels that `supply` has are taken from there. Raises KVC0401 or NotVerified for the first kernel, in plan order,
    that has none."""
    emitters = emitters_for(target, options.emitters)
    tasks = [Task(spec, arch, options.numerics) for spec in plan.kernels]
    if isinstance(emitters[0], Batched):
        emitters[0].prepare(tasks, bench.seed)

    def one(index: int) -> tuple[Artifact | None, list[Attempt]]:
        spec = plan.kernels[index]
        listen("kernel", {"index": index, "name": spec.name, "state": "start"})
        started = time.monotonic()
        artifact, attempts = supply(tasks[index]) if supply is not None else (None, [])
        if artifact is None:
            artifact, tried = solve(tasks[index], target, bench, store, emitters)
            attempts = [*attempts, *tried]
        state = "verified" if artifact is not None else "rejected"
        tell("verdicts", lambda: f"{spec.name}: {attempts_text(attempts)}")
        if artifact is not None:
            tell("sources", lambda: artifact.candidate.source)
        seconds = time.monotonic() - started
        listen(
            "kernel",
            {"index": index, "name": spec.name, "state": state, "attempts": attempts, "seconds": seconds},
        )
        return artifact, attempts

    with ThreadPoolExecutor(options.jobs) as threads:
        futures: list[Future[tuple[Artifact | None, list[Attempt]]]] = [
            threads.submit(one, i) for i in range(len(plan.kernels))
        ]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
        for future in futures:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                raise error
    results = [future.result() for future in futures]
    artifacts = []
    for spec, (artifact, attempts) in zip(plan.kernels, results, strict=True):
        if artifact is None:
            raise failure(spec.name, attempts)
        artifacts.append(artifact)
    return tuple(artifacts), tuple(tuple(attempts) for _, attempts in results)


def attempts_text(attempts: Sequence[Attempt]) -> str:
    """All that was tried for a kernel, a line each."""
    lines = []
    for a in attempts:
        if a.verdict is None:
            what = a.reason
        elif isinstance(a.verdict, Verified):
            what = f"{a.schedule}: verified" + (" (from the store)" if a.cached else "")
        else:
            what = f"{a.schedule}: rejected at {a.verdict.stage}: {a.verdict.diagnostic}"
        lines.append(f"\n  {a.emitter}: {what}")
    return "".join(lines)


def tell_plan(plan: Plan) -> None:
    """Log a plan under the topics that ask for it (KVC_LOGS)."""
    from kvc.explain import explain
    from kvc.text import print_graph, print_kernel

    tell("graph", lambda: print_graph(plan.graph))
    tell("plan", lambda: "\n" + explain(plan))
    for spec in plan.kernels:
        tell("specs", lambda spec=spec: print_kernel(spec))  # type: ignore[misc]
        tell("schedules", lambda spec=spec: schedule_text(spec))  # type: ignore[misc]


def schedule_text(spec: KernelSpec) -> str:
    """The pattern of a spec, and the reasons against the more specific ones."""
    lines = [f"{spec.name}: {type(match(spec)).__name__.lower()}"]
    return "\n".join([*lines, *(f"  no {name}: {reason}" for name, reason in why_not(spec).items())])


def check_arch(arch: ArchSpec) -> None:
    """KVC0105 for a GPU that kernels are not written for."""
    if arch.vendor != "amd":
        raise KvcError("KVC0105", f"{arch.name} is no translation target", hint=f"one of: {', '.join(CDNA)}")


def check_fallbacks(plan: Plan, strict: bool) -> None:
    """KVC0203 for the first fallback under `--strict`."""
    if strict and plan.fallbacks:
        first: Fallback = plan.fallbacks[0]
        named = first.reason if first.reason.startswith(first.node.op) else f"{first.node.op}: {first.reason}"
        raise KvcError(
            "KVC0203",
            named,
            first.node.loc,
            hint="leave out --strict to run this operator eagerly, or rewrite it with supported ones",
        )


def translate(
    captured: Captured,
    target: Target,
    arch: ArchSpec,
    options: Options,
    *,
    bench: Bench,
    store: Store | None = None,
    listen: Listener = silent,
    supply: Supply | None = None,
) -> Translation:
    """Cut, write and verify every kernel of a captured model; the whole model is verified by kvc.package when it is
    written. Raises KvcError (cannot be done) or NotVerified (no candidate passed)."""
    from kvc.pipeline_graph import plan as plan_graph

    check_arch(arch)
    seconds = {}
    started = time.monotonic()
    listen("stage", {"name": "partition"})
    plan = plan_graph(captured.graph, composites(target))
    tell_plan(plan)
    check_fallbacks(plan, options.strict)
    seconds["partition"] = time.monotonic() - started
    listen("stage", {"name": "kernels", "total": len(plan.kernels), "steps": len(plan.steps)})
    started = time.monotonic()
    artifacts, attempts = translate_kernels(plan, target, arch, options, bench, store, listen, supply)
    seconds["kernels"] = time.monotonic() - started
    return Translation(captured, plan, target, arch, options, artifacts, attempts, seconds=seconds)

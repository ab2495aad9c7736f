"""The judge: takes a candidate through every gate, cheap before dear, and gives a verdict with its evidence.

Lint, compilation, resource check and execution happen in a worker process; the oracle and every comparison here, in
a process that no candidate ever enters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, Compiled
from kvc.executor import Execution, LaunchPlan
from kvc.kernel import KernelSpec, Scatter
from kvc.verify.buffers import bind, buffer_of, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.oracle import Examiner, Reference
from kvc.verify.pool import WorkerPool
from kvc.verify.ties import replay, tie_statements
from kvc.verify.verdict import Evidence, OutputError, Rejected, Verdict, Verified

if TYPE_CHECKING:
    import numpy as np

#: Part of the store's key: raise it when a check is added or sharpened.
CHECKS_VERSION = "1"

#: What each verified kernel went through, in the words of the lock file.
CHECKS = (
    "lint", "compile", "resources", "guard bands", "outputs written", "inputs unchanged", "structure",
    "non-finite parity", "tolerance", "working error", "bias", "degenerate reference", "deterministic",
)  # fmt: skip

#: Specs with more points than this (multiply-adds of a contraction) are run on the first HEAVY_SETS input sets only.
HEAVY_POINTS = 1 << 25
HEAVY_SETS = 3


@dataclass(frozen=True)
class Bench:
    """Where candidates are judged: the workers, the executor (by name, "auto" resolved) and the seed."""

    pool: WorkerPool
    executor: str
    seed: int = 0


class _Reject(Exception):
    def __init__(self, stage: str, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.verdict = Rejected(stage, diagnostic)


def points(spec: KernelSpec) -> int:
    """Points of the largest iteration domain of a spec."""
    return max((math.prod(spec.extent(a) for a in (*s.axes, *s.inner_axes)) for s in spec.body), default=0)


def judge(candidate: Candidate, bench: Bench, examiner: Examiner | None = None) -> Verdict:
    """Rejected by the first gate that objects, or Verified by all. KvcError only for what is no fault of the
    candidate: a missing toolchain (KVC0501) or device (KVC0601, KVC0602)."""
    try:
        return _judge(candidate, bench, examiner or Examiner(candidate.task.spec, bench.seed))
    except _Reject as rejection:
        return rejection.verdict


def _judge(candidate: Candidate, bench: Bench, examiner: Examiner) -> Verdict:
    spec, arch = candidate.task.spec, candidate.task.arch
    _check_launches(candidate, arch)
    compiled = _prepare(candidate, bench.pool)
    plans = launch_plans(candidate, compiled)
    sets = examiner.input_sets[: HEAVY_SETS if points(spec) > HEAVY_POINTS else None]
    errors: list[OutputError] = []
    first: dict[str, np.ndarray] = {}
    counters: dict[str, Any] = {}
    for name in sets:
        reference = examiner.reference(name)
        execution = _run(candidate, plans, reference, bench, bench.seed)
        errors += _compare(candidate, execution, reference, examiner)
        if not first:
            first, counters = execution.buffers, execution.evidence
    if _must_repeat(spec):
        again = _run(candidate, plans, examiner.reference(sets[0]), bench, bench.seed + 1)
        _check_deterministic(spec, first, again.buffers)
    evidence = Evidence(
        executor=bench.executor,
        arch=arch.name,
        seed=bench.seed,
        checks=CHECKS if _must_repeat(spec) else CHECKS[:-1],
        input_sets=sets,
        errors=_worst(errors),
        resources=compiled.resources,
        counters=counters,
        warnings=tuple(
            str(Diagnostic("KVC0707", f"{name} is nearly constant: a constant would pass as well"))
            for name in examiner.degenerate
        ),
    )
    return Verified(evidence, compiled)


def _check_launches(candidate: Candidate, arch: ArchSpec) -> None:
    """What can be seen before anything is compiled."""
    spec = candidate.task.spec
    known = {*spec.operand, *(s.name for s in candidate.workspace), *(f"#{s.name}" for s in spec.sizes)}
    for launch in candidate.launches:
        threads = math.prod(launch.block)
        if threads > arch.max_threads:
            text = f"{launch.kernel}: {threads:,} threads a workgroup of {arch.max_threads:,}"
            raise _Reject("resources", Diagnostic("KVC0402", text, hint="use a smaller workgroup"))
        if launch.dynamic_lds > arch.lds_bytes:
            text = f"{launch.kernel}: LDS {launch.dynamic_lds:,} B of {arch.lds_bytes:,} B"
            raise _Reject("resources", Diagnostic("KVC0402", text, hint="use smaller tiles"))
        for name in launch.args:
            if name not in known:
                text = f"{launch.kernel} takes {name}, which is neither operand nor workspace"
                raise _Reject("propose", Diagnostic("KVC0302", text))


def _prepare(candidate: Candidate, pool: WorkerPool) -> Compiled:
    try:
        prepared = pool.prepare(candidate)
    except KvcError as error:
        if error.code == "KVC0604":
            raise _Reject("compile", error.diagnostic) from None
        raise
    if isinstance(prepared, Rejected):
        raise _Reject(prepared.stage, prepared.diagnostic)
    missing = [launch.kernel for launch in candidate.launches if launch.kernel not in prepared.objects]
    if missing:
        raise _Reject("compile", Diagnostic("KVC0502", f"the source defines no kernel {missing[0]}"))
    return prepared


def _run(candidate: Candidate, plans: list[LaunchPlan], reference: Reference, bench: Bench, seed: int) -> Execution:
    """One run on fresh buffers; inputs must come back as they went in."""
    spec = candidate.task.spec
    buffers, fresh = bind(candidate, reference.inputs)
    where = {"executor": bench.executor, "arch": candidate.task.arch.name}
    try:
        execution = bench.pool.execute(plans, buffers, outputs=fresh, seed=seed, **where)
    except KvcError as error:
        if error.code in ("KVC0601", "KVC0602", "KVC0501"):
            raise
        found = error.diagnostic
        details = {**found.details, "input_set": reference.name}
        raise _Reject("execute", replace(found, details=details)) from None
    written = {buffer_of(spec, o.name) for o in spec.outputs}
    for operand in spec.inputs:
        if operand.name not in written and (execution.buffers[operand.name] != buffers[operand.name]).any():
            raise _Reject("execute", Diagnostic("KVC0703", f"{operand.name} holds other bytes after the run"))
    return execution


def _compare(candidate: Candidate, execution: Execution, reference: Reference, examiner: Examiner) -> list[OutputError]:
    spec = candidate.task.spec
    got = outputs_of(spec, execution.buffers)
    oracle, working = reference.oracle, reference.working
    ties = [s.target for s in tie_statements(spec)]
    if any(bool((got[name] != oracle[name]).any()) for name in ties):
        replayed = replay(spec, reference.inputs, got)
        if replayed.diagnostic is not None:
            raise _Reject("compare", replayed.diagnostic)
        oracle, working = replayed.oracle, replayed.working
    errors = []
    for out in spec.outputs:
        result = compare(
            out.name, out.dtype, got[out.name], oracle[out.name], working[out.name], reference.probe[out.name],
            growth=examiner.growth, input_set=reference.name,
        )  # fmt: skip
        if result.diagnostic is not None:
            raise _Reject("compare", result.diagnostic)
        errors.append(result.error)
    return errors


def _worst(errors: list[OutputError]) -> tuple[OutputError, ...]:
    """For each output the largest error among the well-conditioned input sets (among all, where there is none)."""
    worst = {}
    for name in dict.fromkeys(e.output for e in errors):
        mine = [e for e in errors if e.output == name]
        well = [e for e in mine if e.allowed <= e.tolerance]
        worst[name] = max(well or mine, key=lambda e: e.error)
    return tuple(worst.values())


def _must_repeat(spec: KernelSpec) -> bool:
    """A sum by atomics may differ in its last bits from run to run; everything else is bitwise the same."""
    return not any(isinstance(s.over, Scatter) and s.over.op == "sum" and s.dtype.is_float for s in spec.body)


def _check_deterministic(spec: KernelSpec, first: dict[str, np.ndarray], again: dict[str, np.ndarray]) -> None:
    for out in spec.outputs:
        name = buffer_of(spec, out.name)
        differ = int((first[name] != again[name]).sum())
        if differ:
            text = f"{differ:,} bytes of {out.name} depend on the order in which waves run"
            raise _Reject("determinism", Diagnostic("KVC0705", text, hint="look for a race or uninitialised LDS"))

"""The judge: takes a candidate through every gate, cheap before dear, and gives a verdict with its evidence.

Lint, compilation, resource check and execution happen in a worker process; the oracle and every comparison here, in
a process that no candidate ever enters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, Compiled, target
from kvc.executor import Execution, LaunchPlan
from kvc.kernel import KernelSpec, Operand, Scatter, Size
from kvc.verify.buffers import base_name, bind, buffer_of, launch_plans, outputs_of
from kvc.verify.compare import Comparison, compare
from kvc.verify.likeness import source_hash
from kvc.verify.oracle import Examiner, Reference
from kvc.verify.pool import WorkerPool
from kvc.verify.roundings import left_out
from kvc.verify.ties import replay, tie_statements
from kvc.verify.verdict import Evidence, OutputError, Rejected, Verdict, Verified, worst_errors

if TYPE_CHECKING:
    import numpy as np
    import torch

#: Part of the store's key: raise it when a check is added or sharpened.
CHECKS_VERSION = "4"

#: What each verified kernel went through, in the words of the lock file.
CHECKS = (
    "lint", "compile", "resources", "guard bands", "outputs written", "inputs unchanged", "structure",
    "non-finite parity", "tolerance", "working error", "bias", "roundings", "degenerate reference", "deterministic",
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


def judge(
    candidate: Candidate,
    bench: Bench,
    examiner: Examiner | None = None,
    *,
    known: Collection[str] = (),
    only: str = "",
) -> Verdict:
    """Rejected by the first gate that objects, or Verified by all.

    `known` are hashes (kvc.verify.likeness) of sources that do not count again; `only` runs a single input set, to see
    a rejection once more. KvcError only for what is no fault of the candidate: a missing toolchain (KVC0501) or device
    (KVC0601, KVC0602), an input set that the spec has not (KVC0106).
    """
    try:
        return _judge(candidate, bench, examiner or Examiner(candidate.task.spec, bench.seed), known, only)
    except _Reject as rejection:
        return rejection.verdict


def _judge(candidate: Candidate, bench: Bench, examiner: Examiner, known: Collection[str], only: str) -> Verdict:
    spec, arch = candidate.task.spec, candidate.task.arch
    _check_new(candidate, known)
    _check_launches(candidate, arch)
    compiled = _prepare(candidate, bench.pool)
    plans = launch_plans(candidate, compiled)
    _check_lds(plans, arch)
    sets = input_sets(spec, examiner, bench.seed, only)
    errors: list[OutputError] = []
    first: dict[str, np.ndarray] = {}
    counters: dict[str, Any] = {}
    for name in sets:
        reference = examiner.reference(name)
        execution = _run(candidate, plans, reference, bench, bench.seed)
        errors += _compare(spec, outputs_of(spec, execution.buffers), reference, examiner)
        if not first:
            first, counters = execution.buffers, execution.evidence
    _check_sizes(candidate, compiled, bench)
    if _must_repeat(spec):
        # The first set again, last and on fresh buffers: nothing may be remembered from the calls in between.
        again = _run(candidate, plans, examiner.reference(sets[0]), bench, bench.seed + 1)
        _check_deterministic(spec, first, again.buffers)
    evidence = Evidence(
        executor=bench.executor,
        arch=arch.name,
        seed=bench.seed,
        checks=CHECKS if _must_repeat(spec) else CHECKS[:-1],
        input_sets=sets,
        errors=worst_errors(errors),
        resources=compiled.resources,
        counters=counters,
        warnings=tuple(
            str(Diagnostic("KVC0707", f"{name} is nearly constant: a constant would pass as well"))
            for name in examiner.degenerate
        ),
    )
    return Verified(evidence, compiled)


def input_sets(spec: KernelSpec, examiner: Examiner, seed: int, only: str = "") -> tuple[str, ...]:
    """The sets to run, in order: the first one first, the others in an order that the seed decides, so that a kernel
    cannot know what comes. KVC0106 for a set that there is none of."""
    sets = examiner.input_sets
    if only:
        if only not in sets:
            raise KvcError("KVC0106", f"no input set {only!r}", hint=f"one of: {', '.join(sets)}")
        return (only,)
    turn = seed % max(len(sets) - 1, 1)
    sets = (*sets[:1], *sets[1 + turn :], *sets[1 : 1 + turn])
    return sets[: HEAVY_SETS if points(spec) > HEAVY_POINTS else None]


def _check_new(candidate: Candidate, known: Collection[str]) -> None:
    if known and source_hash(candidate.source, target(candidate.target).suffix) in known:
        text = "but for names, layout and comments it is a source that was judged before"
        raise _Reject("propose", Diagnostic("KVC0712", text, hint="propose another schedule"))


def _check_lds(plans: list[LaunchPlan], arch: ArchSpec) -> None:
    """What a compiler's metadata says beside the launch: static LDS, and what Triton asks for."""
    for plan in plans:
        if plan.dynamic_lds > arch.lds_bytes:
            text = f"{plan.kernel}: LDS {plan.dynamic_lds:,} B of {arch.lds_bytes:,} B"
            raise _Reject("resources", Diagnostic("KVC0402", text, hint="use smaller tiles"))


#: Sizes of a symbolic axis that are tried beside its hint: below a wave, primes, one around a wave, beyond the hint.
HIDDEN_SIZES = (1, 7, 63, 65, 127)


def hidden_specs(spec: KernelSpec) -> list[KernelSpec]:
    """Specs with other sizes for the symbolic axes, within their bounds and multiples; [] where all are static. The
    stated grid must serve every size of the range."""
    if spec.is_static:
        return []
    symbolic = [s for s in spec.sizes if s.size is None]
    found: dict[tuple[int, ...], KernelSpec] = {}
    trials = [*((n,) * len(symbolic) for n in HIDDEN_SIZES), tuple(2 * s.typical + 1 for s in symbolic)]
    trials += [tuple(HIDDEN_SIZES[(at + 2) % len(HIDDEN_SIZES)] for at in range(len(symbolic)))]
    for trial in trials:
        chosen = tuple(_feasible(s, n) for s, n in zip(symbolic, trial, strict=True))
        sizes = {s.name: replace(s, hint=n) for s, n in zip(symbolic, chosen, strict=True)}
        other = replace(spec, sizes=tuple(sizes.get(s.name, s) for s in spec.sizes))
        if chosen != tuple(s.typical for s in symbolic) and points(other) <= HEAVY_POINTS:
            found.setdefault(chosen, other)
    return list(found.values())


def _feasible(size: Size, wanted: int) -> int:
    """The multiple within the bounds that is closest to what is wanted."""
    low = -(-max(size.low, 1) // size.multiple) * size.multiple
    high = max(size.high // size.multiple * size.multiple, low)
    return min(max(-(-wanted // size.multiple) * size.multiple, low), high)


def _check_sizes(candidate: Candidate, compiled: Compiled, bench: Bench) -> None:
    """The same code object and launches on sizes that the source does not name."""
    for spec in hidden_specs(candidate.task.spec):
        other = replace(candidate, task=replace(candidate.task, spec=spec))
        examiner = Examiner(spec, bench.seed)
        reference = examiner.reference(examiner.input_sets[0])
        try:
            execution = _run(other, launch_plans(other, compiled), reference, bench, bench.seed)
            _compare(spec, outputs_of(spec, execution.buffers), reference, examiner)
        except _Reject as rejection:
            inner = rejection.verdict
            sizes = ", ".join(f"{s.name}={s.typical}" for s in spec.sizes if s.size is None)
            text = f"{sizes}: {inner.diagnostic.code}: {inner.diagnostic.message}"
            details = {**inner.diagnostic.details, "sizes": {s.name: s.typical for s in spec.sizes if s.size is None}}
            hint = "the stated grid must serve every size: take extents from the arguments, and stride over the grid"
            raise _Reject(inner.stage, Diagnostic("KVC0711", text, None, hint, details)) from None


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
    try:
        buffers, fresh = bind(candidate, reference.inputs)
    except KvcError as error:
        raise _Reject("propose", error.diagnostic) from None
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
        if operand.name in written:
            continue
        for part in (key for key in buffers if base_name(key) == operand.name):
            if (execution.buffers[part] != buffers[part]).any():
                raise _Reject("execute", Diagnostic("KVC0703", f"{part} holds other bytes after the run"))
    return execution


def compare_outputs(
    spec: KernelSpec, got: Mapping[str, torch.Tensor], reference: Reference, examiner: Examiner
) -> list[OutputError] | Rejected:
    """The errors of outputs in logical shape against a reference, or the rejection: what kernels are held to, for what
    is no kernel."""
    try:
        return _compare(spec, dict(got), reference, examiner)
    except _Reject as rejection:
        return rejection.verdict


def _compare(
    spec: KernelSpec, got: dict[str, torch.Tensor], reference: Reference, examiner: Examiner
) -> list[OutputError]:
    import torch

    oracle, working = reference.oracle, reference.working
    ties = [s.target for s in tie_statements(spec)]
    if any(bool((got[name] != oracle[name]).any()) for name in ties):
        replayed = replay(spec, reference.inputs, got)
        if replayed.diagnostic is not None:
            raise _Reject("compare", _placed(replayed.diagnostic, reference.name))
        oracle, working = replayed.oracle, replayed.working

    def compared(out: Operand, result: torch.Tensor) -> Comparison:
        return compare(
            out.name, out.dtype, result, oracle[out.name], working[out.name], reference.probe[out.name],
            growth=examiner.growth_on(reference.name), input_set=reference.name,
            overflowing=lambda: examiner.overflowing(reference)[out.name],
        )  # fmt: skip

    errors = []
    for out in spec.outputs:
        result = compared(out, got[out.name])
        if result.diagnostic is not None and out.name in (undefined := examiner.undefined(reference)):
            mine = got[out.name]
            result = compared(out, torch.where(undefined[out.name], oracle[out.name].to(mine.dtype), mine))
        if result.diagnostic is not None and result.diagnostic.code == "KVC0706":
            result = _unmasked(out, got[out.name], reference, examiner) or result
        if result.diagnostic is not None:
            raise _Reject("compare", _placed(result.diagnostic, reference.name))
        errors.append(result.error)
    if reference.name == examiner.input_sets[0] and not ties and points(spec) <= HEAVY_POINTS:
        found = left_out(got, working, examiner.unrounded, reference.name)
        if found is not None:
            raise _Reject("compare", _placed(found, reference.name))
    return errors


def _unmasked(out: Operand, mine: torch.Tensor, reference: Reference, examiner: Examiner) -> Comparison | None:
    """The comparison where elements that only masked terms make NaN may be the sum of the others."""
    import torch

    found = examiner.unmasked(reference)
    if found is None:
        return None
    name = out.name
    chosen = mine.isfinite() & reference.oracle[name].isnan() & found[0][name].isfinite()
    oracle = torch.where(chosen, found[0][name], reference.oracle[name])
    working = torch.where(chosen, found[1][name], reference.working[name])
    probe = torch.where(chosen, found[0][name], reference.probe[name])
    growth = examiner.growth_on(reference.name)
    return compare(name, out.dtype, mine, oracle, working, probe, growth=growth, input_set=reference.name)


def _placed(diagnostic: Diagnostic, input_set: str) -> Diagnostic:
    return replace(diagnostic, details={**diagnostic.details, "input_set": input_set})


def _must_repeat(spec: KernelSpec) -> bool:
    """A sum by atomics may differ in its last bits from run to run; everything else is bitwise the same."""
    return not any(isinstance(s.over, Scatter) and s.over.op == "sum" and s.dtype.is_float for s in spec.body)


def _check_deterministic(spec: KernelSpec, first: dict[str, np.ndarray], again: dict[str, np.ndarray]) -> None:
    for out in spec.outputs:
        parts = [key for key in first if base_name(key) == buffer_of(spec, out.name)]
        differ = sum(int((first[part] != again[part]).sum()) for part in parts)
        if differ:
            text = f"{differ:,} bytes of {out.name} depend on the order in which waves run"
            raise _Reject("determinism", Diagnostic("KVC0705", text, hint="look for a race or uninitialised LDS"))

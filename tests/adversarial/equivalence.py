"""Why a fault that no gate noticed is no fault, by a criterion other than the gate's own.

    identical      the optimised assembly of the changed source is that of the original
    not needed     a wait that no wave's own queue of operations needs; a barrier with no pair of LDS accesses by
                   different waves across it (tests.simulator.trace)
    dead value     marked as never written, the result reaches no address, branch or memory (tests.simulator.trace)
    same bits      over further seeds, input sets and wave orders every output is the same to the bit, and no check
                   of the simulator objects
    within eager   outputs differ from the original's in their bits, and over further seeds no error is larger than
                   that of the spec interpreted in its working dtype: a correct kernel written another way

What none of them explains is a survivor and wants a reader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvc.diagnostics import KvcError
from kvc.emitter import Compiled
from kvc.simulator.executor import SimExecutor
from kvc.simulator.machine import SimOptions
from kvc.verify.buffers import bind, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.oracle import Examiner, Reference

from tests.adversarial.faults import Fault
from tests.adversarial.local import MAX_INSTRUCTIONS
from tests.adversarial.subjects import Subject
from tests.simulator import trace

#: Seeds of the further draws and wave orders.
SEEDS = (11, 12, 13)
_NOISE = re.compile(
    r"^\s*(;.*|\.(loc|file|ident|cfi_\w+|section|addrsig\w*).*|\.Ltmp\d+:.*|\.Lfunc_\w+:.*|\.L\w*info.*)?$"
)


@dataclass(frozen=True)
class Reason:
    """Which criterion of the table above holds ("" for none), and its evidence."""

    criterion: str
    evidence: str = ""


def code_of(asm: str) -> str:
    """The instructions and directives of an assembly text, without comments and debug information."""
    lines = (line.split(";")[0].rstrip() for line in asm.split("\n"))
    return "\n".join(line for line in lines if not _NOISE.match(line) and ".debug" not in line)


def identical(one: Compiled, other: Compiled) -> bool:
    """Whether both compile to the same instructions."""
    names = set(one.objects) | set(other.objects)
    return all(
        name in one.objects and name in other.objects
        and code_of(one.objects[name].asm.split(".amdgpu_metadata")[0].split(".section\t.debug")[0])
        == code_of(other.objects[name].asm.split(".amdgpu_metadata")[0].split(".section\t.debug")[0])
        for name in names
    )  # fmt: skip


def explain(subject: Subject, fault: Fault, compiled: Compiled) -> Reason:
    """Why a fault survived. `compiled` is the changed kernel."""
    if fault.level == "source" and identical(subject.compiled, compiled):
        return Reason("identical", "same instructions after compilation")
    if fault.level == "assembly":
        found = _of_the_trace(subject, fault)
        if found.criterion or found.evidence:  # a hazard that the trace shows and no gate noticed is a survivor
            return found
    return _of_the_results(subject, compiled)


# ---------------------------------------------------------------- traces


def _of_the_trace(subject: Subject, fault: Fault) -> Reason:
    at = next(n for n, plan in enumerate(subject.plans) if plan.kernel == fault.kernel)
    chip = subject.candidate.task.arch.name
    if fault.kind == "barrier" and not fault.after:
        problems = [_traced_barrier(subject, at, fault.line, name, chip) for name in subject.examiner.input_sets]
        if not any(problems):
            return Reason("not needed", "no two waves touch a common LDS byte, one writing, across it")
        return Reason("", next(p for p in problems if p))
    if fault.kind == "wait":
        return _wait(subject, at, fault, chip)
    if not fault.after and fault.kind in ("instruction", "exec", "branch") and _is_dead(subject, at, fault.line, chip):
        return Reason("dead value", "marked as never written, its result reaches nothing that counts")
    return Reason("")


def _prepared(subject: Subject, at: int, name: str, chip: str) -> tuple[trace.Memory, dict]:
    """A device on which the launches before number `at` have run."""
    buffers, fresh = bind(subject.candidate, subject.examiner.reference(name).inputs)
    if at:
        done = SimExecutor(subject.candidate.task.arch).execute(subject.plans[:at], buffers, outputs=fresh)
        written = {n for plan in subject.plans[:at] for n in plan.buffers()}
        buffers, fresh = done.buffers, fresh - written
    return trace.place(chip, buffers, fresh)


def _traced_barrier(subject: Subject, at: int, line: int, name: str, chip: str) -> str:
    memory, device = _prepared(subject, at, name, chip)
    seen = trace.record(subject.plans[at], chip, memory, device)
    return trace.conflicts_without_barrier(seen, seen.index_of(line))


def _wait(subject: Subject, at: int, fault: Fault, chip: str) -> Reason:
    weaker: list[int | None] = [None, None]
    for slot, counter in enumerate(("vmcnt", "lgkmcnt")):
        match = re.search(rf"{counter}\((\d+)\)", fault.after)
        weaker[slot] = int(match[1]) if match else None
    executions = pending = 0
    retired: set[int] = set()
    for name in subject.examiner.input_sets:
        memory, device = _prepared(subject, at, name, chip)
        seen = trace.record(subject.plans[at], chip, memory, device)
        found = trace.without_wait(seen, seen.index_of(fault.line), (weaker[0], weaker[1]))
        if found.hazard:
            return Reason("", found.hazard)
        executions, pending = executions + found.executions, pending + found.pending
        retired |= set(found.retired)
    if not pending:
        return Reason("not needed", f"nothing was outstanding in any of {executions} executions")
    later = f"waits on lines {sorted(retired)}" if retired else "nothing, and nothing read it"
    return Reason("not needed", f"outstanding in {pending} of {executions} executions, then retired by {later}")


def _is_dead(subject: Subject, at: int, line: int, chip: str) -> bool:
    for name in subject.examiner.input_sets:
        memory, device = _prepared(subject, at, name, chip)
        if not trace.value_is_dead(subject.plans[at], chip, memory, device, line):
            return False
    return True


# ---------------------------------------------------------------- results


def _of_the_results(subject: Subject, compiled: Compiled) -> Reason:
    """Bits and errors over SEEDS: other values of the inputs and other orders of the waves."""
    plans = launch_plans(subject.candidate, compiled)
    arch, spec = subject.candidate.task.arch, subject.spec
    same, worst = True, 0.0
    for seed in SEEDS:
        examiner = Examiner(spec, seed)
        for name in examiner.input_sets:
            reference = examiner.reference(name)
            buffers, fresh = bind(subject.candidate, reference.inputs)
            runner = SimExecutor(arch, seed=seed, options=SimOptions(max_instructions=MAX_INSTRUCTIONS))
            try:
                now = runner.execute(plans, buffers, outputs=fresh).buffers
            except KvcError as error:
                return Reason("", f"seed {seed}, inputs {name}: {error.code}")
            was = runner.execute(subject.plans, buffers, outputs=fresh).buffers
            kept = {o.alias or o.name for o in spec.outputs}
            if all((now[buffer] == was[buffer]).all() for buffer in kept):
                continue
            same = False
            ratio = _against_eager(subject, now, reference, examiner)
            if ratio is None:
                return Reason("", f"seed {seed}, inputs {name}: outside the tolerance")
            worst = max(worst, ratio)
    if same:
        return Reason("same bits", f"{len(SEEDS)} seeds x {len(subject.examiner.input_sets)} input sets")
    if worst <= 1.0:
        return Reason("within eager", f"largest error {worst:.2f} of what the working dtype makes")
    return Reason("", f"largest error {worst:.2f} of what the working dtype makes")


def _against_eager(subject: Subject, buffers: dict, reference: Reference, examiner: Examiner) -> float | None:
    """The largest error in units of the permitted one without the factor of two; None where it is not permitted."""
    spec = subject.spec
    got = outputs_of(spec, buffers)
    worst = 0.0
    for out in spec.outputs:
        parts = (getattr(reference, field)[out.name] for field in ("oracle", "working", "probe"))
        result = compare(out.name, out.dtype, got[out.name], *parts, growth=examiner.growth_on(reference.name))
        if result.diagnostic is not None:
            return None
        floor = result.error.allowed - 2.0 * result.error.working
        eager = result.error.working + max(floor, 0.0)
        worst = max(worst, result.error.error / eager if eager else 0.0)
    return worst

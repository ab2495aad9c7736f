"""Puts faults into correct kernels and counts those that the verifier turns down.

    python -m tests.adversarial.mutate --target hip --count 1000 --seed 0 --json out.json

Takes the kernels that kvc's rules emit for some forty specs of all patterns at sizes with tails, changes one thing in
the source (and compiles it) or in the assembly (and runs it as it is), and judges the result like any candidate. A
fault that passes is *equivalent* by one of the criteria of tests.adversarial.equivalence, or it is a survivor, listed
with the text that changed: a hole in the verifier, the simulator or the inputs. Exit code 1 where there are any.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.emitter import Compiled
from kvc.verify.judge import Bench, judge
from kvc.verify.verdict import Rejected

from tests.adversarial import faults_asm, faults_hip, faults_triton
from tests.adversarial.equivalence import explain, identical
from tests.adversarial.faults import CLASSES, Fault
from tests.adversarial.local import LocalPool, with_assembly
from tests.adversarial.subjects import Key, Subject, keys

CHIP = "gfx942"
#: The classes that only assembly has too many of: one in so many instructions is kept.
THIN = {"instruction": 4, "wait": 2, "operands": 2}


@dataclass(frozen=True)
class Outcome:
    """What became of a fault. `stage` and `code` name the gate that turned it down ("" for none), `criterion` why it
    counts as equivalent."""

    subject: str
    level: str
    kind: str
    line: int
    before: str
    after: str
    stage: str
    code: str
    criterion: str
    evidence: str

    @property
    def result(self) -> str:
        return "killed" if self.stage else "equivalent" if self.criterion else "survived"


def source_faults(subject: Subject) -> list[Fault]:
    language = faults_hip if subject.key.target == "hip" else faults_triton
    return list(language.faults(subject.candidate.source))


def assembly_faults(subject: Subject, rng: random.Random) -> list[Fault]:
    found: dict[tuple[str, int, str], Fault] = {}
    for plan, lines in zip(subject.plans, subject.executed, strict=True):
        for fault in faults_asm.faults(plan.asm, plan.kernel, lines):
            if rng.random() < 1 / THIN.get(fault.kind, 1):
                found.setdefault((plan.asm, fault.line, fault.after), fault)
    return list(found.values())


def try_fault(subject: Subject, fault: Fault) -> Outcome:
    """Judge a changed kernel; explain it where it passes."""

    def outcome(stage: str, code: str, criterion: str = "", evidence: str = "") -> Outcome:
        where = (subject.name, fault.level, fault.kind, fault.line, fault.before, fault.after)
        return Outcome(*where, stage, code, criterion, evidence)

    candidate = subject.candidate
    compiled: Compiled
    if fault.level == "assembly":
        compiled = with_assembly(subject.compiled, fault.kernel, fault.text)
    else:
        candidate = replace(candidate, source=fault.text)
        prepared = LocalPool().prepare(candidate)
        if isinstance(prepared, Rejected):
            return outcome(prepared.stage, prepared.diagnostic.code)
        if identical(subject.compiled, prepared):
            return outcome("", "", "identical", "same instructions after compilation")
        compiled = prepared
    try:
        verdict = judge(candidate, Bench(LocalPool(compiled), "sim"), subject.examiner)  # type: ignore[arg-type]
    except KvcError as error:
        return outcome("execute", error.code)
    if isinstance(verdict, Rejected):
        return outcome(verdict.stage, verdict.diagnostic.code)
    reason = explain(subject, fault, compiled)
    return outcome("", "", reason.criterion, reason.evidence)


def chosen(found: list[Fault], count: int, rng: random.Random) -> list[Fault]:
    """`count` of the faults, the classes as evenly as their numbers allow."""
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in found:
        by_kind[fault.kind].append(fault)
    for each in by_kind.values():
        rng.shuffle(each)
    out: list[Fault] = []
    kinds = sorted(by_kind)
    rng.shuffle(kinds)
    while len(out) < count and any(by_kind.values()):
        for kind in kinds:
            if by_kind[kind] and len(out) < count:
                out.append(by_kind[kind].pop())
    return out


def run(language: str, count: int, seed: int, chip: str = CHIP, only: str = "") -> Iterator[Outcome]:
    """About `count` faults, half in the source and half in the assembly, over all subjects of a target."""
    subjects = [key for key in keys(language) if only in f"{key.emitter}/{key.name}"]
    random.Random(seed).shuffle(subjects)
    left = count
    for number, key in enumerate(subjects):
        share = max(round(left / (len(subjects) - number)), 1)
        done = 0
        for outcome in _subject(key, share, seed, chip):
            yield outcome
            done += 1
        left -= done
        if left <= 0:
            return


def _subject(key: Key, count: int, seed: int, chip: str) -> Iterator[Outcome]:
    rng = random.Random(f"{seed}/{key}")
    subject = Subject(key, chip)
    if not subject.is_correct:
        print(f"{subject.name} does not pass unchanged: left out", file=sys.stderr)
        return
    picked = chosen(source_faults(subject), (count + 1) // 2, rng)
    picked += chosen(assembly_faults(subject, rng), count - len(picked), rng)
    for fault in picked:
        yield try_fault(subject, fault)


def table(outcomes: list[Outcome]) -> str:
    """Kill rate per fault class, as Markdown."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for o in outcomes:
        counts[o.level, o.kind][o.result] += 1
        counts["all", ""][o.result] += 1
    lines = [
        "| level | fault | tried | killed | equivalent | survived | killed of non-equivalent |",
        "|---|---|" + "--:|" * 5,
    ]
    order = sorted(counts, key=lambda k: (k[0] == "all", k[0] != "source", list(CLASSES).index(k[1]) if k[1] else 0))
    for level, kind in order:
        c = counts[level, kind]
        matter = c["killed"] + c["survived"]
        rate = f"{100 * c['killed'] / matter:.1f} %" if matter else "-"
        lines.append(
            f"| {level} | {kind} | {c.total():,} | {c['killed']:,} | {c['equivalent']:,} | {c['survived']:,} | {rate} |"
        )
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--target", choices=("hip", "triton"), required=True)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--arch", default=CHIP)
    options.add_argument("--only", default="", help="subjects whose EMITTER/NAME contains this")
    options.add_argument("--json", type=Path, help="write every outcome here")
    given = options.parse_args()
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for outcome in run(given.target, given.count, given.seed, given.arch, given.only):
        outcomes.append(outcome)
        if outcome.result == "survived":
            print(json.dumps(outcome.__dict__), flush=True)
        if given.json is not None and len(outcomes) % 50 == 0:
            _write(given.json, outcomes)
    if given.json is not None:
        _write(given.json, outcomes)
    print(table(outcomes))
    print(Counter(o.criterion for o in outcomes if o.criterion))
    print(Counter(f"{o.stage} {o.code}" for o in outcomes if o.stage))
    seconds = time.monotonic() - started
    print(f"{len(outcomes):,} faults in {seconds:.0f} s ({len(outcomes) / max(seconds, 1e-9):.1f}/s)")
    return int(any(o.result == "survived" for o in outcomes))


def _write(path: Path, outcomes: list[Outcome]) -> None:
    data: list[dict[str, Any]] = [{**o.__dict__, "result": o.result} for o in outcomes]
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

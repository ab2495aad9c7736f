"""Deletes instructions from emitted kernels, one at a time, and judges what is left: is the fault caught?

A deletion is *caught* when the simulator faults or the judge turns the result down. What survives either does not
matter, which a criterion of its own must show (tests.adversarial.equivalence: a wait that no wave's own queues need, a
barrier with no conflicting LDS accesses across it, a value that reaches nothing, outputs that are the same to the bit
or no worse than eager's over further seeds), or it is *unexplained*: a hole in the simulator or in the inputs. All
criteria but the last two look at the unchanged kernel and hold for the paths that the inputs take.

    python -m tests.simulator.deletions --arch gfx942 --others 20
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator

from tests.adversarial.faults import Fault
from tests.adversarial.faults_asm import deletions, kind_of
from tests.adversarial.mutate import Outcome, try_fault
from tests.adversarial.subjects import Key, Subject

#: Tails on every axis, several tiles, LDS and matrix instructions.
SPECS = {
    "softmax": """kernel softmax(x: f32[m=5,k=1357]) -> (y: f32[m,k]) {
        mx: f32[m] = max(k) x[m,k]
        e: f32[m,k] = exp(x[m,k] - mx[m])
        s: f32[m] = sum(k) e[m,k]
        y[m,k] = e[m,k] / s[m]
    }""",
    "linear_gelu": """kernel linear_gelu(x: bf16[m=67,k=104], w: bf16[n=69,k], b: bf16[n]) -> (y: bf16[m,n]) {
        t: f32[m,n] = sum(k) x[m,k] * w[n,k]
        u: bf16[m,n] = t[m,n] + b[n]
        y[m,n] = gelu(u[m,n])
    }""",
    "conv_relu": """kernel conv_relu(x: f32[b=2,c=5,h=11,w=9], f: f32[o=35,c,r=3,s=3]) -> (y: f32[b,o,i=11,j=9]) {
        t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i + r - 1,j + s - 1 | 0.0] * f[o,c,r,s]
        y[b,o,i,j] = relu(t[b,o,i,j])
    }""",
    "max_pool": """kernel max_pool(x: f32[b=2,c=3,h=13,w=11]) -> (y: f32[b,c,i=7,j=6]) {
        y[b,c,i,j] = max(r=3,s=3) x[b,c,2 * i + r - 1,2 * j + s - 1 | -inf]
    }""",
}


KINDS = ("barrier", "wait", "other")


def subject(name: str, language: str, chip: str) -> Subject:
    """The kernel that the first fitting emitter of a target writes for a spec of SPECS."""
    return Subject(Key(language, "", name, SPECS[name]), chip)


def coarse(kind: str) -> str:
    """Barriers, waits, and everything else."""
    return kind if kind in KINDS else "other"


def delete_all(subject: Subject, others: int, seed: int = 0) -> Iterator[Outcome]:
    """Every barrier and wait on the executed path of every launch, and `others` of the remaining instructions."""
    assert subject.is_correct, f"{subject.name} is not correct to begin with"
    guards: list[Fault] = []
    rest: list[Fault] = []
    for plan, lines in zip(subject.plans, subject.executed, strict=True):
        for fault in deletions(plan.asm, plan.kernel, lines):
            (rest if coarse(kind_of(fault.before)) == "other" else guards).append(fault)
    chosen = random.Random(seed).sample(rest, min(others, len(rest)))
    for fault in guards + sorted(chosen, key=lambda f: (f.kernel, f.line)):
        yield try_fault(subject, fault)


def table(outcomes: list[Outcome]) -> str:
    """Caught, equivalent by criterion, and unexplained, for each kind, as Markdown."""
    lines = ["| deleted | tried | caught | equivalent | unexplained |", "|---|--:|--:|---|--:|"]
    for kind in KINDS:
        mine = [o for o in outcomes if coarse(o.kind) == kind]
        results = Counter(o.result for o in mine)
        why = Counter(o.criterion for o in mine if o.criterion)
        reasons = ", ".join(f"{count} {name}" for name, count in sorted(why.items())) or "-"
        lines.append(f"| {kind} | {len(mine)} | {results['killed']} | {reasons} | {results['survived']} |")
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="gfx942")
    options.add_argument("--others", type=int, default=20)
    options.add_argument("--only", default="", help="names of specs that contain this")
    options.add_argument("-v", "--verbose", action="store_true", help="print why each equivalent deletion is one")
    given = options.parse_args()
    outcomes: list[Outcome] = []
    for name in (n for n in SPECS if given.only in n):
        for language in ("hip", "triton"):
            for outcome in delete_all(subject(name, language, given.arch), given.others):
                outcomes.append(outcome)
                if outcome.result == "survived" or (given.verbose and outcome.criterion):
                    print(json.dumps({**outcome.__dict__, "result": outcome.result}), flush=True)
    print(table(outcomes))
    return int(any(o.result == "survived" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())

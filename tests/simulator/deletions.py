"""Deletes instructions from emitted kernels, one at a time, and runs what is left: is the fault caught?

A deletion is *caught* when the simulator faults or the result leaves the verifier's tolerance, on any of the input
sets. What survives either does not matter for the result (it is equivalent on every path that ran, or moves it within
the tolerance) or is a hole. A barrier that survives is called redundant when the LDS bytes that any wave touches after
it are disjoint from those touched before it, or only read on both sides. That is read off literal offsets in the text,
a heuristic and no proof: a survivor still wants a reader.

    python -m tests.simulator.deletions --arch gfx942 --others 20
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Task, target
from kvc.executor import LaunchPlan
from kvc.simulator import load
from kvc.simulator.executor import SimExecutor
from kvc.text import parse_kernel
from kvc.verify.buffers import bind, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.oracle import Examiner

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


@dataclass(frozen=True)
class Deletion:
    """One instruction removed: its kind ("barrier", "wait", "other"), line in the assembly, text, and what happened."""

    kernel: str
    kind: str
    line: int
    text: str
    caught: bool
    how: str
    redundant: bool = False


class Subject:
    """An emitted kernel with what is needed to run a changed copy of it."""

    def __init__(self, name: str, language: str, chip: str) -> None:
        self.name = f"{name}-{language}-{chip}"
        spec = parse_kernel(SPECS[name])
        task, backend = Task(spec, arch(chip)), target(language)
        emitter = next(e for e in backend.emitters() if e.supports(task).ok)
        self.candidate = next(iter(emitter.propose(task, emitter.space(task).default, (), 0)))
        self.plans = launch_plans(self.candidate, backend.compile(self.candidate))
        self.examiner = Examiner(spec, 0)

    def problem(self, plans: list[LaunchPlan]) -> str:
        """What the simulator or the comparison objects to, "" for nothing."""
        task = self.candidate.task
        for name in self.examiner.input_sets:
            reference = self.examiner.reference(name)
            buffers, fresh = bind(self.candidate, reference.inputs)
            try:
                done = SimExecutor(task.arch, seed=1).execute(plans, buffers, outputs=fresh)
            except KvcError as error:
                return error.code
            got = outputs_of(task.spec, done.buffers)
            for out in task.spec.outputs:
                parts = (r[out.name] for r in (reference.oracle, reference.working, reference.probe))
                found = compare(out.name, out.dtype, got[out.name], *parts, input_set=name)
                if found.diagnostic is not None:
                    return found.diagnostic.code
        return ""

    def executed(self) -> set[int]:
        """Lines of the first launch's assembly that some wave ran."""
        from kvc.simulator import Memory, launch

        plan = self.plans[0]
        program = load(plan.asm, self.candidate.task.arch.name, plan.binary)
        memory = Memory(self.candidate.task.arch.name)
        buffers, _ = bind(self.candidate, self.examiner.reference(self.examiner.input_sets[0]).inputs)
        args = [memory.upload(buffers[str(v)], str(v)) if kind == "buffer" else v for kind, v in plan.args]
        report = launch(program, plan.kernel, plan.grid, plan.block, args, mem=memory, dynamic_lds=plan.dynamic_lds)
        return {program.assembly.code[n].line for n in report.executed}

    def without(self, line: int) -> list[LaunchPlan]:
        lines = self.plans[0].asm.split("\n")
        lines[line - 1] = ""
        return [replace(self.plans[0], asm="\n".join(lines)), *self.plans[1:]]


def kind_of(text: str) -> str:
    if text.startswith("s_barrier"):
        return "barrier"
    return "wait" if text.startswith("s_waitcnt") else "other"


def delete_all(subject: Subject, others: int, seed: int = 0) -> Iterator[Deletion]:
    """Every barrier and wait on the executed path, and `others` of the remaining instructions."""
    assert subject.problem(subject.plans) == "", f"{subject.name} is not correct to begin with"
    lines = subject.executed()
    text = subject.plans[0].asm.split("\n")
    found = {n: text[n - 1].split(";")[0].strip() for n in sorted(lines)}
    guards = [n for n, t in found.items() if kind_of(t) != "other"]
    rest = [
        n for n, t in found.items() if kind_of(t) == "other" and not t.startswith(("s_nop", "s_endpgm", "s_setprio"))
    ]
    chosen = sorted(random.Random(seed).sample(rest, min(others, len(rest))))
    for n in guards + chosen:
        how = subject.problem(subject.without(n))
        redundant = not how and kind_of(found[n]) == "barrier" and is_redundant(text, n)
        yield Deletion(subject.name, kind_of(found[n]), n, found[n], bool(how), how, redundant)


def is_redundant(text: list[str], line: int) -> bool:
    """Whether no LDS byte is touched on both sides of a barrier with a write on one: decided from the accesses between
    the neighbouring barriers, where each is `ds_read`/`ds_write` at a base register plus a literal offset. Code with a
    backward branch over the barrier has the accesses of the whole loop on both sides."""
    barriers = [n for n, t in enumerate(text, 1) if t.strip().startswith("s_barrier")]
    at = barriers.index(line)
    before = _lds(text, barriers[at - 1] if at else 0, line)
    after = _lds(text, line, barriers[at + 1] if at + 1 < len(barriers) else len(text))
    labels = {t.split(":")[0]: n for n, t in enumerate(text, 1) if t.startswith(".LBB")}
    for n, t in enumerate(text, 1):
        words = t.split()
        if words and words[0].startswith(("s_branch", "s_cbranch")) and labels.get(words[-1], n) <= line <= n:
            before = after = before + after
    conflicts = [(a, b) for a in before for b in after if (a[0] or b[0]) and a[1] < b[2] and b[1] < a[2]]
    return not conflicts


def _lds(text: list[str], start: int, stop: int) -> list[tuple[bool, int, int]]:
    """(is a write, first byte, end) of the LDS accesses in a range of lines, by their literal offsets. The bases are
    taken to lie below the distance of the arrays, which `ds_* v, v offset:N` of one kernel's arrays satisfy."""
    found = []
    for t in text[start : stop - 1]:
        words = t.split(";")[0].split()
        if words and words[0].startswith(("ds_read_b", "ds_write_b")):
            offset = next((int(w.split(":")[1]) for w in words if w.startswith("offset:")), 0)
            found.append((words[0].startswith("ds_write"), offset, offset + int(words[0].split("_b")[1]) // 8))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--arch", default="gfx942")
    options.add_argument("--others", type=int, default=20)
    given = options.parse_args()
    tally: dict[str, list[int]] = {}
    for name in SPECS:
        for language in ("hip", "triton"):
            for d in delete_all(Subject(name, language, given.arch), given.others):
                counts = tally.setdefault(d.kind, [0, 0])
                counts[0] += d.caught
                counts[1] += not d.redundant
                if not d.caught and not d.redundant:
                    print(json.dumps(d.__dict__), flush=True)
    print({kind: f"{caught} of {all_} caught" for kind, (caught, all_) in tally.items()})


if __name__ == "__main__":
    main()

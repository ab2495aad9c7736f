"""Kernels with exactly one of the faults of the rules in docs/verification.md, and how each is judged.

A mutant is a correct kernel with one edit; the correct one must pass, or the mutant proves nothing. Its launch stands
in a comment as in every kernel file (kvc.header). Mutants are compiled and simulated like any candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvc.arch import arch
from kvc.emitter import Candidate, Origin, Task
from kvc.header import parse_launches, parse_workspace
from kvc.text import parse_kernel
from kvc.verify.judge import Bench, judge
from kvc.verify.verdict import Verdict

from tests.adversarial.local import LocalPool

CHIP = "gfx942"

SPECS = {
    "scale": "kernel scale(x: f32[n=1003]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0\n}",
    "two": "kernel two(x: f32[n=1003]) -> (y: f32[n], z: f32[n]) {\n  y[n] = x[n] * 2.0\n  z[n] = x[n] + 1.0\n}",
    "softmax": """kernel softmax(x: f32[m=5,k=200]) -> (y: f32[m,k]) {
  mx: f32[m] = max(k) x[m,k]
  e: f32[m,k] = exp(x[m,k] - mx[m])
  s: f32[m] = sum(k) e[m,k]
  y[m,k] = e[m,k] / s[m]
}""",
    "variance": """kernel variance(x: f32[m=5,k=200]) -> (y: f32[m]) {
  s: f32[m] = sum(k) x[m,k]
  y[m] = sum(k) (x[m,k] - s[m] / 200.0) * (x[m,k] - s[m] / 200.0)
}""",
    "total": "kernel total(x: f32[n=1003]) -> (y: f32[]) {\n  y[] = sum(n) x[n]\n}",
    "peak": "kernel peak(x: f32[m=5,k=200]) -> (y: f32[m]) {\n  y[m] = max(k) x[m,k]\n}",
    "gate": """kernel gate(x: bf16[n=1003], b: bf16[n]) -> (y: bf16[n]) {
  t: bf16[n] = x[n] + b[n]
  y[n] = t[n] * x[n]
}""",
    "scale_bf16": "kernel scale_bf16(x: bf16[n=1003]) -> (y: bf16[n]) {\n  y[n] = x[n] * 1.7\n}",
    "decode": "kernel decode(x: f8e4m3fn[n=1003]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0\n}",
    "decode_fnuz": "kernel decode_fnuz(x: f8e4m3fnuz[n=1003]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0\n}",
    "far": """kernel far(x: f32[m=3,k=40] strides(1500000000,1)) -> (y: f32[m,k]) {
  y[m,k] = x[m,k] * 2.0
}""",
    "any_size": "kernel any_size<n in 1..5000 hint 1003>(x: f32[n]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0\n}",
    "reverse": "kernel reverse(x: f32[n=256]) -> (y: f32[n]) {\n  y[n] = x[255 - n]\n}",
}


@dataclass(frozen=True)
class Mutant:
    """`rule` is a key of the table in docs/verification.md; `edits` turn the correct source into the mutant;
    `stage` and `code` say where it must be turned down, `lint` the lint rule where that is the lint."""

    name: str
    rule: str
    spec: str
    source: str
    edits: tuple[tuple[str, str], ...]
    stage: str
    code: str
    lint: str = ""
    chip: str = CHIP
    known: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        text = self.source
        for old, new in self.edits:
            if old not in text:
                raise ValueError(f"{self.name}: {old!r} is not in the source")
            text = text.replace(old, new)
        return text


def candidate(spec: str, source: str, target: str, chip: str = CHIP) -> Candidate:
    launches, scratch = parse_launches(source, "kernel"), parse_workspace(source)
    task = Task(parse_kernel(SPECS[spec]), arch(chip))
    return Candidate(task, target, "by_hand", source, launches, scratch, (), Origin("hand", ""))


def verdict_of(candidate: Candidate, known: tuple[str, ...] = ()) -> Verdict:
    return judge(candidate, Bench(LocalPool(), "sim"), known=known)  # type: ignore[arg-type]

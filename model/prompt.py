"""What a model is told: target and GPU, the canonical spec, and facts that a small model cannot work out by itself.

The facts are the compiler's own: which pattern the spec has, which axes make up its domains, how many points each has
and by which power of two that divides. Long constants of the spec get names (c0, c1, ...).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from kvc.canonical import axis_order, canonical
from kvc.emitter import Knob, Task
from kvc.kernel import Axis, Const, Expr, KernelSpec, Load, transform, walk

#: The name of a kernel while a model writes it; a word that no local variable has.
KERNEL = "fused"
#: How an answer stands among those known for its spec: the fastest, within GOOD of it, any other that is right.
RANKS = ("best", "good", "any")
GOOD = 1.3
#: Literals up to this many characters are written as they stand.
SHORT_LITERAL = 4
_ASSIGN = re.compile(r"^(\w+): (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """A task in canonical names, and the way back. `tensors`: canonical name of an operand -> its name in the task."""

    task: Task

    @cached_property
    def spec(self) -> KernelSpec:
        return replace(canonical(self.task.spec), name=KERNEL)

    @cached_property
    def tensors(self) -> dict[str, str]:
        theirs, ours = self.task.spec, self.spec
        pairs = [*zip(ours.inputs, theirs.inputs, strict=True), *zip(ours.outputs, theirs.outputs, strict=True)]
        axes = dict(zip(axis_order(ours), axis_order(theirs), strict=True))
        return {a.name: b.name for a, b in pairs} | {f"#{a}": f"#{b}" for a, b in axes.items()}

    @cached_property
    def canonical_task(self) -> Task:
        return replace(self.task, spec=self.spec)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Extent of each canonical axis (the hint, where it is symbolic)."""
        return {s.name: s.typical for s in self.spec.sizes}

    @cached_property
    def constants(self) -> dict[str, float]:
        """Name and value of each long literal of the spec."""
        return {f"c{n}": value for n, value in enumerate(constants_of(self.spec))}


def constants_of(spec: KernelSpec) -> list[float]:
    """Finite float literals of more than SHORT_LITERAL characters, without their sign, in order of the text."""
    found: dict[float, None] = {}
    for stmt in spec.body:
        for root in stmt.roots:
            for node in walk(root):
                value = node.value if isinstance(node, Const) else 0
                if isinstance(value, float) and math.isfinite(value) and len(repr(abs(value))) > SHORT_LITERAL:
                    found[abs(value)] = None
    return list(found)


def spec_text(asked: Asked) -> str:
    """The canonical spec as the model sees it: named constants, without what is the same in every text."""
    from kvc.text import print_kernel

    names = {value: name for name, value in asked.constants.items()}

    def name_constants(expr: Expr) -> Expr:
        if isinstance(expr, Load) and isinstance(expr.other, Const):
            return expr  # the value outside is part of an access: it stays in sight
        if isinstance(expr, Const) and isinstance(expr.value, float) and abs(expr.value) in names:
            named = Axis(names[abs(expr.value)])
            return named if expr.value >= 0 else -named
        return expr

    spec = asked.spec
    shown = replace(spec, body=tuple(s.map(lambda root: transform(root, name_constants)) for s in spec.body))
    lines = print_kernel(shown).removeprefix(f"kernel {KERNEL}").split("\n")
    body = [line[2:] for line in lines[1:] if line != "}"]
    named = [f"{name}={value!r}" for name, value in asked.constants.items()]
    text = "\n".join([lines[0].removesuffix(" {"), *([" ".join(named)] if named else []), *body])
    return text.replace(", ", ",").replace(": ", ":")


def domain(axes: Sequence[str], sizes: dict[str, int]) -> str:
    """`d0*d2=3072:1024`: axes in order of their numbers, as answers have them, points and the largest power of two that
    divides them (up to 2^16)."""
    points = math.prod(sizes[a] for a in axes)
    order = list(sizes)
    return f"{'*'.join(sorted(axes, key=order.index)) or 1}={points}:{math.gcd(points, 1 << 16)}"


def facts(spec: KernelSpec, sizes: dict[str, int]) -> list[str]:
    """The pattern of a spec with its groups of axes, then the domains of statements and operands that are no such
    group."""
    from kvc.patterns import Stage, match

    pattern = match(spec)
    seen: set[frozenset[str]] = {frozenset()}
    parts = [type(pattern).__name__.lower()]
    for field in fields(pattern):
        value: Any = getattr(pattern, field.name)
        if isinstance(value, tuple) and all(isinstance(v, str) and v in sizes for v in value):
            parts.append(f"{field.name} {domain(value, sizes)}" if value else f"{field.name} -")
            seen.add(frozenset(value))
        elif isinstance(value, tuple) and value and all(isinstance(v, Stage) for v in value):
            parts += [f"{v.target} {v.kind}" for v in value]
    more = []
    wanted = [axes for s in spec.body for axes in (s.axes, s.inner_axes)]
    for axes in [*wanted, *(o.dims for o in (*spec.inputs, *spec.outputs))]:
        if frozenset(axes) not in seen and len(axes) > 1:
            more.append(domain(axes, sizes))
            seen.add(frozenset(axes))
    return [" ".join(parts), *([" ".join(more)] if more else [])]


@dataclass(frozen=True)
class Tried:
    """An earlier answer and what became of it: the stage and code of the rejection and the first line of its text."""

    schedule: str
    stage: str
    code: str
    message: str

    def text(self) -> str:
        first = self.message.splitlines()[0][:96] if self.message else ""
        return f"tried {self.schedule}: {self.stage} {self.code} {first}"


#: What the line begins with that asks for a schedule and knobs.
WANTED = "with "


def setting(schedule: str, knobs: Sequence[tuple[str, Knob]]) -> str:
    """`pointwise BLOCK=64 WIDTH=4`."""
    return " ".join([schedule, *(f"{name}={value}" for name, value in knobs)])


def without_setting(text: str) -> str:
    """A prompt without the line that asks for a schedule and knobs."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(WANTED))


def prompt(asked: Asked, target: str, tried: Sequence[Tried] = (), rank: str = "best", wanted: str = "") -> str:
    """The prompt of a task for a target, with at most the last two earlier tries. `rank`: which of the kernels known
    for a spec is wanted (RANKS); training sees all, with their rank, and translation asks for the best. `wanted`: a
    schedule and knobs (`setting`) where one of many is meant, so that a prompt has one answer."""
    task = asked.task
    lines = [f"{target} {task.arch.name} {task.numerics} {rank}", spec_text(asked), *facts(asked.spec, asked.sizes)]
    lines += [WANTED + wanted] if wanted else []
    return "\n".join([*lines, *(t.text() for t in tried[-2:])]) + "\n"

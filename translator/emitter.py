"""The contract between the core and its backends: tasks, candidates, emitters, targets, and their registry.

An emitter proposes source; it never compiles, runs or judges. A target owns a language: its emitters, its lint and
its compiler. Backends register themselves through the entry-point group "kvc.targets"; the core names none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, runtime_checkable

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError
from kvc.kernel import KernelSpec

NUMERICS = ("strict", "fast")


@dataclass(frozen=True)
class Task:
    """A kernel to be written: the spec, the GPU it is for, and the numerics mode ("strict" keeps fp32 accuracy;
    "fast" allows tf32/xf32 and bf16 products inside). Its key identifies the work in the store."""

    spec: KernelSpec
    arch: ArchSpec
    numerics: str = "strict"

    @property
    def key(self) -> str:
        return f"{self.spec.hash}-{self.arch.name}-{self.numerics}"


Knob = int | str | bool


def integer(value: Knob) -> int:
    """A knob that is a number, as the very object that was given: it may know its name (kvc.model.trace)."""
    assert isinstance(value, int)
    return value


@dataclass(frozen=True)
class Space:
    """Feasible knob settings of an emitter for a task, best guess first; already pruned by the ArchSpec."""

    configurations: tuple[tuple[tuple[str, Knob], ...], ...]

    @property
    def default(self) -> tuple[tuple[str, Knob], ...]:
        return self.configurations[0] if self.configurations else ()


@dataclass(frozen=True)
class Support:
    """Whether an emitter can write a task; the reason when it cannot."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Scratch:
    """A workspace buffer that lives for one call of a candidate; contents undefined at the start."""

    name: str
    dtype: str
    numel: int


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `args` name operands of the spec or scratch buffers, in parameter order (all pointers; `#m`
    is the i64 extent of a symbolic axis). `grid` counts workgroups, `block` threads. `options` go to the compiler of
    this launch (Triton: num_warps, num_stages, ...). `ahead`: it writes scratch alone, all of which follows from the
    operands among `args`, and no other launch of the candidate writes that scratch: where those operands stay the
    same from call to call it need not run again."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[str, ...]
    dynamic_lds: int = 0
    options: tuple[tuple[str, Knob], ...] = ()
    ahead: bool = False


@dataclass(frozen=True)
class Origin:
    """Who wrote a candidate."""

    emitter: str
    version: str
    weights: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Candidate:
    """Source for a task with all that is needed to run it. Launches run in order on one stream."""

    task: Task
    target: str
    schedule: str  # name of the schedule, e.g. "row_reduction"
    source: str
    launches: tuple[Launch, ...]
    workspace: tuple[Scratch, ...]
    knobs: tuple[tuple[str, Knob], ...]
    origin: Origin


@dataclass(frozen=True)
class CodeObject:
    """A compiled kernel file: assembly text, ELF bytes and the compiler's resource figures. For Triton `lds_bytes` and
    appended pointer arguments come from the compiler's metadata, not from the text."""

    asm: str
    binary: bytes
    toolchain: tuple[tuple[str, str], ...]  # name, version, flags
    log: str = ""
    lds_bytes: int = 0
    extra_pointers: int = 0


@dataclass(frozen=True)
class Compiled:
    """The code object that holds each kernel of a candidate, by kernel name."""

    objects: dict[str, CodeObject]
    seconds: float = 0.0
    resources: dict[str, Any] = field(default_factory=dict)


class Emitter(Protocol):
    """Writes source for tasks. `supports` is cheap; `space` lists settings; `propose` yields candidates for one setting
    (rules yield one and ignore `history`; a model samples and reads the verdicts of its earlier tries, and yields a
    kvc.verify.verdict.Rejected for an answer that is no kernel)."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def supports(self, task: Task) -> Support: ...

    def space(self, task: Task) -> Space: ...

    def propose(
        self, task: Task, knobs: tuple[tuple[str, Knob], ...], history: Sequence[Any], seed: int
    ) -> Iterator[Candidate]: ...


@runtime_checkable
class Batched(Protocol):
    """An emitter that writes for many tasks at once faster than one after another. `prepare` is called once for all the
    distinct tasks of a model before any `propose`; it changes no candidate, only when it is made."""

    def prepare(self, tasks: Sequence[Task], seed: int) -> None: ...


@dataclass(frozen=True)
class Composite:
    """A pattern of several reductions that a target writes as one kernel, for partition to form: its name
    ("attention"), the storage types of its operands, the longest head (elements) that fits, and whether the weights
    must be rounded to such a type before the second product."""

    name: str
    dtypes: frozenset[str]
    longest: int
    rounded: bool = False


def composites(target: Target) -> tuple[Composite, ...]:
    """What a target writes as one kernel beside the patterns that every target does."""
    return getattr(target, "composites", ())


class Target(Protocol):
    """A language kvc can write. `emitters` are in order of preference; the last one is the generic emitter, which
    supports every spec. A target may have `composites`, a tuple of Composite."""

    name: str
    suffix: str  # of a kernel file, e.g. ".hip"

    def emitters(self) -> Sequence[Emitter]: ...

    def lint(self, source: str, arch: ArchSpec) -> list[Diagnostic]: ...

    def compile(self, candidate: Candidate) -> Compiled: ...

    def toolchain(self) -> dict[str, str]: ...


@cache
def targets() -> dict[str, Target]:
    """All registered targets by name."""
    from importlib.metadata import entry_points

    loaded = {e.name: e.load()() for e in sorted(entry_points(group="kvc.targets"), key=lambda e: e.name)}
    return loaded


def target(name: str) -> Target:
    """A target by name; KVC0105 when no backend provides it."""
    known = targets()
    if name not in known:
        raise KvcError("KVC0105", f"no target {name!r}", hint=f"one of: {', '.join(known)}")
    return known[name]


def external_emitter(name: str, target_name: str) -> Emitter | None:
    """An emitter that belongs to no target: `KIND` or `KIND:ARGUMENT`, made by the factory that is registered under
    "kvc.emitters" as KIND with (target's name, argument). None where no such kind is registered."""
    from importlib.metadata import entry_points

    kind, _, argument = name.partition(":")
    for entry in entry_points(group="kvc.emitters", name=kind):
        made: Emitter = entry.load()(target_name, argument)
        return made
    return None

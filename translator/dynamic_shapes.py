"""Graphs with symbolic sizes: one symbolic kernel for all sizes where there is one, a kernel of its own where not.

At the first sizes that a graph is called with it is traced and cut twice: at these and at others, which satisfy what
Dynamo's guards say of the symbols. Kernels that differ in numbers alone become kernels with symbolic sizes
(kvc.symbolic), which are written once and verified at sizes that their source does not name. At every later set of
sizes the graph is traced and cut again, and a symbolic kernel serves where the cut gives an instance of it: that
costs a trace, but no compiler and no verification. What no symbolic kernel covers is translated for those sizes, with
the reason in the log, at most MAX_SHAPES times a graph; after that, and after MAX_SIZES sets of sizes, the graph runs
eagerly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError
from kvc.emitter import Target, Task, composites
from kvc.kernel import KernelSpec
from kvc.logs import topic
from kvc.pipeline import Attempt, Options, emitters_for, solve
from kvc.plan import Invoke, Plan
from kvc.symbolic import generalised, instance, sizes_for
from kvc.verify.judge import Bench
from kvc.verify.likeness import source_hash
from kvc.verify.verdict import Artifact

if TYPE_CHECKING:
    import torch
    from kvc.store import Store
    from torch.fx import GraphModule

#: Sets of sizes of one graph that may need kernels of their own.
MAX_SHAPES = 16
#: Sets of sizes that symbolic kernels serve.
MAX_SIZES = 256

#: How far from the first size of a symbol the second is looked for.
_STEPS = (3, 5, 7, 9, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

Run = Callable[..., Any]


# ---------------------------------------------------------------- tracing at concrete sizes


def is_symbolic(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph's arguments have symbolic sizes, or are symbols."""
    import torch

    values = [*inputs, *(n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder")]
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(
        isinstance(v, symbolic) or (isinstance(v, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in v.shape))
        for v in values
    )


def shape_of(arg: Any) -> Any:
    """What a translation depends on in an argument."""
    import torch

    return (tuple(arg.shape), tuple(arg.stride()), arg.dtype) if isinstance(arg, torch.Tensor) else arg


def specialised(module: GraphModule, args: Sequence[Any]) -> tuple[GraphModule, list[Any]]:
    """A graph traced again with the concrete sizes of `args`, and the fake arguments of that trace."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode(shape_env=None, allow_non_fake_inputs=True)
    fakes = [_fake(mode, a) for a in args]
    with mode, torch.no_grad():
        traced = make_fx(lambda *values: torch.fx.Interpreter(module).run(*values), tracing_mode="real")(*fakes)
    return traced, fakes


def _fake(mode: Any, arg: Any) -> Any:
    import torch

    if isinstance(arg, _Shaped):
        with mode:
            return torch.empty_strided(arg.shape, arg.strides, dtype=arg.dtype, device=arg.device)
    return mode.from_tensor(arg.detach(), static_shapes=True) if isinstance(arg, torch.Tensor) else arg


@dataclass(frozen=True)
class _Shaped:
    """A tensor argument of which only the looks matter."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def other_sizes(module: GraphModule, args: Sequence[Any]) -> list[Any] | None:
    """Arguments like `args` with every symbolic size changed, all guards of the symbols satisfied; None where there are
    none close by."""
    import torch

    values = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
    bound: dict[Any, int] = {}
    environment = None
    for value, arg in zip(values, args, strict=True):
        for symbolic, actual in _pairs(value, arg):
            expr = symbolic.node.expr
            environment = symbolic.node.shape_env
            if expr.is_Symbol:
                bound.setdefault(expr, int(actual))
    if environment is None:
        return None
    changed = _changed(bound, environment)
    if changed is None:
        return None

    def at(size: Any) -> int:
        return int(size.node.expr.subs(changed)) if isinstance(size, torch.SymInt) else int(size)

    made: list[Any] = []
    for value, arg in zip(values, args, strict=True):
        if isinstance(value, torch.Tensor):
            shape, strides = tuple(at(n) for n in value.shape), tuple(at(n) for n in value.stride())
            made.append(_Shaped(shape, strides, value.dtype, value.device))
        else:
            made.append(at(value) if isinstance(value, torch.SymInt) else arg)
    return made


def _pairs(value: Any, arg: Any) -> Iterator[tuple[Any, int]]:
    """The symbolic sizes of a placeholder with the actual ones."""
    import torch

    if isinstance(value, torch.SymInt):
        yield value, arg
    elif isinstance(value, torch.Tensor):
        yield from ((s, n) for s, n in zip(value.shape, arg.shape, strict=True) if isinstance(s, torch.SymInt))


def _changed(bound: Mapping[Any, int], environment: Any) -> dict[Any, int] | None:
    """Another value for each symbol, different ones for different symbols, so that none is taken for another."""
    guards = [guard.expr for guard in environment.guards]
    for start in range(len(_STEPS)):
        values = {}
        for n, (symbol, size) in enumerate(bound.items()):
            values[symbol] = size + _STEPS[(start + n) % len(_STEPS)]
        ranges = environment.var_to_range
        fits = all(values[s] in ranges[s] for s in values if s in ranges)
        if fits and all(_holds(guard, values) for guard in guards):
            return values
    return None


def _holds(guard: Any, values: Mapping[Any, int]) -> bool:
    """Whether a guard holds; one that speaks of other symbols decides nothing here."""
    if not guard.free_symbols <= set(values):
        return True
    return bool(guard.subs(values))


# ---------------------------------------------------------------- kernels


@dataclass
class Family:
    """The kernels with symbolic sizes of one graph, and why others have none. `target`, `options` and so on are those
    of the translation that asks."""

    specs: dict[str, KernelSpec] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # by kernel name
    told: set[str] = field(default_factory=set)
    own: int = 0  # translations that needed a kernel for their sizes alone
    known: set[str] = field(default_factory=set)  # hashes of the specs that have a kernel
    _seen: dict[str, list[KernelSpec]] = field(default_factory=dict)  # with a kernel for their sizes alone, by name
    _artifacts: dict[str, Artifact | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, first: Plan, second: Plan) -> None:
        """Take in the kernels that two plans of the graph, at different sizes, share. Where the graph is cut otherwise
        at some place, kernels before and after it are still told by their names, in order."""
        mine, theirs = (_invoked(plan) for plan in (first, second))
        blocks = SequenceMatcher(None, [s.name for s in mine], [s.name for s in theirs], False).get_matching_blocks()
        pairs = [(mine[a + n], theirs[b + n]) for a, b, size in blocks for n in range(size)]
        if len(pairs) < max(len(mine), len(theirs)):
            self.reasons["some kernels"] = "it is cut otherwise at other sizes"
        for spec, other in dict.fromkeys(pairs):
            found = generalised(spec, other)
            if isinstance(found, str):
                self.reasons[spec.name] = found
            elif not found.is_static:
                self.specs.setdefault(found.hash, found)

    def artifact(
        self, task: Task, target: Target, options: Options, bench: Bench, store: Store | None
    ) -> tuple[Artifact | None, list[Attempt]]:
        """The artifact of a symbolic kernel at the sizes of a task; None where none covers it."""
        for key, spec, sizes in self._covering(task.spec):
            with self._lock:
                general, attempts = self._verified(key, replace(task, spec=spec), target, options, bench, store)
            if general is not None:
                self.known.add(task.spec.hash)
                return at_sizes(general, sizes, task.spec, target), attempts
        return None, []

    def _covering(self, concrete: KernelSpec) -> Iterator[tuple[str, KernelSpec, dict[str, int]]]:
        """Symbolic specs that a spec is an instance of: known ones, then what it shares with the spec of that name at
        sizes that came before."""
        for key, spec in list(self.specs.items()):
            sizes = sizes_for(spec, concrete)
            if sizes is not None:
                yield key, spec, sizes
        for earlier in self._seen.get(concrete.name, ()):
            found = generalised(earlier, concrete)
            if isinstance(found, KernelSpec) and not found.is_static and found.hash not in self.specs:
                sizes = sizes_for(found, concrete)
                if sizes is not None:
                    self.specs[found.hash] = found
                    yield found.hash, found, sizes

    def took(self, specs: Iterable[KernelSpec]) -> None:
        """Count a translation whose kernels are for these specs."""
        new = [spec for spec in specs if spec.hash not in self.known]
        self.own += bool(new)
        for spec in new:
            self.known.add(spec.hash)
            self._seen.setdefault(spec.name, []).append(spec)

    def news(self) -> Iterator[str]:
        """Why kernels have their sizes fixed, each reason once."""
        for name, reason in list(self.reasons.items()):
            if name not in self.told:
                self.told.add(name)
                yield reason if name == "all" else f"{name}: {reason}"

    def _verified(
        self, key: str, task: Task, target: Target, options: Options, bench: Bench, store: Store | None
    ) -> tuple[Artifact | None, list[Attempt]]:
        if key in self._artifacts:
            return self._artifacts[key], []
        found, attempts = solve(task, target, bench, store, emitters_for(target, options.emitters))
        self._artifacts[key] = found
        if found is None:
            told = "; ".join(f"{a.emitter}: {a.reason or _rejection(a)}" for a in attempts)
            self.reasons[task.spec.name] = f"no emitter writes it with symbolic sizes ({told})"
        return found, attempts


def _invoked(plan: Plan) -> list[KernelSpec]:
    """The specs of a plan's kernels in the order in which they run, prologue included."""
    return [plan.kernels[s.kernel] for s in plan.steps if isinstance(s, Invoke)]


def _rejection(attempt: Attempt) -> str:
    return str(getattr(attempt.verdict, "diagnostic", attempt.verdict))


def at_sizes(general: Artifact, sizes: Mapping[str, int], own: KernelSpec, target: Target) -> Artifact:
    """A verified symbolic kernel at concrete sizes: the same code object, launched with their extents. The grid, which
    by verification may be any, is the one that its emitter would state for these sizes. `own` is the spec at these
    sizes as the plan has it; it is kept where its names are those of the kernel."""
    candidate = general.candidate
    symbolic = candidate.task.spec
    spec = own if set(symbolic.operand) == set(own.operand) and set(sizes) <= set(own.size) else None
    if spec is None or any(own.extent(axis) != size for axis, size in sizes.items()):
        spec = instance(symbolic, sizes)
    launches = candidate.launches
    emitter = next((e for e in target.emitters() if e.name == candidate.origin.emitter), None)
    if emitter is not None:
        hinted = replace(
            symbolic, sizes=tuple(replace(s, hint=sizes[s.name]) if s.name in sizes else s for s in symbolic.sizes)
        )
        again = next(iter(emitter.propose(replace(candidate.task, spec=hinted), candidate.knobs, [], 0)))
        if source_hash(getattr(again, "source", ""), target.suffix) == source_hash(candidate.source, target.suffix):
            launches = again.launches
    return replace(general, candidate=replace(candidate, task=replace(candidate.task, spec=spec), launches=launches))


def plans_of(kind: str, module: GraphModule, args: Sequence[Any], target: Target) -> tuple[Plan, Plan] | str:
    """The graph cut at the sizes of `args` and at others, or the reason why there are no others."""
    from kvc.frontends.fx.traced import capture_traced
    from kvc.pipeline_graph import plan

    others = other_sizes(module, args)
    if others is None:
        return "no other sizes satisfy its guards"

    def cut(values: Sequence[Any]) -> Plan:
        return plan(capture_traced(*specialised(module, values), kind).graph, composites(target))

    return cut(args), cut(others)


# ---------------------------------------------------------------- the graph


@dataclass
class ByShape:
    """A graph with symbolic sizes as a callable. `compile_at(module, fakes, family)` gives what runs it at one set of
    sizes; `learn(args)` fills the family at the first."""

    kind: str
    module: GraphModule
    strict: bool
    compile_at: Callable[[GraphModule, Sequence[Any], Family], Run]
    learn: Callable[[GraphModule, Sequence[Any], Family], None]
    lock: Any
    known: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    family: Family | None = None

    def __call__(self, *args: Any) -> Any:
        key = tuple(shape_of(a) for a in args)
        run = self.known.get(key)
        if run is None:
            with self.lock():
                run = self.known.get(key)
                if run is None:
                    run = self.known[key] = self._made(args)
        return run(*args)

    def _made(self, args: tuple[Any, ...]) -> Run:
        if self.family is None:
            self.family = Family()
            self.learn(self.module, args, self.family)
        if self.family.own >= MAX_SHAPES or len(self.known) >= MAX_SIZES:
            bound = f"{MAX_SHAPES} translations" if self.family.own >= MAX_SHAPES else f"{MAX_SIZES} sets of sizes"
            reason = KvcError("KVC0106", f"more than {bound}", hint="pad inputs to fewer sizes")
            if self.strict:
                raise reason
            topic("dynamo").warning("a %s graph runs eagerly at new sizes: %s", self.kind, reason)
            run: Run = self.module.forward
            return run
        return self.compile_at(*specialised(self.module, args), self.family)


__all__ = ["ByShape", "Family", "is_symbolic", "shape_of", "specialised"]

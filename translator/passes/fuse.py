"""Groups the statements of a whole-model spec into kernels.

Every statement starts as a kernel of its own. Kernels merge, or a pointwise one is computed again inside its readers,
when (1) the result is a pattern for which backends have a schedule (kvc.patterns), (2) no dependency runs out of the
merged kernel and back into it, and (3) the price (kvc.cost: traffic, launches, repeated work) goes down. The order of
the rules matters, the rules themselves do not overlap:

1. epilogues: pointwise readers join the contraction or window that produces their operand;
2. rows: reductions over the same rows, with the pointwise statements around them;
3. recompute: pointwise kernels whose value all readers can cheaply work out themselves (prologues, masks, scales);
4. pointwise chains, then siblings that read the same tensor;
5. shed: pointwise statements move from the kernel that took them in to the only kernels that read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kvc.attention import Attention
from kvc.canonical import rename
from kvc.cost import evaluations, is_transcendental, launches, price
from kvc.emitter import Composite
from kvc.kernel import KernelSpec, Stmt, loads
from kvc.passes.access import loads_in_index
from kvc.passes.extract import extract
from kvc.passes.forms import Form, Forms
from kvc.patterns import Contraction, Pattern, Pointwise, Rows, Staged, Window, match, operands_of, points

TINY_POINTS = 1024  # one workgroup's worth
# What depends on fixed tensors alone runs once in so many calls that only the choice between such kernels counts.
PROLOGUE_SHARE = 2.0**-20
MAX_OPERANDS = 24  # pointers of one launch; siblings are not merged beyond


@dataclass(frozen=True)
class Barrier:
    """A node that runs outside kvc: it writes `writes` (inputs of the whole spec) and reads `reads`."""

    name: str
    writes: tuple[str, ...]
    reads: tuple[str, ...]


_ATTENTION_REDUCTIONS = 4  # two contractions, the maximum and the sum


@dataclass(frozen=True)
class Trial:
    """A kernel that a group of statements would make. `like` is the kernel of an equal group (kvc.passes.forms), whose
    tensors `names` renames; most trials are turned down for what holds for both."""

    price: float
    kind: type[Pattern]
    launches: int
    like: KernelSpec
    names: dict[str, str] = field(default_factory=dict, hash=False)

    @cached_property
    def spec(self) -> KernelSpec:
        return rename(self.like, self.names, {}) if self.names else self.like

    @cached_property
    def pattern(self) -> Pattern:
        return match(self.spec)


class Fusion:
    """The grouping under construction. Statements start alone, those of a loop together. `fixed` names inputs that are
    the same from call to call: what follows from them alone is a prologue, and next to free."""

    def __init__(
        self,
        whole: KernelSpec,
        barriers: Sequence[Barrier],
        composites: Sequence[Composite] = (),
        fixed: Collection[str] = (),
    ) -> None:
        self.whole = whole
        self.composites = {c.name: c for c in composites}
        self.live = {o.name for o in whole.outputs}
        self.given = frozenset(fixed)
        self.fixed = _fixed(whole, fixed)
        self.position = {s.target: i for i, s in enumerate(whole.body)}
        self.reads = {s.target: tuple(dict.fromkeys(r.tensor for r in s.loads())) for s in whole.body}
        self.readers: dict[str, list[str]] = {t: [] for t in self.position}
        self.groups: dict[int, tuple[str, ...]] = {}
        self.owner: dict[str, int] = {}  # the group that writes a tensor
        self.members: dict[str, set[int]] = {}  # all groups that compute it
        self.barriers = {len(self.position) + i: barrier for i, barrier in enumerate(barriers)}
        self.trials: dict[tuple[tuple[str, ...], tuple[str, ...]], Trial] = {}
        self.forms = Forms(whole)
        self.models: dict[Form, tuple[Trial, tuple[str, ...]]] = {}  # the first trial of each form, and its tensors
        for target, tensors in self.reads.items():
            loop = whole.stmt[target].loop
            group = self.position[target if loop is None else whole.loops[loop][0].target]
            self.groups[group] = (*self.groups.get(group, ()), target)
            self.owner[target] = group
            self.members[target] = {group}
            for tensor in tensors:
                if tensor in self.readers:
                    self.readers[tensor].append(target)
        for group, barrier in self.barriers.items():
            self.owner.update(dict.fromkeys(barrier.writes, group))

    # ------------------------------------------------------------ the graph of groups
    def inputs(self, group: int) -> set[str]:
        """Tensors that a group reads from memory."""
        if group in self.barriers:
            return set(self.barriers[group].reads)
        own = set(self.groups[group])
        return {t for target in own for t in self.reads[target] if t not in own}

    def producers(self, group: int) -> set[int]:
        return {self.owner[t] for t in self.inputs(group) if t in self.owner}

    def consumers(self, group: int) -> list[int]:
        """Groups that read what a group writes, in order."""
        own = self.groups[group]
        found = {g for t in own if self.owner.get(t) == group for r in self.readers[t] for g in self.members[r]}
        return sorted(
            g for g in found - {group} if any(self.owner[t] == group for t in self.inputs(g) if t in self.owner)
        )

    def outputs(self, targets: Sequence[str], groups: Iterable[int]) -> tuple[str, ...]:
        """What `targets`, as one kernel in place of `groups`, must write: values that outlive the model or that another
        kernel reads. Values that another kernel owns are computed but not written."""
        inside, own = set(groups), set(targets)
        written = []
        for t in targets:
            if self.owner.get(t) not in inside:
                continue
            outside = {g for r in self.readers[t] for g in self.members[r]} - inside
            if t in self.live or any(t not in self.groups[g] for g in outside):
                written.append(t)
        assert written or not own, "a kernel without outputs"
        return tuple(written)

    def reaches_around(self, first: int, last: int) -> bool:
        """Whether `last` depends on `first` through some third group."""
        # What depends on a group has a statement after the group's first one.
        start = self.position[self.groups[first][0]]
        stack = [g for g in self.producers(last) if g != first]
        seen = set(stack)
        while stack:
            group = stack.pop()
            if group in self.groups and self.position[self.groups[group][-1]] < start:
                continue
            for producer in self.producers(group):
                if producer == first:
                    return True
                if producer not in seen:
                    seen.add(producer)
                    stack.append(producer)
        return False

    # ------------------------------------------------------------ after grouping
    def insert(self, stmt: Stmt) -> None:
        """A statement that the spec gets once the groups are made, as a group of its own ahead of all others."""
        group = min((*self.groups, 0)) - 1
        self.position[stmt.target] = group
        self.groups[group] = (stmt.target,)
        self.owner[stmt.target] = group
        self.members[stmt.target] = {group}
        self.reads[stmt.target] = tuple(dict.fromkeys(r.tensor for r in stmt.loads()))
        self.readers[stmt.target] = []
        for tensor in self.reads[stmt.target]:
            if tensor in self.readers:
                self.readers[tensor].append(stmt.target)

    def redirect(self, target: str, old: str, new: str) -> None:
        """A statement reads `new` in the place of `old` from now on."""
        self.reads[target] = tuple(new if t == old else t for t in self.reads[target])
        self.readers[new].append(target)
        if old in self.readers:
            self.readers[old] = [r for r in self.readers[old] if r != target]

    # ------------------------------------------------------------ trials
    def trial(self, targets: Iterable[str], groups: Iterable[int]) -> Trial:
        """The kernel of `targets` in place of `groups`, with its pattern and price."""
        ordered = tuple(sorted(targets, key=self.position.__getitem__))
        outputs = self.outputs(ordered, groups)
        key = (ordered, outputs)
        if key not in self.trials:
            tried = self._tried(ordered, outputs)
            if self.fixed.issuperset(ordered):
                tried = replace(tried, price=tried.price * PROLOGUE_SHARE)
            self.trials[key] = tried
        return self.trials[key]

    def _tried(self, targets: tuple[str, ...], outputs: tuple[str, ...]) -> Trial:
        found = self.forms.of(targets, outputs)
        if found is None:
            return _trial(extract(self.whole, targets, outputs))
        form, names = found
        if form not in self.models:
            self.models[form] = _trial(extract(self.whole, targets, outputs)), names
            return self.models[form][0]
        model, theirs = self.models[form]
        renamed = {a: b for a, b in zip(theirs, names, strict=True) if a != b}
        return replace(model, names=renamed)

    def kernel(self, group: int) -> Trial:
        return self.trial(self.groups[group], (group,))

    def kind(self, group: int) -> type:
        return self.kernel(group).kind

    def _is_closed(self, group: int) -> bool:
        """Whether a group never takes anything in: a barrier, or a loop, whose steps are one kernel by themselves."""
        return group in self.barriers or self.whole.stmt[self.groups[group][0]].loop is not None

    def merge(self, first: int, second: int, allowed: Callable[[Trial], bool]) -> bool:
        """Merge two groups if that is legal, allowed and cheaper; the result takes the place of `first`."""
        if self._is_closed(first) or self._is_closed(second):
            return False
        if self.reaches_around(first, second) or self.reaches_around(second, first):
            return False
        before = (self.kernel(first), self.kernel(second))
        merged = self.trial({*self.groups[first], *self.groups[second]}, (first, second))
        if self._writes_fixed(first, second):
            return False
        if not allowed(merged) or not _keeps_schedule(before, merged):
            return False
        if merged.price >= before[0].price + before[1].price:
            return False
        targets = tuple(sorted({*self.groups[first], *self.groups.pop(second)}, key=self.position.__getitem__))
        self.groups[first] = targets
        for t in targets:
            self.members[t] = {first if g == second else g for g in self.members[t]}
            if self.owner.get(t) == second:
                self.owner[t] = first
        return True

    def _writes_fixed(self, first: int, second: int) -> bool:
        """Whether two groups, one of them a prologue, would as one kernel write at each call what others could have
        from the prologue."""
        both = {*self.groups[first], *self.groups[second]}
        if self.fixed.issuperset(both) or not self.fixed & both:
            return False
        return bool(self.fixed.intersection(self.outputs(sorted(both, key=self.position.__getitem__), (first, second))))

    def why_apart(self, first: int, second: int) -> str:
        """Why two groups are not one kernel, in words: what `merge` asks, without a rule's own conditions."""
        if self._is_closed(first) or self._is_closed(second):
            barrier = first in self.barriers or second in self.barriers
            return "one of them runs eagerly" if barrier else "one of them is a loop, a kernel by itself"
        if self.reaches_around(first, second) or self.reaches_around(second, first):
            return "a third kernel stands between them"
        if self._writes_fixed(first, second):
            return "one of them runs only when parameters change"
        before = (self.kernel(first), self.kernel(second))
        merged = self.trial({*self.groups[first], *self.groups[second]}, (first, second))
        kinds = [t.kind.__name__.lower() for t in (*before, merged)]
        if issubclass(merged.kind, Staged):
            return f"{kinds[0]} and {kinds[1]} together fit no schedule: each stage would be a launch of its own"
        if not _keeps_schedule(before, merged):
            return f"together they would be a {kinds[2]} kernel, a worse schedule than {kinds[0]} and {kinds[1]} apart"
        apart = before[0].price + before[1].price
        if merged.price >= apart:
            return (
                f"together they would cost more: {merged.price / 2**20:.3g} MiB of traffic against {apart / 2**20:.3g}"
            )
        return "no rule of kvc.passes.fuse joins kernels of these kinds"

    def recompute(self, group: int) -> bool:
        """Compute a pointwise group inside each of its readers instead, if that is allowed and cheaper."""
        targets = self.groups[group]
        readers = self.consumers(group)
        if (
            not readers
            or self._is_closed(group)
            or self.kind(group) is not Pointwise
            or any(t in self.live for t in targets)
        ):
            return False
        own = self.kernel(group)
        gain = self._gain_in_readers(targets, readers, own.spec)
        if gain is None or gain + own.price <= 0:
            return False
        del self.groups[group]
        self._place(targets, group, readers)
        return True

    def shed(self, target: str) -> bool:
        """Move a pointwise statement out of the kernel that owns it into the readers of its value, if that is allowed
        and cheaper: a rule that looks at one reader at a time takes in what a later kernel could do for free."""
        group = self.owner[target]
        readers = sorted({g for r in self.readers[target] for g in self.members[r]})
        if group in readers or not readers or target in self.live or len(self.members[target]) > 1:
            return False
        if self._is_closed(group) or self.whole.stmt[target].over is not None:
            return False
        whole, moved = self.groups[group], self._with_unowned(target)
        left = self._needed(group, [t for t in whole if t != target], target)
        if not left:
            return False
        before = self.kernel(group)
        # An operand that a contraction would have to compute stays where it is: there it costs nothing.
        gain = self._gain_in_readers(moved, readers, None)
        if gain is None:
            return False
        saved = dict(self.groups), dict(self.owner), {t: set(self.members[t]) for t in whole}
        self.groups[group] = left
        self._place((target,), group, readers)
        self._place(moved[:-1], -1, readers)
        for t in set(whole) - set(left) - {target}:
            self.members[t].discard(group)
        after = self.kernel(group)
        if after.kind is before.kind and gain + before.price - after.price > 0:
            return True
        self.groups, self.owner = saved[0], saved[1]
        self.members.update(saved[2])
        return False

    def _with_unowned(self, target: str) -> tuple[str, ...]:
        """A statement and all it reads, through any chain, that no kernel writes, in order."""
        found = {target}
        stack = [target]
        while stack:
            for t in self.reads[stack.pop()]:
                if t in self.position and t not in self.owner and t not in found:
                    found.add(t)
                    stack.append(t)
        return tuple(sorted(found, key=self.position.__getitem__))

    def _needed(self, group: int, targets: Sequence[str], gone: str) -> tuple[str, ...]:
        """Those of `targets` that a group still computes without the statement `gone`: what it owns, and what that
        reads."""
        needed = {t for t in targets if self.owner.get(t) == group} | {
            t for t in self.reads[gone] if self.owner.get(t) == group
        }
        for t in reversed(targets):
            if t in needed:
                needed.update(self.reads[t])
        return tuple(t for t in targets if t in needed)

    def _gain_in_readers(
        self, targets: Sequence[str], readers: Sequence[int], prologue: KernelSpec | None
    ) -> float | None:
        """What the readers' kernels gain by computing `targets` themselves; None where that is not allowed.
        `prologue`: the targets as a kernel, where a contraction may compute them for its operands if they are light."""
        gain = 0.0
        for reader in readers:
            if self._is_closed(reader):
                return None
            before = self.kernel(reader)
            feeds = issubclass(before.kind, Contraction) and _feeds_operand(before, set(targets))
            if feeds and prologue is None:
                return None
            after = self.trial({*self.groups[reader], *targets}, (reader,))
            if after.kind is not before.kind or after.launches > before.launches:
                return None
            if feeds and prologue is not None and not _is_light_prologue(after, prologue):
                return None
            gain += before.price - after.price
        return gain

    def _place(self, targets: Sequence[str], group: int, readers: Sequence[int]) -> None:
        """Record that statements of `group` are computed by its readers from now on, and written by none."""
        for t in targets:
            self.members[t] = (self.members[t] - {group}) | set(readers)
            if self.owner.get(t) == group:
                del self.owner[t]
        for reader in readers:
            merged = {*self.groups[reader], *targets}
            self.groups[reader] = tuple(sorted(merged, key=self.position.__getitem__))

    # ------------------------------------------------------------ the rules
    def run(self) -> Fusion:
        if "attention" in self.composites:
            self._form_attention(self.composites["attention"])
        self._grow((Contraction,), lambda t: issubclass(t.kind, Contraction), backwards=False)
        self._grow((Rows, Window), lambda t: issubclass(t.kind, (Rows, Window)), backwards=True)
        for group in sorted(self.groups, reverse=True):
            if group in self.groups and self.kind(group) is Pointwise:
                self.recompute(group)
        self._grow((Staged,), lambda t: issubclass(t.kind, Staged), backwards=True)
        self._grow((Pointwise,), lambda t: issubclass(t.kind, Pointwise), backwards=False)
        self._siblings()
        self._shed()
        return self

    def _form_attention(self, composite: Composite) -> None:
        """Join what lies between two contractions around a softmax, where the target writes that as one kernel."""
        kinds = {s.dtype.name for s in self.whole.body} | {o.dtype.name for o in self.whole.inputs}
        if not kinds & composite.dtypes:
            return
        contractions = [t for t in self.position if self._is_contraction(t)]
        for target in contractions:
            after = self._until_contractions(target, set(contractions))
            for output in sorted(after & set(contractions) - {target}, key=self.position.__getitem__):
                between = self._with_companions(output, after, set(contractions))
                sums = sum(self.whole.stmt[t].over is not None for t in between)
                if sums == _ATTENTION_REDUCTIONS and self._join_attention(between, composite):
                    break

    def _is_contraction(self, target: str) -> bool:
        return not isinstance(operands_of(self.whole, self.whole.stmt[target]), str)

    def _until_contractions(self, target: str, contractions: set[str]) -> set[str]:
        """A contraction and all that follows from it, up to and with the next contractions."""
        found, stack = {target}, [target]
        while stack:
            for reader in self.readers[stack.pop()]:
                if reader not in found:
                    found.add(reader)
                    if reader not in contractions:
                        stack.append(reader)
        return found

    def _with_companions(self, output: str, after: set[str], contractions: set[str]) -> set[str]:
        """What an output follows from in `after`, what else follows from that alone (the sum of the weights), and
        pointwise statements over the output's domain that need nothing more (the division by it, a rounding)."""
        found = self._before(output, after)
        domain = self.whole.shape_of(output)
        for t in sorted((after | set(self.readers[output])) - contractions - found, key=self.position.__getitem__):
            own = {r for r in self.reads[t] if r in after or r in found}
            stmt = self.whole.stmt[t]
            if not own <= found:
                continue
            is_after = output in self._before(t, after | {t})
            if not is_after or (stmt.over is None and self.whole.shape_of(t) == domain):
                found.add(t)
        return found

    def _before(self, target: str, within: set[str]) -> set[str]:
        """A statement and those of `within` that it follows from."""
        found, stack = {target}, [target]
        while stack:
            for tensor in self.reads[stack.pop()]:
                if tensor in within and tensor not in found:
                    found.add(tensor)
                    stack.append(tensor)
        return found

    def _join_attention(self, targets: set[str], composite: Composite) -> bool:
        groups = {self.owner[t] for t in targets}
        if any(self._is_closed(g) or not set(self.groups[g]) <= targets for g in groups):
            return False
        trial = self.trial(targets, groups)
        found, spec = trial.pattern, trial.spec
        if not isinstance(found, Attention) or not spec.is_static:
            return False
        kinds = {spec.dtype_of(load.tensor).name for x in (found.q, found.k, found.v) for load in loads(x)}
        if not kinds <= composite.dtypes or max(points(spec, found.d), points(spec, found.e)) > composite.longest:
            return False
        if composite.rounded and (found.weight is None or {found.weight.name} != kinds):
            return False
        first = min(groups)
        for g in groups:
            del self.groups[g]
        self.groups[first] = tuple(sorted(targets, key=self.position.__getitem__))
        for t in targets:
            self.members[t] = {first}
            self.owner[t] = first
        return True

    def _grow(self, kinds: tuple[type, ...], allowed: Callable[[Trial], bool], backwards: bool) -> None:
        """Let each group of these kinds take in its consumers and (`backwards`) producers until none fits."""
        for group in sorted(self.groups):
            changed = group in self.groups and not self._is_closed(group) and self.kind(group) in kinds
            while changed:
                changed = any(self.merge(group, g, allowed) for g in self._mergeable(self.consumers(group), kinds))
                if backwards and not changed:
                    found = sorted(self.producers(group), reverse=True)
                    changed = any(self.merge(group, g, allowed) for g in self._mergeable(found, kinds))

    def _mergeable(self, groups: Iterable[int], kinds: tuple[type, ...]) -> list[int]:
        """Pointwise groups, and those of a kind that may join."""
        joins = {Pointwise} if Contraction in kinds else {Pointwise, *kinds}
        return [g for g in groups if not self._is_closed(g) and self.kind(g) in joins]

    def _shed(self) -> None:
        for target in reversed(list(self.position)):
            if target in self.owner:
                self.shed(target)

    def _siblings(self) -> None:
        """Merge groups of one kind over the same points that share an operand, or that are too small to be worth a
        launch of their own (counters, running statistics)."""
        shared: dict[object, list[int]] = {}
        for group in sorted(self.groups):
            for tensor in sorted(self.inputs(group)):
                shared.setdefault(tensor, []).append(group)
            trial = self.kernel(group)
            if issubclass(trial.kind, Pointwise) and _domain(trial)[0] <= TINY_POINTS:
                shared.setdefault(_domain(trial), []).append(group)
        for groups in shared.values():
            for i, first in enumerate(groups):
                for second in groups[i + 1 :]:
                    if first in self.groups and second in self.groups and self._are_siblings(first, second):
                        self.merge(first, second, lambda t, kind=self.kind(first): t.kind is kind)  # type: ignore[misc]

    def _are_siblings(self, first: int, second: int) -> bool:
        a, b = self.kernel(first), self.kernel(second)
        if a.kind is not b.kind or not issubclass(a.kind, (Pointwise, Rows, Window)):
            return False
        operands = {o.name for t in (a, b) for o in (*t.spec.inputs, *t.spec.outputs)}
        return len(operands) <= MAX_OPERANDS and _domain(a) == _domain(b)


def _fixed(whole: KernelSpec, inputs: Collection[str]) -> set[str]:
    """The statements that follow from `inputs` alone and do not leave the model."""
    live = {o.name for o in whole.outputs}
    known, found = set(inputs), set()
    for stmt in whole.body:
        if stmt.loop is None and stmt.target not in live and known.issuperset(r.tensor for r in stmt.loads()):
            known.add(stmt.target)
            found.add(stmt.target)
    return found


def _trial(spec: KernelSpec) -> Trial:
    pattern = match(spec)
    return Trial(price(spec, pattern), type(pattern), launches(pattern), spec)


def _domain(trial: Trial) -> tuple[int, int]:
    """Points of a kernel's domain: outside and inside its rows."""
    pattern = trial.pattern
    if isinstance(pattern, Rows):
        return points(trial.spec, pattern.outer), points(trial.spec, pattern.inner)
    assert isinstance(pattern, Pointwise | Window)
    return points(trial.spec, pattern.axes), 1


def _keeps_schedule(before: tuple[Trial, Trial], merged: Trial) -> bool:
    """A contraction stays one (matrix cores), and a generic kernel gains no launch for what it takes in."""
    if any(issubclass(t.kind, Contraction) for t in before) and not issubclass(merged.kind, Contraction):
        return False
    return merged.launches < sum(t.launches for t in before)


def _feeds_operand(contraction: Trial, added: set[str]) -> bool:
    """Whether an operand of a contraction needs a tensor of `added`, directly or through temporaries."""
    assert isinstance(contraction.pattern, Contraction)
    operands = {r.tensor for r in contraction.pattern.stmt.loads()}
    for stmt in reversed(contraction.spec.body):
        if stmt.target in operands:
            operands.update(r.tensor for r in stmt.loads())
    return bool(operands & added)


def _is_light_prologue(after: Trial, added: KernelSpec) -> bool:
    """Whether what a contraction takes in before its sum is light: a unary chain, a cast or a mask. Several full
    operands or a gather would multiply loads, and transcendental work may not be repeated for each tile."""
    result = max(points(added, o.dims) for o in added.outputs)
    full = [o for o in added.inputs if points(added, o.dims) * 8 > result]
    if len(full) > 1 or any(loads_in_index(r) for s in added.body for r in s.loads()):
        return False
    times = evaluations(after.spec, after.pattern)
    return all(
        times[s.target] <= 2 * points(added, s.axes)
        for s in added.body
        if is_transcendental(s.expr) and s.target in times
    )

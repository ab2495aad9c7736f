"""Smaller sizes at which a problem is still the same problem, for machines that simulate a GPU.

A search over the size literals of the file (kvc.bench.literals): each trial runs the rewritten file on meta tensors
(kvc.bench.measure), so that divisibility by heads, groups, patches and windows need not be understood, only tried. A
trial counts when it performs the same operators, and norms keep enough values for their statistics. Among the sizes
within the budget the search prefers those at which every axis that was long still has two tiles and an odd tail, and
every contraction at least three blocks of K. It is deterministic: it is bounded by trials, not by time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvc.bench.literals import Literal, find_literals, rewrite
from kvc.bench.measure import FAILURES, Measurement, Operation, measure

#: The largest extents first: 193 is three tiles of 64 and a tail of one, 65 two tiles, 17 one tile that is not full.
#: The first of each row is preferred; the others are divisible by what models tend to divide sizes by.
LADDER = (
    (193, 195, 194, 196, 200, 208, 224, 210, 240, 192, 256),
    (129, 135, 130, 132, 136, 140, 144, 160, 168, 147, 150, 192, 128),
    (97, 99, 98, 100, 104, 105, 108, 112, 120, 96),
    (65, 69, 66, 68, 70, 72, 75, 80, 84, 88, 96, 64),
    (49, 51, 50, 52, 54, 56, 60, 63, 64, 48),
    (33, 35, 34, 36, 39, 40, 42, 44, 45, 48, 32),
    (17, 19, 18, 20, 21, 24, 28, 30, 25, 32, 16),
    (9, 11, 10, 12, 14, 15, 16, 8),
    (5, 7, 6, 8, 4),
    (3, 4),
    (2,),
    (1,),
)
DIVISORS = (2, 4, 8, 16, 32)
_SIZE = 16  # smaller literals are kernel sizes, strides, heads and the like, unless they only change inputs
_TILE, _BLOCK = 64, 32
_DEEP = 80  # operators beyond which a trial takes long enough to count
#: Values that a norm's statistics keep: two of them nearly agree sometimes, and the norm amplifies rounding.
_SAMPLED = 8
_PATIENCE = 5  # rows of the ladder without a setting that works before a literal counts as tied to others


@dataclass(frozen=True)
class Budget:
    """What a reduced problem may cost: multiply-adds, elements read and written by operators, and bytes of state,
    inputs and the largest result. `trials` bounds the search; problems of many operators get fewer."""

    macs: int = 20_000_000
    elements: int = 2_000_000
    bytes: int = 4_000_000
    trials: int = 1200

    def load(self, m: Measurement) -> float:
        """1 or less where the measurement is within the budget."""
        return max(m.macs / self.macs, m.elements / self.elements, m.bytes / self.bytes)


@dataclass(frozen=True)
class Reduced:
    """The rewritten source. `sizes`: (what, full, reduced) of every literal that changed, in the order of the text."""

    source: str
    sizes: tuple[tuple[str, int, int], ...]
    full: Measurement
    reduced: Measurement
    coverage: float
    within: bool
    trials: int

    def to_json(self) -> dict[str, Any]:
        """The sizes used and what they cost, for the record."""
        return {
            "sizes": [{"what": what, "full": full, "reduced": value} for what, full, value in self.sizes],
            "inputs": [list(s) for s in self.reduced.inputs],
            "macs": self.reduced.macs,
            "elements": self.reduced.elements,
            "bytes": self.reduced.bytes,
            "coverage": round(self.coverage, 3),
            "within_budget": self.within,
        }


def reduce(source: str, file: str, budget: Budget = Budget()) -> Reduced:
    """The problem at reduced sizes; as it is where it fits the budget already. Raises one of
    kvc.bench.measure.FAILURES where the problem does not run even at its own sizes."""
    search = _Search(source, file, budget)
    values = search.run()
    reduced = search.measured(values)
    assert reduced is not None
    changed = [(x, values[x]) for x in search.literals if values[x] != x.value]
    sizes = tuple((x.name or f"{x.kind} literal, byte {x.start}", x.value, v) for x, v in changed)
    return Reduced(
        rewrite(source, values), sizes, search.full, reduced, search.coverage(reduced),
        budget.load(reduced) <= 1.0, search.trials,
    )  # fmt: skip


Values = dict[Literal, int]


@dataclass(frozen=True)
class _Knob:
    """Literals that move together. `divide`: they are divided by a common number instead of set."""

    literals: tuple[Literal, ...]
    divide: bool = False

    def current(self, values: Values) -> int:
        return max(values[x] for x in self.literals)

    def steps(self, values: Values, deep: bool) -> Iterator[tuple[Values, ...]]:
        """Rows of settings, each smaller than the row before and than what is set now; alternatives within a row. Where
        trials are dear (`deep`) what divides the present size comes first, and few others."""
        now = self.current(values)
        if self.divide:
            for divisor in DIVISORS:
                if all(values[x] % divisor == 0 for x in self.literals if x.value >= _SIZE):
                    yield ({x: values[x] // divisor if x.value >= _SIZE else values[x] for x in self.literals},)
            return
        built = any(x.kind != "given" for x in self.literals)
        for row in LADDER:
            if row[0] < now and not (built and row[0] == 1):  # one head or one group would be another kind of model
                exact = [now // d for d in (2, 4, 8) if now % d == 0 and row[0] <= now // d < 2 * row[0]]
                alternatives = [v for v in row if v < now]
                settings = dict.fromkeys([*exact, *alternatives[:2]] if deep else [*alternatives, *exact])
                yield tuple(dict.fromkeys(self.literals, v) for v in settings)


class _Search:
    def __init__(self, source: str, file: str, budget: Budget) -> None:
        self.source, self.file, self.budget = source, file, budget
        self.literals = find_literals(source)
        self.trials = 0
        self.seen: dict[tuple[int, ...], Measurement | None] = {}
        self.stuck: set[_Knob] = set()  # tied to others in a way that single moves cannot follow
        self.full = measure(source, file)
        self.limit = max(60, min(budget.trials, 20_000 // max(len(self.full.operations), 1)))

    # ------------------------------------------------------------ trials
    def measured(self, values: Values) -> Measurement | None:
        """The measurement at these values; None where the problem fails or becomes another one."""
        key = tuple(values[x] for x in self.literals)
        if key not in self.seen:
            self.trials += 1
            try:
                found = measure(rewrite(self.source, values), self.file)
            except FAILURES:
                self.seen[key] = None
            else:
                same = found.structure == self.full.structure and 0 not in _extents(found)
                same = same and found.sampled >= min(self.full.sampled, _SAMPLED)
                self.seen[key] = found if same else None
        return self.seen[key]

    @property
    def deep(self) -> bool:
        """Whether a trial takes long enough to count."""
        return len(self.full.operations) > _DEEP

    @property
    def exhausted(self) -> bool:
        return self.trials >= self.limit

    def load(self, values: Values) -> float:
        m = self.measured(values)
        return self.budget.load(m) if m is not None else math.inf

    # ------------------------------------------------------------ what is worth keeping
    def coverage(self, m: Measurement) -> float:
        """1 where every axis that is long at full size has two tiles and an odd tail; contractions count most."""
        reached = possible = 0.0
        shapes = [*zip(self.full.inputs, m.inputs, strict=False), *zip(self.full.state, m.state, strict=False)]
        for full, small in _paired(self.full.operations, m.operations):
            if full.matrix is not None and small.matrix is not None:
                for n, (a, b) in enumerate(zip(full.matrix, small.matrix, strict=True)):
                    tail = _BLOCK if n == 2 else _TILE
                    possible += 4.0 * _worth(a, tail)
                    reached += 4.0 * min(_worth(b, tail), _worth(a, tail))
            shapes.append((full.extents, small.extents))
        for large, little in shapes:
            for a, b in zip(large, little, strict=False):
                possible += _worth(a, _BLOCK)
                reached += min(_worth(b, _BLOCK), _worth(a, _BLOCK))
        return reached / possible if possible else 1.0

    # ------------------------------------------------------------ the search
    def run(self) -> Values:
        values = {x: x.value for x in self.literals}
        if self.load(values) <= 1.0:
            return values
        given = self.lowered(values, self.knobs("given"))
        further = [*self.knobs("default"), *self.built()]
        if self.load(given) <= 1.0 or not further:
            return given
        # Afresh: what the constructors fix is lowered along with the rest, not after it.
        self.limit += self.trials
        self.stuck.clear()
        wider = self.lowered(values, [*self.knobs("given"), *further])
        if self.load(wider) > 1.0:
            # Far too large still, and the trials spent on lengths that are tied to others: first divide what can be.
            self.limit += self.trials
            self.stuck.clear()
            dividing = [k for k in [*self.knobs("given"), *further] if k.divide]
            divided = self.lowered(values, dividing)
            given = min(given, self.lowered(divided, [*self.knobs("given"), *further]), key=self.load)
        return min(given, wider, key=lambda v: max(self.load(v), 1.0))

    def lowered(self, values: Values, knobs: list[_Knob]) -> Values:
        """Greedy descent: into the budget by the moves that lose the least coverage for what they save, then further
        down as long as nothing is lost."""
        if self.deep:
            return self.in_turn(values, knobs)
        while self.load(values) > 1.0 and not self.exhausted:
            best = self.best_move(values, knobs)
            if best is None:
                return values
            values = best
            self.stuck.clear()  # a length that was tied to this one may follow now
        values = self.polished(values, knobs)
        while not self.exhausted and (best := self.best_move(values, knobs, free=True)) is not None:
            values = best
        return values

    def in_turn(self, values: Values, knobs: list[_Knob]) -> Values:
        """The descent where trials are dear: each knob is lowered by one row of the ladder in turn."""
        moved = True
        while moved and not self.exhausted:
            moved = False
            for knob in [k for k in knobs if k not in self.stuck]:
                if self.load(values) <= 1.0:
                    return values
                lower = next(self.moves(values, knob), None)
                if lower is not None and self.load(lower) < self.load(values):
                    values, moved = lower, True
        return values

    def best_move(self, values: Values, knobs: list[_Knob], free: bool = False) -> Values | None:
        """The move that saves the most for what it loses; `free` ones lose nothing and save wherever they can."""
        here = self.measured(values)
        assert here is not None
        load, coverage = self.budget.load(here), self.coverage(here)
        best, best_score = None, 0.0
        for knob in [k for k in knobs if k not in self.stuck]:
            for moved in self.moves(values, knob):
                m = self.measured(moved)
                assert m is not None
                saved = math.log(load / self.budget.load(m))
                lost = max(coverage - self.coverage(m), 0.0)
                if free and lost > 1e-9:
                    continue
                if not free:  # what goes beyond the budget saves nothing
                    saved = min(saved, math.log(load) + 0.05)
                score = saved / (lost + 0.002)
                if saved > 1e-9 and score > best_score:
                    best, best_score = moved, score
        return best

    def moves(self, values: Values, knob: _Knob) -> Iterator[Values]:
        """The first setting that works in each of the next rows of the ladder."""
        found = failed = 0
        for row in knob.steps(values, self.deep):
            for setting in row:
                if self.exhausted:
                    return
                moved = {**values, **setting}
                if self.measured(moved) is not None:
                    found += 1
                    yield moved
                    break
            else:
                failed += 1
            if found >= 3 or failed - found >= _PATIENCE:
                break
        if not found:
            self.stuck.add(knob)

    def polished(self, values: Values, knobs: list[_Knob]) -> Values:
        """Alternatives of about the same size that cover more: odd tails in the places of round numbers."""
        for knob in knobs:
            now = knob.current(values)
            if knob.divide or now <= _SIZE or self.exhausted:
                continue
            here = self.measured(values)
            assert here is not None
            for value in (now + 1, now - 1, now + 2, now - 2, now + 4):
                moved = {**values, **dict.fromkeys(knob.literals, value)}
                m = self.measured(moved) if now % 2 == 0 and not self.exhausted else None
                if m is not None and self.budget.load(m) <= 1.0 and self.coverage(m) > self.coverage(here) + 1e-9:
                    values = moved
                    break
        return values

    # ------------------------------------------------------------ knobs
    def knobs(self, kind: str) -> list[_Knob]:
        """Literals that may be lowered, each alone and all of one value together."""
        own = [x for x in self.literals if x.kind == kind]
        sizes = [x for x in own if x.value > _SIZE or (kind == "given" and self.only_inputs(x))]
        if kind == "default":
            sizes = [x for x in own if x.value > 4]
        alone = [_Knob((x,)) for x in sizes]
        together = []
        for value in dict.fromkeys(x.value for x in sizes):
            # Defaults repeat in every class that passes them on; with them go the constants of the same value.
            same = tuple(x for x in self.literals if x.value == value and x.kind in ("given", kind))
            if len(same) > 1 and value > 4:
                together.append(_Knob(same))
        if kind == "default":
            return together + alone
        # Sizes that are multiples of each other move as one.
        large = tuple(x for x in sizes if x.value > _SIZE)
        return alone + together + ([_Knob(large, divide=True)] if len(large) > 1 else [])

    def only_inputs(self, literal: Literal) -> bool:
        """Whether a small literal is a batch size or the like: a larger one changes inputs and nothing else."""
        if literal.value < 2:
            return False
        moved = self.measured({**{x: x.value for x in self.literals}, literal: literal.value + 1})
        if moved is None:
            return False
        return moved.inputs != self.full.inputs and moved.state == self.full.state

    def built(self) -> list[_Knob]:
        """Widths that the model's own constructors spell out, all divided by one number; also together with the
        constants that repeat one of them."""
        own = tuple(x for x in self.literals if x.kind in ("built", "default"))
        widths = {x.value for x in own if x.value >= _SIZE}
        if not widths:
            return []
        repeated = tuple(x for x in self.literals if x.kind == "given" and x.value in widths)
        return [_Knob(own, divide=True)] + ([_Knob((*own, *repeated), divide=True)] if repeated else [])


def _extents(m: Measurement) -> set[int]:
    return {n for o in m.operations for n in o.extents}


def _paired(full: tuple[Operation, ...], small: tuple[Operation, ...]) -> Iterator[tuple[Operation, Operation]]:
    """Operators of both runs side by side; where a loop became shorter, by first use of each name."""
    if len(full) == len(small):
        yield from zip(full, small, strict=True)
        return
    first: dict[str, Operation] = {}
    for o in small:
        first.setdefault(o.name, o)
    named: dict[str, Operation] = {}
    for o in full:
        named.setdefault(o.name, o)
    yield from ((o, first[name]) for name, o in named.items() if name in first)


def _worth(extent: int, tail: int) -> float:
    """How much of what a tiled axis can show an extent shows."""
    if extent > _TILE:
        return 1.0 if extent % tail else 0.75
    if extent > _SIZE:
        return 0.5 if extent % 2 else 0.4
    return 0.2 if extent > 4 else 0.1 if extent > 1 else 0.0

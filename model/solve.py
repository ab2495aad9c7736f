"""Which size expression a number is: found from its values at several settings of the sizes.

A number of a kernel is seen once for each witness (the same kernel, written for the same spec with other sizes). An
expression is right when it gives the number at every witness; among those that do, the plainest wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
from math import prod

from kvc.kernel import KernelSpec
from kvc.model.sizes import pow2

Values = tuple[int, ...]

#: Small factors in sums: paddings and dilations.
SMALL = tuple(range(1, 9))
#: Groups of more axes than this are not taken apart into subsets.
SUBSET_AXES = 7


@dataclass
class Solver:
    """Sizes and integer knobs at each witness, and the spec's domains (groups of axes, in order)."""

    sizes: Sequence[Mapping[str, int]]
    domains: Sequence[tuple[str, ...]]
    knobs: Sequence[Mapping[str, int]]
    wave: int = 64

    @cached_property
    def products(self) -> dict[Values, str]:
        """Every product of extents that a stride or the size of a domain can be; suffixes of operands come first."""
        found: dict[Values, str] = {}
        order = list(self.sizes[0]).index  # one way to write a product
        wide = [tuple(a for a in d if any(s[a] != 1 for s in self.sizes)) for d in self.domains]
        ordered: list[tuple[str, ...]] = [(a,) for d in wide for a in d]
        ordered += [d[n:] for d in wide for n in range(len(d))] + [d[:n] for d in wide for n in range(1, len(d))]
        ordered += [d[a:b] for d in wide for a in range(len(d)) for b in range(a + 1, len(d) + 1)]
        for d in wide:
            if len(d) <= SUBSET_AXES:
                ordered += [c for n in range(1, len(d) + 1) for c in combinations(d, n)]
        for axes in dict.fromkeys(ordered):
            if axes:
                found.setdefault(self._product(axes), "*".join(sorted(axes, key=order)))
        return found

    def _product(self, axes: Iterable[str]) -> Values:
        return tuple(prod(s[a] for a in axes) for s in self.sizes)

    @cached_property
    def _knob_values(self) -> dict[Values, str]:
        """Knobs that are numbers at every witness, by their values there; the first of several alike."""
        found: dict[Values, str] = {}
        for name in self.knobs[0]:
            if all(k.get(name, 0) > 0 for k in self.knobs):
                found.setdefault(tuple(k[name] for k in self.knobs), name)
        return found

    @cached_property
    def _divisors(self) -> dict[Values, str]:
        """What a grid is divided by: knobs, products and quotients of two, a knob in waves, powers of two."""
        found = dict(self._knob_values)
        knobs = [(values, name) for values, name in found.items() if max(values) > 1]
        for (v, a), (w, b) in combinations(knobs, 2):
            found.setdefault(tuple(x * y for x, y in zip(v, w, strict=True)), f"{a}*{b}")
            for (x, left), (y, right) in (((v, a), (w, b)), ((w, b), (v, a))):
                if all(m % n == 0 for m, n in zip(x, y, strict=True)):
                    found.setdefault(tuple(m // n for m, n in zip(x, y, strict=True)), f"{left}//{right}")
        for values, name in knobs:
            if all(v % self.wave == 0 for v in values):
                found.setdefault(tuple(v // self.wave for v in values), f"{name}//{self.wave}")
        for value in (2, 4, 8, 16, self.wave, 128, 256, 512, 1024):
            found.setdefault(tuple([value] * len(self.sizes)), str(value))
        return {values: text for values, text in found.items() if min(values) >= 1 and max(values) > 1}

    @cached_property
    def quotients(self) -> dict[Values, str]:
        """cdiv(product, divisor), product // divisor, and a depth that is shared out in whole tiles."""
        found: dict[Values, str] = {}
        products = [(p, t) for p, t in self.products.items() if max(p) > 2]
        for divisor, by in self._divisors.items():
            for product, text in products:
                found.setdefault(tuple(-(-p // d) for p, d in zip(product, divisor, strict=True)), f"cdiv({text},{by})")
        for divisor, by in self._divisors.items():
            for product, text in products:
                found.setdefault(
                    tuple(p // d for p, d in zip(product, divisor, strict=True)), f"{_factor(text)}//{_factor(by)}"
                )
        for (share, a), (tile, b) in permutations(self._knob_values.items(), 2):
            for product, text in products:
                values = tuple(-(-p // (s * t)) * t for p, s, t in zip(product, share, tile, strict=True))
                found.setdefault(values, f"cdiv({text},{a}*{b})*{b}")
        return found

    def solve(self, values: Values, in_launch: bool = False) -> str | None:
        """The expression of a number, or None where it does not follow from the sizes."""
        if len(set(values)) == 1 and len(values) > 1:
            return None
        if max(values) < 3 and len(values) == 1:
            return None
        found = self._knob_values.get(values) or self.products.get(values) or self._scaled(values)
        found = found or self._divisors.get(values) or self._quotient(values) or self._power(values)
        if found is None and in_launch:
            found = self._product_of_quotients(values)
        return found or self._sum(values, depth=3)

    def _scaled(self, values: Values) -> str | None:
        """factor * product, the factor the same at every witness; the smallest factor."""
        if len(values) < 2:
            return None
        best: tuple[int, str] | None = None
        for product, text in self.products.items():
            if all(v % p == 0 for v, p in zip(values, product, strict=True)):
                factors = {v // p for v, p in zip(values, product, strict=True)}
                if len(factors) == 1:
                    factor = factors.pop()
                    if factor and (best is None or factor < best[0]):
                        best = (factor, f"{factor}*{text}")
        return best[1] if best else None

    def _quotient(self, values: Values) -> str | None:
        if values in self.quotients:
            return self.quotients[values]
        if len(values) < 2:
            return None
        for product, text in self.products.items():
            if all(v % p == 0 for v, p in zip(values, product, strict=True)):
                rest = tuple(v // p for v, p in zip(values, product, strict=True))
                if rest in self.quotients and len(set(rest)) > 1:
                    return f"{self.quotients[rest]}*{text}"
        return None

    def _product_of_quotients(self, values: Values) -> str | None:
        """cdiv(m,x)*cdiv(n,y)*batch*factor: the workgroups of a tiled product."""
        tiles = [(q, t) for q, t in self.quotients.items() if t.startswith("cdiv") and not t.endswith("//2")]
        one = tuple(1 for _ in values)
        mixed = [
            (tuple(x * y for x, y in zip(p, k, strict=True)), f"{t}*{name}")
            for p, t in self.products.items() for k, name in self._knob_values.items() if max(k) > 1
        ]  # fmt: skip
        for quotient, text in tiles:
            if any(v % q for v, q in zip(values, quotient, strict=True)):
                continue
            rest = tuple(v // q for v, q in zip(values, quotient, strict=True))
            if rest == one:
                return text
            if rest in self._divisors:
                return f"{text}*{_factor(self._divisors[rest])}"
            if self.quotients.get(rest, "").startswith("cdiv"):
                return f"{text}*{self.quotients[rest]}"
            if len(set(rest)) == 1 and len(rest) > 1:
                return f"{text}*{rest[0]}"
            for product, more in [*self.products.items(), *self._knob_values.items(), *mixed]:
                if all(r % p == 0 for r, p in zip(rest, product, strict=True)):
                    left = tuple(r // p for r, p in zip(rest, product, strict=True))
                    if self.quotients.get(left, "").startswith("cdiv"):
                        return f"{text}*{self.quotients[left]}*{more}"
        return None

    def _power(self, values: Values) -> str | None:
        if len(values) < 2 or any(v != pow2(v) for v in values):
            return None
        return next((f"pow2({t})" for p, t in self.products.items() if tuple(map(pow2, p)) == values), None)

    def _sum(self, values: Values, depth: int) -> str | None:
        """product * small factor + ..., a constant last."""
        if len(values) < 2:
            return None
        return self._sum_of(values, depth, list(self.products.items()))

    def _sum_of(self, values: Values, depth: int, terms: list[tuple[Values, str]]) -> str | None:
        if len(set(values)) == 1:
            return str(values[0]) if abs(values[0]) < 1 << 20 else None
        if depth == 0:
            return None
        for n, (product, text) in enumerate(terms):
            factor = _slope(values, product)
            for c in ({factor} if factor else set()) | ({1} if depth > 1 else set()):
                rest = tuple(v - c * p for v, p in zip(values, product, strict=True))
                found = self._sum_of(rest, depth - 1, terms[n + 1 :])
                if found is not None:
                    head = text if c == 1 else f"{c}*{text}"
                    return head if found == "0" else f"{head}{'' if found.startswith('-') else '+'}{found}"
        return None


def _slope(values: Values, product: Values) -> int | None:
    """The factor that a product must have, where all that varies between two witnesses is this product."""
    for a in range(1, len(values)):
        run = product[a] - product[0]
        if run and (values[a] - values[0]) % run == 0:
            factor = (values[a] - values[0]) // run
            return factor if abs(factor) in SMALL else None
    return None


def _factor(text: str) -> str:
    return f"({text})" if "*" in text or "/" in text else text


def domains_of(spec: KernelSpec) -> list[tuple[str, ...]]:
    """Groups of axes whose products kernels are full of: operands, statements, and the groups of the pattern."""
    from dataclasses import fields

    from kvc.patterns import match

    groups = [o.dims for o in (*spec.inputs, *spec.outputs)]
    groups += [axes for s in spec.body for axes in (s.axes, s.inner_axes, (*s.axes, *s.inner_axes))]
    pattern = match(spec)
    for f in fields(pattern):
        value = getattr(pattern, f.name)
        if isinstance(value, tuple) and value and all(isinstance(v, str) and v in spec.size for v in value):
            groups.append(value)
    return list(dict.fromkeys(g for g in groups if g))

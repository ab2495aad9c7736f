"""Equal kernels of a model become one: a twelve-layer model has the kernels of one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvc.kernel import KernelSpec


def dedupe(specs: Sequence[KernelSpec]) -> tuple[tuple[KernelSpec, ...], tuple[int, ...]]:
    """The distinct specs in order of first use, and for each given spec which of them it is. Specs are equal when
    their canonical text is (names do not count); operands then correspond by position. Kernels that differ but have
    one name are numbered, so that a name stands for one kernel."""
    numbers: dict[str, int] = {}
    distinct: list[KernelSpec] = []
    which: list[int] = []
    named: dict[str, int] = {}
    for spec in specs:
        if spec.hash not in numbers:
            numbers[spec.hash] = len(distinct)
            count = named[spec.name] = named.get(spec.name, 0) + 1
            distinct.append(spec if count == 1 else replace(spec, name=f"{spec.name}_{count}"))
        which.append(numbers[spec.hash])
    return tuple(distinct), tuple(which)

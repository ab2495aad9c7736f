"""The op table: one OpDef per operator.

An op's meaning in index notation is its only definition: shape and dtype of the result, the float64 oracle, the code
of both backends and the samples that tests run all follow from it. Ops live in the files of `kvc.optable`, by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from kvc.builder import Builder, Tensor

Meaning = Callable[..., "Tensor | tuple[Tensor, ...]"]
M = TypeVar("M", bound=Meaning)


@dataclass(frozen=True)
class Sample:
    """Arguments that exercise an op. `tensors` are the positional ones: (dtype name, shape) is a tensor, a third
    entry narrows its values (an int: integers below it, in order from 0 where "offsets" follows; "positive"), a tuple
    of such is a tensor list, anything else is a literal. `attrs` are the rest."""

    tensors: tuple[Any, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class OpDef:
    """`aten`: the ATen overloads that import as this op, e.g. "linear.default"; arguments keep ATen's names and order.
    `meaning(k, *args, **attrs)` receives Tensors for tensor arguments and literals for the rest."""

    name: str
    aten: tuple[str, ...]
    meaning: Meaning
    samples: tuple[Sample, ...]
    tolerance: float = 1.0  # factor on the dtype's tolerance, with the reason in the meaning's docstring


OPS: dict[str, OpDef] = {}


def op(*aten: str, name: str = "", samples: Sequence[Sample] = (), tolerance: float = 1.0) -> Callable[[M], M]:
    """Register the decorated meaning under the function's name (or `name`)."""

    def register(meaning: M) -> M:
        key = name or meaning.__name__.rstrip("_")
        if key in OPS:
            raise ValueError(f"op {key} is defined twice")
        OPS[key] = OpDef(key, aten, meaning, tuple(samples), tolerance)
        return meaning

    return register


@cache
def op_table() -> dict[str, OpDef]:
    """All ops by name, every file of the table loaded."""
    from importlib import import_module
    from pkgutil import iter_modules

    import kvc.optable as package

    for module in iter_modules(package.__path__):
        import_module(f"kvc.optable.{module.name}")
    return OPS


@cache
def by_aten() -> dict[str, OpDef]:
    """Ops by the ATen overload name they import."""
    return {overload: op for op in op_table().values() for overload in op.aten}


__all__ = ["Builder", "OpDef", "Sample", "Tensor", "by_aten", "op", "op_table"]

"""The reference side of a comparison: a spec in float64 and in its working dtype, and how sensitive it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvc.interpret import NUDGE, UNDEFINED, interpret, nudged
from kvc.kernel import Cast, KernelSpec, walk
from kvc.verify.inputs import INPUT_SETS, MAX_NONFINITE, Domain, domains, draw, nonfinite
from kvc.verify.masked import without_masked
from kvc.verify.roundings import alternatives

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Reference:
    """One input set with everything that results are compared with.

    `oracle` holds float64 (ints and bools exact), `working` the operand's dtypes, `probe` the oracle on float inputs
    and with results of statements each moved by at most one fp32 ulp: how far a sound computation in fp32 may stray.
    """

    name: str
    inputs: dict[str, torch.Tensor]
    oracle: dict[str, torch.Tensor]
    working: dict[str, torch.Tensor]
    probe: dict[str, torch.Tensor]


class Examiner:
    """References of a spec, worked out once each and shared by all candidates for it.

    `degenerate` lists float outputs that are (nearly) constant on every draw: there a constant passes as well, so the
    comparison proves less than it seems to.
    """

    def __init__(self, spec: KernelSpec, seed: int = 0) -> None:
        self.spec = spec
        self.seed = seed
        self._references: dict[str, Reference] = {}

    @cached_property
    def _drawn(self) -> tuple[Domain, int, tuple[str, ...]]:
        """Domain and seed of the first draw whose oracle is mostly finite and not degenerate; else the best one."""
        best: tuple[float, Domain] = (math.inf, Domain())
        for domain in domains(self.spec):
            outputs = interpret(self.spec, draw(self.spec, "normal", self.seed, domain))
            share = nonfinite(outputs)
            if share < best[0]:
                best = (share, domain)
            if share <= MAX_NONFINITE:
                break
        constant = self._constant(outputs)
        if not constant:
            return best[1], self.seed, ()
        again = self.seed + 1_000_003
        constant = self._constant(interpret(self.spec, draw(self.spec, "normal", again, best[1])))
        return best[1], again if not constant else self.seed, constant

    def _constant(self, outputs: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        from kvc.verify.compare import tells_constants_apart

        return tuple(name for name, t in outputs.items() if not tells_constants_apart(t, self.spec.operand[name].dtype))

    @property
    def degenerate(self) -> tuple[str, ...]:
        return self._drawn[2]

    @property
    def input_sets(self) -> tuple[str, ...]:
        """The sets that mean something for this spec: variants of floats need a float operand."""
        has_floats = any(o.dtype.is_float for o in self.spec.inputs)
        return INPUT_SETS if has_floats else ("normal",)

    def reference(self, name: str) -> Reference:
        if name not in self._references:
            domain, seed, _ = self._drawn
            self._references[name] = self.evaluate(name, draw(self.spec, name, seed, domain))
        return self._references[name]

    def evaluate(self, name: str, inputs: dict[str, torch.Tensor]) -> Reference:
        """The reference on given inputs."""
        return Reference(
            name,
            inputs,
            interpret(self.spec, inputs),
            interpret(self.spec, inputs, "working"),
            interpret(self.spec, perturbed(inputs, self.seed), nudge=self.seed),
        )

    def overflowing(self, reference: Reference) -> dict[str, torch.Tensor]:
        """`working` with NaN where some sum's positive and negative terms both overflow: any order of adding is right
        there, and each gives something else."""
        return interpret(self.spec, reference.inputs, "working", overflow=True)

    def undefined(self, reference: Reference) -> dict[str, torch.Tensor]:
        """Elements of each output that depend on a number too large for the integer type that it is converted to, or on
        NaN made an integer. C, PyTorch and LLVM leave the result open, and every machine gives another. {} where the
        spec has no such conversion."""
        if not converts_to_integers(self.spec):
            return {}
        runs = [interpret(self.spec, reference.inputs, "working", undefined=fill) for fill in UNDEFINED]
        return {o.name: _differ([run[o.name] for run in runs]) for o in self.spec.outputs}

    def unmasked(self, reference: Reference) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None:
        """Oracle and working interpretation where masked terms are never visited (kvc.verify.masked); None where the
        spec masks nothing."""
        spec = without_masked(self.spec)
        if spec is None:
            return None
        return interpret(spec, reference.inputs), interpret(spec, reference.inputs, "working")

    @cached_property
    def unrounded(self) -> dict[str, dict[str, torch.Tensor]]:
        """Outputs of the first input set without each rounding inside the spec (kvc.verify.roundings)."""
        return alternatives(self.spec, self.reference(self.input_sets[0]).inputs)

    @cached_property
    def growth(self) -> float:
        """How many times its smallest perturbation a sum may stray: rounding errors of n terms added one after the
        other perform a random walk, so they grow with the square root of n."""
        return 2.0 + 0.5 * math.sqrt(self._longest)

    def growth_on(self, name: str) -> float:
        """`growth` for an input set. On "rows" the terms of a sum are equal and so are their roundings, which then do
        not cancel: n of up to half a unit of each partial sum are n / 4 units of the last."""
        return max(self.growth, 2.0 + 0.25 * self._longest) if name == "rows" else self.growth

    @cached_property
    def _longest(self) -> int:
        """Terms of the longest sum."""
        inner = [stmt.inner_axes for stmt in self.spec.body]
        return max((math.prod(self.spec.extent(a) for a in axes) for axes in inner), default=1)


def converts_to_integers(spec: KernelSpec) -> bool:
    """Whether the spec makes integers of floats."""
    return any(
        isinstance(node, Cast) and node.dtype.is_integer and spec.type_of(node.arg).is_float
        for stmt in spec.body
        for root in stmt.roots
        for node in walk(root)
    )


def _differ(results: list[torch.Tensor]) -> torch.Tensor:
    """Where not all of the tensors are equal (NaN equals NaN)."""
    import torch

    first, found = results[0], torch.zeros(results[0].shape, dtype=torch.bool)
    for other in results[1:]:
        found |= (first != other) & ~((first != first) & (other != other))
    return found


def perturbed(inputs: Mapping[str, torch.Tensor], seed: int, eps: float = NUDGE) -> dict[str, torch.Tensor]:
    """Float inputs in float64, each element moved by a random relative amount of at most `eps`."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def move(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        return nudged(x.double(), generator, eps)

    return {name: move(x) for name, x in inputs.items()}

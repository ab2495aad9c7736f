"""KernelBench's own criterion, and what it cannot tell: references that prove nothing.

The criterion: five trials; each seeds the generator, draws inputs, runs the original and the candidate, and compares
shapes and then values with `torch.allclose` at atol = rtol = 1e-4 (fp32) or 1e-2 (half and bfloat16).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TRIALS = 5
SEED = 42
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}

Run = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Trials:
    """How many of the trials passed; `worst` is the largest absolute difference, `reason` why the first one failed."""

    total: int
    passed: int
    worst: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.passed == self.total

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def trial_seeds(trials: int = TRIALS, seed: int = SEED) -> list[int]:
    """The suite's seeds: drawn from a generator seeded with 42."""
    import torch

    torch.manual_seed(seed)
    return [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(trials)]


def seeded(seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def run_trials(
    original: Run, candidate: Run, get_inputs: Callable[[], Sequence[Any]], trials: int = TRIALS
) -> tuple[Trials, list[torch.Tensor]]:
    """The criterion; and the original's first output in each trial."""
    import torch

    passed, worst, reason = 0, 0.0, ""
    outputs = []
    with torch.no_grad():
        for seed in trial_seeds(trials):
            seeded(seed)
            inputs = list(get_inputs())
            seeded(seed)
            expected = _first(original(inputs))
            got = _first(candidate(inputs))
            difference, why = compare(expected, got)
            outputs.append(expected.detach().clone())
            worst = max(worst, difference)
            passed += not why
            reason = reason or why
    return Trials(trials, passed, worst, reason), outputs


def compare(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, str]:
    """(largest absolute difference, "" or why the suite's comparison fails)."""
    import torch

    if expected.shape != got.shape:
        return float("inf"), f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    difference = float((expected.double() - got.double()).abs().max()) if expected.numel() else 0.0
    tolerance = tolerance_of(expected)
    if torch.allclose(expected, got.to(expected.dtype), atol=tolerance, rtol=tolerance):
        return difference, ""
    return difference, f"differs by {difference:.2e}"


def tolerance_of(t: torch.Tensor) -> float:
    return TOLERANCES.get(str(t.dtype).removeprefix("torch."), 1e-4)


def _first(result: Any) -> torch.Tensor:
    """The tensor of a result; the suite knows no other results."""
    from torch.utils import _pytree as pytree

    tensor: torch.Tensor = pytree.tree_leaves(result)[0]
    return tensor


def self_test(module: torch.nn.Module, get_inputs: Callable[[], Sequence[Any]]) -> tuple[Trials, str]:
    """The original against a copy of itself, and what makes it a degenerate reference ("" where nothing does)."""
    first, second = copy.deepcopy(module), copy.deepcopy(module)
    trials, outputs = run_trials(lambda x: first(*x), lambda x: second(*x), get_inputs)
    return trials, degenerate(outputs)


def beyond_its_dtype(
    original: Run, candidate: Run, module: torch.nn.Module, get_inputs: Callable[[], Sequence[Any]]
) -> str:
    """Why the criterion cannot be met by rounding alone: the original misses its own float64 result by more than the
    tolerance, and the candidate by no more than twice as much. "" where either is not so, or there is no float64."""
    import torch
    from kvc.verify.widened import own_dtype, to_double, widened

    def excess(oracle: torch.Tensor, got: torch.Tensor) -> float:
        tolerance = tolerance_of(got)
        return float(((got.double() - oracle).abs() / (tolerance + tolerance * oracle.abs())).max())

    exact = copy.deepcopy(module).double()
    own = theirs = 0.0
    with torch.no_grad():
        for seed in trial_seeds(2):
            seeded(seed)
            inputs = list(get_inputs())
            try:
                with widened(own_dtype(module, inputs)):
                    oracle = _first(exact(*to_double(inputs)))
            except (RuntimeError, TypeError):  # a model that mixes float types by hand
                return ""
            own = max(own, excess(oracle, _first(original(inputs))))
            theirs = max(theirs, excess(oracle, _first(candidate(inputs))))
    if own <= 1.0 or not theirs <= 2.0 * own:
        return ""
    return f"its own rounding is {own:.1f} times the tolerance (the translation's {theirs:.1f} times)"


def degenerate(outputs: Sequence[torch.Tensor]) -> str:
    """Why outputs for different inputs tell nothing about a kernel, "" where they do: a kernel that writes zeros, or
    one constant, would pass the suite's criterion, or the inputs have no effect at all."""
    import torch

    def passes(make: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return all(compare(x, make(x))[1] == "" for x in outputs)

    if not outputs or not outputs[0].numel() or not outputs[0].is_floating_point():
        return ""
    if passes(torch.zeros_like):
        largest = max(float(x.abs().max()) for x in outputs)
        return f"zeros pass: no output exceeds {largest:.1e}"
    if outputs[0].numel() > 1 and passes(lambda x: torch.full_like(x, float(x.double().mean()))):
        return f"a constant passes: every output is {float(outputs[0].double().mean()):.4g}"
    if len(outputs) > 1 and all(x.shape == outputs[0].shape and torch.equal(x, outputs[0]) for x in outputs[1:]):
        return "the output does not depend on the inputs"
    return ""

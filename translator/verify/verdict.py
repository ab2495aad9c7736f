"""Verdicts: what the judge says of a candidate, and the artifact that only a verified one can become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvc.diagnostics import Diagnostic
from kvc.emitter import Candidate, Compiled

#: Stages in the order in which they run, cheap before dear.
STAGES = ("propose", "lint", "compile", "resources", "execute", "compare", "determinism")


@dataclass(frozen=True)
class OutputError:
    """The largest error of one output over all input sets.

    Errors are in units of max(|reference|, rms of the reference). `tolerance` is the dtype's, in the same unit;
    `working` is the error of the spec interpreted in its working dtype, `allowed` what that permits; `input_set` and
    `where` say on which inputs and at which element. Integers and bools are exact: all three are 0.
    """

    output: str
    error: float
    tolerance: float
    working: float
    allowed: float
    input_set: str
    where: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "where": list(self.where)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> OutputError:
        return OutputError(**{**data, "where": tuple(data["where"])})


def worst_errors(errors: Sequence[OutputError]) -> tuple[OutputError, ...]:
    """For each output the largest error among the well-conditioned input sets (among all, where there is none)."""
    worst = {}
    for name in dict.fromkeys(e.output for e in errors):
        mine = [e for e in errors if e.output == name]
        well = [e for e in mine if e.allowed <= e.tolerance]
        worst[name] = max(well or mine, key=lambda e: e.error)
    return tuple(worst.values())


@dataclass(frozen=True)
class Evidence:
    """Why a kernel counts as verified. JSON-able and deterministic: same candidate, same seed, same evidence."""

    executor: str
    arch: str
    seed: int
    checks: tuple[str, ...]
    input_sets: tuple[str, ...]
    errors: tuple[OutputError, ...]
    resources: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)  # of the first run; {} where the executor has none
    warnings: tuple[str, ...] = ()

    @property
    def worst(self) -> OutputError | None:
        """The output closest to its tolerance."""
        return max(self.errors, key=lambda e: e.error / e.tolerance if e.tolerance else 0.0, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "executor": self.executor,
            "arch": self.arch,
            "seed": self.seed,
            "checks": list(self.checks),
            "input_sets": list(self.input_sets),
            "errors": [e.to_json() for e in self.errors],
            "resources": self.resources,
            "counters": self.counters,
            "warnings": list(self.warnings),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Evidence:
        return Evidence(
            executor=data["executor"],
            arch=data["arch"],
            seed=data["seed"],
            checks=tuple(data["checks"]),
            input_sets=tuple(data["input_sets"]),
            errors=tuple(OutputError.from_json(e) for e in data["errors"]),
            resources=data["resources"],
            counters=data["counters"],
            warnings=tuple(data["warnings"]),
        )


@dataclass(frozen=True)
class Rejected:
    """The stage that turned a candidate down, and why."""

    stage: str
    diagnostic: Diagnostic

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"no stage {self.stage!r}")


@dataclass(frozen=True)
class Verified:
    """A candidate that passed every stage, with exactly the code objects that did."""

    evidence: Evidence
    compiled: Compiled


Verdict = Rejected | Verified


@dataclass(frozen=True)
class Artifact:
    """A kernel that may be written out. TypeError when built from anything but a Verified."""

    candidate: Candidate
    verified: Verified

    def __post_init__(self) -> None:
        if not isinstance(self.verified, Verified):
            raise TypeError("an artifact needs a verified candidate")

"""The figures of a kernel that people compare: resources, counters, errors and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A row of a kernel's figures. `better`: -1 when less is better, 1 when more is, 0 when neither. `exact` figures
    follow from the sources; others were measured or estimated on some machine. `of(record, measured)` reads it from
    the lock's entry and measurements.json; None where it is not there."""

    name: str
    label: str
    better: int
    exact: bool
    of: Callable[[Mapping[str, Any], Mapping[str, Any]], float | None]


def _resource(key: str, merge: Callable[[list[float]], float] = max) -> Callable[..., float | None]:
    """A compiler's figure, merged over the launches' kernels."""

    def of(record: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
        rows = [r for r in record["resources"].values() if isinstance(r, Mapping)]
        values = [r[key] for r in rows if isinstance(r.get(key), int | float)]
        return merge(values) if values else None

    return of


def _spills(record: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
    parts = [_resource(key, sum)(record, measured) for key in ("vgpr_spills", "sgpr_spills")]
    known = [p for p in parts if p is not None]
    return sum(known) if known else None


def _lds(record: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
    static = _resource("lds_bytes")(record, measured)
    dynamic = max((launch["dynamic_lds"] for launch in record["launches"]), default=0)
    return None if static is None else static + dynamic


def _counted(key: str) -> Callable[..., float | None]:
    def of(record: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
        launches = measured.get("counters", {}).get("launches", ())
        values = [launch["counters"][key] for launch in launches if key in launch.get("counters", {})]
        return sum(values) if values else None

    return of


def _estimated(key: str) -> Callable[..., float | None]:
    return lambda record, measured: measured.get("estimate", {}).get(key)


def _measured_us(record: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
    timing = measured.get("timing", {})
    return timing.get("median_us") if isinstance(timing, Mapping) else None


def worst_error(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The lock's error entry that uses most of its tolerance."""
    return max(errors, key=lambda e: e["error"] / e["tolerance"] if e["tolerance"] else 0.0, default=None)


def _error(record: Mapping[str, Any], measured: Mapping[str, Any]) -> float | None:
    worst = worst_error(record["errors"])
    return None if worst is None else worst["error"]


FIGURES: tuple[Figure, ...] = (
    Figure("vgprs", "VGPRs", -1, True, _resource("vgprs")),
    Figure("agprs", "AGPRs", -1, True, _resource("agprs")),
    Figure("sgprs", "SGPRs", -1, True, _resource("sgprs")),
    Figure("lds_bytes", "LDS, bytes", -1, True, _lds),
    Figure("spills", "spilled registers", -1, True, _spills),
    Figure("scratch_bytes", "scratch a lane, bytes", -1, True, _resource("scratch_bytes")),
    Figure("waves_per_simd", "waves a SIMD (by registers)", 1, True, _resource("waves_per_simd", min)),
    Figure("launches", "launches", -1, True, lambda record, measured: len(record["launches"])),
    Figure("matrix_instructions", "matrix instructions in the code", 0, True, _resource("matrix_instructions", sum)),
    Figure("error", "largest error", -1, True, _error),
    Figure("instructions", "instructions run (simulator)", -1, False, _counted("instructions")),
    Figure("global_read_bytes", "bytes read (simulator)", -1, False, _counted("global_read_bytes")),
    Figure("lds_conflict_cycles", "LDS conflict cycles (simulator)", -1, False, _counted("lds_conflict_cycles")),
    Figure("floor_us", "roofline, us (estimate)", -1, False, _estimated("floor_us")),
    Figure("counted_us", "counted traffic, us (estimate)", -1, False, _estimated("counted_us")),
    Figure("median_us", "time, us (measured)", -1, False, _measured_us),
)  # fmt: skip

FIGURE: dict[str, Figure] = {figure.name: figure for figure in FIGURES}


def figures_of(record: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, float]:
    """All figures of a kernel that are known, by name."""
    found = {figure.name: figure.of(record, measured) for figure in FIGURES}
    return {name: value for name, value in found.items() if value is not None}


def shown(value: float | None) -> str:
    """A figure as people read it."""
    if value is None:
        return "-"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.3g}"

"""The HTML report of a translation: one self-contained file, from the lock, the measurements and the kernel sources."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kvc.diagnostics import CODES
from kvc.templates import render


def share(error: float, tolerance: float) -> float:
    """How much of the tolerance an error uses, in percent; 0 for exact results."""
    return min(100.0 * error / tolerance, 100.0) if tolerance else 0.0


def decades(error: float, tolerance: float) -> float:
    """Length in percent of a bar on a logarithmic scale over four decades that ends at the tolerance."""
    if not error or not tolerance:
        return 0.0
    return max(min(100.0 + 25.0 * math.log10(error / tolerance), 100.0), 1.0)


def _worst(errors: list[dict[str, Any]]) -> dict[str, Any] | None:
    return max(errors, key=lambda e: share(e["error"], e["tolerance"]), default=None)


def _resources(resources: dict[str, Any]) -> dict[str, Any]:
    """The figures that decide occupancy, the largest over a candidate's kernels."""
    rows = [r for r in resources.values() if isinstance(r, dict)]
    keys = ("vgprs", "agprs", "lds_bytes", "spills", "vgpr_spills", "occupancy", "waves_per_simd")
    found: dict[str, Any] = {}
    for key in keys:
        values = [r[key] for r in rows if isinstance(r.get(key), int | float)]
        if values:
            found[key] = min(values) if key in ("occupancy", "waves_per_simd") else max(values)
    return found


def kernel_rows(lock: dict[str, Any], measurements: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    rows = []
    for kernel in lock["kernels"]:
        worst = _worst(kernel["errors"])
        measured = measurements["kernels"].get(kernel["name"], {})
        rows.append(
            {
                **kernel,
                "worst": worst,
                "bar": decades(worst["error"], worst["tolerance"]) if worst else 0.0,
                "figures": _resources(kernel["resources"]),
                "estimate": measured.get("estimate", {}),
                "source": (folder / kernel["file"]).read_text(encoding="utf-8"),
            }
        )
    return rows


def report_html(lock: dict[str, Any], measurements: dict[str, Any], folder: Path) -> str:
    """The report's text. `folder` holds the sources that the lock names."""
    runs = lock["model"]["end_to_end"]
    worst = _worst([error for run in runs for error in run["errors"]])
    warnings = [(k["name"], w) for k in lock["kernels"] for w in k["warnings"]]
    return render(
        "report/report.html.j2",
        lock=lock,
        kernels=kernel_rows(lock, measurements, folder),
        seconds=measurements["seconds"],
        runs=runs,
        worst=worst,
        worst_bar=decades(worst["error"], worst["tolerance"]) if worst else 0.0,
        warnings=warnings,
        executors=sorted({k["executor"] for k in lock["kernels"]}),
        launches=sum(len(k["launches"]) * k["uses"] for k in lock["kernels"]),
        graph=(folder / "graph.kir").read_text(encoding="utf-8"),
        codes=CODES,
    )

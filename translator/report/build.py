"""The HTML report of a translation: one self-contained file, from the lock, the measurements and the sources."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import arch
from kvc.diagnostics import CODES
from kvc.figures import FIGURES, figures_of, shown, worst_error
from kvc.folder import Folder
from kvc.report import drawing
from kvc.templates import render
from kvc.text import parse_graph

if TYPE_CHECKING:
    from markupsafe import Markup


def share(error: float, tolerance: float) -> float:
    """How much of the tolerance an error uses, in percent; 0 for exact results."""
    return min(100.0 * error / tolerance, 100.0) if tolerance else 0.0


def decades(error: float, tolerance: float) -> float:
    """Length in percent of a bar on a logarithmic scale over four decades that ends at the tolerance."""
    if not error or not tolerance:
        return 0.0
    return max(min(100.0 + 25.0 * math.log10(error / tolerance), 100.0), 1.0)


def highlighted(source: str, file: str) -> Markup:
    """A source as HTML: spans with pygments' short class names, everything else escaped."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name("python" if file.endswith(".py") else "cpp", stripnl=False)
    return Markup(highlight(source, lexer, HtmlFormatter(nowrap=True)))


def kernel_rows(folder: Folder) -> list[dict[str, Any]]:
    """What the page shows of each kernel."""
    rows = []
    for name, record in folder.kernels.items():
        measured = folder.measured(name)
        figures = figures_of(record, measured)
        worst = worst_error(record["errors"])
        source = folder.text(record["file"])
        rows.append(
            {
                **record,
                "spec": folder.specs.get(name, ""),
                "worst": worst,
                "bar": decades(worst["error"], worst["tolerance"]) if worst else 0.0,
                "figures": {f.name: shown(figures[f.name]) for f in FIGURES if f.name in figures},
                "labels": {f.name: f.label for f in FIGURES},
                "estimate": measured.get("estimate", {}),
                "tuning": drawing.tuning_plot(measured.get("tuning", {})),
                "source": highlighted(source, record["file"]),
                "lines": source.count("\n"),
            }
        )
    return rows


def report_html(folder: Folder) -> str:
    """The report's text."""
    lock = folder.lock
    graph = folder.text("graph.kir")
    runs = lock["model"]["end_to_end"]
    worst = worst_error([error for run in runs for error in run["errors"]])
    kernels = kernel_rows(folder)
    estimates: dict[str, Mapping[str, Any]] = {k["name"]: k["estimate"] for k in kernels}
    return render(
        "report/report.html.j2",
        lock=lock,
        kernels=kernels,
        seconds=folder.measurements["seconds"],
        runs=runs,
        worst=worst,
        worst_bar=decades(worst["error"], worst["tolerance"]) if worst else 0.0,
        warnings=[(k["name"], w) for k in lock["kernels"] for w in k["warnings"]],
        library=[
            (k["name"], k["library"], folder.measured(k["name"]).get("library", {}))
            for k in lock["kernels"]
            if "library" in k
        ],
        executors=sorted({k["executor"] for k in lock["kernels"]}),
        launches=sum(len(k["launches"]) * k["uses"] for k in lock["kernels"] if "library" not in k),
        graph=graph,
        drawing=drawing.draw_graph(parse_graph(graph, "graph.kir"), lock["steps"], folder.kernels),
        box=(drawing.BOX_W, drawing.BOX_H),
        roofline=drawing.roofline(arch(lock["arch"]), estimates),
        plot=(drawing.PLOT_W, drawing.PLOT_H, drawing.LEFT, drawing.BOTTOM, drawing.TOP, drawing.RIGHT),
        tuning_size=(drawing.TUNING_W, drawing.TUNING_H, drawing.LEFT),
        measured=any(k["tuning"] and k["tuning"].kind == "measured" for k in kernels),
        codes=CODES,
    )


def write_report(out: Path, folder: Path) -> None:
    """Write the report of a folder to a file. OSError where it cannot be written."""
    from kvc.folder import read_folder

    out.write_text(report_html(read_folder(str(folder))), encoding="utf-8")

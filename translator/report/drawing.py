"""The drawings of the report as plain geometry for its template: the model as a graph of kernels, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvc.arch import ArchSpec
from kvc.graph import Graph

BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 216, 48, 24, 40, 12
SWEEPS = 4  # of the ordering within layers
PLOT_W, PLOT_H, LEFT, BOTTOM, TOP, RIGHT = 720, 360, 64, 44, 16, 20


@dataclass
class Box:
    """A node of the drawing; `kind` is "kernel", "fallback", "input" or "output"."""

    label: str
    detail: str
    kind: str
    link: str
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def center(self) -> float:
        return self.x + BOX_W / 2


@dataclass(frozen=True)
class Drawing:
    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    width: float
    height: float


def draw_graph(graph: Graph, steps: Sequence[Mapping[str, Any]], kernels: Mapping[str, Mapping[str, Any]]) -> Drawing:
    """The steps of a plan from inputs (above) to outputs (below), in layers: each below all that it reads. Weights are
    left out."""
    boxes: list[Box] = []
    producer: dict[str, int] = {}
    edges: set[tuple[int, int]] = set()
    for i in graph.inputs:
        if i.kind == "user":
            producer[i.name] = len(boxes)
            boxes.append(Box(i.name, f"{i.type.dtype}[{','.join(map(str, i.type.shape))}]", "input", ""))
    nodes = {n.name: n for n in graph.nodes}
    for step in steps:
        own = len(boxes)
        name = step.get("kernel")
        if name is not None:
            record = kernels[name]
            where = ", ".join(step["origin"])
            how = f"library: {record['library']['calls'][0]}" if "library" in record else record["schedule"]
            kind = "fallback" if "library" in record else "kernel"
            boxes.append(Box(name, f"{how}  {where}", kind, f"#k-{name}"))
            reads = step["inputs"]
        else:
            boxes.append(Box(step["fallback"], "runs eagerly", "fallback", "#fallbacks"))
            node = nodes.get(step["outputs"][0])
            reads = node.refs if node is not None else ()
        edges |= {(producer[value], own) for value in reads if value in producer}
        producer |= dict.fromkeys(step["outputs"], own)
    for value in dict.fromkeys(graph.outputs):
        if value in producer:
            edges.add((producer[value], len(boxes)))
            t = graph.types[value]
            boxes.append(Box(value, f"{t.dtype}[{','.join(map(str, t.shape))}]", "output", ""))
    _place(boxes, edges)
    width = max((b.x + BOX_W for b in boxes), default=0) + MARGIN
    height = max((b.y + BOX_H for b in boxes), default=0) + MARGIN
    return Drawing(tuple(boxes), tuple(_path(boxes[a], boxes[b]) for a, b in sorted(edges)), width, height)


def _place(boxes: list[Box], edges: set[tuple[int, int]]) -> None:
    """Layers by the longest way from an input; within a layer near the middle of what is connected (barycentres)."""
    above: dict[int, list[int]] = {n: [] for n in range(len(boxes))}
    below: dict[int, list[int]] = {n: [] for n in range(len(boxes))}
    for a, b in sorted(edges):
        above[b].append(a)
        below[a].append(b)
    for n, box in enumerate(boxes):  # in the order of the plan, so what is read comes first
        box.layer = max((boxes[a].layer + 1 for a in above[n]), default=0)
    for n in reversed(range(len(boxes))):  # inputs come down to their first reader
        if boxes[n].kind == "input" and below[n]:
            boxes[n].layer = min(boxes[b].layer for b in below[n]) - 1
    layers: dict[int, list[int]] = {}
    for n, box in enumerate(boxes):
        layers.setdefault(box.layer, []).append(n)
    widest = max((len(row) for row in layers.values()), default=1)
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for layer in sorted(layers, reverse=sweep % 2 == 1):
            row = layers[layer]
            if sweep:
                row.sort(key=lambda n: sum(boxes[m].x for m in near[n]) / len(near[n]) if near[n] else boxes[n].x)
            start = MARGIN + (widest - len(row)) * (BOX_W + GAP_X) / 2
            for i, n in enumerate(row):
                boxes[n].x, boxes[n].y = start + i * (BOX_W + GAP_X), MARGIN + layer * (BOX_H + GAP_Y)


def _path(a: Box, b: Box) -> str:
    """A curve from the lower edge of one box to the upper edge of another."""
    y0, y1 = a.y + BOX_H, b.y
    bend = max((y1 - y0) / 2, GAP_Y / 2)
    x0, x1 = a.center, b.center
    return f"M{x0:.0f},{y0:.0f} C{x0:.0f},{y0 + bend:.0f} {x1:.0f},{y1 - bend:.0f} {x1:.0f},{y1:.0f}"


# ---------------------------------------------------------------- the roofline


@dataclass(frozen=True)
class Point:
    """A kernel: operations a byte, TFLOP/s that the estimate implies, and where that is drawn."""

    name: str
    intensity: float
    tflops: float
    x: float
    y: float


@dataclass(frozen=True)
class Roofline:
    """`roofs`: (label, path, x, y of the label); `ticks_x`, `ticks_y`: (position, label). `without`: kernels that do no
    arithmetic."""

    points: tuple[Point, ...]
    roofs: tuple[tuple[str, str, float, float], ...]
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    without: int


def roofline(row: ArchSpec, estimates: Mapping[str, Mapping[str, Any]]) -> Roofline:
    """Every kernel under the roofs of the GPU: memory bandwidth, the plain ALU and the matrix cores (kvc.arch). Speeds
    are estimates: the spec's operations over the time that the counted traffic, or the least traffic, takes."""
    raw = []
    for name, e in estimates.items():
        us = e.get("counted_us") or e.get("floor_us") or 0.0
        moved = e.get("counted_bytes") or e.get("bytes") or 0
        if e.get("flops") and us and moved:
            raw.append((name, e["flops"] / moved, e["flops"] / us / 1e6))
    peaks: dict[float, list[str]] = {}
    for kind, peak in row.peak_tflops:
        peaks.setdefault(peak, []).append(kind.replace("f32_vector", "f32 ALU"))
    xs = [x for _, x, _ in raw] + [0.1, 1e3 * max(peaks) / row.hbm_gbps * 4]
    ys = [y for _, _, y in raw] + [max(peaks) * 2, row.hbm_gbps / 1e3 * 0.1]
    low_x, high_x = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    low_y, high_y = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def at_x(value: float) -> float:
        return round(LEFT + (math.log10(value) - low_x) / (high_x - low_x) * (PLOT_W - LEFT - RIGHT), 1)

    def at_y(value: float) -> float:
        return round(PLOT_H - BOTTOM - (math.log10(value) - low_y) / (high_y - low_y) * (PLOT_H - BOTTOM - TOP), 1)

    slope = row.hbm_gbps / 1e3  # TFLOP/s at one operation a byte
    start = max(10.0**low_x, 10.0**low_y / slope)
    ridge = max(peaks) / slope
    memory = f"M{at_x(start)},{at_y(start * slope)} L{at_x(ridge)},{at_y(max(peaks))}"
    middle = math.sqrt(start * ridge)
    roofs = [(f"memory, {row.hbm_gbps:,.0f} GB/s", memory, at_x(middle), at_y(middle * slope) - 8)]
    for peak, kinds in sorted(peaks.items()):
        path = f"M{at_x(peak / slope)},{at_y(peak)} L{at_x(10.0**high_x)},{at_y(peak)}"
        below = 14 if peak < max(peaks) else -5  # of the line, where the memory roof does not cross the text
        roofs.append((f"{', '.join(kinds)}: {peak:,.0f} TFLOP/s", path, at_x(10.0**high_x) - 4, at_y(peak) + below))
    return Roofline(
        tuple(Point(n, x, y, at_x(x), at_y(y)) for n, x, y in raw),
        tuple(roofs),
        tuple((at_x(10.0**e), _power(e)) for e in range(low_x, high_x + 1)),
        tuple((at_y(10.0**e), _power(e)) for e in range(low_y, high_y + 1)),
        len(estimates) - len(raw),
    )


def _power(exponent: int) -> str:
    return (
        f"{10**exponent:,}" if 0 <= exponent <= 4 else f"{10.0**exponent:g}" if -3 <= exponent < 0 else f"1e{exponent}"
    )


# ---------------------------------------------------------------- the tuner's history


TUNING_W, TUNING_H = 560, 140


@dataclass(frozen=True)
class TuningPlot:
    """Times over trials, on a logarithmic scale. `best` is the path of the best so far; `dots`: (x, y, what it is);
    `ticks`: (y, label); `kind` says whether the times were measured."""

    kind: str
    best: str
    dots: tuple[tuple[float, float, str], ...]
    ticks: tuple[tuple[float, str], ...]


def tuning_plot(tuning: Mapping[str, Any]) -> TuningPlot | None:
    """The plot of one kernel's entry in measurements.json; None where no trial had a time."""
    timed = [(n, e) for n, e in enumerate(tuning.get("history", ())) if e["us"]]
    if not timed:
        return None
    low, high = (f(e["us"] for _, e in timed) for f in (min, max))
    span = math.log(max(high / low, 1.01))
    step = (TUNING_W - LEFT - RIGHT) / max(len(tuning["history"]) - 1, 1)

    def at(n: int, us: float) -> tuple[float, float]:
        y = TOP + (TUNING_H - 2 * TOP) * (1 - math.log(us / low) / span)
        return round(LEFT + n * step, 1), round(y, 1)

    best = [at(n, e["best_us"]) for n, e in enumerate(tuning["history"]) if e["best_us"] and e["best_us"] >= low]
    path = "".join(f"H{x}V{y}" if k else f"M{x} {y}" for k, (x, y) in enumerate(best))
    dots = tuple((*at(n, e["us"]), f"{e['choice']}: {e['us']:.4g} \u00b5s, {e['state']}") for n, e in timed)
    ticks = tuple((at(0, us)[1], f"{us:.3g} \u00b5s") for us in dict.fromkeys((high, low)))
    return TuningPlot(str(tuning["kind"]), path, dots, ticks)

"""Statistics of a vault: what it holds, what passed where, how varied it is; as JSON, text and a page with plots."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from kvc.vault.shards import rows, shards
from kvc.verify.verdict import STAGES

_COLUMNS = [
    "id", "spec_hash", "structure", "target", "arch", "op_class", "dtype", "split", "source_kind", "emitter", "status",
    "stage", "code", "normalized_hash", "source", "ops", "estimate_us", "functional", "licence",
]  # fmt: skip


def statistics(folder: Path, *, near: bool = False) -> dict[str, Any]:
    """Counts of all shards. `verified` counts records by target; `near` adds near-duplicates (needs datasketch).
    `pass_rates`: of the candidates that reached a stage, the share that passed it."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    specs: dict[str, set[str]] = defaultdict(set)
    texts: set[tuple[str, str, str]] = set()
    total = 0
    lengths: list[int] = []
    for row in rows(folder, _COLUMNS):
        total += 1
        target, ok = row["target"], row["status"] == "verified"
        counts["status"][row["status"]] += 1
        counts["candidates"][target] += 1
        specs["all"].add(row["spec_hash"])
        specs["structures"].add(row["structure"])
        if not ok:
            counts[f"stage.{target}"][row["stage"]] += 1
            counts["rejections"][f"{row['stage']} {row['code']}"] += 1
            continue
        counts["verified"][target] += 1
        specs[f"verified.{target}"].add(row["spec_hash"])
        specs["verified_structures"].add(row["structure"])
        specs[f"kind.{row['source_kind']}"].add(row["spec_hash"])
        specs["functional"] |= {row["spec_hash"]} if row["functional"] else set()
        texts.add((row["spec_hash"], target, row["normalized_hash"]))
        for column in ("op_class", "dtype", "source_kind", "emitter", "split", "arch", "licence"):
            counts[column][row[column]] += 1
        counts["op_set"][row["ops"]] += 1
        lengths.append(row["source"].count("\n"))
    found: dict[str, Any] = {
        "records": total,
        "verified": {"hip": counts["verified"]["hip"], "triton": counts["verified"]["triton"]},
        "rejected": counts["status"]["rejected"],
        "specs": len(specs["all"]),
        "specs_verified": {t: len(specs[f"verified.{t}"]) for t in ("hip", "triton")},
        "specs_from_libraries": len(set().union(*(v for k, v in specs.items() if k in _LIBRARIES))),
        "specs_by_source": {k.removeprefix("kind."): len(v) for k, v in sorted(specs.items()) if k.startswith("kind.")},
        "specs_with_functional": len(specs["functional"]),
        "distinct_structures": len(specs["structures"]),
        "distinct_texts": len(texts),
        "operation_sets": len(counts["op_set"]),
        "class_entropy_bits": round(entropy(counts["op_class"]), 3),
        "source_lines": _quartiles(lengths),
        "shards": len(shards(folder)),
        "bytes": sum(p.stat().st_size for p in shards(folder)),
    }
    for column in ("op_class", "dtype", "source_kind", "emitter", "split", "arch", "licence"):
        found[f"by_{column}"] = dict(counts[column].most_common())
    found["rejections"] = dict(counts["rejections"].most_common(40))
    found["pass_rates"] = {t: _pass_rates(counts["candidates"][t], counts[f"stage.{t}"]) for t in ("hip", "triton")}
    if near:
        from kvc.vault.quality import near_duplicates

        twice = near_duplicates(rows(folder, ["id", "spec_hash", "target", "status", "source"]), 0.9)
        found["near_duplicates"] = len(twice)
    return found


_LIBRARIES = tuple(f"kind.{k}" for k in ("nn", "transformers", "torchvision", "timm"))


def entropy(counts: Counter[str]) -> float:
    """Shannon entropy in bits: how evenly records are spread over classes."""
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values()) if total else 0.0


def _quartiles(values: list[int]) -> dict[str, int]:
    if not values:
        return {}
    ordered = sorted(values)
    at = {"least": 0, "first_quartile": 0.25, "median": 0.5, "third_quartile": 0.75, "most": 1}
    return {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] for name, share in at.items()}


def _pass_rates(candidates: int, fallen: Counter[str]) -> dict[str, float]:
    rates = {}
    left = candidates
    for stage in STAGES:
        if left:
            rates[stage] = round(1.0 - fallen[stage] / left, 4)
        left -= fallen[stage]
    return rates


def text(found: dict[str, Any]) -> str:
    """The main counts, a line each."""
    lines = [
        f"{found['records']} records, {found['verified']['hip']} verified HIP, {found['verified']['triton']} verified "
        f"Triton, {found['rejected']} rejected",
        f"{found['specs']} specs ({found['specs_from_libraries']} from libraries), "
        f"{found['distinct_structures']} distinct structures, {found['operation_sets']} sets of operations",
    ]
    if "near_duplicates" in found:
        lines.append(f"{found['near_duplicates']} near-duplicates within a spec and target")
    for title in ("op_class", "dtype", "source_kind", "emitter"):
        counts = list(found[f"by_{title}"].items())[:12]
        lines.append(f"{title}: " + ", ".join(f"{name} {n}" for name, n in counts))
    return "\n".join(lines)


def record_text(row: dict[str, Any]) -> str:
    """One record for a reader."""
    head = f"{row['id']}  {row['target']} {row['arch']} {row['op_class']} {row['dtype']}  from {row['origin']}"
    verdict = "verified" if row["status"] == "verified" else f"rejected at {row['stage']}: {row['message']}"
    parts = [head, f"{row['emitter']} {row['knobs']}: {verdict}"]
    if row["estimate_us"] is not None:
        parts.append(f"estimate {row['estimate_us']} us")
    launches = [
        f"{launch['kernel']} grid {launch['grid']} block {launch['block']}" for launch in json.loads(row["launches"])
    ]
    return "\n".join([*parts, "", row["spec_text"], "", row["source"].rstrip(), "", *launches])


# ---------------------------------------------------------------- the page


def page(found: dict[str, Any]) -> str:
    """A self-contained HTML page: tiles of counts, bar charts as inline SVG, a table of the rejections."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    charts = [
        ("Verified records by class of operation", bars(found["by_op_class"], 24)),
        ("By dtype", bars(found["by_dtype"])),
        ("By source of the reference", bars(found["by_source_kind"])),
        ("By emitter", bars(found["by_emitter"])),
        ("Specs by source", bars(found["specs_by_source"])),
        ("Rejections by stage and code", bars(found["rejections"], 24)),
    ]
    pages = Environment(
        loader=PackageLoader("kvc.vault", ""), undefined=StrictUndefined, autoescape=True, trim_blocks=True
    )
    return pages.get_template("stats.html.j2").render(found=found, charts=[c for c in charts if c[1]["rows"]])


def bars(counts: dict[str, int], most: int = 16) -> dict[str, Any]:
    """Geometry of a horizontal bar chart: rows of {name, count, y, width}, in units of the SVG's view box."""
    items = sorted(counts.items(), key=lambda item: -item[1])
    rest = sum(n for _, n in items[most:])
    items = items[:most] + ([(f"{len(items) - most} others", rest)] if rest else [])
    largest = max((n for _, n in items), default=1)
    rows_ = [
        {"name": name, "count": n, "y": 22 * i, "width": round(440 * n / largest, 1)}
        for i, (name, n) in enumerate(items)
    ]
    return {"rows": rows_, "height": 22 * len(rows_) + 4}

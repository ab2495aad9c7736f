"""The table of a run: totals by level, Pass@1, fast_p, and every problem that did not pass, as JSON and Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvc.bench.journal import Record

THIN = 0.5  # coverage of reduced sizes (kvc.bench.reduce) below which a pass says little
BASELINES = ("eager", "compile", "max_autotune")  # of kvc.bench.timing
FAST_P = (0.5, 0.8, 1.0, 1.5, 2.0)


def summarise(records: Sequence[Record], total: int) -> dict[str, Any]:
    """The run in figures. `total` problems were asked for; those without a record count against every rate."""
    levels = sorted({r["level"] for r in records})
    return {
        "problems": total,
        "done": len(records),
        "all": _figures(records, total),
        "levels": {str(n): _figures(own := [r for r in records if r["level"] == n], len(own)) for n in levels},
        "failures": classes(records),
    }


def _figures(records: Sequence[Record], total: int) -> dict[str, Any]:
    status = Counter(r["status"] for r in records)
    seconds = [sum(r.get("seconds", {}).values()) for r in records]
    figures: dict[str, Any] = {
        "total": total,
        "passed": status["passed"],
        "passed_thin": sum(r["status"] == "passed" and _coverage(r) < THIN for r in records),
        "failed": status["failed"],
        "reference": status["reference"],
        "pass_at_1": round(status["passed"] / total, 4) if total else 0.0,
        "kernels": sum(r.get("kernels", 0) for r in records),
        "distinct": sum(r.get("distinct", 0) for r in records),
        "library_calls": sum(r.get("library_calls", 0) for r in records),
        "fallbacks": sum(len(r.get("fallbacks", ())) for r in records),
        "with_fallback": sum(bool(r.get("fallbacks")) for r in records),
        "seconds_per_problem": round(sum(seconds) / len(seconds), 1) if seconds else 0.0,
        "slowest_s": round(max(seconds, default=0.0), 1),
    }
    timed = [r for r in records if "times" in r]
    if timed:
        figures["timing"] = _timing(records, total)
    return figures


def _coverage(record: Record) -> float:
    """How much of the full problem's tiling the sizes that were run can show; 1 at full size."""
    coverage: float = record.get("sizes", {}).get("coverage", 1.0)
    return coverage


def _timing(records: Sequence[Record], total: int) -> dict[str, Any]:
    """fast_p: the share of all problems that are correct and more than p times as fast as the baseline;
    "at_least_as_fast": that are correct and no slower. The geometric mean is over the correct ones; "launches" and
    "kvc_launches" are the kernels of a call, summed over them."""
    result: dict[str, Any] = {}
    for baseline in BASELINES:
        mine = [r["times"] for r in records if r["status"] == "passed" and baseline in r.get("times", {})]
        if not mine and baseline not in ("eager", "compile"):
            continue
        ratios = [t[baseline]["median_ms"] / t["kvc"]["median_ms"] for t in mine]
        result[baseline] = {
            "problems": len(ratios),
            "fast_p": {str(p): _share(sum(x > p for x in ratios), total) for p in FAST_P},
            "at_least_as_fast": _share(sum(x >= 1 for x in ratios), total),
            "geometric_mean": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3) if ratios else None,
            "launches": sum(t[baseline].get("launches", 0) for t in mine),
            "external": sum(t[baseline].get("external", 0) for t in mine),
            "kvc_launches": sum(t["kvc"].get("launches", 0) for t in mine),
        }
    return result


def _share(count: int, total: int) -> float:
    return round(count / total, 4) if total else 0.0


def classes(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Failures by code and operator or stage, the commonest first."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in records:
        if r["status"] == "failed":
            groups.setdefault(_class_of(r), []).append(r)
    return [
        {"code": code, "what": what, "count": len(rs), "problems": [r["problem"] for r in rs],
         "message": rs[0].get("failure", {}).get("message", "")[:300]}
        for (code, what), rs in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]  # fmt: skip


def _class_of(record: Mapping[str, Any]) -> tuple[str, str]:
    code = record.get("failure", {}).get("code", "?")
    if record.get("fallbacks"):
        return code, ", ".join(sorted({f["op"] for f in record["fallbacks"]}))
    final = [r for r in record.get("rejected", ()) if r["final"]]
    if final:
        return code, f"{final[0]['schedule']} at {final[0]['stage']}"
    return code, str(record.get("reached", ""))


def markdown(summary: Mapping[str, Any], records: Sequence[Record], title: str, group: str = "level") -> str:
    """The summary as a Markdown page; `group` is what its rows are called."""
    lines = [f"# {title}", ""]
    head = f"| {group} | problems | passed | failed | degenerate or self-failing reference | Pass@1 | kernels | distinct | library calls | fallbacks | s a problem |"  # noqa: E501
    lines += [head, "|" + "---|" * 11]
    rows = {**summary["levels"], "all": summary["all"]}
    for name, f in rows.items():
        cells = [name, f["total"], f["passed"], f["failed"], f["reference"], f"{100 * f['pass_at_1']:.1f}%",
                 f["kernels"], f["distinct"], f["library_calls"], f["fallbacks"], f["seconds_per_problem"]]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += _timing_lines(rows)
    if summary["failures"]:
        lines += ["", "## Failures", "", "| count | code | what | problems | first message |", "|---|---|---|---|---|"]
        for c in summary["failures"]:
            cells = [c["count"], c["code"], _cell(c["what"]), " ".join(c["problems"]), _cell(c["message"])]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    bad = [r for r in records if r["status"] == "reference"]
    if bad:
        lines += ["", "## References that prove nothing", ""]
        lines += [f"- {r['problem']} {r['name']}: {r.get('reference', {}).get('degenerate', '')}" for r in bad]
    thin = [r for r in records if r["status"] == "passed" and _coverage(r) < THIN]
    if thin:
        lines += ["", f"## Passed at sizes that show little (coverage below {THIN})", ""]
        lines += [f"- {r['problem']} {r['name']}: {_coverage(r)}, inputs {r['sizes']['inputs']}" for r in thin]
    timed = any("times" in r for r in records)
    columns = ["problem", "name", "status", "kernels", "distinct", "coverage", "seconds"]
    columns += ["kvc ms", *(f"over {b}" for b in BASELINES)] if timed else []
    lines += ["", "## Problems", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for r in records:
        seconds = round(sum(r.get("seconds", {}).values()), 1)
        known = (r["problem"], r["name"], r["status"], r.get("kernels", ""), r.get("distinct", ""))
        cells = [*known, _coverage(r), seconds, *(_time_cells(r) if timed else [])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _timing_lines(rows: Mapping[str, Any]) -> list[str]:
    timed = {name: f["timing"] for name, f in rows.items() if "timing" in f}
    if not timed:
        return []
    head = ["level", "against", "problems", *(f"fast_{p:g}" for p in FAST_P), "at least as fast", "geometric mean",
            "its launches (of libraries)", "kvc's"]  # fmt: skip
    lines = ["", "## Speed", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, timing in timed.items():
        for baseline, t in timing.items():
            cells = [name, baseline, t["problems"], *(f"{100 * t['fast_p'][str(p)]:.1f}%" for p in FAST_P),
                     f"{100 * t['at_least_as_fast']:.1f}%", t["geometric_mean"] or "",
                     f"{t['launches']} ({t['external']})", t["kvc_launches"]]  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def _time_cells(record: Record) -> list[str]:
    """The speedups of a problem over each baseline, and its milliseconds."""
    times = record.get("times", {})
    ours = times.get("kvc", {}).get("median_ms")
    ratios = [f"{times[b]['median_ms'] / ours:.2f}" if ours and b in times else "" for b in BASELINES]
    return [f"{ours:.4f}" if ours else "", *ratios]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

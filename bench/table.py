"""The table of a run: totals by level, Pass@1, fast_p, and every problem that did not pass, as JSON and Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvc.bench.journal import Record

THIN = 0.5  # coverage of reduced sizes (kvc.bench.reduce) below which a pass says little
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
    """fast_p: the share of all problems that are correct and more than p times as fast as the baseline. The
    geometric mean is over the correct ones."""
    result: dict[str, Any] = {}
    for baseline in ("eager", "compile"):
        ratios = [
            r["times"][baseline]["median_ms"] / r["times"]["kvc"]["median_ms"]
            for r in records
            if r["status"] == "passed" and baseline in r.get("times", {})
        ]
        result[baseline] = {
            "problems": len(ratios),
            "fast_p": {str(p): round(sum(x > p for x in ratios) / total, 4) if total else 0.0 for p in FAST_P},
            "geometric_mean": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3) if ratios else None,
        }
    return result


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
    lines += [
        "",
        "## Problems",
        "",
        "| problem | name | status | kernels | distinct | coverage | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in records:
        seconds = round(sum(r.get("seconds", {}).values()), 1)
        cells = [
            r["problem"],
            r["name"],
            r["status"],
            r.get("kernels", ""),
            r.get("distinct", ""),
            _coverage(r),
            seconds,
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _timing_lines(rows: Mapping[str, Any]) -> list[str]:
    timed = {name: f["timing"] for name, f in rows.items() if "timing" in f}
    if not timed:
        return []
    lines = [
        "",
        "## Speed",
        "",
        "| level | against | " + " | ".join(f"fast_{p:g}" for p in FAST_P) + " | geometric mean |",
    ]
    lines.append("|" + "---|" * (len(FAST_P) + 3))
    for name, timing in timed.items():
        for baseline, t in timing.items():
            shares = " | ".join(f"{100 * t['fast_p'][str(p)]:.1f}%" for p in FAST_P)
            lines.append(f"| {name} | {baseline} | {shares} | {t['geometric_mean'] or ''} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

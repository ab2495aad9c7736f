"""A plan as a table: what each step computes, by which pattern, and what it costs at least."""

from __future__ import annotations

from kvc.cost import bytes_moved, flops
from kvc.patterns import match
from kvc.plan import Invoke, Plan

_HEAD = ("step", "kernel", "pattern", "stmts", "reads", "writes", "bytes", "flops", "from")


def explain(plan: Plan) -> str:
    """One line a step: kernel, pattern, statements, operands, least bytes of traffic, operations, and where it stands
    in the model; then the totals of a call. Steps of the prologue, which run when parameters change, are marked "once".
    Fallbacks give their reason."""
    rows = [_HEAD]
    total_bytes = total_flops = 0
    for n, step in enumerate(plan.steps):
        if not isinstance(step, Invoke):
            where = str(step.node.loc or "")
            rows.append((str(n), step.node.op, "fallback", "", "", "", "", "", f"{where} {step.reason}".strip()))
            continue
        spec = plan.kernels[step.kernel]
        moved, done = bytes_moved(spec), flops(spec)
        once = n in plan.prologue
        total_bytes += 0 if once else moved
        total_flops += 0 if once else done
        pattern = type(match(spec)).__name__
        counts = (str(len(spec.body)), str(len(spec.inputs)), str(len(spec.outputs)))
        where = str(step.origin[0]) if step.origin else ""
        label = f"{n} once" if once else str(n)
        rows.append((label, spec.name, pattern, *counts, quantity(moved, "B"), quantity(done, ""), where))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    summary = (
        f"{len(plan.calls)} steps{once_text(plan)}, {len(plan.kernels)} kernels, {len(plan.fallbacks)} fallbacks, "
        f"{quantity(total_bytes, 'B')} moved, {quantity(total_flops, 'flop')}"
    )
    return "\n".join([*lines, summary])


def once_text(plan: Plan) -> str:
    """How many steps a plan takes beside those of each call."""
    return f" and {len(plan.prologue)} once" if plan.prologue else ""


def quantity(value: float, unit: str) -> str:
    """A number with a decimal prefix and three digits: 1.23 MB."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            digits = f"{value:.3g}" if value >= 1 or value == 0 else f"{value:.2f}"
            return f"{digits} {prefix}{unit}".strip()
        value /= 1000
    raise AssertionError("unreachable")

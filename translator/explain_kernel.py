"""One kernel of a written folder explained: where it comes from, why it is one kernel, why it has this schedule, what
limits it, and the instructions it became."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvc.arch import arch
from kvc.bottleneck import Limit, limit_of
from kvc.diagnostics import KvcError
from kvc.disassembly import Disassembly, disassemble, excerpt, mix
from kvc.emitter import Candidate, Origin, Scratch, Task, target
from kvc.explain import quantity
from kvc.figures import FIGURE, figures_of, shown
from kvc.folder import Folder
from kvc.kernel import KernelSpec
from kvc.patterns import match, points, why_not
from kvc.pipeline_graph import fusion
from kvc.records import launch_from_json
from kvc.text import parse_graph, parse_kernel
from kvc.text.graph_printer import print_node


@dataclass(frozen=True)
class Why:
    """Why a kernel is what it is.

    `nodes` are lines of the graph; `lines` the model's, as (place, text; "" where the file is not at hand);
    `intermediates` what stays inside, with its bytes; `neighbours` (kernel, "reads"/"feeds", why apart);
    `patterns` and `emitters` reasons against the more specific ones.
    """

    name: str
    record: Mapping[str, Any]
    spec: KernelSpec
    lines: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...]
    intermediates: tuple[tuple[str, int], ...]
    neighbours: tuple[tuple[str, str, str], ...]
    pattern: str
    patterns: Mapping[str, str]
    emitters: Mapping[str, str]
    limit: Limit
    figures: Mapping[str, float]
    code: tuple[Disassembly, ...] = ()
    code_note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "schedule": self.record["schedule"],
            "emitter": self.record["emitter"]["emitter"],
            "model": [{"at": at, "text": text} for at, text in self.lines],
            "graph": list(self.nodes),
            "intermediates": dict(self.intermediates),
            "neighbours": [{"kernel": k, "relation": r, "why_apart": w} for k, r, w in self.neighbours],
            "pattern": self.pattern,
            "why_not_pattern": dict(self.patterns),
            "why_not_emitter": dict(self.emitters),
            "limit": {
                "kind": "estimate",
                "by": self.limit.name,
                "workgroups": self.limit.workgroups,
                "compute_units": self.limit.units,
                "parts": [{"name": p.name, "us": p.us, "why": p.why} for p in self.limit.parts],
            },
            "figures": dict(self.figures),
            "code": [
                {"kernel": c.kernel, "instructions": dict(c.counts), "loops": len(c.loops), "lines": list(c.lines)}
                for c in self.code
            ],
            "code_note": self.code_note,
        }


def kernel_named(folder: Folder, name: str) -> Mapping[str, Any]:
    """The lock's entry of a kernel, by its name, its file or an unambiguous start of its name. KVC0106 otherwise."""
    stem = Path(name).stem
    fitting = [n for n in folder.kernels if n in (name, stem)] or [n for n in folder.kernels if n.startswith(name)]
    if len(fitting) == 1:
        return folder.kernels[fitting[0]]
    # Names are long, and what was typed is most often the start of one.
    close = sorted(
        folder.kernels, key=lambda n: -difflib.SequenceMatcher(None, name, n[: len(name)]).ratio()
    )  # fmt: skip
    problem = "several kernels are" if fitting else "no kernel is"
    raise KvcError("KVC0106", f"{problem} named {name!r}", hint=f"one of: {', '.join((fitting or close)[:8])}")


def explain_kernel(folder: Folder, name: str, root: Path | None = None) -> Why:
    """Everything that is known of a kernel. `root` is the folder of the model's sources; the code is compiled again to
    get its assembly. KVC0106 for an unknown kernel, KVC0301 where the folder's texts do not parse."""
    record = kernel_named(folder, name)
    own = str(record["name"])
    spec = parse_kernel(folder.specs[own], "kernels.kir")
    row = arch(record["arch"])
    nodes, neighbours = _fused(folder, own)
    outputs = {o.name for o in spec.outputs}
    inside = tuple(
        (s.target, points(spec, s.axes) * s.dtype.bytes) for s in spec.body if s.target not in outputs
    )  # fmt: skip
    code, note = _code(folder, record, spec)
    measured = folder.measured(own)
    return Why(
        own,
        record,
        spec,
        tuple((at, _line(at, root, folder)) for at in record["origin"]),
        nodes,
        inside,
        neighbours,
        type(match(spec)).__name__.lower(),
        why_not(spec),
        _emitters(record, spec),
        limit_of(spec, row, record["launches"], measured.get("counters")),
        figures_of(record, measured),
        code,
        note,
    )


def _line(at: str, root: Path | None, folder: Folder) -> str:
    """The text of a model's line, where its file is found below `root`, here, or beside the folder."""
    file, _, line = at.rpartition(":")
    above = list(Path(folder.path).resolve().parents)[:3]
    for base in [root] if root is not None else [Path(), *above]:
        path = base / file
        if path.is_file() and line.isdigit():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            return lines[int(line) - 1].strip() if int(line) <= len(lines) else ""
    return ""


def _fused(folder: Folder, name: str) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """The graph's nodes in a kernel, and its neighbours with the reason why they are kernels of their own."""
    graph = parse_graph(folder.text("graph.kir"), "graph.kir")
    steps = folder.lock["steps"]
    step = next(s for s in steps if s.get("kernel") == name)
    groups = fusion(graph)
    group = groups.owner.get(step["outputs"][0])
    if group is None:
        return (), ()
    targets = set(groups.groups[group])
    places = set(step["origin"])
    nodes = tuple(
        print_node(n) for n in graph.nodes if targets & set(n.outputs) or (str(n.loc) in places and _inside(n, targets))
    )
    found: dict[tuple[str, str], str] = {}
    for other in steps:
        if other is step:
            continue
        label = other.get("kernel") or f"eager {other['fallback']}"
        theirs = groups.owner.get(other["outputs"][0])
        feeds = set(other["outputs"]) & set(step["inputs"])
        reads = set(other.get("inputs", ())) & set(step["outputs"])
        if (feeds or reads) and theirs is not None and theirs != group:
            first, second = (theirs, group) if feeds else (group, theirs)
            found[label, "feeds it" if feeds else "reads it"] = groups.why_apart(first, second)
    return nodes, tuple((k, relation, why) for (k, relation), why in found.items())


def _inside(node: Any, targets: set[str]) -> bool:
    """Whether statements of a node were named after it: `linear_t` belongs to `linear`."""
    return any(t.startswith((f"{o}_", f"{o}.")) for o in node.outputs for t in targets)


def _emitters(record: Mapping[str, Any], spec: KernelSpec) -> dict[str, str]:
    """The target's emitters that come before the one that wrote the kernel, each with the reason why it did not."""
    task = Task(spec, arch(record["arch"]), record["numerics"])
    reasons: dict[str, str] = {}
    for emitter in target(record["target"]).emitters():
        if emitter.name == record["emitter"]["emitter"]:
            break
        support = emitter.supports(task)
        reasons[emitter.name] = support.reason if not support.ok else "its candidates were rejected, or it is new"
    return reasons


def _code(folder: Folder, record: Mapping[str, Any], spec: KernelSpec) -> tuple[tuple[Disassembly, ...], str]:
    """The code of each kernel of the file, by compiling it again, and whether that gives the verified code objects."""
    candidate = Candidate(
        Task(spec, arch(record["arch"]), record["numerics"]), record["target"], record["schedule"],
        folder.text(record["file"]), tuple(launch_from_json(launch) for launch in record["launches"]),
        tuple(Scratch(**s) for s in record["workspace"]), tuple(sorted(record["knobs"].items())),
        Origin(**record["emitter"]),
    )  # fmt: skip
    try:
        compiled = target(record["target"]).compile(candidate)
    except KvcError as error:
        if error.code not in ("KVC0501", "KVC0502"):
            raise
        return (), f"not shown: {error.diagnostic}"
    same = all(compiled.objects[s].binary == folder.files.get(path) for s, path in record["symbols"].items())
    note = "compiled again, byte for byte the verified code object" if same else "NOT the verified code object"
    return tuple(disassemble(compiled.objects[s].asm, s) for s in record["symbols"]), note


# ---------------------------------------------------------------- as text


def render(why: Why, instructions: int = 40) -> str:
    """The explanation as text, with at most `instructions` lines of code a kernel."""
    record = why.record
    knobs = ", ".join(f"{k}={v}" for k, v in record["knobs"].items())
    lines = [
        f"{why.name}: {record['file']}, {record['target']} for {record['arch']}, steps that run it: {record['uses']}",
        "",
    ]
    lines += ["In the model"]
    lines += [f"  {at}  {text}".rstrip() for at, text in why.lines] or ["  nowhere: kvc added it"]
    lines += [f"    {node}" for node in why.nodes]
    lines += ["", "Why one kernel", *_fusion_lines(why)]
    lines += ["", f"Why this schedule: {record['schedule']}, by {record['emitter']['emitter']} ({knobs})"]
    lines += [f"  its spec is of the pattern {why.pattern}"]
    lines += [f"  not {name}: {reason}" for name, reason in why.patterns.items()]
    lines += [f"  not {name}: {reason}" for name, reason in why.emitters.items()]
    limit = why.limit
    lines += ["", f"What limits it: {limit.name} (an estimate)"]
    lines += [f"  {limit.workgroups:,} workgroups for {limit.units} compute units"]
    lines += [f"  {p.name:<8}{p.us:>12,.3f} us  {p.why}" for p in limit.parts]
    lines += ["", "What it uses"]
    lines += [f"  {FIGURE[name].label:<34}{shown(value):>14}" for name, value in why.figures.items()]
    lines += ["", f"Instructions ({why.code_note})"]
    for code in why.code:
        what, shown_lines = excerpt(code, instructions)
        lines += [f"  {code.kernel}: {mix(code.counts)}", f"  {what}", *(f"    {line}" for line in shown_lines)]
    return "\n".join(lines)


def _fusion_lines(why: Why) -> list[str]:
    """What fusion saves, and where it ends."""
    lines = []
    if why.intermediates:
        total = sum(size for _, size in why.intermediates)
        names = ", ".join(name for name, _ in why.intermediates[:8])
        more = f" and {len(why.intermediates) - 8} more" if len(why.intermediates) > 8 else ""
        lines.append(f"  {names}{more} never exist in memory: {quantity(total, 'B')} not written and not read again")
    else:
        lines.append("  it has no intermediate values")
    for kernel, relation, reason in why.neighbours:
        lines.append(f"  {kernel} {relation}, apart since {reason}")
    return lines

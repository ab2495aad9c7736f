"""`kvc bench cdna`: how good the code for CDNA is, from the compiled text and the simulator; no GPU takes part.

For each case, target and GPU the default kernel is compiled and run on the simulator: whole for memory-bound specs, a
few sampled workgroups for large contractions. Registers, LDS and spills are the compiler's figures, bytes and
instructions are counted, cycles are estimates (kvc.bench.cdna_loop). Results are not checked here; verification is
`kvc verify`'s.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvc.arch import CDNA, ArchSpec, arch
from kvc.bench.cdna_cases import CASES, Case
from kvc.bench.cdna_loop import MainLoop, main_loop
from kvc.cost import bytes_moved
from kvc.diagnostics import KvcError
from kvc.dtypes import dtype
from kvc.emitter import Candidate, Compiled, Launch, Target, Task
from kvc.emitter import target as find_target
from kvc.patterns import points as points_of
from kvc.text import parse_kernel

if TYPE_CHECKING:
    import numpy as np
    from kvc.simulator import Buffer, Memory

BYTES_BAR = 1.05  # of the least traffic, memory-bound specs
MFMA_BAR = 0.5  # of the main loop's cycles, GEMM at 4096^3
SAMPLED = 4  # workgroups of a large contraction


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench cdna`. `names`: only cases whose name holds one of these."""

    targets: tuple[str, ...] = ("hip", "triton")
    archs: tuple[str, ...] = CDNA
    names: tuple[str, ...] = ()
    numerics: str = "strict"
    seed: int = 0
    workgroups: int = SAMPLED


def run(request: Request, say: Callable[[str], Any]) -> dict[str, Any]:
    """Judge every case. Gives {"kind": "estimate", "bars", "rows"}; a row has "missed", the bars that it misses."""
    chosen = [c for c in CASES if not request.names or any(n in c.name for n in request.names)]
    if not chosen:
        raise KvcError("KVC0102", "no such case", hint=f"one of: {', '.join(c.name for c in CASES)}")
    rows = []
    for case, target, name in itertools.product(chosen, request.targets, request.archs):
        rows.append(_row(case, target, arch(name), request))
        say(line(rows[-1]))
    missed = sum(len(row["missed"]) for row in rows)
    return {"kind": "estimate", "bars": {"bytes": BYTES_BAR, "mfma_share": MFMA_BAR}, "missed": missed, "rows": rows}


def _row(case: Case, target_name: str, row: ArchSpec, request: Request) -> dict[str, Any]:
    task = Task(parse_kernel(case.text), row, request.numerics)
    target = find_target(target_name)
    record: dict[str, Any] = {"case": case.name, "kind": case.kind, "target": target_name, "arch": row.name}
    candidate, compiled = _default(task, target, request.seed)
    record |= {"schedule": candidate.schedule, "knobs": dict(candidate.knobs)}
    record |= _code(candidate, compiled)
    record |= _ran(case, candidate, compiled, request)
    record["missed"] = list(_missed(case, record))
    return record


def _default(task: Task, target: Target, seed: int) -> tuple[Candidate, Compiled]:
    """The first setting of the first emitter that takes the task, compiled; KVC0502 where it does not compile."""
    for emitter in target.emitters():
        if emitter.supports(task).ok:
            knobs = emitter.space(task).configurations[0]
            candidate = next(iter(emitter.propose(task, knobs, [], seed)))
            return candidate, target.compile(candidate)
    raise KvcError("KVC0401", f"no emitter of {target.name} takes {task.spec.name}")


def _code(candidate: Candidate, compiled: Compiled) -> dict[str, Any]:
    """What the compiler says of the kernels: the most of any launch, the least occupancy."""
    from kvc.backends.hip.resources import occupancy

    used = [(launch, compiled.resources[launch.kernel]) for launch in candidate.launches]
    most = {
        name: max(int(getattr(r, name)) for _, r in used)
        for name in ("spills", "scratch_bytes", "vgprs", "agprs", "lds_bytes")
    }
    waves = min(
        occupancy(r, candidate.task.arch, launch.block[0] * launch.block[1] * launch.block[2], launch.dynamic_lds)
        for launch, r in used
    )
    return {**most, "waves_per_simd": waves, "launches": len(used)}


# ---------------------------------------------------------------- on the simulator


def _ran(case: Case, candidate: Candidate, compiled: Compiled, request: Request) -> dict[str, Any]:
    """Counters of all launches together, and the main loop of the launch that did most."""
    from kvc.simulator import Memory

    task = candidate.task
    memory = Memory(task.arch.name)
    buffers = _buffers(memory, candidate, request.seed)
    totals = {"global_bytes": 0, "mfma": 0, "conflicts": 0, "workgroups": 0, "seconds": 0.0}
    loops: list[MainLoop] = []
    for launch in candidate.launches:
        counters, seconds, loop = _launched(case, candidate, compiled, launch, memory, buffers, request)
        totals["global_bytes"] += counters.global_read_bytes + counters.global_write_bytes
        totals["mfma"] += counters.by_class.get("mfma", 0)
        totals["conflicts"] += counters.lds_conflict_cycles
        totals["workgroups"] += counters.workgroups
        totals["seconds"] += seconds
        if loop is not None:
            loops.append(loop)
    found: dict[str, Any] = {**totals, "seconds": round(totals["seconds"], 2)}
    if case.whole:
        least, again = bytes_moved(task.spec), _cached_bytes(task)
        counted = totals["global_bytes"]
        found |= {"least_bytes": least, "cached_bytes": again}
        found["bytes_ratio"] = max(counted / (least + again), min(counted / least, 1.0))
    loop = max(loops, key=lambda item: (item.matrix_cycles, item.instructions), default=None)
    found["loop"] = loop.to_json() if loop is not None else None
    return found


def _launched(
    case: Case,
    candidate: Candidate,
    compiled: Compiled,
    launch: Launch,
    memory: Memory,
    buffers: dict[str, Buffer],
    request: Request,
) -> tuple[Any, float, MainLoop | None]:
    import numpy as np
    from kvc.simulator import launch as simulate
    from kvc.simulator import load
    from kvc.simulator.launch import sample_workgroups

    row, code = candidate.task.arch, compiled.objects[launch.kernel]
    program = load(code.asm, row.name, code.binary)
    spec = candidate.task.spec
    args = [np.int64(spec.extent(a[1:])) if a.startswith("#") else buffers[a] for a in launch.args]
    report = simulate(
        program,
        launch.kernel,
        launch.grid,
        launch.block,
        [*args, *[None] * code.extra_pointers],
        memory,
        dynamic_lds=launch.dynamic_lds + code.lds_bytes,
        seed=request.seed,
        workgroups=None if case.whole else sample_workgroups(launch.grid, request.seed, request.workgroups),
    )
    return report.counters, report.seconds, main_loop(program, row)


def _buffers(memory: Memory, candidate: Candidate, seed: int) -> dict[str, Buffer]:
    """Inputs at random; outputs and scratch zero, since where workgroups are sampled nobody writes all of them."""
    spec = candidate.task.spec
    found = {
        o.name: memory.upload(_values(o.dtype.name, spec.shape_of(o.name), seed + zlib.crc32(o.name.encode())), o.name)
        for o in spec.inputs
    }
    for o in spec.outputs:
        size = _count(spec.shape_of(o.name)) * o.dtype.bytes
        found[o.name] = memory.alloc(max(size, 1), fill=b"\0", name=o.name)
    for scratch in candidate.workspace:
        size = scratch.numel * dtype(scratch.dtype).bytes
        found[scratch.name] = memory.alloc(max(size, 1), fill=b"\0", name=scratch.name)
    return found


def _cached_bytes(task: Task) -> int:
    """Bytes that reads of small operands ask for beyond the first time, when every reader asks by itself: they come
    from cache. Small is an eighth of L2, such as the weight and bias of a norm."""
    spec, again = task.spec, 0
    for o in spec.inputs:
        own = points_of(spec, spec.dims_of(o.name)) * o.dtype.bytes
        if own > task.arch.l2_bytes // 8:
            continue
        asked = sum(
            points_of(spec, (*stmt.axes, *stmt.inner_axes)) * o.dtype.bytes
            for stmt in spec.body
            for load in stmt.loads()
            if load.tensor == o.name
        )
        whole = max(points_of(spec, (*s.axes, *s.inner_axes)) for s in spec.body)
        if own * 8 <= whole * o.dtype.bytes:  # broadcast over the domain, not the data itself
            again += max(asked - own, 0)
    return again


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _values(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Normal numbers in the storage of a float type (bf16 cut off, as bits)."""
    import numpy as np

    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"f32": np.float32, "f16": np.float16}[kind])


# ---------------------------------------------------------------- bars and table


def _missed(case: Case, record: dict[str, Any]) -> Iterator[str]:
    """The bars that a row misses, each in words."""
    loop = record["loop"]
    if record["spills"] or record["scratch_bytes"]:
        yield f"{record['spills']} registers spilled"
    if case.whole and record["bytes_ratio"] > BYTES_BAR:
        yield f"bytes {record['bytes_ratio']:.2f}x of the least"
    if loop is None:
        if case.kind == "matrix" and not record["mfma"]:
            yield "no MFMA"
        return
    if loop["wide_share"] is not None and loop["wide_share"] < 1:
        yield f"16-byte accesses {loop['wide_share']:.0%}"
    if case.kind != "matrix":
        return
    if not record["mfma"]:
        yield "no MFMA"
    if loop["conflicts"]:
        yield f"LDS conflicts {loop['conflicts'] / max(loop['lds_accesses'], 1):.2f} cycles an access"
    if case.gemm and loop["mfma_share"] < MFMA_BAR:
        yield f"MFMA {loop['mfma_share']:.0%} of the loop"


def line(record: dict[str, Any]) -> str:
    """A row in words."""
    loop = record["loop"] or {}
    share = f", MFMA {loop['mfma_share']:.0%} of the loop ({loop['bound']})" if loop.get("matrix") else ""
    ratio = f", bytes {record['bytes_ratio']:.2f}x" if "bytes_ratio" in record else ""
    return (
        f"{record['case']} {record['target']} {record['arch']} ({record['schedule']}): {record['vgprs']}+"
        f"{record['agprs']} registers, LDS {record['lds_bytes']:,}, {record['waves_per_simd']} waves{share}{ratio}; "
        f"{'missed: ' + ', '.join(record['missed']) if record['missed'] else 'met'}; {record['seconds']} s"
    )


_HEAD = (
    "kernel", "target", "GPU", "schedule", "VGPRs + AGPRs", "spills", "LDS", "waves a SIMD", "MFMA of the loop",
    "LDS conflicts", "16-byte accesses", "bytes", "bars",
)  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    """The result as a table: bars met or missed, estimates marked with ~."""
    lines = [f"| {' | '.join(_HEAD)} |", "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for r in result["rows"]:
        loop = r["loop"] or {}
        wide = loop.get("wide_share")
        cells = (
            r["case"], r["target"], r["arch"], r["schedule"], f"{r['vgprs']} + {r['agprs']}", str(r["spills"]),
            f"{r['lds_bytes']:,}", str(r["waves_per_simd"]),
            f"~{loop['mfma_share']:.2f}" if loop.get("matrix") else "",
            f"~{loop['conflicts'] / loop['lds_accesses']:.2f}" if loop.get("lds_accesses") else "",
            f"{wide:.0%}" if wide is not None else "",
            f"{r['bytes_ratio']:.2f}" if "bytes_ratio" in r else "",
            "missed: " + ", ".join(r["missed"]) if r["missed"] else "met",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


__all__ = ["Request", "line", "markdown", "run"]

"""Times of verified Triton records on a CUDA device: a side table, since shards are never rewritten.

A record's source is compiled for the device that is there, its outputs are checked against the oracle on the device's
own run, and the kernel is timed between device events with caches emptied. The table names the device: what ran on an
NVIDIA GPU is no evidence for a gfx kernel, and its time is no time of one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.record import Record

TABLE = "measured.parquet"


def time_records(folder: Path, count: int, seed: int, say: Callable[[str], Any]) -> dict[str, Any]:
    """Time at most `count` verified Triton records that the side table does not hold yet; rewrites that table alone.
    KVC0601 without a CUDA device."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from kvc.bench.cuda_module import device_row
    from kvc.bench.timing import plain_precision
    from kvc.vault.validate import sample

    row = device_row()
    device = plain_precision()["device"]
    path = folder / TABLE
    known = pq.read_table(path).to_pylist() if path.is_file() else []
    done = {(r["id"], r["device"]) for r in known}
    timed: list[dict[str, Any]] = []
    todo = [r for r in sample(folder, 1 << 62, seed) if r["target"] == "triton" and (r["id"], device) not in done]
    for number, data in enumerate(todo[:count]):
        timed.append({"id": data["id"], "device": device, **_timed(Record.from_row(data), row)})
        if number % 50 == 49:
            say(f"{number + 1} of {min(count, len(todo))} timed")
    schema = pa.schema(
        [("id", pa.string()), ("device", pa.string()), ("measured_us", pa.float64()), ("spread_us", pa.float64()),
         ("problem", pa.string())]
    )  # fmt: skip
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist([*known, *timed], schema=schema), temporary, compression="zstd")
    temporary.rename(path)
    failed = sum(bool(r["problem"]) for r in timed)
    return {"device": device, "timed": len(timed) - failed, "failed": failed}


def _timed(record: Record, row: Any) -> dict[str, Any]:
    import torch
    from kvc.bench.cuda_module import compiled_for
    from kvc.bench.micro import KernelCall
    from kvc.bench.timing import interleaved
    from kvc.emitter import target

    candidate = record.candidate()
    there = replace(candidate, task=replace(candidate.task, arch=row))
    nothing = {"measured_us": None, "spread_us": None}
    try:
        compiled = compiled_for(there, target(record.target), row)
        from kvc.verify.oracle import Examiner

        reference = Examiner(candidate.task.spec, record.seed).reference("normal")
        inputs = [reference.inputs[o.name].cuda() for o in candidate.task.spec.inputs]
        if any(candidate.task.spec.strides_of(o.name) != tuple(x.stride()) and x.numel() > 1
               for o, x in zip(candidate.task.spec.inputs, inputs, strict=True)):  # fmt: skip
            inputs = [_laid_out(candidate.task.spec, o.name, x) for o, x in zip(candidate.task.spec.inputs, inputs)]  # noqa: B905
        call = KernelCall(there, compiled, inputs)
        call.poison()
        call()
        torch.cuda.synchronize()
        for operand, out in zip(candidate.task.spec.outputs, call.outputs, strict=True):
            problem = _differs(operand, out, reference.oracle[operand.name])
            if problem:
                return {**nothing, "problem": problem}
        times = interleaved({"kernel": call})["kernel"]
    except KvcError as error:
        return {**nothing, "problem": str(error)}
    return {
        "measured_us": round(statistics.median(times) * 1e3, 3),
        "spread_us": round((max(times) - min(times)) * 1e3, 3),
        "problem": "",
    }


def _laid_out(spec: Any, name: str, x: Any) -> Any:
    """A tensor in the strides that the spec states."""
    import torch

    strides = spec.strides_of(name)
    made = torch.empty_strided(spec.shape_of(name), strides, dtype=x.dtype, device=x.device)
    return made.copy_(x)


def _differs(operand: Any, got: Any, oracle: Any) -> str:
    """Why a result on the device is not that of the oracle; the full gates are those of the gfx kernel."""
    from kvc.verify.compare import limits

    if not operand.dtype.is_float:
        return "" if bool((got.cpu() == oracle.to(got.dtype).cpu()).all()) else f"{operand.name} differs"
    want, have = oracle.double(), got.double().cpu()
    finite = want.isfinite() & have.isfinite()
    far = (want - have).abs() > limits(want.masked_fill(~finite, 0.0), operand.dtype, 4.0)
    return f"{operand.name} differs on the device" if bool((far & finite).any()) else ""

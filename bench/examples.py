"""Examples on an NVIDIA GPU, by both targets: a second opinion on what the emitters write, never evidence for gfx code.

    python -m kvc.bench.examples examples/*.py --dtype f32 --dtype bf16

Each model is captured, written for the chip, run through the written module.py, and compared with the original in
float64 beside eager's own error, by the verifier's rule. Exit code 1 where a result does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGETS = ("hip", "triton")


def run(path: str, target: str, dtype: str, seed: int = 0) -> dict[str, Any]:
    """One example: its errors by the verifier's rule, the number of launches and what failed."""
    import torch
    from kvc.bench.cuda_module import device_row, module_on_cuda, translation
    from kvc.dtypes import from_torch
    from kvc.emitter import target as find_target
    from kvc.frontends.fx.capture import capture_loaded
    from kvc.frontends.fx.load import load
    from kvc.pipeline_graph import plan
    from kvc.verify.compare import compare
    from kvc.verify.model import leaves, reference_of_module

    started = time.monotonic()
    loaded = load(path)
    captured = capture_loaded(loaded, mode="eval", dtype=dtype)
    reference = reference_of_module(captured.module, tuple(captured.args), captured.kwargs, seed)
    cut = plan(captured.graph)
    done = translation(captured, cut, find_target(target), device_row(), seed)
    with tempfile.TemporaryDirectory() as folder, module_on_cuda(Path(folder) / "out", done, loaded) as ours:
        given = [a.cuda() if isinstance(a, torch.Tensor) else a for a in captured.args]
        got = {name: t.cpu() for name, t in leaves(ours(*given)).items()}
    errors, problems = [], []
    for name, value in got.items():
        parts = (r[name] for r in (reference.oracle, reference.working, reference.probe))
        found = compare(name, from_torch(value.dtype), value, *parts, growth=reference.growth)
        errors.append(found.error.to_json() if found.error is not None else None)
        problems += [str(found.diagnostic)] if found.diagnostic is not None else []
    return {
        "example": Path(path).stem,
        "target": target,
        "dtype": dtype,
        "device": torch.cuda.get_device_name(),
        "kernels": len(cut.launches),
        "distinct": len(cut.kernels),
        "schedules": sorted({a.candidate.schedule for a in done.artifacts}),
        "errors": errors,
        "problems": problems,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="+")
    options.add_argument("--dtype", action="append", choices=("f32", "bf16", "f16"))
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    rows = []
    for path in given.models:
        for dtype in given.dtype or ["f32"]:
            for target in TARGETS:
                row = run(path, target, dtype)
                rows.append(row)
                worst = max((e["error"] / e["tolerance"] for e in row["errors"] if e), default=float("nan"))
                verdict = "; ".join(row["problems"]) or f"{worst:.2e} of the tolerance"
                print(f"{row['example']:10} {target:7} {dtype:5} {row['kernels']} kernels: {verdict}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

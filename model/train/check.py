"""Whether a machine has what a training session needs, found out before the session spends its time.

Everything is tried, not asked for: a step of the recipe's model, and a right and a wrong answer of each target through
the judges. What fails is reported with the reason, and the rest goes on.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError

PACKAGES = ("torch", "triton", "numpy", "lark", "typer", "pyyaml", "ziglang", "transformers", "tokenizers", "pyarrow")
_SPEC = "kernel add(x: f32[r=6,c=35], w: f32[c]) -> (y: f32[r,c]) {\n  y[r,c] = x[r,c] + w[c]\n}"


def check(recipe: Any, device: str, jobs: int, seconds: float = 90.0) -> dict[str, Any]:
    """What this machine has, and what works on it: `ok` is whether training and at least one target's judge do.
    `recipe`: a kvc.model.train.recipe.Recipe; `seconds`: for the judges."""
    found: dict[str, Any] = {
        "python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count(),
        "free_gib": round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        "packages": {name: _version(name) for name in PACKAGES},
    }  # fmt: skip
    found["step"] = _step(recipe, device)
    found["simulator"] = _simulator()
    found["judges"] = _judges(jobs, seconds)
    right = [name for name, row in found["judges"].items() if row["ok"]]
    found["ok"] = "error" not in found["step"] and bool(right)
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _step(recipe: Any, device: str) -> dict[str, Any]:
    """Three training steps of the recipe's shape at 1024 tokens a sequence at most, the last one timed, and answers."""
    import torch
    from kvc.model.train.decode import sample
    from kvc.model.train.network import Decoder
    from kvc.model.train.zero import _loss

    try:
        network = Decoder(recipe.shape).to(device)
        length = min(1024, recipe.shape.context)
        rows = max(min(recipe.sft.tokens, 65536 if device == "cuda" else 1024) // length, 1)
        tokens = torch.randint(4, recipe.shape.vocabulary, (rows, length), device=device)
        times = []
        for _ in range(3):
            started = time.perf_counter()
            _loss(network, tokens, tokens, device).backward()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        started = time.perf_counter()
        batch, most = (256, 256) if device == "cuda" else (4, 16)
        written = sum(map(len, sample(network, [[1, 2]] * batch, most, end=-1, temperature=1.0)))
        writing = time.perf_counter() - started
    except (RuntimeError, AssertionError) as error:  # no such device, no memory
        return {"device": device, "error": str(error).splitlines()[0]}
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "parameters": recipe.shape.parameters,
        "tokens_a_second": round(rows * length / times[-1]),
        "written_a_second": round(written / writing),
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else 0,
    }


def _simulator() -> dict[str, Any]:
    """Whether the compiled simulator can be built here (else the slow tier runs)."""
    from kvc.simulator.native.build import Unavailable, library

    started = time.perf_counter()
    try:
        library()
    except Unavailable as reason:
        return {"compiled": False, "reason": str(reason)}
    return {"compiled": True, "seconds": round(time.perf_counter() - started, 1)}


def _answers() -> Iterator[dict[str, Any]]:
    """A right answer and a wrong one for each target."""
    from kvc.arch import DEFAULT_ARCH, arch
    from kvc.emitter import Task, targets
    from kvc.model.languages import LANGUAGES
    from kvc.model.lift import emit, lift
    from kvc.model.prompt import Asked
    from kvc.text import parse_kernel

    asked = Asked(Task(parse_kernel(_SPEC), arch(DEFAULT_ARCH)))
    for name in LANGUAGES:
        rule = next(e for e in targets()[name].emitters() if e.supports(asked.canonical_task).ok)
        made = emit(asked, rule, rule.space(asked.canonical_task).default)
        assert made is not None
        right = lift(made, rule).answer
        for key, text in (("right", right), ("wrong", right.replace(" + a1", " - a1").replace(" + w", " - w"))):
            yield {"key": f"{name}/{key}", "spec": _SPEC, "target": name, "arch": DEFAULT_ARCH, "text": text}


def _judges(jobs: int, seconds: float) -> dict[str, Any]:
    """By target: whether the right answer passes and the wrong one does not, and seconds an answer once warm."""
    from kvc.model.train.judging import Judges, is_judgeable

    rows = list(_answers())
    found: dict[str, Any] = {}
    with Judges(jobs) as judges:
        for target in dict.fromkeys(r["target"] for r in rows):
            if not is_judgeable(target):
                found[target] = {"ok": False, "reason": "its compiler is not here"}
                continue
            try:
                found[target] = _judged(judges, [r for r in rows if r["target"] == target], seconds)
            except KvcError as error:
                found[target] = {"ok": False, "reason": str(error)}
    return found


def _judged(judges: Any, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    times = []
    for turn in range(2):
        started = time.perf_counter()
        for row in rows:
            judges.add({**row, "key": f"{turn}/{row['key']}"})
        done = {r["key"].rpartition("/")[2]: r["outcome"] for r in judges.drain(seconds)}
        times.append(round((time.perf_counter() - started) / len(rows), 2))
    stages = {key: outcome["stage"] for key, outcome in done.items()}
    messages = {key: o.get("message", "")[:200] for key, o in done.items() if o["stage"] != "verified"}
    ok = stages.get("right") == "verified" and stages.get("wrong") == "compare"
    return {"ok": ok, "stages": stages, "first_s": times[0], "warm_s": times[1], **({} if ok else {"said": messages})}

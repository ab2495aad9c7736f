"""What trainers read, made from records: chat messages, RL rows and preference pairs. JSON lines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.dtypes import DTYPES
from kvc.vault.record import Record

FORMATS = ("sft", "rl", "preference")
COMPILE_TIMEOUT_S, RUN_TIMEOUT_S = 120, 300
_LANGUAGE = {"hip": "HIP C++", "triton": "Triton"}


def prompt(record: Record) -> str:
    """The task in words: the spec, the GPU, and PyTorch for the same where there is any."""
    parts = [
        f"Write a {_LANGUAGE[record.target]} kernel for {record.arch} that computes this specification "
        f"({record.numerics} numerics).",
        f"```kir\n{record.spec_text.strip()}\n```",
    ]
    if record.functional:
        parts.append(f"In PyTorch:\n```python\n{record.functional.strip()}\n```")
    return "\n\n".join(parts)


def answer(record: Record) -> str:
    """The kernel and how it is launched."""
    fence = "cpp" if record.target == "hip" else "python"
    launch = json.dumps({"launches": json.loads(record.launches), "workspace": json.loads(record.workspace)})
    return f"```{fence}\n{record.source.rstrip()}\n```\n\n```json\n{launch}\n```"


def sft(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Chat messages, one row a verified record."""
    for record in records:
        if record.is_verified:
            messages = [
                {"role": "user", "content": prompt(record)},
                {"role": "assistant", "content": answer(record)},
            ]
            yield {"messages": messages, "id": record.id, "split": record.split}


def rl(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """One row a spec and target, with the fastest verified kernel (by estimate) as ground truth. The shape is the one
    that published RL recipes for HIP read (prompt, data_source, ability, reward_model, extra_info)."""
    best: dict[tuple[str, str, str], Record] = {}
    for record in records:
        key = (record.spec_hash, record.target, record.arch)
        known = best.get(key)
        if record.is_verified and (known is None or _cost(record) < _cost(known)):
            best[key] = record
    for record in best.values():
        kind = DTYPES[record.dtype]
        first = json.loads(record.launches)[0]["kernel"]
        truth = {
            f"{record.target}_code": record.source,
            "kernel_name": first,
            "pytorch_module_code": record.reference,
            "pytorch_functional_code": record.functional,
            "spec": record.spec_text,
            "launches": json.loads(record.launches),
            "workspace": json.loads(record.workspace),
            "atol": kind.atol,
            "rtol": kind.rtol,
            "compile_timeout_s": COMPILE_TIMEOUT_S,
            "run_timeout_s": RUN_TIMEOUT_S,
        }
        yield {
            "prompt": [{"role": "user", "content": prompt(record)}],
            "data_source": f"kvc_vault/{record.source_kind}",
            "ability": f"{record.target}_kernel",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {
                "id": record.id, "split": record.split, "op_class": record.op_class, "arch": record.arch,
                "estimate_us": record.estimate_us, "measured_us": record.measured_us,
            },
        }  # fmt: skip


def _cost(record: Record) -> float:
    return record.estimate_us if record.estimate_us is not None else float("inf")


def preference(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Pairs of one spec and target: a verified kernel against each rejected one; and, of two verified ones, the one
    whose estimate is a fifth lower or more against the other."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.spec_hash, record.target, record.arch].append(record)
    for group in groups.values():
        good = sorted((r for r in group if r.is_verified), key=_cost)
        if not good:
            continue
        chosen = good[0]
        pairs = [(r, f"rejected at {r.stage}: {r.code}") for r in group if not r.is_verified and r.source]
        if len(good) > 1 and _cost(good[-1]) > 1.25 * _cost(chosen):
            pairs.append((good[-1], "higher estimate"))
        for other, reason in pairs:
            yield {
                "prompt": [{"role": "user", "content": prompt(chosen)}],
                "chosen": [{"role": "assistant", "content": answer(chosen)}],
                "rejected": [{"role": "assistant", "content": answer(other)}],
                "reason": reason,
                "split": chosen.split,
            }


def export(records: Iterable[Record], kind: str, path: Path) -> int:
    """Write JSON lines in one of FORMATS; gives the count of rows. KVC0106 for another name."""
    makers = {"sft": sft, "rl": rl, "preference": preference}
    if kind not in makers:
        raise KvcError("KVC0106", f"format {kind!r}", hint=f"one of: {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for row in makers[kind](records):
            stream.write(json.dumps(row) + "\n")
            count += 1
    return count

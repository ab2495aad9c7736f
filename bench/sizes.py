"""Reduced sizes of a problem, remembered between runs: the search depends on the file and the budget alone."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from kvc.bench import literals, measure, reduce
from kvc.bench.reduce import Budget
from kvc.store import cache_dir


@cache
def _search_version() -> str:
    """Digest of the search's own sources."""
    digest = hashlib.sha256()
    for module in (literals, measure, reduce):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def reduced_source(source: str, file: str, budget: Budget) -> tuple[str, dict[str, Any]]:
    """(the rewritten source, what was changed as JSON). Raises as kvc.bench.reduce.reduce does."""
    import torch

    fields = [source, json.dumps(asdict(budget), sort_keys=True), _search_version(), torch.__version__]
    key = hashlib.sha256("\0".join(fields).encode()).hexdigest()
    path = cache_dir() / "kernelbench" / f"{key}.json"
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        return known["source"], known["sizes"]
    found = reduce.reduce(source, file, budget)
    sizes = found.to_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"source": found.source, "sizes": sizes}), encoding="utf-8")
    part.replace(path)
    return found.source, sizes

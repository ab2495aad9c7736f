"""Checkpoints in shards of a few MiB: plain bytes and an index with digests, written whole or not at all.

Shards are named by their digest and the index is replaced last, so that a run that is killed while it saves still has
the checkpoint before.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from kvc.diagnostics import KvcError

INDEX = "checkpoint.json"
SHARD_BYTES = 15 << 20


def save(folder: Path, arrays: Mapping[str, np.ndarray], state: dict[str, Any], limit: int = SHARD_BYTES) -> None:
    """Write arrays in shards below `limit` bytes and, last, the index with `state` (JSON-able)."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Any]] = []
    stream = bytearray()
    names: list[list[Any]] = []
    kept = [(name, np.ascontiguousarray(a)) for name, a in arrays.items()]

    def flush() -> None:
        if names:
            digest = hashlib.sha256(stream).hexdigest()
            file = f"shard-{len(shards):03d}-{digest[:8]}.bin"
            _write(folder / file, bytes(stream))
            shards.append({"file": file, "sha256": digest, "arrays": list(names)})
            stream.clear()
            names.clear()

    for name, array in kept:
        data = array.tobytes()
        for part in range(0, max(len(data), 1), limit):
            piece = data[part : part + limit]
            if len(stream) + len(piece) > limit:
                flush()
            names.append([name, array.dtype.str, list(array.shape), len(piece)])
            stream += piece
    flush()
    _write(folder / INDEX, json.dumps({"shards": shards, "state": state}).encode())
    for stale in set(folder.glob("shard-*.bin")) - {folder / s["file"] for s in shards}:
        stale.unlink()


def place(folder: Path) -> Path | None:
    """Where in a folder of a run the checkpoint is: at its top, as a session leaves it, or in checkpoint/."""
    return next((p for p in (folder, folder / "checkpoint") if (p / INDEX).is_file()), None)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and state. KVC0804 for a shard that is not what the index says."""
    index = json.loads((folder / INDEX).read_text())
    parts: dict[str, tuple[str, list[int], io.BytesIO]] = {}
    for shard in index["shards"]:
        data = (folder / shard["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != shard["sha256"]:
            raise KvcError("KVC0804", f"{shard['file']} of {folder} has another digest than the index says")
        at = 0
        for name, dtype, shape, length in shard["arrays"]:
            parts.setdefault(name, (dtype, shape, io.BytesIO()))[2].write(data[at : at + length])
            at += length
    arrays = {n: np.frombuffer(s.getvalue(), np.dtype(d)).reshape(shape) for n, (d, shape, s) in parts.items()}
    return arrays, index["state"]

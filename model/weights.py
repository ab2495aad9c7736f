"""Quantised weights in one safetensors file: int8 matrices with a float32 scale a row, float32 norms. No pickle.

The header's metadata holds the shape of the model; every tensor's name, type and size is checked against it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kvc.diagnostics import KvcError
from kvc.model.shape import Shape

FORMAT = "kvc-int8-rows-1"
_TYPES = {"F32": np.float32, "I8": np.int8}


@dataclass(frozen=True)
class Weights:
    """`matrices`: int8 [rows, columns]; `scales`: float32 [rows]; `vectors`: float32. `digest`: of the file."""

    shape: Shape
    matrices: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]
    vectors: dict[str, np.ndarray]
    digest: str = ""

    def dense(self, name: str) -> np.ndarray:
        """A matrix in float32."""
        return self.matrices[name].astype(np.float32) * self.scales[name][:, None]


def quantise(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and the scale of each row; the largest magnitude of a row becomes 127."""
    scale = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / np.float32(127)
    return np.rint(matrix / scale[:, None]).astype(np.int8), scale


def from_float(shape: Shape, tensors: Mapping[str, np.ndarray]) -> Weights:
    """Quantise a float checkpoint. KVC0803 where a tensor is missing or has another shape."""
    matrices, scales = {}, {}
    for name, size in shape.matrices().items():
        _check(name, tensors.get(name), size)
        matrices[name], scales[name] = quantise(np.asarray(tensors[name], np.float32))
    vectors = {}
    for name, length in shape.vectors().items():
        _check(name, tensors.get(name), (length,))
        vectors[name] = np.asarray(tensors[name], np.float32)
    return Weights(shape, matrices, scales, vectors)


def _check(name: str, found: np.ndarray | None, size: tuple[int, ...]) -> None:
    if found is None or tuple(found.shape) != size:
        what = "is missing" if found is None else f"has shape {tuple(found.shape)}"
        raise KvcError("KVC0803", f"{name} {what}, it should be {size}")


def save(weights: Weights, path: Path) -> None:
    """Write a safetensors file."""
    tensors: dict[str, np.ndarray] = {}
    for name, matrix in weights.matrices.items():
        tensors |= {name: matrix, f"{name}_scale": weights.scales[name]}
    tensors |= weights.vectors
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "shape": json.dumps(weights.shape.to_json())}}
    at = 0
    for name, tensor in tensors.items():
        kind = "I8" if tensor.dtype == np.int8 else "F32"
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 64)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors.values():
            stream.write(np.ascontiguousarray(tensor).tobytes())


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors (F32 and I8) and metadata of a safetensors file. KVC0803 for a file that is none or does not add up."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KvcError("KVC0803", f"{path}: {error.strerror}") from None
    try:
        (length,) = struct.unpack_from("<Q", data)
        header: dict[str, Any] = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(data, 8 + length, entry) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise KvcError("KVC0803", f"{path} is no weight file: {error}") from None
    return tensors, metadata


def _tensor(data: bytes, base: int, entry: dict[str, Any]) -> np.ndarray:
    start, end = entry["data_offsets"]
    kind, size = np.dtype(_TYPES[entry["dtype"]]), tuple(entry["shape"])
    count = int(np.prod(size, dtype=np.int64))
    if end - start != count * kind.itemsize or base + end > len(data) or start < 0:
        raise ValueError(f"{count} elements in {end - start} bytes")
    return np.frombuffer(data, kind, count, base + start).reshape(size)


def load(path: Path) -> Weights:
    """Weights of a file that `save` wrote; every size is checked."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise KvcError("KVC0803", f"{path} has format {metadata.get('format')!r}, this kvc reads {FORMAT}")
    shape = Shape.from_json(json.loads(metadata["shape"]))
    for name, size in shape.matrices().items():
        _check(name, tensors.get(name), size)
        _check(f"{name}_scale", tensors.get(f"{name}_scale"), (size[0],))
    for name, length in shape.vectors().items():
        _check(name, tensors.get(name), (length,))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return Weights(
        shape,
        {n: tensors[n] for n in shape.matrices()},
        {n: tensors[f"{n}_scale"] for n in shape.matrices()},
        {n: tensors[n] for n in shape.vectors()},
        digest,
    )


def random(shape: Shape, seed: int = 0) -> Weights:
    """Weights of a model that has learned nothing: for tests and for measuring speed."""
    rng = np.random.default_rng(seed)
    tensors = {n: rng.normal(0, 0.05, size).astype(np.float32) for n, size in shape.matrices().items()}
    tensors |= {n: np.ones(length, np.float32) for n, length in shape.vectors().items()}
    return from_float(shape, tensors)

"""The wire format between judge and worker: one JSON header, then raw blobs. Nothing in it can be executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np

_HEAD = struct.Struct("<Q")
MAX_HEADER = 1 << 26


@dataclass(frozen=True)
class Frame:
    """`body` is JSON, `arrays` numpy arrays of plain dtypes, `blobs` bytes."""

    body: dict[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


class FrameError(Exception):
    """The other side sent something that is no frame, or closed the pipe."""


def write(stream: BinaryIO, frame: Frame) -> None:
    import numpy as np

    arrays = {name: np.ascontiguousarray(a) for name, a in frame.arrays.items()}
    header = {
        "body": frame.body,
        "arrays": [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()],
        "blobs": [[name, len(blob)] for name, blob in frame.blobs.items()],
    }
    text = json.dumps(header).encode()
    stream.write(_HEAD.pack(len(text)))
    stream.write(text)
    for array in arrays.values():
        stream.write(array.tobytes())
    for blob in frame.blobs.values():
        stream.write(blob)
    stream.flush()


def read(exactly: Callable[[int], bytes]) -> Frame:
    """Read one frame; `exactly(n)` gives n bytes or raises FrameError."""
    import numpy as np

    (length,) = _HEAD.unpack(exactly(_HEAD.size))
    if length > MAX_HEADER:
        raise FrameError(f"a header of {length} bytes")
    header = json.loads(exactly(length))
    arrays = {}
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        if dtype.hasobject:
            raise FrameError("an array of objects")
        data = exactly(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        arrays[name] = np.frombuffer(bytearray(data), dtype).reshape(shape)
    blobs = {name: exactly(size) for name, size in header["blobs"]}
    return Frame(header["body"], arrays, blobs)

"""Worker processes: what they answer, and that a dead or hanging one costs one call."""

from __future__ import annotations

import importlib.util
import io
import os

import numpy as np
import pytest
from kvc.diagnostics import KvcError
from kvc.verify import sandbox
from kvc.verify.frames import Frame, FrameError, read, write
from kvc.verify.pool import WorkerPool


def exactly(stream: io.BytesIO):
    def take(count: int) -> bytes:
        data = stream.read(count)
        if len(data) != count:
            raise FrameError("short")
        return data

    return take


def test_frames_carry_json_arrays_and_blobs() -> None:
    pipe = io.BytesIO()
    arrays = {"a": np.arange(6, dtype=np.uint16).reshape(2, 3), "empty": np.zeros((0, 4), np.float32)}
    write(pipe, Frame({"x": [1, "two"]}, arrays, {"b": b"\x00raw"}))
    pipe.seek(0)
    frame = read(exactly(pipe))
    assert frame.body == {"x": [1, "two"]} and frame.blobs == {"b": b"\x00raw"}
    assert all(np.array_equal(frame.arrays[k], v) and frame.arrays[k].dtype == v.dtype for k, v in arrays.items())


def test_frames_never_carry_objects() -> None:
    pipe = io.BytesIO()
    header = b'{"body": {}, "arrays": [["a", "|O", [1]]], "blobs": []}'
    pipe.write(len(header).to_bytes(8, "little") + header + b"12345678")
    pipe.seek(0)
    with pytest.raises(FrameError):
        read(exactly(pipe))


def test_a_dying_worker_costs_one_call() -> None:
    with WorkerPool(1) as pool:
        first = pool._call(Frame({"action": "ping"})).body["started"]
        with pytest.raises(KvcError) as caught:
            pool._call(Frame({"action": "no such thing"}))
        assert caught.value.code == "KVC0604"
        assert "KeyError" in caught.value.diagnostic.message
        assert pool._call(Frame({"action": "ping"})).body["started"] != first


def test_a_hanging_worker_is_ended() -> None:
    with WorkerPool(1, timeout=0.01) as pool:  # less than an interpreter takes to start
        with pytest.raises(KvcError) as caught:
            pool._call(Frame({"action": "ping"}))
        assert caught.value.code == "KVC0604" and "time" in caught.value.diagnostic.message


def test_an_executor_that_is_not_there_is_a_diagnostic() -> None:
    with WorkerPool(1) as pool, pytest.raises(KvcError) as caught:
        pool.execute([], {}, outputs=(), executor="abacus", arch="gfx942")
    assert caught.value.code == "KVC0105"


@pytest.mark.parametrize("room", ["frontends", "backends", "simulator", "autotune", "bench", "vault", "model"])
def test_a_worker_reads_every_room_however_it_is_installed(room: str) -> None:
    found = importlib.util.find_spec(f"kvc.{room}")
    assert found is not None and found.origin is not None
    readable = [os.path.realpath(path) for path in sandbox.policy().readable]
    assert any(os.path.realpath(found.origin).startswith(f"{path}/") for path in readable)

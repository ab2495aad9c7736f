"""A pool of worker processes: a worker that dies, hangs or grows too large costs one call, never the run."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Compiled
from kvc.executor import Execution, LaunchPlan
from kvc.records import candidate_to_json, compiled_from_json, diagnostic_from_json
from kvc.verify.frames import Frame, FrameError, read, write
from kvc.verify.verdict import Rejected
from kvc.verify.worker import body_of

if TYPE_CHECKING:
    import numpy as np

DEFAULT_TIMEOUT_S = 300.0
_CHUNK = 1 << 20


class _Worker:
    """One process and its pipes."""

    def __init__(self) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile(prefix="kvc-worker-")  # noqa: SIM115 (closed in `close`)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvc.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )

    def call(self, frame: Frame, timeout: float) -> Frame:
        """KVC0604 when the worker dies or runs out of time; it is of no further use then."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout
        try:
            write(cast(BinaryIO, self._process.stdin), frame)
            return read(lambda n: self._exactly(n, deadline))
        except (FrameError, BrokenPipeError, ValueError) as error:
            raise KvcError("KVC0604", f"{error or 'the pipe broke'}{self._last_words()}") from None

    def _exactly(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        parts, missing = [], count
        while missing:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise FrameError("the worker ran out of time")
            part = os.read(pipe, min(missing, _CHUNK))
            if not part:
                raise FrameError(f"the worker died with status {self._process.wait()}")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was buffered for a dead worker
                    pipe.close()
        self._stderr.close()


class WorkerPool:
    """`size` workers, started when first needed. Calls may come from several threads. Use as a context manager."""

    def __init__(self, size: int = 2, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        self.timeout = timeout
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while not self._idle.empty():
            worker = self._idle.get_nowait()
            if worker is not None:
                worker.close()

    def _call(self, frame: Frame) -> Frame:
        worker = self._idle.get()
        healthy: _Worker | None = None
        try:
            healthy = worker or _Worker()
            reply = healthy.call(frame, self.timeout)
        except BaseException:
            if healthy is not None:
                healthy.close()
            healthy = None
            raise
        finally:
            self._idle.put(healthy)
        if "error" in reply.body:
            found = diagnostic_from_json(reply.body["error"])
            raise KvcError(found.code, found.message, found.location, found.hint, **found.details)
        return reply

    def prepare(self, candidate: Candidate) -> Compiled | Rejected:
        """Lint, compile and resource check. KVC0604 when the worker dies, KVC0501 without a toolchain."""
        reply = self._call(Frame({"action": "prepare", "candidate": candidate_to_json(candidate)}))
        if "rejected" in reply.body:
            rejected = reply.body["rejected"]
            return Rejected(rejected["stage"], diagnostic_from_json(rejected["diagnostic"]))
        return compiled_from_json(reply.body["compiled"], dict(reply.blobs))

    def execute(
        self,
        launches: Sequence[LaunchPlan],
        buffers: Mapping[str, np.ndarray],
        *,
        outputs: Collection[str],
        executor: str,
        arch: str,
        seed: int = 0,
    ) -> Execution:
        """As `Executor.execute`, in a worker. Raises what that raises, and KVC0604."""
        blobs: dict[str, bytes] = {}
        index: dict[int, int] = {}
        for launch in launches:
            if id(launch.binary) not in index:
                n = index[id(launch.binary)] = len(index)
                blobs |= {f"{n}.co": launch.binary, f"{n}.asm": launch.asm.encode()}
        body = {
            "action": "execute",
            "executor": executor,
            "arch": arch,
            "seed": seed,
            "outputs": sorted(outputs),
            "launches": [body_of(launch, index[id(launch.binary)]) for launch in launches],
        }
        reply = self._call(Frame(body, buffers, blobs))
        return Execution(dict(reply.arrays), reply.body["evidence"])

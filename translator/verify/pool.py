"""A pool of worker processes: a worker that dies, hangs or grows too large costs one call, never the run."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, BinaryIO, TypeVar, cast

from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Compiled
from kvc.executor import Execution, LaunchPlan
from kvc.executors import executor_classes
from kvc.records import candidate_to_json, compiled_from_json, diagnostic_from_json
from kvc.verify.frames import Frame, FrameError, read, write
from kvc.verify.sandbox import Limits, Report, command, environment, policy
from kvc.verify.verdict import Rejected
from kvc.verify.worker import body_of

if TYPE_CHECKING:
    import numpy as np

DEFAULT_TIMEOUT_S = 300.0
_CHUNK = 1 << 20
_GRACE_S = 5.0  # for a worker to end a candidate and say so


class _Worker:
    """One process, its pipes and its folder; `devices` are patterns of nodes below /dev that it may open."""

    def __init__(self, devices: Sequence[str] = (), limits: Limits | None = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="kvc-worker-")
        self._stderr: IO[bytes] = tempfile.TemporaryFile(prefix="kvc-worker-")  # noqa: SIM115 (closed in `close`)
        rules = policy(devices, self._folder, limits)
        self._process = subprocess.Popen(
            command(rules),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment(rules),
            cwd="/",
            start_new_session=True,  # so that all that it leaves can be found, and Ctrl-C does not reach it
        )
        self.sandbox: Report | None = None

    def call(self, frame: Frame, timeout: float) -> Frame:
        """KVC0604 when the worker dies, runs out of time or makes no sense; it is of no further use then."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout
        try:
            if self.sandbox is None:
                self._greet(deadline)
            write(cast(BinaryIO, self._process.stdin), frame)
            return read(lambda n: self._exactly(n, deadline))
        except (FrameError, BrokenPipeError, ValueError) as error:
            raise KvcError("KVC0604", f"{error or 'the pipe broke'}{self._last_words()}") from None

    def _greet(self, deadline: float) -> None:
        """The worker's first frame says how it is confined."""
        said = read(lambda n: self._exactly(n, deadline)).body.get("sandbox", {})
        try:
            self.sandbox = Report(said["level"], tuple(said["layers"]), tuple(said["refused"]))
        except (KeyError, TypeError) as error:
            raise FrameError(f"the worker did not say how it is confined: {error}") from None
        if not self.sandbox.contained:
            _warn(self.sandbox)

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
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(self._stderr.tell() - 4000, 0))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self.sandbox is None or self.sandbox.level not in ("bubblewrap", "namespaces"):
            _end_session(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was buffered for a dead worker
                    pipe.close()
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _end_session(session: int) -> None:
    """End every process of a worker's session. A pid namespace ends with its first process; without one, a candidate's
    processes may outlive their worker, but a filter keeps them from leaving its session."""
    for _ in range(10):
        members = list(_members(session))
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _members(session: int) -> Iterator[int]:
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            # pid (command) state ppid pgrp session ...; the command may hold anything, also a parenthesis
            fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                yield int(name)


@cache
def _warn(report: Report) -> None:
    """Once for each reason: whoever runs candidates of a model unconfined should know."""
    print(
        f"kvc: warning: candidates run without a sandbox, under resource limits only: {report}\n"
        "  hint: install bubblewrap, or allow user namespaces or Landlock (docs/security.md)",
        file=sys.stderr,
    )


class _Slot:
    """One worker for each grant of devices: a candidate is never compiled where a GPU can be reached."""

    def __init__(self) -> None:
        self.workers: dict[tuple[str, ...], _Worker] = {}

    def close(self) -> None:
        while self.workers:
            self.workers.popitem()[1].close()


class WorkerPool:
    """`size` workers, started when first needed. Calls may come from several threads. Use as a context manager.

    `timeout` in seconds holds for a call; `limits` bound each worker (kvc.verify.sandbox.Limits)."""

    def __init__(self, size: int = 2, timeout: float = DEFAULT_TIMEOUT_S, limits: Limits | None = None) -> None:
        self.timeout = timeout
        self.limits = limits
        self._idle: queue.LifoQueue[_Slot] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(_Slot())

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _call(self, frame: Frame, devices: tuple[str, ...] = (), grace: float = 0.0) -> Frame:
        slot = self._idle.get()
        try:
            worker = slot.workers.get(devices)
            if worker is None:
                worker = slot.workers[devices] = _Worker(devices, self.limits)
            reply = worker.call(frame, self.timeout + grace)
        except BaseException:
            if devices in slot.workers:
                slot.workers.pop(devices).close()
            raise
        finally:
            self._idle.put(slot)
        if "error" in reply.body:
            found = _sensible(lambda: diagnostic_from_json(reply.body["error"]))
            raise KvcError(found.code, found.message, found.location, found.hint, **found.details)
        return reply

    def sandbox(self) -> Report:
        """How a worker of this pool is confined. Starts one."""
        said = self._call(Frame({"action": "ping"})).body["sandbox"]
        return _sensible(lambda: Report(said["level"], tuple(said["layers"]), tuple(said["refused"])))

    def prepare(self, candidate: Candidate) -> Compiled | Rejected:
        """Lint, compile and resource check. KVC0604 when the worker dies, KVC0501 without a toolchain."""
        body = {"action": "prepare", "candidate": candidate_to_json(candidate), "limit_s": self.timeout}
        # The worker ends a candidate that runs out of time, and stays. It is ended itself where it does not manage to.
        reply = self._call(Frame(body), grace=_GRACE_S if self.timeout > 1 else 0.0)

        def understood() -> Compiled | Rejected:
            if "rejected" in reply.body:
                rejected = reply.body["rejected"]
                return Rejected(rejected["stage"], diagnostic_from_json(rejected["diagnostic"]))
            return compiled_from_json(reply.body["compiled"], dict(reply.blobs))

        return _sensible(understood)

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
        reply = self._call(Frame(body, buffers, blobs), _devices_of(executor))
        return _sensible(lambda: Execution(dict(reply.arrays), reply.body["evidence"]))


@cache
def _devices_of(executor: str) -> tuple[str, ...]:
    """The device nodes of an executor, which says too what must be ready on this machine before its first run."""
    kind = executor_classes().get(executor)
    ready = getattr(kind, "make_ready", None)
    if ready is not None:
        ready()
    return tuple(getattr(kind, "device_nodes", ()))


T = TypeVar("T")


def _sensible(understand: Callable[[], T]) -> T:
    """What a worker's answer says; KVC0604 where it says nothing that can be understood."""
    try:
        return understand()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KvcError("KVC0604", f"the worker answered nonsense: {type(error).__name__}: {error}") from None

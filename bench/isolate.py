"""Runs each job in a process of its own: what crashes, hangs or grows costs one job, never the run.

Processes are forked from a server that has torch imported already (kvc.bench.warm). A job is JSON in and JSON out;
nothing that a job's process wrote is ever unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

Job = Mapping[str, Any]
Result = dict[str, Any]

_LAST_WORDS = 2000  # characters of a dead process's stderr that are kept
_PRELOAD = ["kvc.bench.warm", "kvc.bench.stages"]


@dataclass
class _Running:
    job: Job
    process: Any
    pipe: Connection
    errors: Path
    started: float


def run_isolated(
    function: str, jobs: Sequence[Job], parallel: int, timeout_s: float, *, fork: bool = True
) -> Iterator[tuple[Job, Result]]:
    """Each job with what `function` ("package.module:name", dict -> dict) made of it, in the order in which they end.

    A job that dies gives {"crash": text}, one that runs out of `timeout_s` {"timeout": seconds}. Whatever processes a
    job started are ended with it. Without `fork` each process starts from nothing: a driver that the server has looked
    at, however shortly, is of no use to what is forked from it.
    """
    context: Any = get_context("forkserver" if fork else "spawn")
    if fork:
        context.set_forkserver_preload(_PRELOAD)
    waiting = list(jobs)[::-1]
    running: list[_Running] = []
    with tempfile.TemporaryDirectory(prefix="kvc-bench-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    job = waiting.pop()
                    running.append(_start(context, function, job, Path(folder) / f"{len(waiting)}.err"))
                now = time.monotonic()
                left = min(r.started + timeout_s - now for r in running)
                ready = wait([r.pipe for r in running], timeout=max(left, 0.0))
                for r in list(running):
                    if r.pipe in ready:
                        result = _received(r)
                    elif time.monotonic() >= r.started + timeout_s:
                        result = {"timeout": timeout_s}
                    else:
                        continue
                    running.remove(r)
                    _end(r)
                    yield r.job, result
        finally:
            for r in running:
                _end(r)


def _start(context: Any, function: str, job: Job, errors: Path) -> _Running:
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(function, json.dumps(dict(job)), theirs, str(errors)), daemon=False)
    process.start()
    theirs.close()
    return _Running(job, process, mine, errors, time.monotonic())


def _received(r: _Running) -> Result:
    try:
        result: Result = json.loads(r.pipe.recv_bytes().decode())
    except (EOFError, OSError):
        r.process.join(10)
        words = r.errors.read_text(errors="replace")[-_LAST_WORDS:] if r.errors.exists() else ""
        return {"crash": f"exit code {r.process.exitcode}: {words.strip()}"}
    return result


def _end(r: _Running) -> None:
    """End the job's process and whatever it started: it leads a process group of its own."""
    if r.process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(r.process.pid) == r.process.pid:
                os.killpg(r.process.pid, signal.SIGKILL)
    r.process.kill()
    r.process.join()
    r.process.close()
    r.pipe.close()


def _child(function: str, job: str, pipe: Connection, errors: str) -> None:
    """In the job's process. Its group is its own, and what it prints goes to a file."""
    os.setsid()
    stream = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    # Each job is one of several that share the machine.
    import torch

    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    try:
        result = getattr(import_module(module), name)(json.loads(job))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    pipe.send_bytes(json.dumps(result, default=str).encode())
    pipe.close()
    sys.stderr.flush()
    # The parent ends the group, and with it what the job left running.

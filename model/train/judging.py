"""Judges that work beside a training run, in processes of their own: they take neither its time nor its device.

python -m kvc.model.train.judging JOBS EXECUTOR     answers (JSON lines) in, the same rows with "outcome" out
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from kvc.diagnostics import KvcError


def is_judgeable(target: str) -> bool:
    """Whether this machine can compile for a target."""
    from kvc.emitter import target as find

    try:
        find(target).toolchain()
    except KvcError:
        return False
    return True


class Judges:
    """`jobs` answers are judged at a time, in processes of two each: a process works its oracles out on one core. A
    context manager; leaving it ends the processes."""

    def __init__(self, jobs: int, executor: str = "sim") -> None:
        self._jobs, self._executor = jobs, executor
        self._processes: list[subprocess.Popen[bytes]] = []
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done: list[dict[str, Any]] = []
        self._given = 0
        self._lost = 0

    def _start(self) -> None:
        each = [2] * (self._jobs // 2) + [1] * (self._jobs % 2)
        command = [sys.executable, "-m", "kvc.model.train.judging"]
        # A judge that sees no GPU takes no memory of it.
        place = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [*command, str(n), self._executor], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=place
            )
            for n in each
        ]
        for process, n in zip(self._processes, each, strict=True):
            threading.Thread(target=self._serve, args=(process, n), daemon=True).start()

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *exception: Any) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def add(self, row: dict[str, Any]) -> None:
        """Have an answer judged: spec, target, arch, text, and whatever else it has."""
        if not self._processes:
            self._start()
        self._given += 1
        self._waiting.put(row)

    def _serve(self, process: subprocess.Popen[bytes], jobs: int) -> None:
        """Keeps one process supplied with `2 * jobs` rows. One that dies costs the rows it had."""
        assert process.stdin is not None and process.stdout is not None
        inside = 0
        while True:
            try:
                while inside < 2 * jobs:
                    row = self._waiting.get(block=inside == 0)
                    if row is None:
                        return
                    process.stdin.write(json.dumps(row).encode() + b"\n")
                    process.stdin.flush()
                    inside += 1
            except queue.Empty:
                pass
            except OSError:
                inside += 1  # the row that could not be handed over
                break
            line = process.stdout.readline()
            if not line:
                break
            inside -= 1
            with self._lock:
                self._done.append(json.loads(line))
        with self._lock:
            self._lost += inside

    @property
    def done(self) -> list[dict[str, Any]]:
        """The rows judged so far, in order of completion."""
        with self._lock:
            return list(self._done)

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """The rows judged, when all are or the seconds are over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self._lock:
                if len(self._done) + self._lost >= self._given:
                    break
            if self._processes and all(p.poll() is not None for p in self._processes):
                break
            time.sleep(0.2)
        return self.done


def serve(jobs: int, executor: str, source: IO[bytes], sink: IO[bytes]) -> None:
    """Judge rows of `source` until it ends."""
    from concurrent.futures import ThreadPoolExecutor

    from kvc.model.train.reward import Judge, Judged, Outcome

    lock = threading.Lock()
    with Judge(jobs, executor) as judge, ThreadPoolExecutor(jobs) as threads:

        def one(row: dict[str, Any]) -> None:
            asked = Judged(row["spec"], row["target"], row["arch"], row["text"], row.get("seed", 0), copies=True)
            try:
                outcome = asdict(judge.one(asked))
            except KvcError as error:  # the row, not the answer: a spec that does not parse, an unknown GPU
                outcome = asdict(Outcome("judge", error.diagnostic.code, error.diagnostic.message))
            with lock:
                sink.write(json.dumps({**row, "outcome": outcome}).encode() + b"\n")
                sink.flush()

        futures = [threads.submit(one, json.loads(line)) for line in iter(source.readline, b"")]
        for future in futures:
            future.result()


def main(arguments: Sequence[str]) -> None:
    """Entry of the process. What kernels and compilers print must not end among the rows."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(int(arguments[0]), arguments[1], sys.stdin.buffer, sink)


if __name__ == "__main__":
    main(sys.argv[1:])

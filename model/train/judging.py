"""Judges that work beside a training run, in processes of their own: they take neither its time nor its device.

python -m kvc.model.train.judging JOBS EXECUTOR SECONDS     answers (JSON lines) in, the same rows with "outcome" out
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from kvc.diagnostics import KvcError

COMMAND = (sys.executable, "-m", "kvc.model.train.judging")
#: What becomes of an answer whose judge died: no verdict on the answer.
LOST = {"stage": "lost"}


def is_judgeable(target: str) -> bool:
    """Whether this machine can lint and compile for a target."""
    from kvc.arch import DEFAULT_ARCH, arch
    from kvc.emitter import target as find

    try:
        find(target).toolchain()
        find(target).lint("", arch(DEFAULT_ARCH))
    except KvcError:
        return False
    return True


#: How often a process that died is started again, for each that there is.
RESTARTS = 3


class Judges:
    """`jobs` answers are judged at a time, in processes of two each: a process works its oracles out on one core. One
    that dies is started again, and the rows that it had come back with the outcome "lost". A context manager; leaving
    it ends the processes."""

    def __init__(
        self, jobs: int, executor: str = "sim", timeout_s: float = 120.0, command: Sequence[str] = COMMAND
    ) -> None:
        self._jobs, self._settings, self._command = jobs, (executor, str(timeout_s)), command
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._news = threading.Condition()
        self._done: list[dict[str, Any]] = []
        self._open: set[Any] = set()  # keys of what was given and has no verdict yet
        self._serving = 0
        self._over = False

    def _start(self) -> None:
        each = [2] * (self._jobs // 2) + [1] * (self._jobs % 2)
        self._serving = len(each)
        self._threads = [threading.Thread(target=self._serve, args=(n,), daemon=True) for n in each]
        for thread in self._threads:
            thread.start()

    def _process(self, jobs: int) -> subprocess.Popen[bytes]:
        # A judge that sees no GPU takes no memory of it; it is no fork, so that a CUDA context is never shared.
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self._settings[0] == "sim" else {}
        place = os.environ | hidden | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [*self._command, str(jobs), *self._settings]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=place)
        with self._news:
            self._processes.append(process)
            if self._over:
                process.kill()
        return process

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *exception: Any) -> None:
        with self._news:
            self._over = True
            for process in self._processes:
                process.kill()
        for process in self._processes:
            process.wait()

    def add(self, row: dict[str, Any]) -> None:
        """Have an answer judged: `key` (its own), spec, target, arch, text, and whatever else it has (`best_us`,
        `copies`: see kvc.model.train.reward.Judged)."""
        with self._news:
            self._open.add(row["key"])
        self._waiting.put(row)
        if not self._threads:
            self._start()
        self._lose_what_waits()

    def _serve(self, jobs: int) -> None:
        """Keeps one process supplied with `2 * jobs` rows."""
        for _ in range(1 + RESTARTS):
            inside: list[dict[str, Any]] = []
            process = self._process(jobs)
            with contextlib.suppress(OSError):  # a pipe of a process that died
                self._feed(process, inside, 2 * jobs)
            process.kill()
            process.wait()
            for row in inside:
                self._settle({**row, "outcome": LOST})
            if self._over:
                return
        with self._news:
            self._serving -= 1
        self._lose_what_waits()

    def _lose_what_waits(self) -> None:
        """Where nobody is left to judge: what waits is lost, and nobody waits for it in vain."""
        while self._threads and self._serving <= 0:
            try:
                self._settle({**self._waiting.get_nowait(), "outcome": LOST})
            except queue.Empty:
                return

    def _feed(self, process: subprocess.Popen[bytes], inside: list[dict[str, Any]], most: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        while not self._over:
            try:
                while len(inside) < most:
                    row = self._waiting.get(block=not inside)
                    inside.append(row)
                    process.stdin.write(json.dumps(row).encode() + b"\n")
                    process.stdin.flush()
            except queue.Empty:
                pass
            line = process.stdout.readline()
            if not line:
                return
            judged = json.loads(line)
            mine = next(n for n, row in enumerate(inside) if row["key"] == judged["key"])
            inside.pop(mine)
            self._settle(judged)

    def _settle(self, row: dict[str, Any]) -> None:
        with self._news:
            if row["key"] in self._open:  # else it was given up meanwhile
                self._open.remove(row["key"])
                self._done.append(row)
                self._news.notify_all()

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """The rows judged so far, when all are or the seconds are over; in order of completion."""
        with self._news:
            self._news.wait_for(lambda: not self._open, max(seconds, 0.0))
            return list(self._done)

    def drain(self, seconds: float) -> list[dict[str, Any]]:
        """As `wait`, for one batch after the other: what has no verdict by then is given up, and what is returned is
        not returned again."""
        found = self.wait(seconds)
        with self._news:
            self._done.clear()
            self._open.clear()
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                return found


def serve(jobs: int, executor: str, timeout_s: float, source: IO[bytes], sink: IO[bytes]) -> None:
    """Judge rows of `source` until it ends; `timeout_s` holds for each call of a worker."""
    from concurrent.futures import ThreadPoolExecutor

    from kvc.model.train.reward import Judge, Judged, Outcome

    lock = threading.Lock()
    with Judge(jobs, executor, timeout_s) as judge, ThreadPoolExecutor(jobs) as threads:

        def one(row: dict[str, Any]) -> None:
            asked = Judged(
                row["spec"], row["target"], row["arch"], row["text"], row.get("seed", 0), row.get("best_us"),
                row.get("copies", True),
            )  # fmt: skip
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
    serve(int(arguments[0]), arguments[1], float(arguments[2]), sys.stdin.buffer, sink)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Processes that do tasks. A task is JSON in, JSON out and idempotent; a process that dies costs one attempt.

Each worker is a process of its own (spawned, so that no lock is copied half-held) that asks nothing of the others: on
one core it captures, judges and drives one sandbox process for compilation and simulation, which run in turns. Threads
would share one interpreter lock, and the oracle and the comparisons are Python.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

#: What a worker runs: named by module and function, so that it is importable in the new process.
Handler = Callable[[dict[str, Any]], dict[str, Any]]
MAX_ATTEMPTS = 2
#: A worker is replaced after so many tasks, or when it has grown so large: libraries and compilers keep memory.
RECYCLE_TASKS, RECYCLE_MB = 400, 2500


@dataclass(frozen=True)
class Done:
    """A finished task: its number, the answer, or why there is none."""

    number: int
    answer: dict[str, Any] | None
    failure: str = ""


class _Worker:
    def __init__(self, start: Callable[[dict[str, Any]], Handler], options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, start, json.dumps(options)), daemon=False)
        self.process.start()
        child.close()
        self.number: int | None = None
        self.deadline = 0.0
        self.served = 0

    def give(self, number: int, task: dict[str, Any], timeout_s: float) -> None:
        self.number, self.deadline = number, time.monotonic() + timeout_s
        self.pipe.send_bytes(json.dumps(task).encode())

    def close(self) -> None:
        """Let an idle worker end by itself, so that its own processes end with it; kill a busy one."""
        self.pipe.close()
        if self.number is not None:
            self.process.terminate()
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection, start: Callable[[dict[str, Any]], Handler], options: str) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.signal(signal.SIGTERM, lambda *_: _stop())  # unwinds, so that sandboxes are closed
    handler = start(json.loads(options))
    try:
        while True:
            try:
                task = json.loads(pipe.recv_bytes())
            except EOFError:
                return
            answer = handler(task)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # KiB on Linux
            pipe.send_bytes(json.dumps({"answer": answer, "mb": grown}).encode())
    finally:
        close = getattr(handler, "close", None)
        if close is not None:
            close()


def _stop() -> None:
    raise SystemExit(1)


class Workers:
    """`jobs` processes, each made by `start(options)`, an importable function that gives the handler. Use as a context
    manager; `run` may be called once."""

    def __init__(
        self, jobs: int, start: Callable[[dict[str, Any]], Handler], options: dict[str, Any], timeout_s: float = 900.0
    ) -> None:
        self.jobs, self.start, self.options, self.timeout_s = jobs, start, options, timeout_s
        self._all: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.close()

    def run(self, next_task: Callable[[], tuple[int, dict[str, Any]] | None]) -> Iterator[Done]:
        """Yields tasks as they finish, in any order. `next_task` is asked whenever a worker is free; None: nothing now.
        Ends when nothing runs and `next_task` has nothing."""
        tries: dict[int, int] = {}
        again: list[tuple[int, dict[str, Any]]] = []
        given: dict[int, dict[str, Any]] = {}
        while True:
            self._feed(again, next_task, given)
            busy = [w for w in self._all if w.number is not None]
            if not busy:
                return
            patience = max(min(w.deadline for w in busy) - time.monotonic(), 0.0)
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], patience)
            for worker in busy:
                late = time.monotonic() > worker.deadline
                if worker.pipe not in ready and worker.process.sentinel not in ready and not late:
                    continue
                number = worker.number
                assert number is not None
                done = self._collect(worker, late)
                if done.answer is None:
                    tries[number] = tries.get(number, 0) + 1
                    if tries[number] < MAX_ATTEMPTS and not late:
                        again.append((number, given[number]))
                        continue
                given.pop(number)
                yield done

    def _feed(
        self,
        again: list[tuple[int, dict[str, Any]]],
        next_task: Callable[[], tuple[int, dict[str, Any]] | None],
        given: dict[int, dict[str, Any]],
    ) -> None:
        while True:
            free = next((w for w in self._all if w.number is None), None)
            if free is None and len(self._all) >= self.jobs:
                return
            task = again.pop() if again else next_task()
            if task is None:
                return
            if free is None:
                free = _Worker(self.start, self.options)
                self._all.append(free)
            given[task[0]] = task[1]
            free.give(*task, self.timeout_s)

    def _collect(self, worker: _Worker, late: bool) -> Done:
        number = worker.number
        assert number is not None
        try:
            if late and not worker.pipe.poll():
                failure = f"ran longer than {self.timeout_s:.0f} s"
            else:
                reply = json.loads(worker.pipe.recv_bytes())
                worker.number = None
                worker.served += 1
                if worker.served >= RECYCLE_TASKS or reply["mb"] > RECYCLE_MB:
                    self._all.remove(worker)
                    worker.close()
                return Done(number, reply["answer"])
        except (EOFError, ConnectionResetError):
            worker.process.join(5.0)
            failure = f"the worker died with status {worker.process.exitcode}"
        self._all.remove(worker)
        worker.close()
        return Done(number, None, failure)

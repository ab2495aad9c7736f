"""The workers of kvc.vault.workers on a Ray cluster: the same tasks, answers and promises, on other machines.

A task is JSON and idempotent, so an actor that dies with its machine costs a repetition and nothing else: the parent
alone writes shards, takes up one answer for each task, and gives an unanswered task to another actor. Machines need kvc
installed, in the same version; nothing else is sent to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.workers import Done, Handler

#: A machine that goes away is no fault of the task that ran there; so a task is tried more often than on one machine.
MAX_ATTEMPTS = 4
#: Seconds between looks at tasks that run too long.
_LOOK_S = 5.0


class Actor:
    """What runs on the cluster: one handler, made by `start` ("module:function") from JSON options."""

    def __init__(self, start: str, options: str) -> None:
        module, _, name = start.partition(":")
        self._handler: Handler = getattr(import_module(module), name)(json.loads(options))

    def do(self, task: str) -> str:
        return json.dumps(self._handler(json.loads(task)))


@dataclass
class _Running:
    number: int
    actor: Any
    deadline: float


@dataclass
class RayWorkers:
    """`jobs` actors of one core each, and of one GPU each where `gpus`, so that what is measured there runs alone. Made
    by `start(options)` as kvc.vault.workers.Workers; `address` is Ray's, or "local" for a cluster of this process."""

    address: str
    jobs: int
    start: Callable[[dict[str, Any]], Handler]
    options: dict[str, Any]
    timeout_s: float = 900.0
    gpus: bool = False
    _owns: bool = field(init=False, default=False)
    _free: list[Any] = field(init=False, default_factory=list)
    _busy: dict[Any, _Running] = field(init=False, default_factory=dict)

    def __enter__(self) -> RayWorkers:
        ray = _ray()
        if not ray.is_initialized():
            try:
                if self.address == "local":
                    ray.init(num_cpus=self.jobs, include_dashboard=False, log_to_driver=False)
                else:
                    ray.init(address=self.address, log_to_driver=False)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise KvcError("KVC0501", f"no Ray cluster at {self.address}: {error}") from None
            self._owns = True
        return self

    def __exit__(self, *_: object) -> None:
        ray = _ray()
        for actor in (*self._free, *(r.actor for r in self._busy.values())):
            ray.kill(actor)
        self._free, self._busy = [], {}
        if self._owns:
            ray.shutdown()

    def run(self, next_task: Callable[[], tuple[int, dict[str, Any]] | None]) -> Iterator[Done]:
        """As kvc.vault.workers.Workers.run: each task once, in the order in which they end."""
        ray = _ray()
        tries: dict[int, int] = {}
        given: dict[int, dict[str, Any]] = {}
        again: list[int] = []
        while True:
            self._feed(again, given, next_task)
            if not self._busy:
                return
            ready, _ = ray.wait(list(self._busy), timeout=_LOOK_S)
            late = [ref for ref, r in self._busy.items() if ref not in ready and time.monotonic() > r.deadline]
            for ref in (*ready, *late):
                done = self._collect(ref, ref in late)
                tries[done.number] = tries.get(done.number, 0) + 1
                if done.answer is None and ref not in late and tries[done.number] < MAX_ATTEMPTS:
                    again.append(done.number)
                    continue
                given.pop(done.number)
                yield done

    def _feed(
        self,
        again: list[int],
        given: dict[int, dict[str, Any]],
        next_task: Callable[[], tuple[int, dict[str, Any]] | None],
    ) -> None:
        while len(self._busy) < self.jobs:
            if again:
                number = again.pop()
            else:
                task = next_task()
                if task is None:
                    return
                number, given[task[0]] = task[0], task[1]
            actor = self._free.pop() if self._free else self._new()
            ref = actor.do.remote(json.dumps(given[number]))
            self._busy[ref] = _Running(number, actor, time.monotonic() + self.timeout_s)

    def _new(self) -> Any:
        start = f"{self.start.__module__}:{self.start.__qualname__}"
        actor = _ray().remote(num_cpus=1, num_gpus=int(self.gpus), max_restarts=0)(Actor)
        return actor.remote(start, json.dumps(self.options))

    def _collect(self, ref: Any, late: bool) -> Done:
        from ray.exceptions import RayError

        ray, running = _ray(), self._busy.pop(ref)
        if late:
            ray.kill(running.actor)
            return Done(running.number, None, f"ran longer than {self.timeout_s:.0f} s")
        try:
            answer = json.loads(ray.get(ref))
        except RayError as error:
            ray.kill(running.actor)
            return Done(running.number, None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[-1][:300]}")
        self._free.append(running.actor)
        return Done(running.number, answer)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise KvcError("KVC0108", "ray is not installed", hint="pip install 'kvc[ray]'") from None
    return ray

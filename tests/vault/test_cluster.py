"""A local Ray cluster of several workers, one of which is killed: same answers, none lost, none twice."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvc.vault.build import Request, Settings, build
from kvc.vault.cluster import RayWorkers
from kvc.vault.shards import rows

pytestmark = pytest.mark.long
pytest.importorskip("ray")


class Handler:
    """Notes what it does, so that the test can count and kill."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, task: dict[str, Any]) -> dict[str, Any]:
        (self.folder / f"{task['number']}.{os.getpid()}").touch()
        if task["number"] == 3 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task["number"] == 5:
            os._exit(9)
        time.sleep(0.05)
        return {"square": task["number"] ** 2, "worker": os.getpid()}


def start(options: dict[str, Any]) -> Handler:
    return Handler(options["folder"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    # The head has no cores: work goes to the two nodes, which are processes of their own, as machines are.
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_killed_worker_loses_nothing_and_a_deadly_task_is_given_up(cluster: Any, tmp_path: Path) -> None:
    queue = iter([(n, {"number": n}) for n in range(12)])
    with RayWorkers(cluster.address, 3, start, {"folder": str(tmp_path)}) as workers:
        done = list(workers.run(lambda: next(queue, None)))
    assert Counter(d.number for d in done) == Counter(range(12))
    answers = {d.number: d.answer for d in done}
    assert {n: a["square"] for n, a in answers.items() if a} == {n: n * n for n in range(12) if n != 5}
    assert next(d.failure for d in done if d.number == 5)
    assert len({a["worker"] for a in answers.values() if a}) >= 3
    assert len(list(tmp_path.glob("3.*"))) == 2


def test_a_build_with_a_worker_killed_gives_the_same_records(cluster: Any, tmp_path: Path) -> None:
    def make(name: str, ray: str) -> list[tuple[str, str]]:
        programs = ({"do": "harvest", "program": n} for n in range(8))
        settings = Settings("hip", "gfx942", variants=1)
        killed: list[int] = []

        def listen(progress: Any) -> None:
            if ray and not killed and progress.records:
                killed.append(_kill_an_actor(cluster))

        progress = build(Request(settings, tmp_path / name, programs, specs=6, jobs=2, ray=ray), listen)
        assert not progress.failures
        assert bool(killed) == bool(ray)
        return sorted((r["id"], r["status"]) for r in rows(tmp_path / name, ["id", "status"]))

    here, there = make("here", ""), make("there", cluster.address)
    assert here and here == there
    assert len({i for i, _ in there}) == len(there)


def _kill_an_actor(cluster: Any) -> int:
    """Kill a process that runs one of the build's workers: a child of a node's raylet, by its title."""
    raylets = {info.process.pid for node in cluster.list_all_nodes() for info in node.all_processes["raylet"]}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets and b"Actor" in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
                return int(path.name)
    raise AssertionError("no worker to kill")

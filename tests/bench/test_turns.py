"""Turns on a GPU that several processes share: whoever takes times is alone, all others may be beside each other."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.synchronize import Event

from kvc.bench.turns import alone, beside


def _take(kind: str, entered: Event, leave: Event) -> None:
    with alone() if kind == "alone" else beside():
        entered.set()
        leave.wait(60)


class _Other:
    """A process in a turn, or waiting for one."""

    def __init__(self, kind: str) -> None:
        context = mp.get_context("spawn")
        self.entered, self.leave = context.Event(), context.Event()
        self.process = context.Process(target=_take, args=(kind, self.entered, self.leave))
        self.process.start()

    def end(self) -> None:
        self.leave.set()
        self.process.join()


def test_one_who_takes_times_waits_for_all_and_those_beside_do_not() -> None:
    first = _Other("beside")
    assert first.entered.wait(60)
    second = _Other("beside")
    assert second.entered.wait(60)
    timer = _Other("alone")
    assert not timer.entered.wait(1)
    first.end()
    assert not timer.entered.wait(0.5)
    second.end()
    assert timer.entered.wait(60)
    third = _Other("beside")
    assert not third.entered.wait(1)
    timer.process.kill()  # a turn falls with its process
    assert third.entered.wait(60)
    third.end()
    timer.process.join()


def test_the_lock_is_of_the_devices_that_a_process_sees(monkeypatch) -> None:
    from kvc.bench import turns

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = turns._file()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert turns._file() != first

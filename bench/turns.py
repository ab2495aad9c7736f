"""Turns on a GPU that several processes share: one alone while times are taken, any number beside each other else.

Compilation, most of a problem's time, then runs in parallel, and measurements do not see each other's kernels. The
lock is of a file, so that it falls with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


def _file() -> Path:
    """One for each set of devices that a process of this user sees."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(",", "-").replace("/", "-")
    return Path(tempfile.gettempdir()) / f"kvc-gpu-{os.getuid()}-{devices or 'none'}.lock"


@contextmanager
def _held(how: int) -> Iterator[None]:
    with _file().open("a") as stream:
        fcntl.flock(stream, how)
        yield


def alone() -> AbstractContextManager[None]:
    """A context in which no other process is in a turn of its own."""
    return _held(fcntl.LOCK_EX)


def beside() -> AbstractContextManager[None]:
    """A context for work whose time nobody takes: it waits only for those that want to be alone."""
    return _held(fcntl.LOCK_SH)

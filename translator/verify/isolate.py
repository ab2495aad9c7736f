"""A process for each candidate, forked from a worker that has its imports done and never ran foreign code itself.

What a candidate does to its process (a patched linter, compiler or timer, threads, open files) ends with it. The worker
reads what that process says as bytes from one pipe, its standard error from another and what it was seen to try from a
third, and watches its processes, memory, disk and time. Afterwards nothing of it is left: no process, no file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from kvc.verify import attempts
from kvc.verify.confine import confine_candidate
from kvc.verify.sandbox import Policy, Report

_WATCH_S = 0.1
_LOG_KEPT = 4096
_TRIED_KEPT = 4096
_CHUNK = 1 << 20
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Outcome:
    """How a candidate's process ended. `reply`: all that it said, trusted by nobody; `status`: exit status, negative
    for a signal; `stopped`: why the worker ended it, "" where it ended itself; `tried`: what it reached for, where that
    was seen; `log`: the end of its standard error."""

    reply: bytes
    status: int
    stopped: str = ""
    tried: tuple[str, ...] = ()
    log: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 0 and not self.stopped

    def reason(self) -> str:
        """Why it failed, in a sentence."""
        if self.stopped:
            return self.stopped
        lines = self.log.strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        if self.status < 0:
            with contextlib.suppress(ValueError):
                return f"the candidate's process was ended by {signal.Signals(-self.status).name}{last}"
        return f"the candidate's process ended with status {self.status}{last}"


def isolated(work: Callable[[BinaryIO], None], rules: Policy, report: Report, limit_s: float) -> Outcome:
    """Run `work` in a process of its own; it writes its answer to the stream that it is given."""
    folder = tempfile.mkdtemp(prefix="kvc-")
    pipes = [os.pipe() for _ in range(3)]
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        for read, _ in pipes:
            os.close(read)
        _be_candidate(work, rules, report, folder, *(write for _, write in pipes))
    for _, write in pipes:
        os.close(write)
    try:
        return _Watch(child, rules, folder, limit_s).follow(*(read for read, _ in pipes))
    finally:
        for read, _ in pipes:
            os.close(read)
        _end_all(child)
        _empty(folder, rules)


def _be_candidate(
    work: Callable[[BinaryIO], None], rules: Policy, report: Report, folder: str, reply: int, log: int, tried: int
) -> NoReturn:
    """The forked process. It holds none of the worker's descriptors, and never returns."""
    status = 70
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for source, place in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, place)
        kept = {reply, tried}
        for descriptor in _open_descriptors():
            if descriptor > 2 and descriptor not in kept:
                os.close(descriptor)
        os.chdir(folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
        confine_candidate(rules, report)
        attempts.watch(tried, folder, (*rules.readable, *rules.devices))
        with os.fdopen(reply, "wb") as stream:
            work(stream)
        status = 0
    except BaseException:
        traceback.print_exc()  # its last line is what the worker reports
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _open_descriptors() -> Iterator[int]:
    """Candidates for closing: those that are open, else all that may be."""
    try:
        yield from [n for n in map(int, os.listdir("/proc/self/fd")) if _is_open(n)]
    except OSError:
        yield from [n for n in range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)) if _is_open(n)]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Watch:
    """Reads the three pipes of a candidate's process until it ends, or ends it where it goes beyond its limits."""

    def __init__(self, child: int, rules: Policy, folder: str, limit_s: float) -> None:
        self.child = child
        self.limits = rules.limits
        self.folder = folder
        self.limit_s = limit_s
        self.deadline = time.monotonic() + limit_s

    def follow(self, reply: int, log: int, tried: int) -> Outcome:
        answer, last, seen = bytearray(), bytearray(), bytearray()
        stopped = ""
        next_look = time.monotonic() + _WATCH_S
        with selectors.DefaultSelector() as ready:
            for descriptor in (reply, log, tried):
                ready.register(descriptor, selectors.EVENT_READ)
            # The reply's end is the end: whoever keeps the other pipes open (a thread, a grandchild) is not waited for.
            done = False
            while not done and not stopped:
                for key, _ in ready.select(_WATCH_S):
                    data = os.read(key.fd, _CHUNK)
                    if key.fd == reply:
                        answer += data
                        done = not data
                    elif not data:
                        ready.unregister(key.fd)
                    elif key.fd == log:
                        last = (last + data)[-_LOG_KEPT:]
                    else:
                        seen = (seen + data)[:_TRIED_KEPT]
                if len(answer) > self.limits.reply:
                    stopped = f"the candidate's process answered with more than {self.limits.reply:,} bytes"
                elif time.monotonic() > next_look:
                    stopped = self._beyond()
                    next_look = time.monotonic() + _WATCH_S
        if stopped:
            _signal(self.child)
        status = self._wait(stopped)
        for descriptor, kept, most in ((log, last, 1 << 16), (tried, seen, _TRIED_KEPT)):
            kept += _rest(descriptor, most)
        said = bytes(seen[:_TRIED_KEPT]).decode(errors="replace").splitlines()  # whatever the candidate wrote there
        lines = ["".join(c if c.isprintable() else "?" for c in line)[:200] for line in said]
        log_text = bytes(last[-_LOG_KEPT:]).decode(errors="replace")
        return Outcome(bytes(answer), status, stopped, tuple(dict.fromkeys(lines)), log_text)

    def _wait(self, stopped: str) -> int:
        """The status of a process that has closed its answer, or was told to end; it gets a moment for that."""
        for _ in range(200):
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001 if not stopped else 0.01)
        _signal(self.child)
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])

    def _beyond(self) -> str:
        """Which limit the candidate's processes are beyond, in words; "" where none."""
        if time.monotonic() > self.deadline:
            return f"the candidate ran out of time ({self.limit_s:g} s)"
        family = list(_family(self.child))
        if len(family) > self.limits.processes:
            return f"the candidate made more than {self.limits.processes} processes"
        resident = sum(map(_resident, family))
        if resident > self.limits.memory:
            return f"the candidate took more than {self.limits.memory:,} bytes of memory"
        if _disk(self.folder) > self.limits.disk:
            return f"the candidate wrote more than {self.limits.disk:,} bytes"
        return ""


def _rest(descriptor: int, most: int) -> bytes:
    """What a pipe still holds, without waiting for more."""
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return b""


def _signal(child: int) -> None:
    """End a candidate's process and all of its group: a filter keeps them from leaving it."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)


def _end_all(child: int) -> None:
    """End and reap whatever the candidate left behind. As process 1 of a namespace that is every other process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL) if os.getpid() == 1 else os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass


def _empty(folder: str, rules: Policy) -> None:
    """Remove a candidate's folder; it may have taken rights away from its own folders. Symlinks are not followed."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    private = os.path.dirname(folder)
    if private != rules.folder and os.getpid() != 1:
        return
    # A folder that is ours alone: nothing else stays in it either, but what the policy put there to be read.
    for other in Path(private).iterdir():
        if not any(f"{path}/".startswith(f"{other}/") for path in rules.readable):
            with contextlib.suppress(OSError):
                shutil.rmtree(other) if other.is_dir() and not other.is_symlink() else other.unlink()


# ---------------------------------------------------------------- what it uses


def _family(child: int) -> Iterator[int]:
    """The candidate's processes: all others of the namespace, else the descendants of `child` and of nobody."""
    if os.getpid() == 1:
        with contextlib.suppress(OSError):
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1")
        return
    pending, seen = [child], {child}
    while pending:
        pid = pending.pop()
        yield pid
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            fresh = {int(p) for p in text.split()} - seen
            seen |= fresh
            pending += fresh


def _resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0  # without what is shared with the worker


def _disk(folder: str) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total

"""What a candidate's Python was seen to try: an audit hook, which Python code cannot take off again.

It holds nobody back, the sandbox does that; it names the attempt for the report. It looks only where code of the
candidate stands on the stack, so that what the compiler itself opens is no attempt. A candidate that hides its frames
is still held, and its failure is reported without a name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_MOST = 16  # attempts that are told

#: Events that libraries raise on behalf of whoever calls them: an attempt only where the candidate is the caller.
_DIRECT = frozenset({"sys._getframe", "sys.settrace", "sys.setprofile", "gc.get_objects", "gc.get_referrers"})

#: Audit events (docs.python.org, "Audit events table") that no kernel file has a reason for.
_NAMES = {
    "socket.__new__": "open a socket",
    "socket.connect": "connect to {1}",
    "socket.bind": "bind {1}",
    "socket.getaddrinfo": "look up host {0}",
    "os.system": "run the command {0}",
    "os.exec": "run {0}",
    "os.posix_spawn": "run {0}",
    "os.spawn": "run {1}",
    "os.fork": "fork",
    "os.forkpty": "fork",
    "pty.spawn": "run {0}",
    "subprocess.Popen": "run {1}",
    "os.kill": "signal process {0}",
    "os.killpg": "signal process group {0}",
    "signal.pthread_kill": "signal a thread",
    "os.symlink": "make the symlink {1} to {0}",
    "os.link": "make the link {1} to {0}",
    "os.rename": "rename {0} to {1}",
    "os.remove": "remove {0}",
    "os.rmdir": "remove {0}",
    "os.listdir": "list {0}",
    "os.scandir": "list {0}",
    "os.chmod": "change the rights of {0}",
    "os.chown": "change the owner of {0}",
    "os.setxattr": "change the attributes of {0}",
    "ctypes.dlopen": "load the library {0}",
    "ctypes.string_at": "read memory at an address",
    "ctypes.call_function": "call machine code",
    "ctypes.dlsym": "look up the symbol {1}",
    "sys._getframe": "walk the frames of its caller",
    "sys._current_frames": "walk the frames of other threads",
    "sys.setprofile": "set a profiler",
    "sys.settrace": "set a tracer",
    "gc.get_objects": "list all objects",
    "gc.get_referrers": "follow references to an object",
    "resource.setrlimit": "change its limits",
    "resource.prlimit": "change a process's limits",
    "open": "open {0}",
    "mmap.__new__": "map memory",
}


def watch(channel: int, folder: str, readable: Sequence[str]) -> None:
    """From now on, write a line to the descriptor `channel` for each attempt by code whose file lies in `folder`.
    Opening a file below `readable` for reading, or below `folder`, is none."""
    told: set[str] = set()
    inside = folder.rstrip("/") + "/"
    libraries = tuple(path.rstrip("/") + "/" for path in readable)
    write, frame_of = os.write, sys._getframe
    busy: list[bool] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        text = _NAMES.get(event)
        if not text or busy or len(told) >= _MOST:
            return
        busy.append(True)
        try:
            if _by_candidate(frame_of, inside, event in _DIRECT) and not _harmless(event, arguments, inside, libraries):
                line = _line(text, arguments)
                if line not in told:
                    told.add(line)
                    write(channel, line.encode(errors="replace") + b"\n")
        finally:
            busy.clear()

    sys.addaudithook(hook)


def _by_candidate(frame_of: Callable[[int], FrameType], inside: str, direct: bool) -> bool:
    """Whether the candidate's code is on the stack (at its top, if `direct`), no import between it and the event."""
    frame: FrameType | None = frame_of(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return False
        if name.startswith(inside):
            return True
        frame = None if direct else frame.f_back
    return False


def _harmless(event: str, arguments: tuple[Any, ...], inside: str, libraries: tuple[str, ...]) -> bool:
    """Reading installed files, and anything in its own folder."""
    if event in ("os.symlink", "os.link") or not arguments:
        return False
    if event not in ("open", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "os.chmod", "os.rename"):
        return False
    path = arguments[0]
    if isinstance(path, int):
        return True
    text = os.path.abspath(os.fsdecode(path)) + "/" if path is not None else inside
    if text.startswith(inside):
        return True
    reads = event.startswith(("os.listdir", "os.scandir")) or (event == "open" and not _writes(arguments))
    return reads and text.startswith(libraries)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def _line(text: str, arguments: tuple[Any, ...]) -> str:
    shown = [repr(a)[:80] for a in arguments]
    return text.format(*shown, *([""] * 3)).replace("\n", " ")

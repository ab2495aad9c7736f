"""How a worker gives up its rights before it reads its first request, and a candidate's process what is left of them.

`enter` is called by a process of one thread that has opened nothing yet. It tries the level that the policy names, or
each from the strongest, and says what came of it. `confine_candidate` is called in each process made for a candidate.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import stat
import tempfile

from kvc.verify import linux
from kvc.verify.sandbox import Policy, Report

PRIVATE = "/tmp"  # a worker's own folder, where it has a root of its own
_NODES = ("null", "zero", "full", "random", "urandom")
_INNER_ID = 1000  # user and group in the namespace: not 0, which an exec would give capabilities
#: Largest process number of a namespace (Linux 6.14), the first that the kernel takes: the least depends on the number
#: of processors. It bounds what a fork bomb makes, also where RLIMIT_NPROC does not count (kvc run by root).
_MAX_PIDS = (512, 1024, 4096, 16384)
_SHARED_MEMORY = 1 << 28


class Refused(Exception):
    """Why a level cannot be had here."""


def enter(rules: Policy) -> Report:
    """Confine this process. Except under "bubblewrap" the caller goes on in a child, under "namespaces" as process 1 of
    its own; the process that was started waits for it and hands on its status."""
    os.umask(0o077)
    refused: list[str] = []
    tries = ("namespaces", "landlock", "limits") if rules.level == "auto" else (rules.level,)
    level = next((level for level in tries if _enter(level, rules, refused)), "limits")
    os.chdir("/")
    linux.no_new_privileges()
    if os.getpid() != 1:
        linux.adopt_orphans()
    linux.hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's business
    limit_resources(rules)
    private = PRIVATE if level in ("bubblewrap", "namespaces") else rules.folder
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = private
    layers = [name for name, there in (("landlock", _has_landlock()), ("seccomp", _has_seccomp())) if there]
    return Report(level, tuple(name for name in layers if name != level), tuple(refused))


def _enter(level: str, rules: Policy, refused: list[str]) -> bool:
    try:
        if level == "namespaces":
            _namespaces(rules)
        elif level == "landlock":
            _landlock(rules)
        elif level == "limits":
            _stand_aside()
        return True
    except (OSError, Refused) as error:
        refused.append(f"{level}: {error}")
        return False


def _has_landlock() -> bool:
    return linux.landlock_version() > 0


def _has_seccomp() -> bool:
    """Whether filters can be set: asked in a process of its own, since they cannot be taken off."""
    child = os.fork()
    if child == 0:
        try:
            linux.seccomp()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def limit_resources(rules: Policy) -> None:
    """Limits of the worker itself, which lives long: no processor time, and no address space where a GPU's driver
    reserves it by the terabyte."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, rules.limits.file)
    if not rules.devices:
        _limit(resource.RLIMIT_AS, rules.limits.memory)


def _limit(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (value, value))


# ---------------------------------------------------------------- namespaces


def _namespaces(rules: Policy) -> None:
    """New namespaces, then a root that holds nothing but what the policy names."""
    _try_namespaces()
    _unshare()
    _stand_aside()
    try:
        _new_root(rules)
    except OSError as error:
        os.write(2, f"kvc: the sandbox cannot be built: {error}\n".encode())
        os._exit(71)
    linux.drop_capabilities()


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(
        linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC
        | linux.CLONE_NEWUTS
    )  # fmt: skip
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{_INNER_ID} {user} 1")
    _write("/proc/self/gid_map", f"{_INNER_ID} {group} 1")


def _try_namespaces() -> None:
    """Whether the whole of it works, found out in a process of its own: half a namespace cannot be left again."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            _unshare()
            linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
            linux.mount("tmpfs", "/tmp", "tmpfs", 0)
            os.mkdir("/tmp/t")
            linux.mount("/usr", "/tmp/t", None, linux.MS_BIND | linux.MS_REC)
            linux.restrict_mount("/tmp/t", linux.ATTR_RDONLY)
            os._exit(0)
        os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise Refused("the kernel, or the container, grants no user namespaces with mounts")


def _stand_aside() -> None:
    """Fork. The child goes on as the worker; this process stays behind as the one that the parent knows. It holds
    nothing but the reading end of the requests: their writer's end, by whatever cause, is the end of the worker, too,
    in the middle of a call as well. (PR_SET_PDEATHSIG would watch the parent's thread, and that one may end.)"""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # before the child exchanges the root of both
    child = os.fork()
    if child == 0:
        os.close(null)
        linux.die_with_parent(signal.SIGKILL)
        return
    status = 72
    try:
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        ended = os.pidfd_open(child)
        events = select.poll()
        events.register(0, 0)  # hang-up alone
        events.register(ended, select.POLLIN)
        events.poll()
        os.kill(child, signal.SIGKILL)  # nothing happens to one that has ended already
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:  # this process was never confined: it must not go on as a worker
        os._exit(status if status >= 0 else 128 - status)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _new_root(rules: Policy) -> None:
    """As bwrap does it: a tmpfs becomes the root, the old root hangs below it while the bind mounts are made."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    sources = {path: os.path.realpath(path) for path in (*rules.readable, *rules.devices)}
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755,size=16m")
    os.mkdir("/tmp/old", 0o700)
    os.mkdir("/tmp/new", 0o755)
    linux.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    _tmpfs(f"/new{PRIVATE}", rules.limits.disk, linux.MS_NOEXEC)
    for path in rules.readable:  # some may lie below the private folder's name
        _bind(path, sources[path], linux.ATTR_RDONLY | linux.ATTR_NOSUID | linux.ATTR_NODEV)
    _tmpfs("/new/dev", 1 << 20)
    for node in (*(f"/dev/{name}" for name in _NODES), *rules.devices):
        _bind(node, sources.get(node, node), linux.ATTR_NOSUID | linux.ATTR_NOEXEC)
    _tmpfs("/new/dev/shm", _SHARED_MEMORY)
    os.symlink("/proc/self/fd", "/new/dev/fd")
    _proc()
    linux.mount("/new", "/new", None, linux.MS_BIND | linux.MS_REC)
    linux.detach("/old")
    os.chdir("/new")
    linux.pivot_root(".", ".")
    linux.detach(".")
    os.chdir("/")


def _tmpfs(target: str, size: int, flags: int = 0) -> None:
    os.makedirs(target, 0o755, exist_ok=True)
    linux.mount("tmpfs", target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | flags, f"mode=0700,size={size}")


def _bind(path: str, source: str, attributes: int) -> None:
    """`source` of the old root at `path` of the new one. A symlink (/bin -> usr/bin) stays one."""
    target, old = f"/new{path}", f"/old{path}"
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    if os.path.islink(old) and not path.startswith("/dev/"):
        os.symlink(os.readlink(old), target)
        return
    source = f"/old{source}"
    if not os.path.exists(source):
        return
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    linux.restrict_mount(target, attributes)


def _proc() -> None:
    """The processes of this namespace; where a container forbids that, the two files that programs look for."""
    os.makedirs("/new/proc", 0o755, exist_ok=True)
    try:
        linux.mount("proc", "/new/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    except OSError:
        for name in ("/proc/cpuinfo", "/proc/meminfo"):
            _bind(name, name, linux.ATTR_RDONLY)
        return
    for most in _MAX_PIDS:
        with contextlib.suppress(OSError):  # before Linux 6.14 the number is the machine's
            _write("/new/proc/sys/kernel/pid_max", str(most))
            break
    for name in ("sys", "sysrq-trigger", "irq", "bus"):
        if os.path.exists(f"/new/proc/{name}"):
            linux.mount(f"/new/proc/{name}", f"/new/proc/{name}", None, linux.MS_BIND | linux.MS_REC)
            linux.restrict_mount(f"/new/proc/{name}", linux.ATTR_RDONLY)


# ---------------------------------------------------------------- other levels, and candidates


def _landlock(rules: Policy) -> None:
    if not rules.folder:
        raise Refused("no private folder was given")
    if not _has_landlock():
        raise Refused("the kernel has no Landlock")
    _stand_aside()
    linux.no_new_privileges()
    nodes = tuple(f"/dev/{name}" for name in _NODES)
    linux.landlock((*rules.readable, "/proc"), (*nodes, *rules.devices, rules.folder))


def _processes_of_user() -> int:
    """Threads of this user on the machine, as far as /proc tells."""
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def confine_candidate(rules: Policy, report: Report) -> None:
    """Take from a candidate's process what the worker still has: signals to it and its memory, sockets, new namespaces;
    and set the limits of one candidate."""
    linux.die_with_parent(signal.SIGKILL)
    os.setpgid(0, 0)
    limits = rules.limits
    _limit(resource.RLIMIT_AS, limits.memory)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_NOFILE, 1024)
    # Counted for each user namespace, so for us alone, where there is one; else for all that the user runs.
    others = 0 if report.level in ("bubblewrap", "namespaces") else _processes_of_user()
    _limit(resource.RLIMIT_NPROC, others + limits.processes)
    linux.no_new_privileges()
    if _has_landlock():
        linux.landlock(None)
    if "seccomp" in report.layers:
        alone = report.level in ("bubblewrap", "namespaces") or linux.landlock_version() >= 6
        linux.seccomp(None if alone else os.getpid())

"""The few system calls of Linux by which a process gives up its rights, through ctypes: namespaces, mounts,
capabilities, Landlock, seccomp. What a kernel or a container refuses is an OSError.

Nothing here knows what kvc is; the policy stands in `kvc.verify.sandbox`. Sources: the man pages namespaces(7),
pivot_root(2), mount_setattr(2), landlock(7), seccomp(2) and the kernel's headers of the same names.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from functools import cache
from typing import Any

# mount(2), umount2(2), mount_setattr(2)
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SYS_MOUNT_SETATTR = 442

# unshare(2)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_CLONE_NEW_ANY = 0x7E020080  # every namespace, NEWTIME included

# prctl(2)
_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 24, 22, 36, 38

_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_FS_EXECUTE, _FS_WRITE, _FS_READ, _FS_READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_FS_REFER, _FS_TRUNCATE, _FS_IOCTL = 1 << 13, 1 << 14, 1 << 15
_FS_OF_FILES = _FS_EXECUTE | _FS_WRITE | _FS_READ | _FS_TRUNCATE | _FS_IOCTL
_NET_ALL, _SCOPE_ALL = 0b11, 0b11  # bind and connect of TCP; abstract sockets and signals


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(number: int, what: str, *arguments: Any) -> int:
    function = libc().syscall
    function.restype = ctypes.c_long
    return _checked(function(ctypes.c_long(number), *arguments), what)


def _prctl(option: int, *arguments: int, what: str) -> None:
    values = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(libc().prctl(ctypes.c_int(option), *values), what)


# ---------------------------------------------------------------- processes and rights


def unshare(flags: int) -> None:
    _checked(libc().unshare(ctypes.c_int(flags)), "unshare")


def die_with_parent(signal: int) -> None:
    """The process gets `signal` when the thread that made it ends."""
    _prctl(_PDEATHSIG, signal, what="PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _prctl(_SUBREAPER, 1, what="PR_SET_CHILD_SUBREAPER")


def hide_memory() -> None:
    """No other process of the user may trace this one or open its /proc/PID/mem, environ and descriptors."""
    _prctl(_SET_DUMPABLE, 0, what="PR_SET_DUMPABLE")


def no_new_privileges() -> None:
    """Set-user-ID programs run without their rights from now on."""
    _prctl(_NO_NEW_PRIVS, 1, what="PR_SET_NO_NEW_PRIVS")


def drop_capabilities() -> None:
    """All capabilities, also those that a later exec would give back."""
    for capability in range(64):
        if libc().prctl(_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last one that this kernel knows, or without the right to drop: there are none to drop
    header = struct.pack("II", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _checked(libc().capset(header, bytes(24)), "capset")


# ---------------------------------------------------------------- mounts


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    done = libc().mount(
        source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data.encode() or None
    )
    _checked(done, f"mount {target}")


def restrict_mount(target: str, attributes: int) -> None:
    """Add attributes (ATTR_*) to a mount and to all below it. Linux 5.12."""
    request = struct.pack("QQQQ", attributes, 0, 0, 0)
    _syscall(
        _SYS_MOUNT_SETATTR, f"mount_setattr {target}", ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(target.encode()),
        ctypes.c_uint(_AT_RECURSIVE), ctypes.c_char_p(request), ctypes.c_size_t(len(request)),
    )  # fmt: skip


def pivot_root(new: str, old: str) -> None:
    _checked(libc().pivot_root(new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    _checked(libc().umount2(target.encode(), MNT_DETACH), f"umount {target}")


# ---------------------------------------------------------------- Landlock


def landlock_version() -> int:
    """The Landlock interface of this kernel; 0 where there is none."""
    try:
        return _syscall(_SYS_LANDLOCK_CREATE, "landlock", None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    except OSError:
        return 0


def _file_rights(version: int) -> int:
    """Every right on files that this version of Landlock can take away."""
    rights = (1 << 13) - 1
    for since, right in ((2, _FS_REFER), (3, _FS_TRUNCATE), (5, _FS_IOCTL)):
        rights |= right if version >= since else 0
    return rights


def landlock(readable: Iterable[str] | None, writable: Iterable[str] = ()) -> None:
    """Enter a Landlock domain: files below `readable` can be read and run, those below `writable` also changed, all
    others not opened; `None` leaves files alone. No TCP (version 4), no signals to processes outside of the domain
    (version 6), no tracing of them (any version). Children inherit it. OSError where the kernel has no Landlock."""
    version = landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    everything = _file_rights(version)
    handled = everything if readable is not None else _FS_REFER if version >= 2 else 0
    fields = [handled, *([_NET_ALL] if version >= 4 else []), *([_SCOPE_ALL] if version >= 6 else [])]
    if not any(fields):
        fields[0] = 1 << 11  # version 1 must handle something: the making of block devices, which nobody here may
    request = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = _syscall(
        _SYS_LANDLOCK_CREATE, "landlock_create_ruleset",
        ctypes.c_char_p(request), ctypes.c_size_t(len(request)), ctypes.c_uint(0),
    )  # fmt: skip
    try:
        if readable is not None:
            for path in readable:
                _landlock_rule(ruleset, path, _FS_EXECUTE | _FS_READ | _FS_READ_DIR)
            for path in writable:
                _landlock_rule(ruleset, path, everything)
        elif handled:
            _landlock_rule(ruleset, "/", handled)
        _syscall(_SYS_LANDLOCK_RESTRICT, "landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _landlock_rule(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    try:
        rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & _FS_OF_FILES, handle)
        _syscall(
            _SYS_LANDLOCK_ADD, f"landlock_add_rule {path}", ctypes.c_int(ruleset), ctypes.c_int(_LANDLOCK_PATH_BENEATH),
            ctypes.c_char_p(rule), ctypes.c_uint(0),
        )  # fmt: skip
    finally:
        os.close(handle)


# ---------------------------------------------------------------- seccomp

#: AUDIT_ARCH_* and column of the table below, by machine.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

#: System calls that no compiler needs, by number on x86_64 and aarch64: other processes' memory, mounts and
#: namespaces, the network, kernel modules, keys, and what has held most holes of the kernel.
_REFUSED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "mount_setattr": (442, 442), "socket": (41, 198), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161), "acct": (163, 89), "quotactl": (179, 60),
    "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
#: Signals to others, refused where nothing else keeps them in.
_SIGNALS: dict[str, tuple[int, int]] = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: ld word, jeq, jset, ret
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_FIRST = 0, 4, 16


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def seccomp(own_pid: int | None = None) -> None:
    """Refuse the system calls of the tables to this process and its children for good. With `own_pid`, signals may go
    to that process only. OSError on a machine that the tables do not know, or where the kernel has no filters."""
    if platform.machine() not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system call numbers for {platform.machine()}")
    audit, column = _MACHINES[platform.machine()]
    no_new_privileges()
    code = b"".join(struct.pack("HBBI", *line) for line in _filter(audit, column, own_pid))
    program = _Program(len(code) // 8, code)
    _checked(libc().prctl(_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(program), 0, 0), "PR_SET_SECCOMP")


def _filter(audit: int, column: int, own_pid: int | None) -> list[tuple[int, int, int, int]]:
    """The BPF program: (code, jump if true, jump if false, value). Each test is followed by its own answer."""
    refuse, allow = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    lines = [(_LOAD, 0, 0, _OFFSET_ARCH), (_EQUAL, 1, 0, audit), refuse, (_LOAD, 0, 0, _OFFSET_NUMBER)]
    if column == 0:  # the x32 calls of x86_64 have numbers of their own
        lines += [(_ANY_BIT, 0, 1, 0x40000000), refuse]
    for numbers in _REFUSED.values():
        lines += [(_EQUAL, 0, 1, numbers[column]), refuse]
    # Flags of clone3 lie in memory, where a filter cannot look; libc then falls back to clone.
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    if own_pid is not None:
        for numbers in _SIGNALS.values():
            lines += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _OFFSET_FIRST), (_EQUAL, 0, 1, own_pid)]
            lines += [allow, refuse]
    lines += [(_EQUAL, 0, 3, _CLONE[column]), (_LOAD, 0, 0, _OFFSET_FIRST), (_ANY_BIT, 0, 1, _CLONE_NEW_ANY), refuse]
    return [*lines, allow]

"""What a worker may do and by which means it is held to that: the parent's side. `kvc.verify.confine` is the worker's.

The worker sees, read-only, the interpreter, the installed packages, the system's libraries and compilers, and kvc's
compiled simulator; it has a private temporary folder, no network, no signals to others, limits, and an environment made
from an allow-list. Means, strongest first, each a `level`:

``bubblewrap``  bwrap(1), which works where the system lets only a set-user-ID helper make namespaces
``namespaces``  user, mount, pid, network, IPC and UTS namespaces of kvc's own, and a root of bind mounts
``landlock``    the kernel's file rights for a process that lacks those (containers), and seccomp against sockets
``limits``      resource limits alone, with a warning

Below each of the first three, candidates' own processes run under seccomp and a Landlock domain as well, where the
kernel has them.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.settings import settings

LEVELS = ("bubblewrap", "namespaces", "landlock", "limits")
#: Levels that keep files, network and other processes out of reach.
CONTAINED = frozenset(LEVELS[:3])

#: The variables that a worker gets, beside those that this module sets. Nothing else of the environment reaches it.
ENVIRONMENT = frozenset({
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "KVC_DEBUG", "KVC_LOGS",
    "ROCM_PATH", "ROCM_HOME", "HIP_PATH", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "COVERAGE_PROCESS_START",
})  # fmt: skip

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/rocm*", "/nix/store", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime",
)  # fmt: skip
#: What a GPU's runtime reads beside its device nodes.
_SYSTEM_OF_DEVICES = ("/sys", "/etc/OpenCL", "/etc/vulkan", "/run/nvidia*")
_PACKAGES = ("kvc", "kvc.frontends", "numpy", "triton", "torch", "clang", "ziglang", "lark", "nvidia")


_MEANING = {
    "bubblewrap": "candidates see no file of the user's, no network, no process but their own",
    "namespaces": "candidates see no file of the user's, no network, no process but their own",
    "landlock": "candidates open no file of the user's and no socket; they can see that other processes exist",
    "limits": "candidates are held by resource limits alone, and can read what the user can",
}


def level_meaning(level: str) -> str:
    """What a level of LEVELS comes to, in words."""
    return _MEANING[level]


@dataclass(frozen=True)
class Limits:
    """Bounds on one worker. `memory`: address space of a process and resident memory of all of a candidate's; `file`:
    one file; `disk`: the private folder; `reply`: what a candidate's process may answer (all in bytes). `processes` of
    a candidate at a time; `cpu_s`: processor seconds of each."""

    memory: int = 16 << 30
    file: int = 4 << 30
    disk: int = 2 << 30
    reply: int = 1 << 29
    processes: int = 256
    cpu_s: int = 600


@dataclass(frozen=True)
class Policy:
    """What a worker is told about its sandbox. `level` is one of LEVELS or "auto", which takes the strongest that the
    kernel grants; `folder` is a private temporary folder on the host, for levels without mounts; `devices` are nodes
    below /dev, for executors that drive a GPU."""

    level: str = "auto"
    readable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    folder: str = ""
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Policy:
        data = json.loads(text)
        return Policy(
            data["level"],
            tuple(data["readable"]),
            tuple(data["devices"]),
            data["folder"],
            Limits(**data["limits"]),
        )


@dataclass(frozen=True)
class Report:
    """What a worker's sandbox came to: its level, what else holds, and why stronger means were not to be had."""

    level: str
    layers: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def contained(self) -> bool:
        return self.level in CONTAINED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        also = f" with {', '.join(self.layers)}" if self.layers else ""
        why = f" ({'; '.join(self.refused)})" if self.refused and not self.contained else ""
        return f"{self.level}{also}{why}"


# ---------------------------------------------------------------- what may be read


def _existing(patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        yield from sorted(glob.glob(pattern)) if "*" in pattern else [pattern] if os.path.lexists(pattern) else []


def _import_roots() -> Iterator[str]:
    """Where a worker's imports come from: the interpreter, PYTHONPATH, site-packages, and each package that may be
    installed in place, outside of them."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    yield from (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    yield from _python_path()
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()
    names = dict.fromkeys(_PACKAGES)
    for group in entry_points().groups:
        if group.startswith("kvc."):  # every room that plugs something in, others' packages too
            for entry in entry_points(group=group):
                parts = entry.module.split(".")
                names |= dict.fromkeys((parts[0], ".".join(parts[:2])))
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue
        if spec is not None:
            for place in spec.submodule_search_locations or ([spec.origin] if spec.origin else []):
                yield place
                # A strict editable install is a folder of links into the sources.
                yield os.path.dirname(os.path.realpath(os.path.join(place, "__init__.py")))


def _python_path() -> list[str]:
    """PYTHONPATH's folders, made absolute: a worker stands in another folder."""
    return [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


@cache
def _readable(cache_dir: Path) -> tuple[str, ...]:
    """Files and folders that a worker may read, outermost only."""
    found = {os.path.abspath(p) for p in (*_existing(_SYSTEM), *_import_roots(), str(cache_dir / "simulator"))}
    found = {p for p in found if os.path.lexists(p) and p not in ("/", os.path.expanduser("~"))}
    # A compiler that stands elsewhere on the user's PATH comes with the folder that it is installed in.
    for tool in ("hipcc", "clang-19", "ld.lld-19"):
        where = shutil.which(tool)
        if where is not None:
            found.add(os.path.realpath(os.path.join(os.path.dirname(where), "..")))
            found.add(os.path.dirname(os.path.dirname(os.path.realpath(where))))
    return tuple(sorted(p for p in found if not any(o != p and _within(p, o) for o in found) and p != "/"))


def _within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def policy(devices: Sequence[str] = (), folder: str = "", limits: Limits | None = None) -> Policy:
    """The policy for a worker on this machine. `devices` are patterns below /dev. KVC0106 for an unknown
    KVC_SANDBOX."""
    wanted = settings().sandbox
    if wanted not in ("auto", *LEVELS):
        raise KvcError("KVC0106", f"KVC_SANDBOX={wanted}", hint=f"one of: auto, {', '.join(LEVELS)}")
    if wanted in ("auto", "bubblewrap"):
        wanted = "bubblewrap" if _bubblewrap() else "namespaces" if wanted == "bubblewrap" else "auto"
    nodes = tuple(_existing(devices))
    readable = _readable(settings().cache_dir)
    if devices:
        readable += tuple(_existing(_SYSTEM_OF_DEVICES))
    return Policy(wanted, readable, nodes, folder, limits or Limits())


# ---------------------------------------------------------------- how a worker is started


@cache
def _bubblewrap() -> str | None:
    """The path of a bwrap that works here (a container may have one that may not make namespaces)."""
    found = shutil.which("bwrap")
    if found is None:
        return None
    trial = [found, "--unshare-all", "--as-pid-1", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(trial, capture_output=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if done.returncode == 0 else None


def command(rules: Policy) -> list[str]:
    """The command line of a worker. `-P`: it imports nothing from the folder that it stands in, where candidates
    write."""
    worker = [sys.executable, "-P", "-m", "kvc.verify.worker", rules.to_json()]
    return [*_bubblewrap_prefix(rules), "--", *worker] if rules.level == "bubblewrap" else worker


def _bubblewrap_prefix(rules: Policy) -> list[str]:
    found = _bubblewrap()
    assert found is not None  # `policy` asks for it only where it is
    words = [found, "--unshare-all", "--as-pid-1", "--cap-drop", "ALL", "--proc", "/proc"]
    words += ["--dev", "/dev", "--size", str(rules.limits.disk), "--tmpfs", "/tmp"]
    for path in rules.readable:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind", os.path.realpath(path), path]
    for node in rules.devices:
        words += ["--dev-bind", node, node]
    return [*words, "--chdir", "/"]


def environment(rules: Policy) -> dict[str, str]:
    """The whole environment of a worker."""
    kept = {name: value for name, value in os.environ.items() if name in ENVIRONMENT}
    home = rules.folder or "/tmp"
    fixed = {
        "HOME": home,
        "TMPDIR": home,
        "KVC_CACHE_DIR": str(settings().cache_dir),
        "OMP_NUM_THREADS": "1",  # a process with threads cannot be forked safely
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    path = _python_path()
    return {**kept, **fixed, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}

"""`kvc doctor`: what is installed, what is missing, and the command that brings it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kvc import __version__
from kvc.arch import CDNA, arch
from kvc.diagnostics import KvcError

#: Packages that kvc needs, with what they are for.
PACKAGES = (
    ("torch", "captures models"),
    ("numpy", "simulator and buffers"),
    ("triton", "writes and compiles Triton; carries AMD's device libraries"),
    ("ziglang", "compiles HIP (clang 22)"),
    ("libclang", "lints HIP"),
    ("lark", "reads .kir files"),
    ("jinja2", "writes module.py and the report"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `fix` is the command that helps where `ok` is false; what is `optional` is good
    to have."""

    group: str
    name: str
    ok: bool
    detail: str
    fix: str = ""
    optional: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Finding]:
    """Look for everything; nothing is installed or changed."""
    return [*_python(), *_packages(), *_targets(), *_executors(), *_sandbox(), *_cache()]


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    ok = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding("kvc", "kvc", True, __version__)
    yield Finding("kvc", "python", ok, version, "" if ok else "use Python 3.11 to 3.13")


def _packages() -> Iterator[Finding]:
    for name, purpose in PACKAGES:
        try:
            yield Finding("packages", name, True, f"{importlib.metadata.version(name)}, {purpose}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("packages", name, False, purpose, f"pip install {name}")


def _targets() -> Iterator[Finding]:
    from kvc.emitter import targets

    for target in targets().values():
        try:
            record = target.toolchain()
        except KvcError as error:
            yield Finding("targets", target.name, False, error.diagnostic.message, error.diagnostic.hint)
            continue
        known = ", ".join(v for k, v in record.items() if k in ("name", "version") or k == target.name)
        yield Finding("targets", target.name, True, known or ", ".join(f"{k} {v}" for k, v in record.items()))


def _executors() -> Iterator[Finding]:
    from kvc.executors import executor, executor_classes

    for name in executor_classes():
        runs, reasons = [], []
        for row in CDNA:
            problem = executor(name, row).available(arch(row))
            if problem is None:
                runs.append(row)
            else:
                reasons.append(problem)
        if runs:
            yield Finding("executors", name, True, f"runs {', '.join(runs)}", optional=True)
        else:
            yield Finding("executors", name, False, reasons[0].message, reasons[0].hint, optional=True)


def _sandbox() -> Iterator[Finding]:
    """How a worker is confined here, found out by starting one."""
    from kvc.verify.pool import WorkerPool
    from kvc.verify.sandbox import level_meaning

    try:
        with WorkerPool(1, 60.0) as pool:
            report = pool.sandbox()
    except KvcError as error:
        yield Finding("sandbox", "workers", False, error.diagnostic.message, error.diagnostic.hint)
        return
    fix = "" if report.contained else "install bubblewrap, or allow user namespaces or Landlock (docs/security.md)"
    detail = f"{report}: {level_meaning(report.level)}"
    yield Finding("sandbox", "workers", report.contained, detail, fix, optional=True)


def _cache() -> Iterator[Finding]:
    from kvc.store import Store, cache_dir

    try:
        Store()
    except KvcError as error:
        yield Finding("cache", "store", False, error.diagnostic.message, error.diagnostic.hint)
        return
    shown = str(cache_dir()).replace(os.path.expanduser("~"), "~", 1)
    yield Finding("cache", "store", True, shown)


def render(findings: list[Finding]) -> str:
    """The findings as lines of text, one group after the other."""
    lines: list[str] = []
    group = ""
    for f in findings:
        if f.group != group:
            group = f.group
            lines += ([""] if lines else []) + [group]
        mark = "ok" if f.ok else "--" if f.optional else "NO"
        lines.append(f"  {mark}  {f.name:<10} {f.detail}")
        if not f.ok and f.fix:
            lines.append(f"      {'':<10} -> {f.fix}")
    missing = [f.name for f in findings if not f.ok and not f.optional]
    lines += ["", f"missing: {', '.join(missing)}" if missing else "all that is needed is here"]
    return "\n".join(lines)

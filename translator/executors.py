"""The registry of executors: entry-point group "kvc.executors". The core names none of them."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from kvc.arch import ArchSpec, arch
from kvc.diagnostics import Diagnostic, KvcError
from kvc.executor import Executor

#: Order of preference under `--executor auto`: a real device of the wanted chip before the simulator of it. What runs
#: on another vendor's chip is no evidence for a gfx kernel and is never chosen unasked.
AUTO = ("amdgpu", "sim")


@cache
def executor_classes() -> dict[str, Any]:
    """Registered executor classes by name."""
    from importlib.metadata import entry_points

    return {e.name: e.load() for e in sorted(entry_points(group="kvc.executors"), key=lambda e: e.name)}


def executor(name: str, arch_name: str, seed: int = 0) -> Executor:
    """An executor for `arch_name`; `seed` orders the waves where an executor can. KVC0105 when there is none."""
    classes = executor_classes()
    if name not in classes:
        raise KvcError("KVC0105", f"no executor {name!r}", hint=f"one of: auto, {', '.join(classes)}")
    offered = {"arch": arch(arch_name), "seed": seed}
    taken = inspect.signature(classes[name]).parameters
    made: Executor = classes[name](**{key: value for key, value in offered.items() if key in taken})
    return made


def choose(name: str, row: ArchSpec) -> str:
    """The executor to use: `name` itself where it can run kernels for `row`, the first usable one for "auto".
    KVC0601 or KVC0602 with the executor's own reason where it cannot."""
    reasons: list[Diagnostic] = []
    for candidate in AUTO if name == "auto" else (name,):
        if name == "auto" and candidate not in executor_classes():
            continue
        problem = executor(candidate, row.name).available(row)
        if problem is None:
            return candidate
        reasons.append(problem)
    if not reasons:
        raise KvcError("KVC0601", "no executor is registered", hint="reinstall kvc: pip install --force-reinstall kvc")
    last = reasons[-1]
    raise KvcError(last.code, last.message, hint=last.hint, **last.details)

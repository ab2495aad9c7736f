"""Candidates, code objects and diagnostics as JSON: for the worker's pipe and for the store.

Binary parts travel beside the JSON, by key, so that nothing is ever unpickled.
"""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

from kvc.arch import arch
from kvc.diagnostics import Diagnostic, Location
from kvc.emitter import Candidate, CodeObject, Compiled, Knob, Launch, Origin, Scratch, Task
from kvc.kernel import KernelSpec
from kvc.text import parse_kernel, print_kernel

Blobs = dict[str, bytes]


def diagnostic_from_json(data: dict[str, Any]) -> Diagnostic:
    where = data.get("location")
    location = Location(where["file"], where["line"]) if where else None
    return Diagnostic(data["code"], data["message"], location, data["hint"], data["details"])


def _knobs(pairs: list[list[Any]]) -> tuple[tuple[str, Knob], ...]:
    return tuple((name, value) for name, value in pairs)


def launch_from_json(data: dict[str, Any]) -> Launch:
    grid, block = tuple(data["grid"]), tuple(data["block"])
    return Launch(
        data["kernel"], grid, block, tuple(data["args"]), data["dynamic_lds"], _knobs(data["options"]),
        bool(data.get("ahead", False)),
    )  # fmt: skip


def launch_to_json(launch: Launch) -> dict[str, Any]:
    """A launch; that it runs ahead is said only where it does."""
    return {k: v for k, v in asdict(launch).items() if k != "ahead" or v}


def candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "spec": print_kernel(candidate.task.spec),
        "arch": candidate.task.arch.name,
        "numerics": candidate.task.numerics,
        "target": candidate.target,
        "schedule": candidate.schedule,
        "source": candidate.source,
        "launches": [launch_to_json(launch) for launch in candidate.launches],
        "workspace": [asdict(scratch) for scratch in candidate.workspace],
        "knobs": [list(pair) for pair in candidate.knobs],
        "origin": asdict(candidate.origin),
    }


def candidate_from_json(data: dict[str, Any], spec: KernelSpec | None = None) -> Candidate:
    """The candidate; `spec` saves parsing the text again where the caller has it."""
    task = Task(spec or parse_kernel(data["spec"]), arch(data["arch"]), data["numerics"])
    return Candidate(
        task,
        data["target"],
        data["schedule"],
        data["source"],
        tuple(launch_from_json(launch) for launch in data["launches"]),
        tuple(Scratch(**scratch) for scratch in data["workspace"]),
        _knobs(data["knobs"]),
        Origin(**data["origin"]),
    )


def compiled_to_json(compiled: Compiled) -> tuple[dict[str, Any], Blobs]:
    """JSON and blobs ("<kernel>.asm", "<kernel>.co"). The time it took is left out: it is no property of the code."""
    objects = {}
    blobs: Blobs = {}
    for kernel, obj in sorted(compiled.objects.items()):
        objects[kernel] = {
            "toolchain": [list(pair) for pair in obj.toolchain],
            "log": obj.log,
            "lds_bytes": obj.lds_bytes,
            "extra_pointers": obj.extra_pointers,
        }
        blobs[f"{kernel}.asm"] = obj.asm.encode()
        blobs[f"{kernel}.co"] = obj.binary
    resources = {
        k: asdict(r) if is_dataclass(r) and not isinstance(r, type) else r for k, r in compiled.resources.items()
    }
    return {"objects": objects, "resources": resources}, blobs


def compiled_from_json(data: dict[str, Any], blobs: Blobs) -> Compiled:
    objects = {
        kernel: CodeObject(
            blobs[f"{kernel}.asm"].decode(),
            blobs[f"{kernel}.co"],
            tuple((name, value) for name, value in obj["toolchain"]),
            obj["log"],
            obj["lds_bytes"],
            obj["extra_pointers"],
        )
        for kernel, obj in data["objects"].items()
    }
    return Compiled(objects, 0.0, data["resources"])

"""Output folders: written in a staging folder beside the destination, verified there, and renamed into place.

A folder holds module.py, kernels/ (sources and the code objects that were verified), graph.kir, kernels.kir, kvc.lock,
measurements.json and report.html. Everything but the last two is the same, byte for byte, for the same input.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvc
from kvc.diagnostics import KvcError
from kvc.emitter import Compiled
from kvc.lock_shape import problems
from kvc.module_source import KernelFile, identifier, module_source, safetensors, state_name
from kvc.pipeline import Listener, NotVerified, Translation, silent
from kvc.plan import Fallback, Invoke
from kvc.records import launch_to_json
from kvc.store import build_id
from kvc.text import print_graph, print_kernel
from kvc.verify.model import ModelEvidence, ModelReference, verify_written
from kvc.verify.verdict import OutputError

if TYPE_CHECKING:
    from kvc.module_source import Interface

LOCK = "kvc.lock"
FORMAT = 1


# ---------------------------------------------------------------- staging


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A private folder that becomes `out` when the block ends without an error, and disappears otherwise.

    `out` may be missing, empty or an earlier translation, which is replaced. KVC0801 where it cannot be written,
    KVC0802 where it holds something else.
    """
    check_destination(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}.kvc-{os.getpid()}-", dir=out.parent))
    except OSError as error:
        raise _unwritable(out, error) from None
    try:
        # mkdtemp makes folders private; a written translation is as open as any other folder the user makes.
        mask = os.umask(0)
        os.umask(mask)
        stage.chmod(0o777 & ~mask)
        yield stage
        _swap(stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _sweep(out: Path) -> None:
    """Remove staging folders for `out` that killed runs on this machine left behind."""
    for left in out.parent.glob(f".{glob.escape(out.name)}.kvc-*"):
        owner = re.fullmatch(re.escape(f".{out.name}.kvc-") + r"(?:old-)?(\d+)-\w+", left.name)
        if owner is not None and not _is_alive(int(owner[1])):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _unwritable(out: Path, error: OSError) -> KvcError:
    reason = error.strerror or str(error)
    return KvcError("KVC0801", f"{out}: {reason}", hint="choose another folder with -o, or make this one writable")


def check_destination(out: Path) -> None:
    """Whether `out` may be written, asked before any work is done. KVC0801, KVC0802."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise KvcError("KVC0801", f"{out} is not a folder", hint="choose another folder with -o")
    if out.is_dir() and any(out.iterdir()) and not (out / LOCK).is_file():
        raise KvcError(
            "KVC0802", f"{out} holds other files", hint="choose an empty folder, or one that `kvc translate` wrote"
        )
    parent = next(p for p in (out.absolute().parent, *out.absolute().parent.parents) if p.exists())
    try:  # permissions alone do not tell (read-only and virtual file systems)
        os.rmdir(tempfile.mkdtemp(prefix=".kvc-", dir=parent))
    except OSError as error:
        raise _unwritable(out, error) from None


def _swap(stage: Path, out: Path) -> None:
    """Put `stage` in the place of `out`. An earlier translation is moved aside first, so that `out` is at every moment
    the old one, the new one or, between two renames, absent."""
    old: Path | None = None
    try:
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.kvc-old-{os.getpid()}-", dir=out.parent)) / "old"
            os.rename(out, old)
        os.rename(stage, out)
    except OSError as error:
        if old is not None and old.exists() and not out.exists():
            os.rename(old, out)
        raise _unwritable(out, error) from None
    finally:
        if old is not None:
            shutil.rmtree(old.parent, ignore_errors=True)


# ---------------------------------------------------------------- files


def kernel_files(translation: Translation) -> tuple[KernelFile, ...]:
    """File names of the distinct kernels, after their specs."""
    taken: set[str] = set()
    files = []
    for artifact in translation.artifacts:
        candidate = artifact.candidate
        name = identifier(candidate.task.spec.name, taken)
        binaries: dict[bytes, str] = {}
        objects = {}
        for symbol, obj in artifact.verified.compiled.objects.items():
            if obj.binary not in binaries:
                suffix = f".{len(binaries)}" if binaries else ""
                binaries[obj.binary] = f"kernels/{name}{suffix}.{translation.arch.name}.co"
            objects[symbol] = binaries[obj.binary]
        files.append(KernelFile(name, f"kernels/{name}{translation.target.suffix}", objects))
    return tuple(files)


def footer(translation: Translation, index: int) -> str:
    """Where a kernel comes from and how it was verified, as comment lines below its source (below, so that line
    numbers are those that were compiled)."""
    evidence = translation.artifacts[index].verified.evidence
    worst = evidence.worst
    mark = "#" if translation.target.suffix == ".py" else "//"
    lines = [f"origin: {', '.join(translation.origins[index]) or 'unknown'}"]
    sets = len(evidence.input_sets)
    lines.append(f"verified: executor {evidence.executor} for {evidence.arch}, {sets} input sets, seed {evidence.seed}")
    if worst is not None:
        lines.append(f"largest error: {worst.error:.2e} of the reference's magnitude, tolerance {worst.tolerance:.1e}")
    return "\n" + "".join(f"{mark} {line}\n" for line in lines)


def write_files(stage: Path, translation: Translation, interface: Interface, constants: Mapping[str, Any]) -> None:
    """Everything that the written module needs to run, and both IRs."""
    from kvc.passes.memory import memory_plan

    plan = translation.plan
    files = kernel_files(translation)
    (stage / "kernels").mkdir()
    for index, (file, artifact) in enumerate(zip(files, translation.artifacts, strict=True)):
        source = artifact.candidate.source.rstrip("\n") + "\n" + footer(translation, index)
        (stage / file.source).write_text(source, encoding="utf-8")
        for symbol, path in file.objects.items():
            (stage / path).write_bytes(artifact.verified.compiled.objects[symbol].binary)
    library = {n: choice.form for n, choice in translation.library_calls.items() if choice.form is not None}
    text = module_source(plan, memory_plan(plan), translation.artifacts, files, interface, library)
    (stage / "module.py").write_text(text, encoding="utf-8")
    (stage / "graph.kir").write_text(print_graph(plan.graph) + "\n", encoding="utf-8")
    (stage / "kernels.kir").write_text(
        "\n\n".join(print_kernel(spec) for spec in plan.kernels) + "\n", encoding="utf-8"
    )
    if any(e.kind in ("volatile", "constant") for e in interface.state):
        (stage / "constants.safetensors").write_bytes(safetensors(constants))


def compiled_by_file(translation: Translation) -> dict[str, Compiled]:
    """The verified code objects by their file names in the folder."""
    return {
        path: artifact.verified.compiled
        for file, artifact in zip(kernel_files(translation), translation.artifacts, strict=True)
        for path in file.objects.values()
    }


# ---------------------------------------------------------------- the lock


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _error_json(error: OutputError) -> dict[str, Any]:
    return {"output": error.output, "error": error.error, "tolerance": error.tolerance, "working_error": error.working,
            "allowed": error.allowed, "input_set": error.input_set, "where": list(error.where)}  # fmt: skip


def kernel_record(translation: Translation, index: int, file: KernelFile, stage: Path) -> dict[str, Any]:
    """The lock's entry of one distinct kernel."""
    artifact = translation.artifacts[index]
    candidate, evidence = artifact.candidate, artifact.verified.evidence
    return {
        "name": file.name,
        "file": file.source,
        "sha256": _digest(stage / file.source),
        "code_objects": {path: _digest(stage / path) for path in sorted(set(file.objects.values()))},
        "symbols": dict(sorted(file.objects.items())),
        "spec_hash": candidate.task.spec.hash,
        "target": candidate.target,
        "arch": candidate.task.arch.name,
        "numerics": candidate.task.numerics,
        "emitter": asdict(candidate.origin),
        "schedule": candidate.schedule,
        "knobs": dict(candidate.knobs),
        "launches": [launch_to_json(launch) for launch in candidate.launches],
        "workspace": [asdict(scratch) for scratch in candidate.workspace],
        "resources": evidence.resources,
        "executor": evidence.executor,
        "checks": list(evidence.checks),
        "input_sets": list(evidence.input_sets),
        "seed": evidence.seed,
        "errors": [_error_json(e) for e in evidence.errors],
        "warnings": list(evidence.warnings),
        "origin": list(translation.origins[index]),
        "uses": sum(isinstance(s, Invoke) and s.kernel == index for s in translation.plan.steps),
    } | ({"library": translation.library[index].record()} if index in translation.library_calls else {})


def fallback_record(step: Fallback) -> dict[str, Any]:
    return {"op": step.node.op, "reason": step.reason, "at": str(step.node.loc or "")}


def lock_of(translation: Translation, interface: Interface, stage: Path) -> dict[str, Any]:
    """The content of kvc.lock: deterministic, so neither times nor paths of this machine."""
    import torch
    from kvc.interface import interface_to_json

    files = kernel_files(translation)
    records = [kernel_record(translation, i, file, stage) for i, file in enumerate(files)]
    names = [file.name for file in files]
    prologue = translation.plan.prologue
    steps = [
        {"kernel": names[s.kernel], "inputs": list(s.inputs), "outputs": list(s.outputs),
         "origin": [str(loc) for loc in s.origin], **({"once": True} if n in prologue else {})}
        if isinstance(s, Invoke)
        else {"fallback": s.node.op, "outputs": list(s.node.outputs)}
        for n, s in enumerate(translation.plan.steps)
    ]  # fmt: skip
    others = sorted(p for p in stage.iterdir() if p.is_file())
    return {
        "format": FORMAT,
        "model": {
            "name": interface.title,
            "mode": interface.mode,
            "dtype": interface.dtype,
            "call": dict(interface.call),
            "interface": interface_to_json(interface),
            "end_to_end": [
                {**e.to_json(), "errors": [_error_json(error) for error in e.errors]} for e in translation.evidence
            ],
        },
        "target": translation.target.name,
        "arch": translation.arch.name,
        "numerics": translation.options.numerics,
        "library": "allowed" if translation.options.library else "forbidden",
        "seed": translation.options.seed,
        "kernels": sorted(records, key=lambda r: str(r["name"])),
        "steps": steps,
        "fallbacks": [fallback_record(s) for s in translation.plan.fallbacks],
        "files": {p.name: _digest(p) for p in others},
        "toolchain": {
            "kvc": kvc.__version__,
            "build": build_id(),
            "torch": torch.__version__,
            **translation.target.toolchain(),
        },
    }


def dump(data: Any) -> str:
    """JSON as kvc writes it: sorted, indented, ending in a newline."""
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item"):
        return value.item()
    return str(value)


def read_lock(folder: Path) -> dict[str, Any]:
    """The lock of an output folder. KVC0802 where it is none."""
    path = folder / LOCK
    if not path.is_file():
        raise KvcError("KVC0802", f"{folder} holds no {LOCK}", hint="give a folder that `kvc translate -o` wrote")
    return read_lock_text(path.read_text(encoding="utf-8"), str(path))


def read_lock_text(text: str, name: str) -> dict[str, Any]:
    """The lock in a text that comes from `name`. KVC0802 where it is none."""
    try:
        lock = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "give a folder that `kvc translate -o` wrote"
        raise KvcError("KVC0802", f"{name} is no JSON: {error}", hint=hint) from None
    if not isinstance(lock, dict) or lock.get("format") != FORMAT:
        raise KvcError("KVC0802", f"{name} is not of format {FORMAT}", hint="translate again with this kvc")
    wrong = next(problems(lock), None)
    if wrong is not None:
        raise KvcError("KVC0802", f"{name}: {wrong}", hint="translate again, or take the lock from version control")
    return lock


# ---------------------------------------------------------------- the whole


def write(
    out: Path,
    translation: Translation,
    interface: Interface,
    constants: Mapping[str, Any],
    references: list[ModelReference],
    bench: Any,
    listen: Listener = silent,
) -> Translation:
    """Write a translation to `out`, whole-model verification included; gives it with that evidence.

    Nothing is left behind when verification fails (NotVerified, KVC0709) or the folder cannot be written (KVC0801,
    KVC0802).
    """
    import time

    from kvc.report.build import write_report

    with staged(out) as stage:
        try:
            write_files(stage, translation, interface, constants)
            listen("stage", {"name": "model"})
            started = time.monotonic()
            evidence = _verify(stage, translation, references, bench)
            seconds = {**translation.seconds, "model": time.monotonic() - started}
            done = replace(translation, evidence=evidence, seconds=seconds)
            lock = lock_of(done, interface, stage)
            measurements = measurements_of(done)
            (stage / LOCK).write_text(dump(lock), encoding="utf-8")
            (stage / "measurements.json").write_text(dump(measurements), encoding="utf-8")
            write_report(stage / "report.html", stage)
        except OSError as error:
            raise _unwritable(out, error) from None
    return done


def _verify(
    stage: Path, translation: Translation, references: list[ModelReference], bench: Any
) -> tuple[ModelEvidence, ...]:
    compiled = compiled_by_file(translation)
    try:
        return tuple(verify_written(stage, compiled, r, bench, translation.arch.name) for r in references)
    except KvcError as error:
        if error.code in ("KVC0601", "KVC0602", "KVC0501", "KVC0801"):
            raise
        found = error.diagnostic
        raise NotVerified(found.code, found.message, hint=found.hint, **found.details) from None


def measurements_of(translation: Translation) -> dict[str, Any]:
    """What was measured on this machine: times, counters, estimates. Not deterministic, hence not in the lock."""
    from kvc.estimate import estimate

    kernels: dict[str, dict[str, Any]] = {}
    for index, (file, artifact) in enumerate(zip(kernel_files(translation), translation.artifacts, strict=True)):
        evidence = artifact.verified.evidence
        kernels[file.name] = {
            "counters": evidence.counters,
            "estimate": estimate(artifact.candidate.task.spec, translation.arch, evidence.counters),
        }
        if file.name in translation.tuning:
            kernels[file.name]["tuning"] = dict(translation.tuning[file.name])
        if translation.library:
            kernels[file.name]["library"] = translation.library[index].measured()
    return {"seconds": {k: round(v, 3) for k, v in translation.seconds.items()}, "kernels": kernels}


__all__ = ["LOCK", "kernel_files", "read_lock", "staged", "state_name", "write"]

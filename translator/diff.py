"""What changed between two translations: kernels, their specs, sources, resources and errors, and the model around.

Kernels are matched by name, then by the hash of their spec (a renamed kernel). Two translations count as different when
anything differs that follows from the input and kvc; what was measured on some machine and the versions of tools are
shown beside it, and alone make no difference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvc.figures import FIGURE, FIGURES, figures_of, shown
from kvc.findings import Finding
from kvc.folder import Folder

#: Fields of a kernel's lock entry that are settings, with what they are called.
_SETTINGS = {
    "target": "target", "arch": "GPU", "numerics": "numerics", "schedule": "schedule", "emitter": "emitter",
    "knobs": "knobs", "launches": "launches", "workspace": "workspace", "executor": "executor", "checks": "checks",
    "input_sets": "input sets", "seed": "seed", "origin": "origin", "uses": "uses", "warnings": "warnings",
}  # fmt: skip

#: Kinds of change that leave the code as it is: how it was verified, and where in the model it stands.
EVIDENCE = ("executor", "checks", "input sets", "seed", "warnings", "errors", "origin", "comments")

_CONTEXT = 3  # lines around a change
#: What kvc writes into a file about lines of the model and about verification; the rest is code.
_ABOUT = re.compile(r"(?:[^\s,()]+\.py:\d+(?:, )?)+|^(?://|#) (?:verified|largest error): .*$", re.MULTILINE)
_ERROR_GREW = 2.0  # a factor below which an error is noise of another seed or order


@dataclass(frozen=True)
class Value:
    """A figure or setting on both sides; None where a side has none."""

    name: str
    old: Any
    new: Any

    @property
    def changed(self) -> bool:
        return bool(self.old != self.new)


@dataclass(frozen=True)
class KernelDiff:
    """One kernel. `status`: "added", "removed", "changed" or "same"; `parts` are the kinds of change. `spec` and
    `source` are unified diffs (of a whole file where the kernel was added or removed); `figures` hold every figure of
    either side."""

    name: str
    status: str
    parts: tuple[str, ...] = ()
    renamed_from: str = ""
    spec: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    settings: tuple[Value, ...] = ()
    figures: tuple[Value, ...] = ()
    file: str = ""
    line: int = 1

    @property
    def code_changed(self) -> bool:
        """Whether more changed than how it was verified and where it stands in the model."""
        return self.status != "same" and (not self.parts or any(p not in EVIDENCE for p in self.parts))

    @property
    def worse(self) -> tuple[Value, ...]:
        """Exact figures that moved the wrong way."""
        return tuple(v for v in self.figures if FIGURE[v.name].exact and _moved(v) < 0)

    @property
    def better(self) -> tuple[Value, ...]:
        return tuple(v for v in self.figures if FIGURE[v.name].exact and _moved(v) > 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "status": self.status, "parts": list(self.parts), "renamed_from": self.renamed_from,
            "spec_diff": list(self.spec), "source_diff": list(self.source), "file": self.file, "line": self.line,
            "settings": {v.name: {"old": v.old, "new": v.new} for v in self.settings},
            "figures": {v.name: {"old": v.old, "new": v.new} for v in self.figures},
        }  # fmt: skip


@dataclass(frozen=True)
class FolderDiff:
    """Two translations. `model`: settings and end-to-end errors that differ; `files`: other files, as unified diffs;
    `tools`: versions that differ."""

    old: Folder
    new: Folder
    kernels: tuple[KernelDiff, ...]
    model: tuple[Value, ...]
    fallbacks_added: tuple[str, ...]
    fallbacks_removed: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    tools: tuple[Value, ...]

    @property
    def same(self) -> bool:
        return not (
            any(k.status != "same" for k in self.kernels)
            or self.model
            or self.fallbacks_added
            or self.fallbacks_removed
            or self.files
        )

    @property
    def same_code(self) -> bool:
        """Whether both sides compute by the same code: nothing but evidence and source lines of the model differ."""
        fixed = [v for v in self.model if not v.name.startswith("error of ") and v.name != "seed"]
        return not (
            any(k.code_changed for k in self.kernels)
            or fixed
            or self.fallbacks_added
            or self.fallbacks_removed
            or any(code_of(self.old, file) != code_of(self.new, file) for file in self.files)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "old": self.old.name,
            "new": self.new.name,
            "same": self.same,
            "kernels": [k.to_json() for k in self.kernels],
            "model": {v.name: {"old": v.old, "new": v.new} for v in self.model},
            "fallbacks": {"added": list(self.fallbacks_added), "removed": list(self.fallbacks_removed)},
            "files": {name: list(lines) for name, lines in self.files.items()},
            "toolchain": {v.name: {"old": v.old, "new": v.new} for v in self.tools},
            "findings": [f.to_json() for f in findings(self)],
        }


def _moved(value: Value) -> int:
    """1 for the better, -1 for the worse, 0 for neither."""
    figure = FIGURE[value.name]
    if value.old is None or value.new is None or value.old == value.new:
        return 0
    if value.name == "error" and value.new < _ERROR_GREW * value.old and value.old < _ERROR_GREW * value.new:
        return 0
    return figure.better if value.new > value.old else -figure.better


# ---------------------------------------------------------------- comparing


def diff(old: Folder, new: Folder) -> FolderDiff:
    """Everything that differs. KVC0802 where a side lacks a file that its lock names."""
    pairs = _pairs(old, new)
    kernels = tuple(_kernel(old, new, before, after) for before, after in pairs)
    gone = _fallbacks(old)
    come = _fallbacks(new)
    return FolderDiff(
        old,
        new,
        kernels,
        _model(old, new),
        tuple(f for f in come if f not in gone),
        tuple(f for f in gone if f not in come),
        _files(old, new),
        _values(_flat(old.lock["toolchain"]), _flat(new.lock["toolchain"]), only_changed=True),
    )


def _pairs(old: Folder, new: Folder) -> list[tuple[str | None, str | None]]:
    """(old name, new name) of each kernel; None where it is missing."""
    pairs: list[tuple[str | None, str | None]] = [(n, n) for n in new.kernels if n in old.kernels]
    gone = {n: r["spec_hash"] for n, r in old.kernels.items() if n not in new.kernels}
    for name, record in new.kernels.items():
        if name in old.kernels:
            continue
        before = next((n for n, digest in gone.items() if digest == record["spec_hash"]), None)
        gone.pop(before or "", None)
        pairs.append((before, name))
    pairs += [(name, None) for name in gone]
    return sorted(pairs, key=lambda p: str(p[1] or p[0]))


def _kernel(old: Folder, new: Folder, before: str | None, after: str | None) -> KernelDiff:
    was = old.kernels[before] if before is not None else None
    now = new.kernels[after] if after is not None else None
    spec = _unified(
        old.specs.get(before or "", ""),
        new.specs.get(after or "", ""),
        f"{before or after}.kir",
        f"{after or before}.kir",
    )
    source, first = _source(old, new, was, now)
    figures = _values(
        figures_of(was, old.measured(was["name"])) if was else {},
        figures_of(now, new.measured(now["name"])) if now else {},
        order=[f.name for f in FIGURES],
    )
    name = str(after or before)
    file = new.at((now or was or {})["file"]) if now else new.at("kvc.lock")
    if was is None or now is None:
        return KernelDiff(name, "removed" if was else "added", (), "", spec, source, (), figures, file)
    differing = [key for key in _SETTINGS if was.get(key) != now.get(key)]
    settings = _values(
        _flat({_SETTINGS[key]: was.get(key) for key in differing}),
        _flat({_SETTINGS[key]: now.get(key) for key in differing}),
        only_changed=True,
    )
    parts = ["spec"] if spec else []
    if source:
        parts.append("comments" if code_of(old, was["file"]) == code_of(new, now["file"]) else "source")
    parts += [_SETTINGS[key] for key in differing]
    parts += ["resources"] if was["resources"] != now["resources"] else []
    parts += ["errors"] if was["errors"] != now["errors"] else []
    parts += ["code object"] if sorted(was["code_objects"].values()) != sorted(now["code_objects"].values()) else []
    renamed = before if before != after else ""
    status = "changed" if parts or renamed else "same"
    return KernelDiff(name, status, tuple(parts), renamed or "", spec, source, settings, figures, file, first)


def _source(
    old: Folder, new: Folder, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], int]:
    """The unified diff of a kernel's source, and the first changed line of the new one."""
    names = [record["file"] if record else None for record in (was, now)]
    texts = [side.text(f) if f else "" for side, f in zip((old, new), names, strict=True)]
    lines = _unified(texts[0], texts[1], names[0] or "/dev/null", names[1] or "/dev/null")
    hunk = next((re.match(r"@@ -\S+ \+(\d+)", line) for line in lines if line.startswith("@@")), None)
    return lines, int(hunk[1]) + _CONTEXT if hunk and int(hunk[1]) > 1 else 1


def _unified(old: str, new: str, before: str, after: str) -> tuple[str, ...]:
    found = difflib.unified_diff(old.splitlines(), new.splitlines(), before, after, n=_CONTEXT, lineterm="")
    return tuple(found)


def _values(
    old: Mapping[str, Any], new: Mapping[str, Any], only_changed: bool = False, order: list[str] | None = None
) -> tuple[Value, ...]:
    names = order if order is not None else sorted({*old, *new})
    values = [Value(n, old.get(n), new.get(n)) for n in names if n in old or n in new]
    return tuple(v for v in values if v.changed or not only_changed)


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _model(old: Folder, new: Folder) -> tuple[Value, ...]:
    def settings(folder: Folder) -> dict[str, Any]:
        lock = folder.lock
        found = {key: lock[key] for key in ("target", "arch", "numerics", "seed")}
        found |= {key: value for key, value in lock["model"].items() if key != "end_to_end"}
        for run in lock["model"]["end_to_end"]:
            for error in run["errors"]:
                key = f"error of {error['output']} ({run['input_set']}, {run['executor']})"
                found[key] = error["error"]
        return found

    return _values(settings(old), settings(new), only_changed=True)


def _fallbacks(folder: Folder) -> list[str]:
    return [f"{f['op']}: {f['reason']}" + (f" ({f['at']})" if f["at"] else "") for f in folder.lock["fallbacks"]]


def _files(old: Folder, new: Folder) -> dict[str, tuple[str, ...]]:
    """Text files beside the kernels that differ, and the order of steps, as unified diffs; other files as one line."""
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted({*old.lock["files"], *new.lock["files"]} - {"kernels.kir"}):
        if old.digest(file) == new.digest(file):
            continue
        if file.endswith((".py", ".kir")):
            texts = [side.text(file) if file in side.files else "" for side in (old, new)]
            found[file] = _unified(texts[0], texts[1], file, file)
        else:
            state = (
                "changed" if file in old.files and file in new.files else "added" if file in new.files else "removed"
            )
            found[file] = (f"binary file {state}",)
    return found


def code_of(folder: Folder, file: str) -> str | bytes | None:
    """A file without what it says about lines of the model and about verification; None where it is missing."""
    if file not in folder.files:
        return None
    raw = folder.files[file]
    return raw if b"\0" in raw else _ABOUT.sub("", folder.text(file))


# ---------------------------------------------------------------- saying it


def findings(found: FolderDiff) -> list[Finding]:
    """The differences that a reviewer is shown beside the files of the new side."""
    lock = found.new.at("kvc.lock")
    results = [f for kernel in found.kernels for f in _kernel_findings(kernel)]
    for value in found.model:
        results.append(
            Finding("model-changed", "note", f"{value.name}: {_short(value.old)} -> {_short(value.new)}", lock)
        )
    for file in found.files:
        results.append(Finding("model-changed", "note", f"{file} differs", found.new.at(file)))
    results += [Finding("fallback-added", "warning", f"runs eagerly: {text}", lock) for text in found.fallbacks_added]
    results += [Finding("fallback-removed", "note", f"in a kernel now: {t}", lock) for t in found.fallbacks_removed]
    if found.tools:
        changes = ", ".join(f"{v.name} {_short(v.old)} -> {_short(v.new)}" for v in found.tools)
        results.append(Finding("toolchain-changed", "note", changes, lock))
    return results


def _kernel_findings(kernel: KernelDiff) -> Iterator[Finding]:
    if kernel.status == "same":
        return
    if kernel.status in ("added", "removed"):
        yield Finding(f"kernel-{kernel.status}", "note", f"kernel {kernel.name} is {kernel.status}", kernel.file)
        return
    was = f" (was {kernel.renamed_from})" if kernel.renamed_from else ""
    parts = ", ".join(kernel.parts) or "its name"
    yield Finding("kernel-changed", "note", f"kernel {kernel.name}{was}: {parts} changed", kernel.file, kernel.line)
    for rule, level, values in (("kernel-worse", "warning", kernel.worse), ("kernel-better", "note", kernel.better)):
        if values:
            changes = ", ".join(f"{FIGURE[v.name].label} {shown(v.old)} -> {shown(v.new)}" for v in values)
            yield Finding(rule, level, f"kernel {kernel.name}: {changes}", kernel.file, kernel.line)


def _short(value: Any, most: int = 60) -> str:
    text = "-" if value is None else f"{value:.2e}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def render(found: FolderDiff, all_figures: bool = False) -> str:
    """The differences as text; unchanged kernels are only counted."""
    lines = [f"--- {found.old.name}", f"+++ {found.new.name}"]
    for kernel in found.kernels:
        if kernel.status != "same" or all_figures:
            lines += ["", *_kernel_lines(kernel, all_figures)]
    if found.model or found.files:
        lines += ["", "model"]
        lines += [f"  {v.name}: {_short(v.old)} -> {_short(v.new)}" for v in found.model]
        for file, text in found.files.items():
            lines += [f"  {file}", *(f"    {line}" for line in text)]
    lines += [f"new eager fallback: {text}" for text in found.fallbacks_added]
    lines += [f"fallback no longer needed: {text}" for text in found.fallbacks_removed]
    if found.tools:
        lines += ["", "made with (no difference by itself)"]
        lines += [f"  {v.name}: {_short(v.old)} -> {_short(v.new)}" for v in found.tools]
    counts = {s: sum(k.status == s for k in found.kernels) for s in ("added", "removed", "changed", "same")}
    summary = ", ".join(f"{n} {status}" for status, n in counts.items() if n) or "none"
    lines += ["", f"kernels: {summary}" + (": no difference" if found.same else "")]
    return "\n".join(lines)


def _kernel_lines(kernel: KernelDiff, all_figures: bool) -> list[str]:
    was = f" (was {kernel.renamed_from})" if kernel.renamed_from else ""
    parts = f": {', '.join(kernel.parts)}" if kernel.parts else ""
    lines = [f"kernel {kernel.name}{was}: {kernel.status}{parts}"]
    lines += [f"  {v.name}: {_short(v.old)} -> {_short(v.new)}" for v in kernel.settings]
    rows = [v for v in kernel.figures if all_figures or v.changed]
    if rows:
        width = max(len(FIGURE[v.name].label) for v in rows)
        for v in rows:
            mark = {1: "  better", -1: "  worse", 0: ""}[_moved(v)]
            lines.append(f"  {FIGURE[v.name].label:<{width}}  {shown(v.old):>12}  {shown(v.new):>12}{mark}")
    for text in (kernel.spec, kernel.source):
        lines += [f"    {line}" for line in text]
    return lines

"""Readers of published corpora: trees with info.json, RL rows, chat messages, KernelBook-style Parquet, our exports.

Corpora name their fields differently and none writes its schema down. A row is read by the field names below, nested
ones too; what a row does not say is left empty, and the importer says what is missing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError

_CODE = (
    "optimized_hip_code", "hip_code", "triton_code", "optimized_code", "kernel_code", "generated_code", "hip_kernel",
    "triton_kernel", "kernel", "code", "solution", "hip_path", "hip_file", "kernel_file", "output",
)  # fmt: skip
_REFERENCE = (
    "pytorch_module_code", "module_code", "pytorch_code", "python_code", "ref_arch_src", "reference_code", "reference",
    "module_path", "module_file", "pytorch_file",
)  # fmt: skip
_FUNCTIONAL = ("pytorch_functional_code", "functional_code", "functional", "functional_path", "functional_file")
_LICENCE = ("license", "licence", "licenses", "repo_license")
_NAME = ("id", "uuid", "name", "task_id", "kernel_name", "entry_point", "module_name")
_FENCE = re.compile(r"```([\w+-]*)[^\n]*\n(.*?)```", re.DOTALL)
_SOURCE_SUFFIXES = (".hip", ".cu", ".cpp", ".cxx")


@dataclass(frozen=True)
class Foreign:
    """A kernel of someone else's. `code` may be a HIP file with host code, or a Python module that launches Triton or
    loads an extension. `spec` and `launch` (JSON of launches and workspace) come with kvc's own exports alone."""

    origin: str
    code: str
    reference: str = ""
    functional: str = ""
    licence: str = "unknown"
    spec: str = ""
    launch: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(path: Path, licence: str = "unknown") -> Iterator[Foreign]:
    """The kernels of a file or folder, in order of path. KVC0101 where nothing is found."""
    found = False
    for item in _read(path, licence):
        found = True
        yield item
    if not found:
        raise KvcError(
            "KVC0101", f"{path} holds no kernels that are understood",
            hint="info.json folders, .jsonl or .json of RL rows or messages, .parquet, or .hip beside .py files",
        )  # fmt: skip


def _read(path: Path, licence: str) -> Iterator[Foreign]:
    if path.is_dir():
        infos = sorted(path.rglob("info.json"))
        for info in infos:
            yield from _tree(info, path, licence)
        if infos:
            return
        for file in sorted(p for p in path.rglob("*") if p.suffix in (".parquet", ".jsonl")):
            yield from _rows_of(file, file.relative_to(path).as_posix(), licence)
        for file in sorted(p for p in path.rglob("*") if p.suffix in _SOURCE_SUFFIXES):
            beside = file.with_suffix(".py")
            reference = _text(beside) if beside.is_file() else ""
            yield Foreign(file.relative_to(path).as_posix(), _text(file), reference, "", licence)
    elif path.is_file():
        yield from _rows_of(path, path.name, licence)
    else:
        raise KvcError("KVC0101", f"{path}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# ---------------------------------------------------------------- file trees


def _tree(info: Path, root: Path, licence: str) -> Iterator[Foreign]:
    """One folder with info.json: its fields hold texts or names of files beside it; what they do not name is found by
    its ending and contents."""
    folder, origin = info.parent, info.parent.relative_to(root).as_posix()
    try:
        data = json.loads(_text(info))
    except ValueError:
        data = {}
    row = {k: _named(folder, v) for k, v in _flat(data).items()}
    code, reference, functional = (_first(row, names) for names in (_CODE, _REFERENCE, _FUNCTIONAL))
    for file in sorted(folder.iterdir()):
        if file.suffix in _SOURCE_SUFFIXES:
            code = code or _text(file)
        elif file.suffix == ".py":
            text = _text(file)
            if "triton.jit" in text or "load_inline" in text:
                code = code or text
            elif "fn=" in text.replace(" ", "") and "module_fn" in text:
                functional = functional or text
            elif "get_inputs" in text:
                reference = reference or text
    yield Foreign(origin, code, reference, functional, _first(row, _LICENCE) or licence)


def _named(folder: Path, value: Any) -> Any:
    if isinstance(value, str) and len(value) < 200 and "\n" not in value and re.search(r"\.\w+$", value):
        file = folder / value
        if file.is_file() and file.resolve().is_relative_to(folder.resolve()):
            return _text(file)
    return value


def _flat(data: Any) -> dict[str, Any]:
    """Fields of nested objects, and of JSON texts in them, by their last name; outer ones first."""
    found: dict[str, Any] = {}
    queue = [data]
    while queue:
        item = queue.pop(0)
        for key, value in item.items() if isinstance(item, dict) else ():
            if isinstance(value, str) and value.startswith("{"):
                with contextlib.suppress(ValueError):
                    value = json.loads(value)
            if isinstance(value, dict):
                queue.append(value)
            else:
                found.setdefault(str(key), value)
    return found


def _first(row: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, (list, tuple)) and value and name in _LICENCE:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value
    return ""


# ---------------------------------------------------------------- rows


def _rows_of(file: Path, origin: str, licence: str) -> Iterator[Foreign]:
    for number, row in enumerate(_raw(file), 1):
        if isinstance(row, dict):
            yield _of_row(row, f"{origin}:{number}", licence)


def _raw(file: Path) -> Iterator[Any]:
    if file.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
                yield from batch.to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise KvcError("KVC0802", f"{file.name} is no readable Parquet file: {error}") from None
        return
    try:
        if file.suffix == ".json":
            data = json.loads(_text(file))
            yield from data if isinstance(data, list) else [data]
            return
        for line in _text(file).splitlines():
            if line.strip():
                yield json.loads(line)
    except ValueError as error:
        raise KvcError("KVC0802", f"{file.name} is no JSON: {error}") from None


def _of_row(row: dict[str, Any], origin: str, licence: str) -> Foreign:
    flat = _flat(row)
    named = _first(flat, _NAME)
    origin = f"{origin} {named}" if named and len(named) < 80 else origin
    messages = row.get("messages") or row.get("conversations")
    if isinstance(messages, (list, tuple)) and messages:
        return _of_messages([m for m in messages if isinstance(m, dict)], origin, _first(flat, _LICENCE) or licence)
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):  # Alpaca
        asked = f"{row['instruction']}\n\n{row.get('input') or ''}"
        pair = [{"role": "user", "content": asked}, {"role": "assistant", "content": row["output"]}]
        return _of_messages(pair, origin, _first(flat, _LICENCE) or licence)
    reference = _first(flat, _REFERENCE)
    entry = flat.get("entry_point")
    if (
        isinstance(entry, str)
        and entry.isidentifier()
        and reference
        and not re.search(r"^class Model\b", reference, re.M)
    ):
        reference += f"\n\nModel = {entry}\n"
    launch = ""
    if isinstance(flat.get("launches"), (list, tuple)):
        launch = json.dumps({"launches": flat["launches"], "workspace": flat.get("workspace") or []})
    spec = flat.get("spec") if isinstance(flat.get("spec"), str) else ""
    return Foreign(
        origin, _first(flat, _CODE), reference, _first(flat, _FUNCTIONAL), _first(flat, _LICENCE) or licence,
        spec or "", launch,
    )  # fmt: skip


def _of_messages(messages: list[dict[str, Any]], origin: str, licence: str) -> Foreign:
    """The last answer's kernel, and the reference from what was asked before it."""
    said = [(str(m.get("role") or m.get("from")), str(m.get("content") or m.get("value") or "")) for m in messages]
    last = max((n for n, (role, _) in enumerate(said) if role in ("assistant", "gpt")), default=None)
    if last is None:
        return Foreign(origin, "", licence=licence)
    asked = "\n\n".join(text for _, text in said[:last])
    blocks = _FENCE.findall(said[last][1])
    code = next((b for kind, b in blocks if kind not in ("json", "text", "")), "") or next((b for _, b in blocks), "")
    launch = next((b for kind, b in blocks if kind == "json" and '"launches"' in b), "")
    spec = next((b for kind, b in _FENCE.findall(asked) if kind == "kir"), "")
    python = [b for kind, b in _FENCE.findall(asked) if kind in ("python", "py", "")]
    functional = next((b for b in python if "module_fn" in b and "fn=" in b.replace(" ", "")), "")
    reference = next((b for b in python if "get_inputs" in b and b != functional), "")
    return Foreign(origin, code, reference, functional, licence, spec, launch)

"""An output folder as data, read from disk or from a git revision; nothing in it is run or believed."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from kvc.diagnostics import KvcError
from kvc.module_source import identifier
from kvc.package import LOCK, read_lock_text

#: Files that say what was measured or drawn; everything else is the same for the same input.
VOLATILE = ("measurements.json", "report.html")
_GIVE = "give a folder that `kvc translate -o` wrote, or REVISION:FOLDER"


@dataclass(frozen=True)
class Folder:
    """A translation. `name` is how the user named it, `path` where its files lie (for annotations), `files` their
    contents by relative path."""

    name: str
    path: str
    files: Mapping[str, bytes]

    @cached_property
    def lock(self) -> dict[str, Any]:
        """kvc.lock. KVC0802 where it is none."""
        return read_lock_text(self.text(LOCK), f"{self.name}/{LOCK}")

    @cached_property
    def measurements(self) -> dict[str, Any]:
        """measurements.json, or as much of one as there is."""
        try:
            found = json.loads(self.text("measurements.json"))
        except (KvcError, ValueError):
            found = {}
        return {"kernels": {}, "seconds": {}, **(found if isinstance(found, dict) else {})}

    @cached_property
    def kernels(self) -> dict[str, dict[str, Any]]:
        """The lock's entries by kernel name."""
        return {record["name"]: record for record in self.lock["kernels"]}

    @cached_property
    def specs(self) -> dict[str, str]:
        """The text of each kernel's spec, by kernel name."""
        taken: set[str] = set()
        parts = re.split(r"^(?=kernel )", self.text("kernels.kir"), flags=re.MULTILINE)
        texts = [part.strip() for part in parts if part.startswith("kernel ")]
        return {identifier(re.split(r"[ (]", text, maxsplit=2)[1], taken): text for text in texts}

    def text(self, file: str) -> str:
        """A text file of the folder. KVC0802 where it is missing or no text."""
        if file not in self.files:
            raise KvcError("KVC0802", f"{self.name} holds no {file}", hint=_GIVE)
        try:
            return self.files[file].decode("utf-8")
        except UnicodeDecodeError:
            raise KvcError("KVC0802", f"{self.name}/{file} is no text", hint=_GIVE) from None

    def digest(self, file: str) -> str | None:
        """SHA-256 of a file, None where it is missing."""
        return hashlib.sha256(self.files[file]).hexdigest() if file in self.files else None

    def measured(self, kernel: str) -> dict[str, Any]:
        """What was measured or counted of a kernel."""
        found = self.measurements["kernels"].get(kernel, {})
        return found if isinstance(found, dict) else {}

    def at(self, file: str) -> str:
        """The path of a file, as annotations name it."""
        return str(PurePosixPath(self.path) / file)

    def altered(self) -> dict[str, str]:
        """Files that are not what the lock says, each with what is wrong."""
        expected = dict(self.lock["files"])
        for record in self.lock["kernels"]:
            expected |= {record["file"]: record["sha256"], **record["code_objects"]}
        wrong = {}
        for file, digest in sorted(expected.items()):
            found = self.digest(file)
            if found is None:
                wrong[file] = "is missing"
            elif found != digest:
                wrong[file] = "is not what was verified: its hash differs from the lock's"
        for file in sorted(self.files):
            if file not in expected and file not in (LOCK, *VOLATILE) and "__pycache__" not in file:
                wrong[file] = "is not part of the translation"
        return wrong


def read_folder(name: str) -> Folder:
    """A folder on disk, or `REVISION:FOLDER` of the git repository around the current folder (from the repository's
    root; `REVISION:./FOLDER` from here). KVC0802 where there is none or it is no translation."""
    if Path(name).is_dir():
        folder = Folder(name, Path(name).as_posix(), _on_disk(Path(name)))
    elif ":" in name:
        folder = Folder(name, name.partition(":")[2].removeprefix("./"), _in_git(name))
    else:
        raise KvcError("KVC0802", f"{name} is no folder", hint=_GIVE)
    _ = folder.lock
    return folder


def _on_disk(folder: Path) -> dict[str, bytes]:
    if not (folder / LOCK).is_file():
        raise KvcError("KVC0802", f"{folder} holds no {LOCK}", hint=_GIVE)
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _in_git(tree: str) -> dict[str, bytes]:
    listing = _git("ls-tree", "-r", "-z", tree).decode("utf-8", "surrogateescape")
    blobs = {}
    for entry in filter(None, listing.split("\0")):
        (mode, kind, digest), file = entry.split("\t", 1)[0].split(), entry.split("\t", 1)[1]
        if kind == "blob" and mode != "120000":
            blobs[file] = digest
    if LOCK not in blobs:
        raise KvcError("KVC0802", f"{tree} holds no {LOCK}", hint=_GIVE)
    raw = _git("cat-file", "--batch", given="".join(f"{digest}\n" for digest in blobs.values()).encode())
    found, at = {}, 0
    for file in blobs:
        end = raw.index(b"\n", at)
        size = int(raw[at:end].split()[2])
        found[file] = raw[end + 1 : end + 1 + size]
        at = end + 2 + size
    return found


def _git(*arguments: str, given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(["git", *arguments], input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise KvcError("KVC0802", "git is not installed", hint="compare two folders on disk") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise KvcError("KVC0802", lines[-1] if lines else "git failed", hint=_GIVE)
    return done.stdout

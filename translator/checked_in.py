"""Whether a checked-in translation still holds: its files are what was verified, this model and this kvc write the same
kernels, and they verify."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError
from kvc.diff import FolderDiff, diff, findings
from kvc.findings import Finding
from kvc.folder import Folder, read_folder
from kvc.package import LOCK

if TYPE_CHECKING:
    from kvc.console import Console


@dataclass(frozen=True)
class Checked:
    """What was found of one folder. `difference` compares it with what the model gives now, where that was asked."""

    folder: str
    findings: tuple[Finding, ...]
    difference: FolderDiff | None = None

    @property
    def ok(self) -> bool:
        return not any(f.level == "error" for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "ok": self.ok,
            "findings": [f.to_json() for f in self.findings],
            "difference": self.difference.to_json() if self.difference is not None else None,
        }


def folders_of(files: Sequence[Path]) -> list[Path]:
    """The translations that files belong to, each once; files that belong to none are left out."""
    found: dict[Path, None] = {}
    for file in files:
        for folder in (file, file.parent, file.parent.parent):
            if (folder / LOCK).is_file():
                found[folder] = None
                break
    return list(found)


def check(folder: Path, model: str | None, executor: str, jobs: int, quick: bool, console: Console) -> Checked:
    """Check one folder. `quick` compares hashes only; without it the model is translated again (where it is given) or
    the folder is verified from its sources. KVC0802 for what is no translation, and whatever hinders a translation."""
    side = read_folder(str(folder))
    found = [Finding("file-altered", "error", f"{f} {why}", side.at(f)) for f, why in side.altered().items()]
    if quick:
        return Checked(side.name, tuple(found))
    difference = None
    if model is not None:
        difference, problems = _against_model(side, model, executor, jobs, console)
        found += problems
    if difference is None or any(f.level == "error" for f in found):
        found += _verified(folder, side, executor, jobs, console)
    return Checked(side.name, tuple(found), difference)


def _against_model(
    side: Folder, model: str, executor: str, jobs: int, console: Console
) -> tuple[FolderDiff | None, list[Finding]]:
    """The checked-in folder against what the model gives now, with the settings of its lock."""
    from kvc.commands import TranslateRequest, run_translate
    from kvc.pipeline import NotVerified

    lock = side.lock
    console.note(f"translating {model} again")
    with tempfile.TemporaryDirectory(prefix="kvc-check-") as temporary:
        again = Path(temporary) / "again"
        request = TranslateRequest(
            model=model, out=again, target=lock["target"], arch=lock["arch"], dtype=lock["model"]["dtype"] or None,
            mode=lock["model"]["mode"], executor=executor, numerics=lock["numerics"], strict=False, emitters=(),
            seed=lock["seed"], jobs=jobs, use_cache=True, library=any("library" in k for k in lock["kernels"]),
        )  # fmt: skip
        try:
            run_translate(request, _silent(console))
        except NotVerified as error:
            return None, [Finding("not-verified", "error", str(error.diagnostic), side.at(LOCK))]
        now = read_folder(str(again))
        now = Folder(f"{Path(model).name} translated now", side.path, now.files)
        difference = diff(side, now)
    return difference, _levelled(difference)


def _silent(console: Console) -> Console:
    """The same progress line, without the result's own text."""
    from kvc.console import Console as Made

    return Made(quiet=True, verbose=console.verbose)


def _levelled(difference: FolderDiff) -> list[Finding]:
    """The differences as findings: code that is not reproduced is an error, everything else a note."""
    if difference.same_code:
        return [replace(f, level="note") for f in findings(difference)]
    lock = difference.new.at(LOCK)
    head = Finding("not-reproduced", "error", "this model and this kvc write something else: translate again", lock)
    return [head, *findings(difference)]


def _verified(folder: Path, side: Folder, executor: str, jobs: int, console: Console) -> list[Finding]:
    from kvc.commands import one_thread
    from kvc.reverify import verify_folder
    from kvc.verify.pool import WorkerPool

    console.note(f"verifying {folder}")
    one_thread()
    try:
        with WorkerPool(jobs) as pool:
            result = verify_folder(folder, None, executor, side.lock["seed"], jobs, pool, console.listen)
    except KvcError as error:
        if error.code not in ("KVC0804", "KVC0301", "KVC0709"):
            raise
        return [Finding("not-verified", "error", str(error.diagnostic), side.at(LOCK))]
    if result["ok"]:
        return []
    found = [
        Finding("not-verified", "error", line, side.at(side.kernels[k["name"]]["file"]))
        for k, line in zip(result["kernels"], result["lines"], strict=False)
        if not k["ok"]
    ]
    return found or [Finding("not-verified", "error", result["lines"][-1], side.at("module.py"))]


def render(checked: Checked) -> str:
    """The result as text."""
    lines = [f"{checked.folder}: {'as verified' if checked.ok else 'NOT as verified'}"]
    lines += [f"  {f.level}: {f.file}: {f.message}" for f in checked.findings]
    return "\n".join(lines)

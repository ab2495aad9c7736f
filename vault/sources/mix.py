"""The references of a build, in order: folders, then libraries, then random programs without end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError

NAMES = ("nn", "transformers", "torchvision", "timm", "random")


def references(
    names: Sequence[str], folders: Sequence[Path] = (), licence: str = "unknown"
) -> Iterator[dict[str, Any]]:
    """Harvest tasks of the named sources. KVC0106 for an unknown name."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise KvcError("KVC0106", f"source {unknown[0]!r}", hint=f"one of: {', '.join(NAMES)}")
    return _all(names, folders, licence)


def _all(names: Sequence[str], folders: Sequence[Path], licence: str) -> Iterator[dict[str, Any]]:
    from kvc.vault.sources import folder

    for root in folders:
        yield from folder.jobs(root, licence)
    libraries = [name for name in names if name != "random"]
    if libraries:
        from kvc.vault.sources import library

        yield from library.jobs(libraries)
    if "random" in names:
        yield from ({"do": "harvest", "program": number} for number in count())

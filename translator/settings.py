"""Settings from the environment: every variable that kvc reads, in one place.

KVC_CACHE_DIR   where verdicts are kept (kvc.store)
KVC_DEBUG       1: tracebacks in the place of one-line diagnostics
KVC_LOGS        topics to log on stderr, such as graph,verdicts (kvc.logs)
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """`cache_dir` is a folder that may not exist yet; `logs` holds names of kvc.logs.TOPICS."""

    cache_dir: Path
    debug: bool
    logs: tuple[str, ...]


def settings() -> Settings:
    """The settings of this moment."""
    read = os.environ.get
    logs = tuple(topic.strip() for topic in read("KVC_LOGS", "").split(",") if topic.strip())
    return Settings(_cache_dir(read("KVC_CACHE_DIR")), read("KVC_DEBUG") == "1", logs)


def _cache_dir(chosen: str | None) -> Path:
    """KVC_CACHE_DIR, else `kvc` in the user's cache folder."""
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvc"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvc"

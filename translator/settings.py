"""Settings from the environment: every variable that kvc reads, in one place.

KVC_CACHE_DIR   where verdicts are kept (kvc.store)
KVC_DEBUG       1: tracebacks in the place of one-line diagnostics
KVC_LOGS        topics to log on stderr, such as graph,verdicts (kvc.logs)
KVC_SANDBOX     how candidates are confined: auto, bubblewrap, namespaces, landlock, limits (kvc.verify.sandbox)
KVC_CACHE_LIMIT size that the store is kept below, such as 20G or 500M; 0: no limit (kvc.store)
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kvc.diagnostics import KvcError

DEFAULT_CACHE_LIMIT = "20G"


@dataclass(frozen=True)
class Settings:
    """`cache_dir` is a folder that may not exist yet; `logs` holds names of kvc.logs.TOPICS; `cache_limit` is in bytes,
    None where the store may grow without end."""

    cache_dir: Path
    debug: bool
    logs: tuple[str, ...]
    sandbox: str = "auto"
    cache_limit: int | None = None


def settings() -> Settings:
    """The settings of this moment."""
    read = os.environ.get
    logs = tuple(topic.strip() for topic in read("KVC_LOGS", "").split(",") if topic.strip())
    return Settings(
        _cache_dir(read("KVC_CACHE_DIR")),
        read("KVC_DEBUG") == "1",
        logs,
        read("KVC_SANDBOX") or "auto",
        bytes_of(read("KVC_CACHE_LIMIT") or DEFAULT_CACHE_LIMIT),
    )


def bytes_of(text: str) -> int | None:
    """A size such as 20G, in bytes: with an optional unit K, M, G or T (powers of 1024); None for 0. KVC0106 for
    anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise KvcError("KVC0106", f"size {text!r}", hint="a size such as 20G or 500M; 0 for none")
    size = int(float(found[1]) * 1024 ** (" KMGT".index(found[2].upper() or " ")))
    return size or None


def _cache_dir(chosen: str | None) -> Path:
    """KVC_CACHE_DIR, else `kvc` in the user's cache folder."""
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvc"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvc"

"""What a build over a language-model service spends: one ledger beside the shards, for all workers and all runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEDGER = "service.json"


def with_ledger(emitter: str, out: Path) -> str:
    """An `openai:` emitter with the build's ledger, unless it names one; any other as it is."""
    kind, _, address = emitter.partition(":")
    if kind != "openai" or "ledger=" in address.partition("?")[2]:
        return emitter
    from urllib.parse import quote

    return f"{emitter}{'&' if '?' in address else '?'}ledger={quote(str((out / LEDGER).resolve()))}"


def spent(out: Path) -> dict[str, Any] | None:
    """The accounts of a build (kvc.model.chat.Accounts) without what is under way; None where none were kept."""
    path = out / LEDGER
    if not path.is_file():
        return None
    accounts = json.loads(path.read_text(encoding="utf-8") or "{}")
    return {k: v for k, v in accounts.items() if k not in ("held", "recent")}


def service_text(accounts: dict[str, Any] | None, unread: int) -> str:
    """The accounts in a sentence, "" without any."""
    if not accounts:
        return ""
    return (
        f"service: {accounts['requests']} requests, {accounts['failed']} failed, {accounts['prompt_tokens']} tokens "
        f"read, {accounts['completion_tokens']} written, ${accounts['usd']:.4f}; {unread} answers were no kernel"
    )

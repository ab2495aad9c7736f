"""Commands that read written folders."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to kvc's command line."""

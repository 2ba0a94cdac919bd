"""The runtime's commands: one module a command, mounted here."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the runtime's commands to ``app``."""

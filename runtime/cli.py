"""The runtime's commands: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import schedule_cli


def register(app: typer.Typer) -> None:
    """Add the runtime's commands to ``app``."""
    schedule_cli.register(app)

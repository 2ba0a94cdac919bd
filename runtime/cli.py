"""The runtime's commands: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import doctor_cli, inspect_cli, schedule_cli


def register(app: typer.Typer) -> None:
    """Add the runtime's commands to ``app``."""
    doctor_cli.register(app)
    inspect_cli.register(app)
    schedule_cli.register(app)

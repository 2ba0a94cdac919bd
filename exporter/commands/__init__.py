"""The exporter's commands: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import build, export, verify


def register(app: typer.Typer) -> None:
    """Add the exporter's commands to ``app``."""
    for command in (export, build, verify):
        command.register(app)

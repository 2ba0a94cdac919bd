"""The exporter's commands: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import build_cli, export_cli, verify_cli


def register(app: typer.Typer) -> None:
    """Add the exporter's commands to ``app``."""
    export_cli.register(app)
    build_cli.register(app)
    verify_cli.register(app)

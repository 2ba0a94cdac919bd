"""The exporter's commands."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the exporter's commands to ``app``."""

"""The runtime's commands: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import bench, doctor, generate, inspect, schedule


def register(app: typer.Typer) -> None:
    """Add the runtime's commands to ``app``."""
    for command in (bench, doctor, generate, inspect, schedule):
        command.register(app)

"""The runtime's commands: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import bench_cli, doctor_cli, generate_cli, inspect_cli, schedule_cli


def register(app: typer.Typer) -> None:
    """Add the runtime's commands to ``app``."""
    bench_cli.register(app)
    doctor_cli.register(app)
    generate_cli.register(app)
    inspect_cli.register(app)
    schedule_cli.register(app)

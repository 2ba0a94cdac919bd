"""Commands that make a model ready to skip: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import calibrate, evaluate, fit, round, tune


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (calibrate, round, evaluate, tune, fit):
        command.register(app)

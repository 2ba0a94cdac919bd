"""The commands of calibration: one module a command, mounted here."""

from __future__ import annotations

import typer

from . import calibrate_cli, evaluate_cli, fit_cli, round_cli, tune_cli


def register(app: typer.Typer) -> None:
    """Add the commands of this folder to ``app``."""
    calibrate_cli.register(app)
    round_cli.register(app)
    evaluate_cli.register(app)
    tune_cli.register(app)
    fit_cli.register(app)

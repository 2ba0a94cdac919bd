"""The ``skipdec`` command: mounts each folder's commands."""

from __future__ import annotations

import sys

import typer

from .calib import commands as calib_cli
from .engines.host.processor import restart_with_huge_pages
from .exporter import commands as exporter_cli
from .runtime import commands as runtime_cli


def build_app() -> typer.Typer:
    """Return the command-line application with the commands of every folder."""
    app = typer.Typer(
        name="skipdec",
        help="OPT compiled layer by layer, decoded with only the layers that each token needs.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
    )
    exporter_cli.register(app)
    runtime_cli.register(app)
    calib_cli.register(app)
    return app


def main() -> None:
    """Entry point of ``skipdec``."""
    if sys.argv[1:2] in (["generate"], ["bench"], ["evaluate"], ["fit"]):
        restart_with_huge_pages()
    build_app()()


def export_main() -> None:
    """Entry point of ``skipdec-export``: the same as ``skipdec export``."""
    build_app()(["export", *sys.argv[1:]], prog_name="skipdec")

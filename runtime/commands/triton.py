"""``skipdec triton``: write a model repository for Triton Inference Server; check liveness."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ...engines.errors import SkipDecError
from ...engines.host.console import print_json, reports_errors
from ...engines.host.options import AsJson, from_options
from ..serving.triton.settings import TritonRepositoryConfig

_REPOSITORY_EXAMPLES = """
Examples:

\b
skipdec triton opt-1.3b -o models --schedule 2x

\b
skipdec triton opt-1.3b opt-125m -o models --copy --threads 4 \\
    --kv-memory 4GiB
"""
_CHECK_EXAMPLES = """
Examples:

\b
skipdec triton check http://localhost:8000

\b
skipdec triton check http://localhost:8000 --model opt-1.3b --timeout 5
"""


class _Commands(TyperGroup):
    """Makes ``repository`` the default command: ``skipdec triton BUNDLE -o DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (typer's own)
        if args and args[0] not in (*self.commands, "--help"):
            args = ["repository", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the ``triton`` commands to ``app``."""
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    commands.command("repository", epilog=_REPOSITORY_EXAMPLES)(repository)
    commands.command("check", epilog=_CHECK_EXAMPLES)(check)
    app.add_typer(
        commands,
        name="triton",
        cls=_Commands,
        help="Set up bundles as models of Triton Inference Server; check that they answer.",
    )


@from_options
def repository(config: TritonRepositoryConfig) -> None:
    """Write a model repository for Triton Inference Server, with one model per BUNDLE.

    The word repository is optional: skipdec triton BUNDLE -o DIR.
    """
    from ..serving.triton.repository import write_triton_repository

    for directory in write_triton_repository(config):
        typer.echo(directory)


@reports_errors
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="e.g. http://localhost:8000")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="<str>", help="repeat for several; default: all ready"),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds per model")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Generate one token with each model; the exit code is 0 if all can, for liveness probes.

    A busy model is not asked for a token but answers at once.
    """
    from ..serving.triton.check import check_triton_models

    found = check_triton_models(url, model or (), timeout=timeout)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            typer.echo(f"{one.model}: {one.problem or f'alive, {1e3 * one.seconds:.0f} ms'}")
    if dead := [one.model for one in found if one.problem is not None]:
        raise SkipDecError(url, f"{', '.join(dead)} can't generate a token; reload or restart")

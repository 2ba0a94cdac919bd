"""``skipdec upgrade``: convert bundles of an older format to the current one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...engines.host.console import reports_errors

EXAMPLES = """
[bold]Examples[/bold]

skipdec upgrade opt-1.3b.skipdec

skipdec upgrade bundles/*
"""


@reports_errors
def upgrade(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="directories of bundles")
    ],
) -> None:
    """Convert bundles to the current format: rewrites two small files and no engine."""
    from ...engines.checking import Problems
    from ...engines.manifest import FORMAT_VERSION
    from ..schedule.bundle import upgrade_bundle

    problems = Problems("upgrade")
    for bundle in bundles:
        upgraded = problems.attempt(upgrade_bundle, bundle)
        if upgraded is not None:
            did = "upgraded to" if upgraded else "has"
            typer.echo(f"{bundle}: {did} format {FORMAT_VERSION}")
    if problems.errors:
        raise problems.error()

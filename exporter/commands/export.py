"""``skipdec export``: from a checkpoint to a verified bundle."""

from __future__ import annotations

from typing import Annotated

import typer

from ...engines.errors import UsageError
from ...engines.host.console import print_json, result_console, stderr_console
from ...engines.host.options import AsJson, Given, Quiet, from_options
from ..config import ExportConfig, chosen_dtype

_EXAMPLES = """
[bold]Examples[/bold]

skipdec export opt-1.3b --quantize int8

skipdec export opt-1.3b --fp16 --schedule 2x:horizon=64 -o opt-1.3b.skipdec

skipdec export ./my-checkpoint --quantize int4 --head-quantize int8 --max-seq-len 512

skipdec export opt-1.3b --fp16 --target tensorrt-rtx --gpu-arch 8.9 --max-batch-size 16

skipdec export opt-66b --load-format dummy --dry-run

An export that was interrupted goes on where it stopped when the same command is run again.

Exit codes: 0 exported and verified, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in round brackets are the defaults.
"""


def register(app: typer.Typer) -> None:
    """Add ``export`` to ``app``."""
    app.command("export", epilog=_EXAMPLES)(export)


@from_options
def export(
    given: Given[ExportConfig],
    *,
    fp16: Annotated[
        bool,
        typer.Option("--fp16", help="the same as --dtype float16", rich_help_panel="Bundle"),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything and print the plan; write nothing")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="also the configuration and every check")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compile an OPT checkpoint layer by layer to a bundle of engines, and verify it."""
    if verbose and quiet:
        raise UsageError("-v", "contradicts -q; give one of them")
    config = given.build(**chosen_dtype(given.values.get("dtype"), fp16=fp16))
    if dry_run:
        _print_plan(config, as_json=as_json)
    else:
        _export(config, verbose=verbose, quiet=quiet, as_json=as_json)


def _print_plan(config: ExportConfig, *, as_json: bool) -> None:
    from ...engines.host.progress import ConsoleProgress
    from ..pipeline.exporting import plan_export
    from .tables import describe_plan, plan_table

    plan = plan_export(config)
    if as_json:
        print_json(describe_plan(plan))
        return
    ConsoleProgress().planned("", plan.warnings)
    result_console().print(plan_table(plan))


def _export(config: ExportConfig, *, verbose: bool, quiet: bool, as_json: bool) -> None:
    from ...engines.host.progress import ConsoleProgress
    from ..pipeline.exporting import export as run_export
    from .tables import report_table

    if verbose:
        stderr_console().print_json(config.to_json())
    with ConsoleProgress(
        quiet=quiet,
        verbose=verbose,
        advice=lambda: "run the same command again to go on from here",
    ) as progress:
        report = run_export(config, progress)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        result_console().print(report_table(report))

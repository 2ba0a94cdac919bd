"""``skipdec export``: convert a checkpoint to a verified bundle."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ...engines.errors import UsageError
from ...engines.host.console import stderr_console
from ...engines.host.options import AsJson, Quiet, from_options
from ..config import ExportConfig

EXAMPLES = """
Examples:

\b
skipdec export opt-1.3b --quantize int8

\b
skipdec export opt-1.3b --fp16 --schedule 2x:horizon=64 \\
    -o opt-1.3b.skipdec

\b
skipdec export ./my-checkpoint --quantize int4 --max-seq-len 512

\b
skipdec export opt-1.3b --fp16 --target tensorrt-rtx \\
    --gpu-arch 8.9 --max-batch-size 16

\b
skipdec export opt-66b --load-format dummy --dry-run

An interrupted export resumes when you run the same command again.

Exit codes: 0 exported and verified, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


@from_options
def export(
    config: ExportConfig,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything and print the plan; write nothing")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="also print the configuration and every check")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compile a checkpoint layer by layer to a bundle of engines, and verify it."""
    if verbose and quiet:
        raise UsageError("-v", "contradicts -q; use one of them")
    from ...engines.host.progress import run_job
    from ..pipeline.exporting import export as run_export
    from ..pipeline.exporting import plan_export
    from .tables import print_plan, published, report_parts

    if dry_run:
        print_plan(plan_export(config), as_json=as_json)
        return
    if verbose:
        stderr_console().print_json(config.to_json())
    run = partial(run_export, config)
    run_job(
        run,
        report_parts,
        done=published,
        as_json=as_json,
        quiet=quiet,
        verbose=verbose,
        advice=lambda: "run the same command again to resume",
    )

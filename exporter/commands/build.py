"""``skipdec build``: build a bundle for another target from the canonical engines of one."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ...engines.host.options import AsJson, Quiet, from_options
from ..config import BuildConfig

EXAMPLES = """
Examples:

\b
skipdec export opt-1.3b --fp16 --keep-canonical
  anywhere, with torch

\b
skipdec build opt-1.3b-fp16.skipdec --target tensorrt
  on the machine with the GPU, no torch

\b
skipdec build opt-1.3b-fp16.skipdec --target tensorrt-rtx --gpu-arch 8.9

\b
skipdec build opt-1.3b.skipdec --target onnxruntime --quantize int8
  for machines without skipdec's compiled kernels

An interrupted build resumes when you run the same command again.

Exit codes: 0 built, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


@from_options
def build(
    config: BuildConfig,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything and print the plan; write nothing")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a bundle for another target from BUNDLE's canonical engines; needs no torch."""
    from ...engines.host.progress import run_job
    from ..pipeline.build import build_bundle, plan_build
    from .tables import print_plan, published, report_parts

    if dry_run:
        print_plan(plan_build(config), as_json=as_json)
        return
    run_job(
        partial(build_bundle, config),
        report_parts,
        done=published,
        as_json=as_json,
        quiet=quiet,
        advice=lambda: "run the same command again to resume",
    )

"""``skipdec round``: round weights to an int4 grid by the effect on outputs for real texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import typer

from ...engines.errors import counted
from ...engines.host.console import Part, Table
from ...engines.host.installation import require_extra
from ...engines.host.options import AsJson, Quiet, from_options
from ..perplexity import loss_lines
from ..rounding.config import RoundingConfig

if TYPE_CHECKING:
    from ..rounding.files import RoundingReport

_EXAMPLES = """
Examples:

\b
skipdec round ./opt-e2e-2x --data train.csv --preset e2e \\
    -o opt-e2e-2x-rounded
  uses the checkpoint's own schedule and blocks of 128

\b
skipdec export ./opt-e2e-2x-rounded --quantize int4
  finds the chosen codes, given the same target and block size

\b
skipdec round opt-1.3b --data notes.jsonl --block-size 64 --untie-head \\
    -o opt-1.3b-rounded
skipdec export ./opt-1.3b-rounded --quantize int4 --block-size 64

\b
skipdec round opt-1.3b --data notes.jsonl --target tensorrt --json \\
    -o opt-1.3b-trt > report.json

Rows of the data are drawn at random: --examples to round on, then --held-out others for errors and
losses. Each token runs only its scheduled layers and affects only their weights.

Exit codes: 0 done, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


def register(app: typer.Typer) -> None:
    """Add ``round`` to ``app``."""
    app.command("round", epilog=_EXAMPLES)(round_command)


@from_options
def round_command(config: RoundingConfig, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Round weights to int4 by their effect on outputs for your texts, not one by one (GPTQ).

    Writes a Hugging Face checkpoint in which `skipdec export --quantize int4` finds these codes.
    Prints each product's error and the loss of held-out completions, compared with rounding to
    nearest.
    """
    from ...engines.host.progress import run_job

    require_extra("export", "skipdec round")
    from ..rounding.rounding import round_weights

    run_job(
        partial(round_weights, config),
        _parts,
        done=lambda report: f"{report.output} is published",
        as_json=as_json,
        quiet=quiet,
    )


def _parts(report: RoundingReport) -> Iterator[Part]:
    yield (
        f"{report.output}: {report.model} on the int4 grid of {report.target}, blocks of "
        f"{report.block_size}, {counted(report.texts, 'text')}, {counted(report.tokens, 'token')}, "
        f"schedule {report.schedule}"
    )
    yield _products(report)
    loss = report.loss
    quantised = {"int4 to nearest": loss.nearest, "int4 rounded": loss.rounded}
    yield from loss_lines(loss.texts, loss.tokens, loss.float32, quantised)
    if report.head == "nearest":
        yield "the tied head is rounded to nearest in both; see --untie-head"
    yield (
        f"export it with: --target {report.target} --quantize int4 --block-size {report.block_size}"
    )


def _products(report: RoundingReport) -> Table:
    headings = ("engine", "product", "tokens", "error of output,\nto nearest", "rounded")
    rows = [
        (
            product.engine,
            product.weight.removesuffix(".weight"),
            str(product.tokens),
            f"{product.nearest_error:.2%}",
            f"{product.rounded_error:.2%}",
        )
        for product in report.products
    ]
    return Table(headings, rows)

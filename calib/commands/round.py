"""``skipdec round``: round weights to an int4 grid by their effect on real texts."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...engines.host.console import print_json, print_table, reporting, result_console
from ...engines.host.installation import require_extra
from ...engines.host.options import AsJson, Quiet, from_options
from ..rounding.config import RoundingConfig

if TYPE_CHECKING:
    from rich.console import Console

    from ..rounding.files import RoundingReport

_EXAMPLES = """
[bold]Examples[/bold]

skipdec round ./opt-e2e-2x --data train.csv --preset e2e -o opt-e2e-2x-rounded
  uses the checkpoint's own schedule and blocks of 128

skipdec export ./opt-e2e-2x-rounded --quantize int4
  finds the chosen codes, given the same target and block size

skipdec round opt-1.3b --data notes.jsonl --block-size 64 --untie-head -o opt-1.3b-rounded
skipdec export ./opt-1.3b-rounded --quantize int4 --block-size 64

skipdec round opt-1.3b --data notes.jsonl --target tensorrt --json -o opt-1.3b-trt > report.json

Rows of the data are drawn at random: --examples to round on, then --held-out others for errors and
losses. Each token runs only its scheduled layers and affects only their weights.

Exit codes: 0 done, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in parentheses are the defaults.
"""


def register(app: typer.Typer) -> None:
    """Add ``round`` to ``app``."""
    app.command("round", epilog=_EXAMPLES)(round_command)


@from_options
def round_command(config: RoundingConfig, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Round weights to int4 by the effect on outputs on your texts, not one by one (GPTQ).

    Writes a Hugging Face checkpoint in which `skipdec export --quantize int4` finds these codes.
    Prints each product's error and the loss of held-out completions, compared with rounding to
    nearest.
    """
    from ...engines.host.progress import ConsoleProgress

    require_extra("export", "skipdec round")
    from ..rounding.rounding import round_weights

    with ConsoleProgress(quiet=quiet) as progress:
        report = round_weights(config, progress)
    with reporting(f"{config.output} is published"):
        if as_json:
            print_json(report.model_dump(mode="json"))
        else:
            _print_report(report, config.output)


def _print_report(report: RoundingReport, output: Path) -> None:
    console = result_console()
    console.print(
        f"{output}: {report.model} on the int4 grid of {report.target}, blocks of "
        f"{report.block_size}, {report.texts} texts, {report.tokens} tokens, "
        f"schedule {report.schedule}"
    )
    _print_products(console, report)
    loss = report.loss
    console.print(
        f"loss of {loss.texts} held-out completions ({loss.tokens} tokens), nats per token: "
        f"float32 {loss.float32:.4f} (perplexity {exp(loss.float32):.3f})"
    )
    for name, value in (("to nearest", loss.nearest), ("rounded", loss.rounded)):
        change = f"{value - loss.float32:+.4f}, perplexity {exp(value):.3f}"
        console.print(f"  int4 {name} {value:.4f} ({change})")
    if report.head == "nearest":
        console.print("the tied head is rounded to nearest in both; see --untie-head")
    console.print(
        f"export it with: --target {report.target} --quantize int4 --block-size {report.block_size}"
    )


def _print_products(console: Console, report: RoundingReport) -> None:
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
    print_table(console, headings, rows, texts=(0, 1))

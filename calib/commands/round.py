"""``skipdec round``: weights put on an int4 grid by what they do to real texts."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...engines.host.console import print_json, reports_errors, result_console
from .data_options import (
    CompletionColumn,
    CompletionTemplate,
    DataFormat,
    DataPreset,
    LongPrompts,
    PassageWords,
    PromptColumn,
    PromptTemplate,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..rounding.report import RoundingReport

_EXAMPLES = """
[bold]Examples[/bold]

skipdec round ./opt-e2e-2x --data train.csv --preset e2e -o opt-e2e-2x-rounded
  the schedule that the checkpoint brings along, blocks of 128

skipdec export ./opt-e2e-2x-rounded --quantize int4
  finds the codes that were chosen: the same target and block size

skipdec round opt-1.3b --data notes.jsonl --block-size 64 --untie-head -o opt-1.3b-rounded
skipdec export ./opt-1.3b-rounded --quantize int4 --block-size 64

skipdec round opt-1.3b --data notes.jsonl --target tensorrt --json -o opt-1.3b-trt > report.json

Rows of the data are drawn at random: --examples to round on, then --held-out others for errors and
losses. Each token runs its own layers and has no say in the others.

Exit codes: 0 done, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in round brackets are the defaults.
"""
_DATA, _ROUNDING = "Data", "Rounding"


def register(app: typer.Typer) -> None:
    """Add ``round`` to ``app``."""
    app.command("round", epilog=_EXAMPLES)(round_command)


def _option(panel: str, *names: str, text: str, **options: Any) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@reports_errors
def round_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="opt-125m, …, a hub id, or a directory")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="the checkpoint to write")
    ],
    data: Annotated[
        Path,
        _option(_DATA, "--data", metavar="FILE", text=".jsonl, .csv, .txt, or a dataset"),
    ],
    data_format: DataFormat = "auto",
    preset: DataPreset = None,
    prompt_column: PromptColumn = None,
    completion_column: CompletionColumn = None,
    prompt_template: PromptTemplate = None,
    completion_template: CompletionTemplate = None,
    passage_words: PassageWords = None,
    long_prompts: LongPrompts = "refuse",
    seed: Annotated[int, _option(_DATA, "--seed", text="of the rows that are drawn")] = 0,
    examples: Annotated[int, _option(_DATA, "--examples", text="texts to round on")] = 128,
    held_out: Annotated[
        int, _option(_DATA, "--held-out", text="other texts, for errors and losses")
    ] = 64,
    max_tokens: Annotated[
        int, _option(_DATA, "--max-tokens", text="of all texts; bounds memory")
    ] = 32768,
    target: Annotated[
        Literal["onnxruntime", "tensorrt"],
        _option(_ROUNDING, "--target", text="whose codes: -8 to 7, or -7 to 7"),
    ] = "onnxruntime",
    block_size: Annotated[
        int, _option(_ROUNDING, "--block-size", text="inputs that share a scale, as in export")
    ] = 128,
    untie_head: Annotated[
        bool,
        _option(
            _ROUNDING, "--untie-head", text="round a tied head as well; embeddings stay as they are"
        ),
    ] = False,
    schedule: Annotated[
        str | None,
        _option(
            _ROUNDING, "--schedule", metavar="SPEC", text="2x, … (the checkpoint's own, else full)"
        ),
    ] = None,
    damping: Annotated[
        float, _option(_ROUNDING, "--damping", text="of directions that no text takes")
    ] = 0.01,
    force: Annotated[
        bool, typer.Option("--force", help="replace --output, if a rounding wrote it")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="no progress, warnings only")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, no tables")] = False,
) -> None:
    """Round weights to int4 by what that does to outputs on your texts, not one by one (GPTQ).

    Writes a Hugging Face checkpoint in which `skipdec export --quantize int4` finds these codes.
    Prints each product's error and the loss of held-out completions, here and to nearest.
    """
    values: dict[str, Any] = {
        "model": model,
        "output": output,
        "data": {
            "path": data,
            "format": data_format,
            "preset": preset,
            "prompt_column": prompt_column,
            "completion_column": completion_column,
            "prompt_template": prompt_template,
            "completion_template": completion_template,
            "passage_words": passage_words,
            "long_prompts": long_prompts,
        },
        "seed": seed,
        "num_examples": examples,
        "num_held_out": held_out,
        "max_tokens": max_tokens,
        "target": target,
        "block_size": block_size,
        "untie_head": untie_head,
        "schedule": schedule,
        "damping": damping,
        "force": force,
    }
    report = _round(values, quiet=quiet)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _print_report(report, output)


def _round(values: dict[str, Any], *, quiet: bool) -> RoundingReport:
    from ...engines.host.extras import require_extra
    from ...engines.host.progress import ConsoleProgress

    require_extra("export", "skipdec round")
    from ..rounding.plan import RoundingConfig
    from ..rounding.round import round_weights

    config = RoundingConfig(**values)
    with ConsoleProgress(quiet=quiet) as progress:
        return round_weights(config, progress)


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
        f"loss of {loss.texts} held-out completions ({loss.tokens} tokens), nats a token: "
        f"float32 {loss.float32:.4f} (perplexity {exp(loss.float32):.3f})"
    )
    for name, value in (("to nearest", loss.nearest), ("rounded", loss.rounded)):
        change = f"{value - loss.float32:+.4f}, perplexity {exp(value):.3f}"
        console.print(f"  int4 {name} {value:.4f} ({change})")
    if report.head == "nearest":
        console.print("the head, tied to the embedding, is to nearest in both; see --untie-head")
    console.print(
        f"export it with: --target {report.target} --quantize int4 --block-size {report.block_size}"
    )


def _print_products(console: Console, report: RoundingReport) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("engine", no_wrap=True)
    table.add_column("product", no_wrap=True)
    for heading in ("tokens", "output error,\nto nearest", "\nrounded"):
        table.add_column(heading, justify="right")
    before = ""
    for product in report.products:
        table.add_row(
            "" if product.engine == before else product.engine,
            product.weight.removesuffix(".weight"),
            str(product.tokens),
            f"{product.nearest_error:.2%}",
            f"{product.rounded_error:.2%}",
        )
        before = product.engine
    console.print(table)

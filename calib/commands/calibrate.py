"""``skipdec calibrate``: the ranges of activations, measured on real texts."""

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

    from ..calibration.report import CalibrationReport

_EXAMPLES = """
[bold]Examples[/bold]

skipdec calibrate ./opt-e2e-2x --data train.csv --preset e2e -o ranges.json
  the schedule that the checkpoint brings along

skipdec export ./opt-e2e-2x --fp16 --target tensorrt --quantize int8 --ranges ranges.json

skipdec calibrate opt-1.3b --data notes.jsonl --schedule 2x --percentile 99.99 \
--examples 256 -o ranges.json

skipdec calibrate ./opt-e2e-2x --data train.csv --preset e2e --generate-with e2e-2x.skipdec \
-o ranges.json
  on the prompts and what the model itself writes

skipdec calibrate opt-6.7b --data notes.jsonl --by-layer 0 -o ranges.json --json > report.json

Rows of the data are drawn at random: --examples for the ranges, then --held-out others for the
losses. Each token runs its own layers; the others' ranges do not see it.

Exit codes: 0 done, 1 failed, 2 usage, 3 environment, 130 interrupted.

Values in round brackets are the defaults.
"""
_DATA, _RANGES, _LOSSES = "Data", "Ranges", "Losses"


def register(app: typer.Typer) -> None:
    """Add ``calibrate`` to ``app``."""
    app.command("calibrate", epilog=_EXAMPLES)(calibrate)


def _option(panel: str, *names: str, text: str, **options: Any) -> Any:  # noqa: ANN401  (typer's)
    return typer.Option(*names, help=text, rich_help_panel=panel, **options)


@reports_errors
def calibrate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="opt-125m, …, a hub id, or a directory")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="the ranges, JSON")
    ],
    data: Annotated[
        Path, _option(_DATA, "--data", metavar="FILE", text=".jsonl, .csv, .txt, or a dataset")
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
    schedule: Annotated[
        str | None,
        _option(
            _RANGES, "--schedule", metavar="SPEC", text="2x, … (the checkpoint's own, else full)"
        ),
    ] = None,
    method: Annotated[
        Literal["max", "percentile", "mse"],
        _option(_RANGES, "--method", text="mse: the range with the smallest int8 error"),
    ] = "percentile",
    percentile: Annotated[
        float | None, _option(_RANGES, "--percentile", text="of --method percentile (99.9)")
    ] = None,
    examples: Annotated[int, _option(_RANGES, "--examples", text="texts to take them from")] = 128,
    migrate: Annotated[
        float | None,
        _option(
            _RANGES,
            "--migrate",
            metavar="ALPHA",
            text="move outliers into weights, SmoothQuant's alpha, 0 to 1, often 0.5 (don't)",
        ),
    ] = None,
    generate_with: Annotated[
        Path | None,
        _option(
            _RANGES,
            "--generate-with",
            metavar="BUNDLE",
            text="exported from MODEL; writes the completions, at --schedule (the data's)",
        ),
    ] = None,
    generate_tokens: Annotated[
        int | None,
        _option(_RANGES, "--generate-tokens", text="most of each such completion (64)"),
    ] = None,
    max_tokens: Annotated[
        int, _option(_RANGES, "--max-tokens", text="of all texts; bounds memory")
    ] = 32768,
    held_out: Annotated[
        int, _option(_LOSSES, "--held-out", text="other texts, for losses in int8 and fp8")
    ] = 64,
    by_layer: Annotated[
        int, _option(_LOSSES, "--by-layer", text="texts of those, with one layer alone in int8")
    ] = 16,
    load_format: Annotated[
        Literal["auto", "safetensors", "bin", "dummy"],
        typer.Option("--load-format", help="of the checkpoint; dummy: random weights"),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="replace --output")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="no progress, warnings only")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, no tables")] = False,
) -> None:
    """Measure how large the inputs of all products become, for static int8 and fp8 of TensorRT.

    Writes the file for --ranges of export and build; prints each product's int8 error and the loss
    of held-out completions in int8 and fp8, overall and with one layer alone in int8. With
    --migrate, factors too, which move outliers from activations into weights, on CPUs as well.
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
        "schedule": schedule,
        "method": method,
        "percentile": percentile,
        "num_examples": examples,
        "migrate": migrate,
        "generate_with": generate_with,
        "generate_tokens": generate_tokens,
        "max_tokens": max_tokens,
        "num_held_out": held_out,
        "num_by_layer": by_layer,
        "load_format": load_format,
        "force": force,
    }
    report = _calibrate(values, quiet=quiet)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _print_report(report)


def _calibrate(values: dict[str, Any], *, quiet: bool) -> CalibrationReport:
    from ...engines.host.extras import require_extra
    from ...engines.host.progress import ConsoleProgress

    require_extra("export", "skipdec calibrate")
    from ..calibration.calibrate import calibrate as run
    from ..calibration.plan import CalibrationConfig

    config = CalibrationConfig(**values)
    with ConsoleProgress(quiet=quiet) as progress:
        return run(config, progress)


def _print_report(report: CalibrationReport) -> None:
    console = result_console()
    percentile = "" if report.percentile is None else f" {report.percentile:g}"
    console.print(
        f"{report.output}: ranges of {report.model} by {report.method}{percentile}, "
        f"{report.texts} texts, {report.tokens} tokens, schedule {report.schedule}"
    )
    if (written := report.generated) is not None:
        console.print(
            f"completions of those texts: {written.tokens} tokens that {written.bundle} wrote, "
            f"at most {written.max_tokens} each"
        )
    _print_products(console, report)
    loss = report.loss
    console.print(
        f"loss of {loss.texts} held-out completions ({loss.tokens} tokens), nats a token: "
        f"float32 {loss.float32:.4f} (perplexity {exp(loss.float32):.3f})"
    )
    for name, value in loss.static.items():
        change = f"{value - loss.float32:+.4f}, perplexity {exp(value):.3f}"
        console.print(f"  static {name} {value:.4f} ({change})")
    _print_migration(console, report)
    if (worst := report.worst) is not None:
        console.print(
            f"one engine alone in static int8 ({report.by_layer_tokens} tokens): {worst.engine} "
            f"hurts most, {worst.increase:+.4f}"
        )


def _print_migration(console: Console, report: CalibrationReport) -> None:
    if (migration := report.migration) is None:
        return
    console.print(f"without migration (alpha {migration.alpha:g}):")
    for name, value in migration.static_without.items():
        console.print(f"  static {name} {value:.4f} ({value - report.loss.float32:+.4f})")
    for weight, reason in migration.left_out.items():
        console.print(f"{weight.removesuffix('.weight')} is not migrated: {reason}")


def _print_products(console: Console, report: CalibrationReport) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("engine", no_wrap=True)
    table.add_column("product", no_wrap=True)
    for heading in (
        "tokens",
        "max |x|",
        "range",
        "max /\n99.9 %",
        "int8 error\nof input",
        "\nof output",
        "loss, alone\nin int8",
    ):
        table.add_column(heading, justify="right")
    increases = {entry.engine: f"{entry.increase:+.4f}" for entry in report.by_layer}
    before = ""
    for product in report.products:
        is_first = product.engine != before
        before = product.engine
        table.add_row(
            product.engine if is_first else "",
            product.weight.removesuffix(".weight"),
            str(product.tokens),
            f"{product.maximum:.3f}",
            f"{product.range:.3f}",
            f"{product.outlier_ratio:.2f}",
            f"{product.input_error:.2%}",
            f"{product.output_error:.2%}",
            increases.get(product.engine, "") if is_first else "",
        )
    console.print(table)

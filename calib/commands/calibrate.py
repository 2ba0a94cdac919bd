"""``skipdec calibrate``: measure ranges of activations on real texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...engines.errors import counted
from ...engines.host.console import Part, Table
from ...engines.host.installation import require_extra
from ...engines.host.options import AsJson, Quiet, from_options
from ..calibration.config import CalibrationConfig
from ..perplexity import loss_lines

if TYPE_CHECKING:
    from ..calibration.calibration import CalibrationReport

_HEADINGS = (
    "engine",
    "product",
    "tokens",
    "max |x|",
    "range",
    "max /\n99.9 %",
    "int8 error\nof input",
    "int8 error\nof output",
)
EXAMPLES = """
Examples:

\b
skipdec calibrate ./opt-e2e-2x --data train.csv --preset e2e -o ranges.json
  uses the checkpoint's own schedule

\b
skipdec export ./opt-e2e-2x --dtype float16 --target tensorrt \\
    --quantize int8 --ranges ranges.json

\b
skipdec calibrate opt-1.3b --data notes.jsonl --schedule 2x \\
    --percentile 99.99 --examples 256 -o ranges.json

\b
skipdec calibrate opt-6.7b --data notes.jsonl -o ranges.json --json

Rows of the data are drawn at random: --examples for the ranges, then --held-out others for the
losses. Each token runs only its scheduled layers and affects only their ranges.

Exit codes: 0 done, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


@from_options
def calibrate(config: CalibrationConfig, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Measure the input ranges of all products, for TensorRT's static int8 and fp8.

    Writes the file for --ranges of export and build; prints each product's int8 error and the loss
    of held-out completions in int8 and fp8. --migrate adds factors that move outliers from
    activations into weights, for CPUs as well.
    """
    from ...engines.host.progress import run_job

    require_extra("export", "skipdec calibrate")
    from ..calibration.calibration import calibrate as run

    run_job(
        partial(run, config),
        _parts,
        done=lambda report: f"{report.output} is written",
        as_json=as_json,
        quiet=quiet,
    )


def _parts(report: CalibrationReport) -> Iterator[Part]:
    yield (
        f"{report.output}: ranges of {report.model}, percentile {report.percentile:g}, "
        f"{counted(report.texts, 'text')}, {counted(report.tokens, 'token')}, "
        f"schedule {report.schedule}"
    )
    yield _products(report)
    loss = report.loss
    quantised = {f"static {name}": value for name, value in loss.static.items()}
    yield from loss_lines(loss.texts, loss.tokens, loss.float32, quantised)
    yield from _migration(report)


def _migration(report: CalibrationReport) -> Iterator[Part]:
    if (migration := report.migration) is None:
        return
    yield f"without migration (alpha {migration.alpha:g}):"
    for name, value in migration.static_without.items():
        yield f"  static {name} {value:.4f} ({value - report.loss.float32:+.4f})"
    for weight, reason in migration.left_out.items():
        yield f"{weight.removesuffix('.weight')} is not migrated: {reason}"


def _products(report: CalibrationReport) -> Table:
    rows = [
        (
            product.engine,
            product.weight.removesuffix(".weight"),
            str(product.tokens),
            f"{product.maximum:.3f}",
            f"{product.range:.3f}",
            f"{product.outlier_ratio:.2f}",
            f"{product.input_error:.2%}",
            f"{product.output_error:.2%}",
        )
        for product in report.products
    ]
    return Table(_HEADINGS, rows)

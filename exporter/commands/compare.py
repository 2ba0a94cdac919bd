"""``skipdec compare``: find the first difference between two ways to run a bundle's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...engines.host.console import number, print_json, print_table, result_console
from ...engines.host.options import AsJson, Quiet, from_options
from ..comparison.config import CompareConfig

if TYPE_CHECKING:
    from ..comparison.report import ComparisonReport, TensorErrors

EXAMPLES = """
[bold]Examples[/bold]

skipdec compare opt-1.3b-int8.skipdec
  with its canonical graphs, if the bundle has them

skipdec compare opt-1.3b-int8.skipdec --against opt-1.3b.skipdec --stitched

skipdec compare opt-1.3b-trt.skipdec --against opt-1.3b.skipdec --layer 7 --histogram

skipdec generate opt-1.3b.skipdec -p "Once upon a time" --record calls

skipdec compare opt-1.3b.skipdec --inputs calls
  with the inputs of that generation

Errors are fractions of a tensor's largest value. The first engine that
diverges is also compared inside, if both graphs have tensors in common.

Exit codes: 0 all outputs agree, 1 some diverge, 2 usage, 3 environment.

Values in round brackets are the defaults.
"""


@from_options
def compare(
    config: CompareConfig,
    *,
    histogram: Annotated[
        bool, typer.Option("--histogram", help="show the distribution of errors")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the engines of BUNDLE and a reference on the same inputs; show where they diverge."""
    from ...engines.host.progress import ConsoleProgress
    from ..comparison.comparison import compare as run

    with ConsoleProgress(quiet=quiet) as progress:
        report = run(config, progress)
    if as_json:
        print_json({**report.model_dump(mode="json"), "problem": report.problem})
    else:
        _print(report, histogram=histogram)
    report.raise_if_departed()


def _print(report: ComparisonReport, *, histogram: bool) -> None:
    """Print the worst output of each engine, then inner tensors of the first that diverges."""
    console = result_console()
    console.print(f"{report.subject} against {report.reference}; {report.inputs}")
    worst = [(each.engine, each.worst) for each in report.engines if each.worst is not None]
    headings = ("engine", "worst tensor", "max abs", "mean abs", "error", "cosine", "")
    rows = [(name, tensor.tensor, *_figures(tensor)) for name, tensor in worst]
    print_table(console, headings, rows, texts=(0, 1, 6))
    first = next((each for each in report.engines if each.inner), None)
    if first is not None and (departing := first.first_departing) is not None:
        rows = [
            (each.tensor, each.made_by, *_figures(each, short=True))
            for each in first.inner
            if each.step == departing.step
        ]
        console.print(f"\ninside {first.engine}, step {departing.step}:")
        print_table(console, ("tensor", "made by", "max abs", "error", ""), rows, texts=(0, 1, 4))
    if histogram:
        console.print("\npercent of elements by error, as a fraction of the largest value:")
        edges = ("<1e-8", *(f"1e-{exponent}" for exponent in range(8, 0, -1)), "1+")
        shares = [(name, *_shares(tensor.histogram)) for name, tensor in worst]
        print_table(console, ("engine", *edges), shares)
    for note in report.notes:
        console.print(note)
    if report.problem is None:
        console.print(f"all outputs of {len(worst)} engines agree")


def _figures(tensor: TensorErrors, *, short: bool = False) -> tuple[str, ...]:
    means = () if short else (f"{tensor.mean_absolute:.1e}",)
    cosine = () if short else (number(tensor.cosine_similarity, 6),)
    diverges = "diverges" if tensor.departs else ""
    return (f"{tensor.max_absolute:.1e}", *means, f"{tensor.error:.1e}", *cosine, diverges)


def _shares(histogram: tuple[int, ...]) -> list[str]:
    total = max(1, sum(histogram))
    return [number(100 * count / total, 1) if count else "" for count in histogram]

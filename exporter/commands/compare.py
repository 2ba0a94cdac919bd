"""``skipdec compare``: find the first difference between two ways to run a bundle's engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...engines.host.console import Part, Table, number, print_report
from ...engines.host.options import AsJson, Quiet, from_options
from ..comparison.config import CompareConfig

if TYPE_CHECKING:
    from ..comparison.report import ComparisonReport, TensorErrors

EXAMPLES = """
Examples:

\b
skipdec compare opt-1.3b-int8.skipdec
  with its canonical graphs, if the bundle has them

\b
skipdec compare opt-1.3b-int8.skipdec --against onnxruntime:disabled

\b
skipdec compare opt-1.3b-tensorrt.skipdec --against opt-1.3b.skipdec --layer 7

Errors are fractions of a tensor's largest value. The first engine that
diverges is also compared inside, if both graphs have tensors in common.

Exit codes: 0 all outputs agree, 1 some diverge, 2 usage, 3 environment.
"""


@from_options
def compare(
    config: CompareConfig,
    *,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the engines of BUNDLE and a reference on the same inputs; show where they diverge."""
    from ...engines.host.progress import ConsoleProgress
    from ..comparison.comparison import compare as run

    with ConsoleProgress(quiet=quiet) as progress:
        report = run(config, progress)
    document = {**report.model_dump(), "problem": report.problem}
    print_report(document, _parts(report), as_json=as_json)
    report.raise_if_diverging()


def _parts(report: ComparisonReport) -> Iterator[Part]:
    """Yield the worst output of each engine, then inner tensors of the first engine to diverge."""
    yield f"{report.subject} against {report.reference}"
    rows = [(name, each.tensor, *_figures(each)) for name, each in report.worst.items()]
    yield Table(("engine", "worst tensor", *_FIGURES), rows)
    if (first := report.first_divergence) is None:
        yield f"all outputs of {len(rows)} engines agree"
    elif report.inner:
        yield f"\ninside {first.engine}, step {first.step}:"
        inner = [each for each in report.inner if each.step == first.step]
        rows = [(each.tensor, each.made_by, *_figures(each)) for each in inner]
        yield Table(("tensor", "made by", *_FIGURES), rows)
        if not any(each.diverges for each in inner):
            yield "It agrees with its inner tensors as outputs: suspect a fusion."


_FIGURES = ("max abs", "mean abs", "error", "cosine", "")


def _figures(tensor: TensorErrors) -> tuple[str, ...]:
    return (
        f"{tensor.max_absolute:.1e}",
        f"{tensor.mean_absolute:.1e}",
        f"{tensor.error:.1e}",
        number(tensor.cosine_similarity, 6),
        "diverges" if tensor.diverges else "",
    )

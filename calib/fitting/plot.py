"""Plot of a fit: loss over expected speed-up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.errors import UsageError
from ...engines.host.installation import require_extra
from ...runtime.pictures import WIDTH, picture_style, save_picture
from ..pictures import frame
from .fitting import Fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")


def check_picture(path: Path) -> None:
    """Raise UsageError for an unsupported suffix, MissingExtraError without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}", f"ends in {path.suffix!r}; allowed: .png, .svg")
    require_extra("plot", "skipdec fit --plot")


def plot_fit(fit: Fit, path: Path) -> None:
    """Plot every candidate that was scored on all examples, with the front as a line.

    Error bars are one standard error of the difference to full depth.
    """
    check_picture(path)
    save_picture(fit_figure(fit), path)


@picture_style()
def fit_figure(fit: Fit) -> Figure:
    """Return the figure of ``plot_fit``, framed to show the front."""
    from matplotlib.figure import Figure

    of = fit.config.speedup_of
    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [entry.expected.of(of) for entry in fit.others],
        [entry.loss for entry in fit.others],
        ".",
        color="#c9ced6",
        label="beaten",
    )
    front = [(entry.expected.of(of), entry.loss) for entry in fit.front]
    axes.errorbar(
        [speedup for speedup, _ in front],
        [loss for _, loss in front],
        yerr=[entry.over_full.standard_error for entry in fit.front],
        marker="o",
        capsize=2,
        color="#3b6ea5",
        label="Pareto front",
    )
    marked = [(entry.expected.of(of), entry.loss) for entry in (fit.full, fit.chosen)]
    for point, marker, colour, name in (
        (marked[0], "s", "#444444", "full depth"),
        (marked[1], "*", "#f2a65a", "chosen"),
    ):
        axes.plot(*point, marker, color=colour, markersize=12, label=name, zorder=3)
    axes.set_xlabel(f"speed-up of {fit.config.speedup_name}, expected")
    axes.set_ylabel("nats per token")
    axes.legend()
    frame(axes, list(dict.fromkeys([*front, *marked])))
    return figure

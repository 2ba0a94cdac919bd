"""A picture of a fit: loss over expected speed-up."""

from __future__ import annotations

from pathlib import Path

from ...engines.errors import UsageError
from ...engines.host.extras import require_extra
from .fitting import Fit
from .speed import SPEEDUP_NAMES

FORMATS = (".png", ".svg")


def check_picture(path: Path) -> None:
    """Raise UsageError for another ending, MissingExtraError without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}", f"ends in {path.suffix!r}; allowed: .png, .svg")
    require_extra("plot", "skipdec fit --plot")


def plot_fit(fit: Fit, path: Path) -> None:
    """Draw every candidate that was scored on all examples, the front as a line.

    Errors are one standard error of the difference to full depth.
    """
    check_picture(path)
    of = fit.config.speedup_of
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "skipdec"}):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.plot(
            [entry.expected.of(of) for entry in fit.others],
            [entry.loss for entry in fit.others],
            ".",
            color="#c9ced6",
            label="beaten",
        )
        axes.errorbar(
            [entry.expected.of(of) for entry in fit.front],
            [entry.loss for entry in fit.front],
            yerr=[entry.over_full.standard_error for entry in fit.front],
            marker="o",
            capsize=2,
            color="#3b6ea5",
            label="Pareto front",
        )
        for entry, marker, colour, label in (
            (fit.full, "s", "#444444", "full depth"),
            (fit.chosen, "*", "#f2a65a", "chosen"),
        ):
            axes.plot(
                entry.expected.of(of),
                entry.loss,
                marker,
                color=colour,
                markersize=12,
                label=label,
                zorder=3,
            )
        axes.set_xlabel(f"speed-up of {SPEEDUP_NAMES[of]}, expected")
        axes.set_ylabel("nats a token")
        axes.legend()
        undated = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=150, metadata=undated)

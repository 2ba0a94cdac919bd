"""Pictures of an evaluation: quality over measured speed-up, and loss by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ..pictures import frame, label
from .bootstrap import Estimate
from .evaluation import Evaluation, Row
from .positions import PositionFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_pareto(evaluation: Evaluation, path: Path, *, metric: str = "bleu") -> None:
    """Draw ``metric`` over the speed-up of whole calls, one line a bundle, intervals as bars.

    ``metric`` must be one for which higher is better. Points that no other point beats in both
    are ringed. Needs matplotlib (extra ``plot``).
    """
    pareto_figure(evaluation, metric).savefig(path, dpi=150)


def pareto_figure(evaluation: Evaluation, metric: str) -> Figure:
    """The picture of ``plot_pareto``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    bundles: dict[Path, list[Row]] = {}
    for row in evaluation.rows:
        bundles.setdefault(row.prepared.choice.path, []).append(row)
    for rows in bundles.values():
        ordered = sorted(rows, key=lambda row: row.speedup)
        estimates = [row.figures[metric].estimate for row in ordered]
        axes.errorbar(
            [row.speedup for row in ordered],
            [estimate.value for estimate in estimates],
            yerr=[
                [max(0.0, estimate.value - estimate.low) for estimate in estimates],
                [max(0.0, estimate.high - estimate.value) for estimate in estimates],
            ],
            marker="o",
            capsize=3,
            label=ordered[0].label,
        )
    front = [evaluation.rows[place] for place in pareto_front(_points(evaluation.rows, metric))]
    axes.scatter(
        [row.speedup for row in front],
        [row.figures[metric].estimate.value for row in front],
        s=120,
        facecolors="none",
        edgecolors="black",
        label="not beaten in both",
        zorder=3,
    )
    calls = "texts of equal length" if evaluation.config.equal_lengths else "whole calls"
    axes.set_xlabel(f"measured speed-up over full depth of the same bundle, {calls}")
    axes.set_ylabel(evaluation.metrics[metric].heading)
    axes.legend()
    points = _points(evaluation.rows, metric)
    frame(axes, points)
    for row, point in zip(evaluation.rows, points, strict=True):
        if not row.run.schedule.is_full:  # all of those lie at 1
            depth = row.figures["realised_depth"].estimate.value
            label(axes, f"{row.run.name.partition(':')[0]}, {depth:.1f} layers", point)
    return figure


def pareto_front(points: list[tuple[float, float]]) -> list[int]:
    """Return the places of the points that no other beats: more in one, no less in the other.

    >>> pareto_front([(1.0, 69.2), (1.7, 69.1), (1.5, 60.0)])
    [0, 1]
    """
    return [
        place
        for place, (speed, quality) in enumerate(points)
        if not any(
            other_speed >= speed
            and other_quality >= quality
            and (other_speed, other_quality) != (speed, quality)
            for other_speed, other_quality in points
        )
    ]


def _points(rows: tuple[Row, ...], metric: str) -> list[tuple[float, float]]:
    return [(row.speedup, row.figures[metric].estimate.value) for row in rows]


def plot_positions(evaluation: Evaluation, path: Path) -> None:
    """Draw perplexity and loss by position, one row of pictures a bundle; intervals are shaded.

    Needs matplotlib (extra ``plot``) and an evaluation by position.
    """
    from matplotlib.figure import Figure

    groups = [
        list(rows) for _, rows in groupby(evaluation.rows, key=lambda row: row.prepared.choice)
    ]
    figure = Figure(figsize=(11, 4.2 * len(groups)), layout="constrained")
    for (left, right), rows in zip(
        figure.subplots(len(groups), 2, squeeze=False), groups, strict=True
    ):
        _draw(left, rows, lambda figure: figure.perplexity)
        left.set(yscale="log", ylabel="perplexity", title=rows[0].label)
        left.legend(fontsize="x-small")
        _draw(right, rows, lambda figure: figure.loss_over_full)
        right.set(ylabel="loss over full depth, nats a token")
    figure.savefig(path, dpi=150)


def _draw(axes: Axes, rows: Sequence[Row], choose: Callable[[PositionFigure], Estimate]) -> None:
    for row in rows:
        assert row.positions is not None, "an evaluation by position"
        figures = row.positions.figures
        places = [figure.name for figure in figures]
        estimates = [choose(figure) for figure in figures]
        axes.plot(places, [entry.value for entry in estimates], marker="o", label=row.run.name)
        axes.fill_between(
            places,
            [entry.low for entry in estimates],
            [entry.high for entry in estimates],
            alpha=0.2,
        )
    axes.set_xlabel("position of the completion's token")

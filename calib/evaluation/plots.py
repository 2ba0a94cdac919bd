"""Plots of an evaluation: quality over measured speed-up, and loss by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.pictures import WIDTH, picture_style, save_picture
from ..pictures import frame, label_points
from .bootstrap import Estimate
from .evaluation import Evaluation, Row
from .positions import PositionFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_pareto(evaluation: Evaluation, path: Path, *, metric: str = "bleu") -> None:
    """Plot ``metric`` over the speed-up of whole calls, one line per bundle, intervals as bars.

    Higher must be better for ``metric``. Pareto-optimal points are ringed. Needs matplotlib (extra
    ``plot``).
    """
    save_picture(pareto_figure(evaluation, metric), path)


@picture_style()
def pareto_figure(evaluation: Evaluation, metric: str) -> Figure:
    """Return the figure that ``plot_pareto`` saves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
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
        label="Pareto-optimal",
        zorder=3,
    )
    calls = "texts of equal length" if evaluation.config.equal_lengths else "whole calls"
    axes.set_xlabel(f"measured speed-up over full depth of the same bundle, {calls}")
    axes.set_ylabel(evaluation.metrics[metric].heading)
    axes.legend()
    points = _points(evaluation.rows, metric)
    frame(axes, points)
    named = [place for place, row in enumerate(evaluation.rows) if not row.run.schedule.is_full]
    label_points(  # all full-depth points lie at 1
        axes,
        [_label(evaluation.rows[place]) for place in named],
        [points[place] for place in named],
    )
    return figure


def _label(row: Row) -> str:
    depth = row.figures["realised_depth"].estimate.value
    return f"{row.run.name.partition(':')[0]}, {depth:.1f} layers"


def pareto_front(points: list[tuple[float, float]]) -> list[int]:
    """Return indices of points that no other beats: better in one coordinate, no worse in the
    other.
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


@picture_style()
def plot_positions(evaluation: Evaluation, path: Path) -> None:
    """Plot perplexity and loss by position, two charts per bundle; intervals are shaded.

    Needs matplotlib (extra ``plot``) and an evaluation by position.
    """
    from matplotlib.figure import Figure

    groups = [
        list(rows) for _, rows in groupby(evaluation.rows, key=lambda row: row.prepared.choice)
    ]
    figure = Figure(figsize=(WIDTH, 6.4 * len(groups)), layout="constrained")
    pairs = figure.subplots(2 * len(groups), 1).reshape(len(groups), 2)
    for (upper, lower), rows in zip(pairs, groups, strict=True):
        _draw(upper, rows, lambda figure: figure.perplexity)
        upper.set(yscale="log", ylabel="perplexity", title=rows[0].label)
        upper.legend()
        losses = _draw(lower, rows, lambda figure: figure.loss_over_full)
        lower.set(ylabel="loss over full depth, nats per token")
        frame(lower, losses)
    save_picture(figure, path)


def _draw(
    axes: Axes, rows: Sequence[Row], choose: Callable[[PositionFigure], Estimate]
) -> list[tuple[float, float]]:
    """Plot one figure of all schedules over the position; return the points."""
    points: list[tuple[float, float]] = []
    for row in rows:
        assert row.positions is not None, "an evaluation by position"
        figures = row.positions.figures
        places = [figure.name for figure in figures]
        estimates = [choose(figure) for figure in figures]
        values = [entry.value for entry in estimates]
        axes.plot(places, values, marker="o", label=row.run.name)
        points += enumerate(values)
        axes.fill_between(
            places,
            [entry.low for entry in estimates],
            [entry.high for entry in estimates],
            alpha=0.2,
        )
    axes.set_xlabel("position of the completion's token")
    return points

"""A picture of loss by position: perplexity, and what skipping costs, one line a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .bootstrap import Estimate
from .evaluation import Evaluation, Row
from .positions import PositionFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_positions(evaluation: Evaluation, path: Path) -> None:
    """Draw both over the position, one row of pictures a bundle; intervals are shaded.

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

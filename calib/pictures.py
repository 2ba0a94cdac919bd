"""Charts of losses and scores: series of points with intervals in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runtime.schedule.pictures import WIDTH, picture_style, save_picture

Interval = tuple[float, float, float]
"""A value and its lower and upper bounds."""
_HEIGHT = 4.5  # inches, of a chart


@dataclass(frozen=True)
class Series:
    """Points of one kind, joined by a line unless ``style`` is a marker alone.

    Bounds of ``ys`` are drawn as bars, or shaded if x is text. ``texts`` are written beside the
    points.
    """

    label: str
    xs: Sequence[float | str | Interval]
    ys: Sequence[float | Interval]
    style: str = "o-"
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """Series over a common axis."""

    series: Sequence[Series]
    xlabel: str
    ylabel: str
    title: str = ""
    is_log: bool = False


@picture_style()
def plot(path: Path, *charts: Chart) -> None:
    """Draw the charts below each other to ``path``, .png or .svg.

    Needs matplotlib (extra ``plot``).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, _HEIGHT * len(charts)), layout="constrained")
    every = figure.subplots(len(charts), 1, squeeze=False)[:, 0]
    for axes, chart in zip(every, charts, strict=True):
        for series in chart.series:
            xs, ys = [_value(x) for x in series.xs], [_value(y) for y in series.ys]
            (line,) = axes.plot(xs, ys, series.style, label=series.label)
            bounds = {"xerr": _errors(series.xs), "yerr": _errors(series.ys)}
            if any(isinstance(x, str) for x in series.xs):
                lows, highs = zip(*(_bounds(y) for y in series.ys), strict=True)
                axes.fill_between(xs, lows, highs, color=line.get_color(), alpha=0.2)
            elif any(bounds.values()):
                axes.errorbar(xs, ys, **bounds, fmt="none", capsize=3, color=line.get_color())
            for x, y, text in zip(xs, ys, series.texts, strict=False):
                axes.annotate(text, (x, y), (6, 6), textcoords="offset points")
        axes.set(xlabel=chart.xlabel, ylabel=chart.ylabel, title=chart.title)
        axes.margins(0.1)
        if chart.is_log:
            axes.set_yscale("log")
        axes.legend()
    save_picture(figure, path)


def _value(point: float | str | Interval) -> float | str:
    return point[0] if isinstance(point, tuple) else point


def _bounds(point: float | str | Interval) -> tuple[float, float]:
    if isinstance(point, tuple):
        return point[1:]
    return (0.0, 0.0) if isinstance(point, str) else (point, point)


def _errors(points: Sequence[float | str | Interval]) -> list[list[float]] | None:
    """Return the distances from each point to its bounds, at least 0; None without bounds."""
    if not any(isinstance(point, tuple) for point in points):
        return None
    every = [(_value(point), *_bounds(point)) for point in points]
    below = [max(0.0, float(value) - low) for value, low, _ in every]
    return [below, [max(0.0, high - float(value)) for value, _, high in every]]

"""What pictures of losses and scores share: a frame that one outlier does not flatten."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FENCE = 3.0  # of Tukey's fences, those that tell what lies far out


def far_out(values: Sequence[float]) -> list[bool]:
    """Which of ``values`` lie beyond three times the quartiles' distance from them.

    >>> far_out([2.9, 3.0, 3.0, 3.1, 7.1])
    [False, False, False, False, True]
    """
    if len(values) < 2:
        return [False] * len(values)
    low, _, high = quantiles(values, n=4, method="inclusive")
    reach = _FENCE * (high - low)
    return [not low - reach <= value <= high + reach for value in values]


def frame(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Give ``axes`` the height of the (x, y) that are not far out; the others become arrows.

    An arrow stands at the edge with its value beside it. To call once all is drawn.
    """
    heights = [height for _, height in points]
    outside = far_out(heights)
    if not any(outside):
        axes.margins(x=0.08, y=0.12)
        return
    near = [height for height, is_out in zip(heights, outside, strict=True) if not is_out]
    low, high = min(near), max(near)
    room = 0.12 * (high - low) or 0.1
    axes.margins(x=0.08)
    axes.set_ylim(low - room, high + room)
    for (place, height), is_out in zip(points, outside, strict=True):
        if not is_out:
            continue
        above = height > high
        axes.annotate(
            f"{height:.3g}",
            (place, 1 if above else 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -22 if above else 22),
            textcoords="offset points",
            ha="center",
            va="top" if above else "bottom",
            fontsize="x-small",
            arrowprops={"arrowstyle": "->", "color": "#444444"},
        )


def label(axes: Axes, text: str, point: tuple[float, float]) -> None:
    """Write ``text`` beside ``point``, on the side with more room in the frame as it is now."""
    low, high = axes.get_xlim()
    bottom, top = axes.get_ylim()
    right, up = point[0] < (low + high) / 2, point[1] < bottom + 0.85 * (top - bottom)
    if bottom <= point[1] <= top:
        axes.annotate(
            text,
            point,
            xytext=(6 if right else -6, 6 if up else -6),
            textcoords="offset points",
            ha="left" if right else "right",
            va="bottom" if up else "top",
            fontsize="x-small",
        )

"""Helpers for plots of losses and scores: frames that do not mislead, legible labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, product
from statistics import quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

BREAK = "break of the y axis"  # id of the strokes
_GROUND = {
    "facecolor": "white",
    "edgecolor": "none",
    "alpha": 0.7,
    "pad": 1.0,
}  # box behind a label
_FENCE = 3.0  # factor of Tukey's outer fences
_PLACES = [  # Offsets of a label in points, to the right of and above its point, best first.
    (right, up) for up, right in product((6, -6, 20, -20, 34, -34), (6, -6, 0))
]


def far_out(values: Sequence[float]) -> list[bool]:
    """Return, for each value, whether it lies beyond Tukey's outer fences.

    >>> far_out([2.9, 3.0, 3.0, 3.1, 7.1])
    [False, False, False, False, True]
    """
    if len(values) < 2:
        return [False] * len(values)
    low, _, high = quantiles(values, n=4, method="inclusive")
    reach = _FENCE * (high - low)
    return [not low - reach <= value <= high + reach for value in values]


def frame(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Fit the height of ``axes`` to the (x, y) points that are not far out; arrows mark the others.

    An arrow is drawn at the edge with its value beside it. If the axis does not begin at 0, a break
    marks that. Call this after drawing everything.
    """
    heights = [height for _, height in points]
    outside = far_out(heights)
    axes.margins(x=0.08, y=0.12)
    if any(outside):
        near = [height for height, is_out in zip(heights, outside, strict=True) if not is_out]
        low, high = min(near), max(near)
        room = 0.12 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
        for point in compress(points, outside):
            _point_outside(axes, point, above=point[1] > high)
    if min(heights) >= 0:
        mark_break(axes)


def _point_outside(axes: Axes, point: tuple[float, float], *, above: bool) -> None:
    axes.annotate(
        f"{point[1]:.3g}",
        (point[0], 1 if above else 0),
        xycoords=("data", "axes fraction"),
        xytext=(0, -22 if above else 22),
        textcoords="offset points",
        ha="center",
        va="top" if above else "bottom",
        arrowprops={"arrowstyle": "->", "color": "#444444"},
    )


def mark_break(axes: Axes) -> None:
    """Start the y axis at 0 if that costs at most half of its height; else mark a break.

    >>> axes.set_ylim(67, 73)
    >>> mark_break(axes)  # two short strokes across the foot of the axis
    """
    low, high = axes.get_ylim()
    if low <= high / 2:
        axes.set_ylim(bottom=min(low, 0))
        return
    for height in (0.02, 0.045):
        axes.plot(
            (-0.012, 0.012),
            (height, height + 0.02),
            transform=axes.transAxes,
            color="black",
            linewidth=1,
            clip_on=False,
            gid=BREAK,
        )


def label_points(axes: Axes, texts: Sequence[str], points: Sequence[tuple[float, float]]) -> None:
    """Write each text beside its point, inside the frame and clear of earlier texts.

    Call this last, because later drawing may move the frame. A point outside gets no text; if there
    is no free place, the one with the least overlap is taken.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes without a figure"
    figure.draw_without_rendering()  # computes the layout
    frame_box = axes.get_window_extent()
    taken: list[Bbox] = []
    bottom, top = axes.get_ylim()
    for text, point in zip(texts, points, strict=True):
        if not bottom <= point[1] <= top:
            continue
        annotation = axes.annotate(
            text, point, (0, 0), textcoords="offset points", in_layout=False, bbox=_GROUND
        )
        placed = [
            (_overlap(box, taken, frame_box), place, box)
            for place in _PLACES
            for box in [_box_at(annotation, place)]
        ]
        _, place, box = min(placed, key=lambda candidate: candidate[0])
        _box_at(annotation, place)
        taken.append(box)


def _box_at(annotation: Annotation, place: tuple[int, int]) -> Bbox:
    """Put ``annotation`` at an offset in points from its point; return its box in pixels."""
    right, up = place
    annotation.set_position(place)
    annotation.set_horizontalalignment("left" if right > 0 else "right" if right < 0 else "center")
    annotation.set_verticalalignment("bottom" if up > 0 else "top")
    return annotation.get_window_extent()


def _overlap(box: Bbox, taken: Sequence[Bbox], frame_box: Bbox) -> float:
    """Return the area of ``box``, in square pixels, that is covered or outside the frame."""
    from matplotlib.transforms import Bbox

    covered = [Bbox.intersection(box, other) for other in taken]
    inside = Bbox.intersection(box, frame_box)
    outside = box.width * box.height - (inside.width * inside.height if inside else 0)
    return outside + sum(other.width * other.height for other in covered if other)

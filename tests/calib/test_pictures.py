"""Frames of plots: outliers become arrows at the edge, labels stay inside."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from skipdec.calib.pictures import BREAK, far_out, frame, label_points
from skipdec.runtime.schedule.pictures import picture_style, save_picture

LINE = [(1.0, 3.04), (1.6, 2.95), (2.0, 2.96), (2.4, 2.98)]


def drawn(points: list[tuple[float, float]], texts: list[str]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), marker="o")
    frame(axes, points)
    label_points(axes, texts, points[: len(texts)])
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize(("outlier", "arrow"), [((7.9, 7.05), "7.05"), ((7.9, -4.0), "-4")])
def test_an_outlier_does_not_flatten_the_rest(outlier: tuple[float, float], arrow: str) -> None:
    (axes,) = drawn([*LINE, outlier], []).axes
    low, high = axes.get_ylim()
    assert high - low < 1.5 * (3.04 - 2.95)
    assert [text.get_text() for text in axes.texts] == [arrow]


def test_without_outliers_the_frame_holds_every_point() -> None:
    (axes,) = drawn(LINE, []).axes
    assert list(axes.texts) == []
    assert axes.get_ylim()[0] < 2.95 < 3.04 < axes.get_ylim()[1]
    assert far_out([3.0]) == [False]


@pytest.mark.parametrize("points", [LINE, [(0.9, 1.0), (1.0, 99.0)], [(1.0, 5.0)], [*LINE, (9, 9)]])
def test_no_label_leaves_the_frame(points: list[tuple[float, float]]) -> None:
    (axes,) = drawn(points, ["exponential, 11.5 layers"] * len(points)).axes
    box = axes.get_window_extent()
    for text in axes.texts:
        assert isinstance(text, Annotation)
        if text.arrow_patch is None:
            inside = text.get_window_extent()
            assert box.x0 <= inside.x0 < inside.x1 <= box.x1
            assert box.y0 <= inside.y0 < inside.y1 <= box.y1


def test_labels_of_points_that_lie_close_do_not_overlap() -> None:
    close = [(1.0, 70.0), (2.0, 70.1), (2.02, 70.1), (2.04, 70.1), (2.3, 69.9)]
    (axes,) = drawn(close, [f"linear, {place}.5 layers" for place in range(len(close))]).axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(close)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("heights", "is_broken"), [((70.0, 69.1), True), ((40.0, 15.0), False), ((-1.0, 2.0), False)]
)
def test_a_y_axis_begins_at_0_or_shows_its_break(heights: list[float], is_broken: bool) -> None:
    (axes,) = drawn(list(enumerate(heights)), []).axes
    assert is_broken == any(line.get_gid() == BREAK for line in axes.lines)
    assert is_broken == (axes.get_ylim()[0] > 0)


def test_no_type_is_below_9_points(tmp_path: Path) -> None:
    with picture_style():
        figure = drawn([*LINE, (7.9, 7.05)], ["full"])
    sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()}
    assert min(sizes) >= 9
    save_picture(figure, tmp_path / "one.svg", description="what it shows")
    assert "what it shows" in (tmp_path / "one.svg").read_text()

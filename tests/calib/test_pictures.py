"""Frames of pictures: an outlier is an arrow at the edge, a label never leaves."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from skipdec.calib.pictures import far_out, frame, label

LINE = [(1.0, 3.04), (1.6, 2.95), (2.0, 2.96), (2.4, 2.98)]


def drawn(points: list[tuple[float, float]], texts: list[str]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True), marker="o")
    frame(axes, points)
    for text, point in zip(texts, points, strict=False):
        label(axes, text, point)
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

"""Test the charts' series, intervals and texts, in a readable size."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from skipdec.calib import pictures
from skipdec.calib.pictures import Chart, Series, plot
from skipdec.runtime.schedule.pictures import save_picture

BARS = Series(
    "measured", [(1.0, 0.9, 1.2), (2.0, 2.0, 2.0)], [3.0, (2.0, 1.5, 2.5)], texts=["full"]
)
BANDS = Series("4x", ["0", "1-7"], [(3.0, 2.0, 4.0), (2.0, 1.0, 3.0)])


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_charts_show_their_series(tmp_path: Path, suffix: str) -> None:
    path, figures = tmp_path / f"chart{suffix}", list[Figure]()

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save_picture(figure, path, description="what it shows")

    with patch.object(pictures, "save_picture", keep):
        plot(path, Chart([BARS], "x", "y", "title"), Chart([BANDS], "position", "y", is_log=True))
    assert path.stat().st_size > 1000
    upper, lower = figures[0].axes
    assert (upper.get_title(), lower.get_yscale()) == ("title", "log")
    texts = {text.get_text() for text in figures[0].findobj(Text)}
    assert {"full", "measured", "4x", "position"} <= texts
    assert len(lower.collections) == 1, "the interval is shaded"
    sizes = {text.get_fontsize() for text in figures[0].findobj(Text) if text.get_text()}
    assert min(sizes) >= 9

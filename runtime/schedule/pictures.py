"""Pictures: font sizes that are readable in print, and files that are written atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.bundle import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
WIDTH = 7.0  # inches, the width at which a page prints a picture, so that fonts keep their size
_STYLE = {
    "font.size": 10.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
    "svg.hashsalt": "skipdec",  # equal pictures have equal bytes
}


@contextmanager
def picture_style() -> Iterator[None]:
    """Draw with the project's font sizes, none below 9 points. Also a decorator."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def save_picture(figure: Figure, path: Path, *, description: str | None = None) -> None:
    """Write ``figure`` to ``path``, .png or .svg, atomically; an SVG has no date.

    ``description`` is kept in an SVG's metadata. Raises OSError, which names ``path``.
    """
    kind = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None, "Description": description} if kind == "svg" else None
    content = BytesIO()
    with picture_style():
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    replace_file(path, content.getvalue())

"""Markdown tables and what stands in their cells."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; cells are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(text: str) -> str:
    """One line that Markdown shows as it is: a ``<sep>`` stays visible, a | ends no cell."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """``value`` rounded, never to −0; a dash where it is not finite."""
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def interval(value: float, low: float, high: float, digits: int, *, signed: bool = False) -> str:
    """``69.1 [66.8, 71.2]``."""
    bounds = ", ".join(number(bound, digits, signed=signed) for bound in (low, high))
    return f"{number(value, digits, signed=signed)} [{bounds}]"

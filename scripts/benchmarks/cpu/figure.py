"""Figures with their targets, and the parts of a run that produce them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One figure; ``met`` is None if there is no target."""

    what: str
    target: str
    measured: str
    met: bool | None

    @classmethod
    def at_least(cls, what: str, target: float, value: float, more: str = "") -> Figure:
        """Create a ratio that should be at least ``target``; ``more`` is added in brackets."""
        return cls(what, f"≥ {target:g}", _text(value, more), value >= target)

    @classmethod
    def at_most(cls, what: str, target: float, value: float, more: str = "") -> Figure:
        """Create a ratio that should be at most ``target``."""
        return cls(what, f"≤ {target:g}", _text(value, more), value <= target)

    @classmethod
    def unaimed(cls, what: str, value: float, more: str = "") -> Figure:
        """Create a ratio without a target, which explains others."""
        return cls(what, "", _text(value, more), None)


@dataclass(frozen=True)
class Part:
    """Results of one part of the run: figures and the milliseconds behind them."""

    figures: Sequence[Figure]
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """p50, minimum and p95 in milliseconds, and the count, by measurement."""
    bench: Mapping[str, Any] = field(default_factory=dict)
    """JSON of ``skipdec bench`` by bundle."""

    def document(self) -> dict[str, Any]:
        """Return the part as JSON."""
        document: dict[str, Any] = {"figures": [asdict(figure) for figure in self.figures]}
        if self.timings:
            document["timings"] = {name: dict(timing) for name, timing in self.timings.items()}
        if self.bench:
            document["bench"] = dict(self.bench)
        return document


def _text(value: float, more: str) -> str:
    return f"{value:.2f} ({more})" if more else f"{value:.2f}"

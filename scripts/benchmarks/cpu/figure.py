"""A number that was aimed for and what came out; the parts that yield such numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One number; ``met`` is None where nothing was aimed for."""

    what: str
    target: str
    measured: str
    met: bool | None

    @classmethod
    def at_least(cls, what: str, target: float, value: float, more: str = "") -> Figure:
        """A ratio that should be ``target`` or more; ``more`` is added in brackets."""
        return cls(what, f"≥ {target:g}", _text(value, more), value >= target)

    @classmethod
    def at_most(cls, what: str, target: float, value: float, more: str = "") -> Figure:
        """A ratio that should be ``target`` or less."""
        return cls(what, f"≤ {target:g}", _text(value, more), value <= target)

    @classmethod
    def unaimed(cls, what: str, value: float, more: str = "") -> Figure:
        """A ratio that explains others."""
        return cls(what, "", _text(value, more), None)


@dataclass(frozen=True)
class Part:
    """What a part of the run found: figures, and the milliseconds that they come from."""

    figures: Sequence[Figure]
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What was timed → p50, minimum, p95 in milliseconds, and how many."""
    bench: Mapping[str, Any] = field(default_factory=dict)
    """The JSON of ``skipdec bench`` by bundle."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        document: dict[str, Any] = {"figures": [asdict(figure) for figure in self.figures]}
        if self.timings:
            document["timings"] = {name: dict(timing) for name, timing in self.timings.items()}
        if self.bench:
            document["bench"] = dict(self.bench)
        return document


def _text(value: float, more: str) -> str:
    return f"{value:.2f} ({more})" if more else f"{value:.2f}"

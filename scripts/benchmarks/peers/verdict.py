"""Judge across several starts which of two engines is faster, and by how much.

An engine's time for a cell is the median over its starts; its spread is from the fastest to the
slowest start. A goal is reached if even their fastest start over our slowest reaches it, and missed
if even their slowest over our fastest does not; otherwise the spread leaves it open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Milliseconds of our starts and of one peer's; ``goal``: their time ÷ ours."""

    ours: Sequence[float]
    theirs: Sequence[float]
    goal: float

    @property
    def ratio(self) -> float:
        """Median ratio; above 1, skipdec is faster."""
        return median(self.theirs) / median(self.ours)

    @property
    def low(self) -> float:
        """Their fastest start over our slowest."""
        return min(self.theirs) / max(self.ours)

    @property
    def high(self) -> float:
        """Their slowest start over our fastest."""
        return max(self.theirs) / min(self.ours)

    @property
    def verdict(self) -> str:
        """Verdict in words."""
        if self.low >= self.goal:
            return f"≥ {self.goal:g} reached"
        if self.high < 1:
            return "**slower**"
        if self.high < self.goal:
            return f"{'faster' if self.low > 1 else 'level'}, ≥ {self.goal:g} **missed**"
        return f"{'faster' if self.low > 1 else 'level'}, ≥ {self.goal:g} within the spread"


def with_spread(times: Sequence[float]) -> str:
    """Format ``43.0 (41.2–45.9)``."""
    return f"{median(times):.1f} ({min(times):.1f}–{max(times):.1f})"


def rows(cells: Mapping[str, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield a row per cell: name, each engine's time, ratio to the fastest peer, verdict."""
    for what, cell in cells.items():
        times: Mapping[str, Sequence[float]] = cell["times"]
        peers = [found for engine, found in times.items() if engine != "skipdec"]
        one = Comparison(times["skipdec"], min(peers, key=median), cell["goal"])
        shown = "; ".join(f"{engine} {with_spread(found)}" for engine, found in times.items())
        yield (what, shown, f"{one.ratio:.2f} ({one.low:.2f}–{one.high:.2f})", one.verdict)

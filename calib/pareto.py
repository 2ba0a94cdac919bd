"""How far points lie from their Pareto front: cost over speed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def excess_costs(points: Sequence[tuple[float, float]]) -> list[float]:
    """For each (speed, cost), the cost above the lowest of any point at least as fast.

    0 on the Pareto front, whose points no other beats in both.

    >>> excess_costs([(1.0, 2.0), (1.5, 1.0), (2.0, 4.0), (1.2, 3.0)])
    [1.0, 0.0, 0.0, 2.0]
    """
    excess = [0.0] * len(points)
    lowest = float("inf")
    fastest_first = sorted(range(len(points)), key=lambda place: -points[place][0])
    for _, group in groupby(fastest_first, key=lambda place: points[place][0]):
        places = list(group)
        lowest = min(lowest, *(points[place][1] for place in places))
        for place in places:
            excess[place] = points[place][1] - lowest
    return excess

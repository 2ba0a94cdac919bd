"""The placement unified-nested."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from ..fields import ScheduleFields
from .placement import Placement, two_layers_problems


@dataclass(frozen=True)
class UnifiedNested(Placement):
    """Evenly spread layers whose smaller sets lie in the larger ones: ours, after ``unified``.

    Layers join in a fixed order, and a budget runs the first b of it: 0..max(w, 1)−1 and L−1,
    then again and again the middle layer (the lower of two) of the widest gap (the highest of
    equals). Any decay may run it.

    L=12, w=1: the order is 0 11 5 8 2 9 6 3 10 7 4 1. Budget 4 runs 0, 5, 8, 11; budget 5 adds
    layer 2, budget 6 layer 9. The gaps of budget 4 are 5, 3, 3, where unified has 4, 3, 4: the
    price of nesting.
    """

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """At least one layer above those that always run."""
        return super().problems(schedule) or two_layers_problems(schedule)

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """The first ``budget`` layers of the order."""
        order = _halving_order(schedule.num_layers, max(schedule.warmup_layers, 1))
        return tuple(sorted(order[:budget]))


@cache
def _halving_order(num_layers: int, lowest: int) -> tuple[int, ...]:
    """The order in which ``unified-nested`` takes layers; the ``lowest`` and the last come first.

    >>> _halving_order(6, 1)
    (0, 5, 2, 3, 4, 1)
    """
    order = [*range(lowest), num_layers - 1]
    while len(order) < num_layers:
        chosen = sorted(order)
        _, low, high = max((high - low, low, high) for low, high in pairwise(chosen))
        order.append((low + high) // 2)
    return tuple(order)

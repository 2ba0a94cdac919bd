"""The placements unified and unified-nested: layers spread evenly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from ..fields import ScheduleFields, round_half_up
from .placement import Placement


class EvenlySpread(Placement):
    """Layers from the first to the last, both of which always run."""

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """At least one layer above those that always run."""
        problems = super().problems(schedule)
        if not problems and schedule.min_exit_layer < 2:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
                f"{schedule.placement}: 2 or more, the first and the last layer always run"
            ]
        return problems


@dataclass(frozen=True)
class Unified(EvenlySpread):
    """Evenly spread layers, the first and the last among them (arXiv 2404.06954).

    The paper's, from its abstract: how many layers are skipped follows from the target speed-up
    alone, and intermediate layers are skipped in a balanced manner. Ours: the rounding, and
    warm-up layers beyond the first. With v = max(w, 1), since layer 0 always runs:

        {0..v-1} ∪ {v-1 + round_half_up(j·(L-v) / (b-v)), j = 1..b-v}

    L=12, w=1: budget 4 steps by 11/3, so 0, 3.67, 7.33, 11 and it runs 0, 4, 7, 11; budget 6 runs
    0, 2, 4, 7, 9, 11. Layer 4 is in both, but budget 5 runs 0, 3, 6, 8, 11: the sets are not
    nested, so this placement goes with the decay constant.
    """

    hole_advice = "take the decay constant, e.g. constant:max=4, or placement unified-nested"

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """Lowest layers, then equal steps up to the last layer."""
        lowest = max(schedule.warmup_layers, 1)
        steps = budget - lowest
        span = schedule.num_layers - lowest
        spread = (
            lowest - 1 + round_half_up(Fraction(j * span, steps)) for j in range(1, steps + 1)
        )
        return (*range(lowest), *spread)


@dataclass(frozen=True)
class UnifiedNested(EvenlySpread):
    """Evenly spread layers whose smaller sets lie in the larger ones: ours, after ``unified``.

    Layers join in a fixed order, and a budget runs the first b of it: 0..max(w, 1)−1 and L−1,
    then again and again the middle layer (the lower of two) of the widest gap (the highest of
    equals). Any decay may run it.

    L=12, w=1: the order is 0 11 5 8 2 9 6 3 10 7 4 1. Budget 4 runs 0, 5, 8, 11; budget 5 adds
    layer 2, budget 6 layer 9. The gaps of budget 4 are 5, 3, 3, where unified has 4, 3, 4: the
    price of nesting.
    """

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """The first ``budget`` layers of the order."""
        order = _halving_order(schedule.num_layers, max(schedule.warmup_layers, 1))
        return tuple(sorted(order[:budget]))


@lru_cache(maxsize=64)
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

"""The placement unified."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..fields import ScheduleFields
from ..rounding import round_half_up
from .placement import Placement, two_layers_problems


@dataclass(frozen=True)
class Unified(Placement):
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

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """At least one layer above those that always run."""
        return super().problems(schedule) or two_layers_problems(schedule)

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """Lowest layers, then equal steps up to the last layer."""
        lowest = max(schedule.warmup_layers, 1)
        steps = budget - lowest
        span = schedule.num_layers - lowest
        spread = (
            lowest - 1 + round_half_up(Fraction(j * span, steps)) for j in range(1, steps + 1)
        )
        return (*range(lowest), *spread)

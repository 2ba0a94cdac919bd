"""The placement bottom."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import ScheduleFields
from .placement import Placement


@dataclass(frozen=True)
class Bottom(Placement):
    """The lowest layers (early termination, the baseline): {0..b-1}.

    L=12: budget 6 runs 0–5, budget 4 runs 0–3; warm-up layers are among the lowest anyway.
    """

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """Any budget from 1."""
        return []

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """The lowest ``budget`` layers."""
        return tuple(range(budget))

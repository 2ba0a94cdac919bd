"""Placements that run one end of the model: top (SkipDecode) and bottom (early termination)."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields import ScheduleFields
from .placement import Placement


@dataclass(frozen=True)
class Top(Placement):
    """Warm-up layers, then the top ones (SkipDecode, arXiv 2307.02628).

    {0..w-1} ∪ {L-(b-w)..L-1}. L=12, w=1: budget 6 runs 0, 7–11; budget 4 runs 0, 9–11.
    Lower-to-middle layers are bypassed.
    """

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """Warm-up layers, then the top ones."""
        warmup = schedule.warmup_layers
        top = schedule.num_layers - (budget - warmup)
        return (*range(warmup), *range(top, schedule.num_layers))


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

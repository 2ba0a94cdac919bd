"""Reservation: the KV memory of one row, reserved whole on admission so that it never runs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..schedule import ExitSchedule
from .cache import plan_kv_cache
from .layout import KVLayout
from .pool import size_class


@dataclass(frozen=True)
class Reservation:
    """Positions that one row takes in each layer's cache.

    ``capacities[l]`` is 0 for a layer that runs in the row's prompt only. Worked (L=6, warm-up 1,
    budgets 6 4 3 3 2 2, prompt of 10 tokens, max_tokens 8): (17, 0, 0, 11, 13, 17), as in
    ``KVPlan``.
    """

    capacities: tuple[int, ...]

    @classmethod
    def of(
        cls, layout: KVLayout, schedule: ExitSchedule, prompt_length: int, max_tokens: int
    ) -> Self:
        """Return what a prompt and up to ``max_tokens`` generated tokens need at ``schedule``."""
        plan = plan_kv_cache(layout, schedule, [prompt_length], [max_tokens], scratch_rows=1)
        return cls(plan.capacities)


def row_class(rows: int, most: int) -> int:
    """Round up to 1, 2, 4, 8, … rows, at most ``most``, so that buffers seldom grow."""
    return min(1 << (rows - 1).bit_length(), most)


def capacity_class(positions: int, most: int) -> int:
    """Round up to four sizes per octave from 16 positions on, at most ``most``."""
    return min(size_class(positions, 16), most)


@dataclass(frozen=True)
class SlotSizes:
    """Computes the size of a layer's buffers from the rows and positions that are reserved.

    Sizes are rounded up to classes, at most ``most_rows`` and ``most_positions``, so that buffers
    seldom grow. With ``exact`` they are exactly what is reserved, which is cheapest when the
    longest request comes first. With a ``capacity`` every row has that many positions, and there
    are at least ``least_rows`` rows.
    """

    most_rows: int
    most_positions: int
    exact: bool = False
    capacity: int | None = None
    least_rows: int = 1

    def of(self, rows: int, positions: int) -> tuple[int, int]:
        """Return the buffers' rows and positions where ``rows`` reserve up to ``positions``."""
        if self.exact:
            return rows, positions
        rows = max(self.least_rows, row_class(rows, self.most_rows))
        return rows, self.capacity or capacity_class(positions, self.most_positions)

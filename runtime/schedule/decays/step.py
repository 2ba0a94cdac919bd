"""The decay step."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..fields import ScheduleFields
from ..rounding import round_half_up
from .decay import Decay


@dataclass(frozen=True)
class Step(Decay):
    """``steps`` flat levels of equal length, from max to min.

    max=8, min=4, horizon=6, steps=3: 8 8 6 6 4 4.
    """

    searched: ClassVar[tuple[str, ...]] = ()

    steps: int

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``steps`` is an integer, 2 to the horizon."""
        if type(self.steps) is not int:
            return [f"steps is {self.steps!r}; decay step needs an integer, e.g. 4"]
        if not 2 <= self.steps <= schedule.horizon:
            return [f"steps is {self.steps}; allowed: 2 to the horizon, {schedule.horizon}"]
        return []

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """The level that ``index`` falls into, rounded half up."""
        level = index * self.steps // schedule.horizon
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - Fraction(fall * level, self.steps - 1))

"""The decay power."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..fields import ScheduleFields
from ..rounding import snap
from .decay import Curve, positive_number_problems

_LARGEST_EXACT_POWER = 16


@dataclass(frozen=True)
class Power(Curve):
    """``time ** power``: above 1 stays deep for longer.

    max=8, min=4, horizon=5, power=2: the curve is 8, 7.75, 7, 5.75, 4, so 8 8 7 6 4.
    """

    searched: ClassVar[tuple[str, ...]] = ("power=2",)

    power: float

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``power`` is a finite number above 0."""
        return positive_number_problems("power", self.power)

    def progress(self, time: Fraction) -> Fraction:
        """Exact for small whole powers."""
        if self.power in range(1, _LARGEST_EXACT_POWER + 1):
            return time ** int(self.power)
        return snap(float(time) ** self.power)

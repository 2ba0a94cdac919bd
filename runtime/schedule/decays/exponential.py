"""The decay exponential."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..fields import ScheduleFields
from ..rounding import snap
from .decay import Curve, positive_number_problems


@dataclass(frozen=True)
class Exponential(Curve):
    """(1 − e^(−rate·time)) / (1 − e^(−rate)): falls fast at first.

    max=8, min=4, horizon=5, rate=2: the curve is 8, 6.18, 5.08, 4.41, 4, so 8 6 5 4 4.
    """

    searched: ClassVar[tuple[str, ...]] = ("rate=3",)

    rate: float

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``rate`` is a finite number above 0."""
        return positive_number_problems("rate", self.rate)

    def progress(self, time: Fraction) -> Fraction:
        """expm1 keeps small rates accurate."""
        return snap(math.expm1(-self.rate * float(time)) / math.expm1(-self.rate))

"""Decays along a curve: linear, cosine, power and exponential."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ....engines.errors import shown
from ..fields import ScheduleFields, round_half_up, snap
from .decay import FallingDecay

_LARGEST_EXACT_POWER = 16


class Curve(FallingDecay):
    """A decay that falls from max to min along a curve: max − (max−min)·progress."""

    @abstractmethod
    def progress(self, time: Fraction) -> Fraction:
        """Return how much of the fall is done at ``time``; 0 → 0, 1 → 1, never decreasing."""

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Round the curve's value half up; token 0 has max, token horizon−1 has min."""
        time = Fraction(index, max(1, schedule.horizon - 1))
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - fall * self.progress(time))


@dataclass(frozen=True)
class Linear(Curve):
    """Equal falls (SkipDecode). max=8, min=4, horizon=5: 8 7 6 5 4."""

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Return what `Curve.budget` does, in integers: a server makes presets per request."""
        last = max(1, schedule.horizon - 1)
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return (2 * (schedule.max_exit_layer * last - fall * index) + last) // (2 * last)

    def progress(self, time: Fraction) -> Fraction:
        """``time`` itself."""
        return time


@dataclass(frozen=True)
class Cosine(Curve):
    """(1 − cos(π·time)) / 2: flat at both ends.

    max=8, min=4, horizon=5: the curve is 8, 7.41, 6, 4.59, 4, so 8 7 6 5 4.
    """

    def progress(self, time: Fraction) -> Fraction:
        """Half a period of the cosine."""
        return snap((1 - math.cos(math.pi * time)) / 2)


@dataclass(frozen=True)
class Power(Curve):
    """``time ** power``: above 1 stays deep for longer.

    max=8, min=4, horizon=5, power=2: the curve is 8, 7.75, 7, 5.75, 4, so 8 8 7 6 4.
    """

    searched: ClassVar[tuple[str, ...]] = ("power=2",)

    power: float

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``power`` is a finite number above 0."""
        return _positive_number_problems("power", self.power)

    def progress(self, time: Fraction) -> Fraction:
        """Exact for small whole powers."""
        if self.power in range(1, _LARGEST_EXACT_POWER + 1):
            return time ** int(self.power)
        return snap(float(time) ** self.power)


@dataclass(frozen=True)
class Exponential(Curve):
    """(1 − e^(−rate·time)) / (1 − e^(−rate)): falls fast at first.

    max=8, min=4, horizon=5, rate=2: the curve is 8, 6.18, 5.08, 4.41, 4, so 8 6 5 4 4.
    """

    searched: ClassVar[tuple[str, ...]] = ("rate=3",)

    rate: float

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``rate`` is a finite number above 0."""
        return _positive_number_problems("rate", self.rate)

    def progress(self, time: Fraction) -> Fraction:
        """expm1 keeps small rates accurate."""
        return snap(math.expm1(-self.rate * float(time)) / math.expm1(-self.rate))


def _positive_number_problems(name: str, value: object) -> list[str]:
    """Say what is wrong with a parameter that is a finite number above 0, if anything."""
    is_bool = isinstance(value, bool)
    if isinstance(value, int | float) and not is_bool and 0 < value <= sys.float_info.max:
        return []
    return [f"{name} is {shown(value)}; this decay needs a finite number above 0, e.g. {name}=2"]

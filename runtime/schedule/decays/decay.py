"""What every decay is, and their registry.

A decay maps the index i of a generated token, 0 ≤ i < horizon, to a budget of layers. Values are
rounded half up in exact arithmetic, so two machines always agree on a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

from ....engines.registry import Registry
from ..fields import ScheduleFields
from ..rounding import round_half_up
from ..rule import Rule

DECAYS = Registry(
    "decay",
    {
        "linear": "runtime.schedule.decays.linear:Linear",
        "cosine": "runtime.schedule.decays.cosine:Cosine",
        "power": "runtime.schedule.decays.power:Power",
        "exponential": "runtime.schedule.decays.exponential:Exponential",
        "step": "runtime.schedule.decays.step:Step",
        "constant": "runtime.schedule.decays.constant:Constant",
        "table": "runtime.schedule.decays.table:Table",
        "d3": "runtime.schedule.decays.d3:D3",
    },
)


class Decay(Rule, ABC):
    """One rule for budgets."""

    lists_budgets: ClassVar[bool] = False
    """Whether the parameters are the budgets themselves, so that no exit layers may vary."""

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Return the fields that a schedule's text may leave out, because ``values`` say them.

        ``values`` are what the text does say, unchecked.
        """
        return {}

    @abstractmethod
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Return the layers that generated token ``index`` runs, 0 ≤ index < horizon."""


class Curve(Decay):
    """A decay that falls from max to min along a curve: max − (max−min)·progress."""

    @abstractmethod
    def progress(self, time: Fraction) -> Fraction:
        """Return how much of the fall is done at ``time``; 0 → 0, 1 → 1, never decreasing."""

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Round the curve's value half up; token 0 has max, token horizon−1 has min."""
        time = Fraction(index, max(1, schedule.horizon - 1))
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - fall * self.progress(time))


def positive_number_problems(name: str, value: object) -> list[str]:
    """Say what is wrong with a parameter that is a finite number above 0, if anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < float(value) < math.inf:  # type: ignore[arg-type]
        return []
    return [f"{name} is {value!r}; this decay needs a finite number above 0, e.g. {name}=2"]

"""The decay constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..fields import ScheduleFields
from .decay import Decay


@dataclass(frozen=True)
class Constant(Decay):
    """The same budget for every token: max = min."""

    searched: ClassVar[tuple[str, ...]] = ()  # every other decay is this one where max is min

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Min and a horizon, from max."""
        if "max_exit_layer" not in values:
            return {}
        return {"min_exit_layer": values["max_exit_layer"], "horizon": 1}

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """One budget only."""
        if schedule.max_exit_layer != schedule.min_exit_layer:
            return [
                f"max_exit_layer is {schedule.max_exit_layer} and min_exit_layer is "
                f"{schedule.min_exit_layer}; decay constant needs them equal"
            ]
        return []

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """The one budget."""
        return schedule.max_exit_layer

"""Decays of flat levels: constant, step and table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from ....engines.errors import MOST_PROBLEMS, few, shown
from ..fields import ScheduleFields, round_half_up
from .decay import Decay, FallingDecay


@dataclass(frozen=True)
class Constant(FallingDecay):
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


@dataclass(frozen=True)
class Step(FallingDecay):
    """``steps`` flat levels of equal length, from max to min.

    max=8, min=4, horizon=6, steps=3: 8 8 6 6 4 4.
    """

    searched: ClassVar[tuple[str, ...]] = ()

    steps: int

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``steps`` is an integer, 2 to the horizon."""
        if type(self.steps) is not int:
            return [f"steps is {shown(self.steps)}; decay step needs an integer, e.g. 4"]
        if not 2 <= self.steps <= schedule.horizon:
            return [f"steps is {shown(self.steps)}; allowed: 2 to the horizon, {schedule.horizon}"]
        return []

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """The level that ``index`` falls into, rounded half up."""
        level = index * self.steps // schedule.horizon
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - Fraction(fall * level, self.steps - 1))


@dataclass(frozen=True)
class Table(Decay):
    """Budgets listed one by one; min after the last. table=(8, 8, 5), min=4: 8 8 5 4 4 …"""

    searched: ClassVar[tuple[str, ...]] = ()
    lists_budgets: ClassVar[bool] = True

    table: tuple[int, ...]

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Max, min and horizon, from the table."""
        table = values.get("table")
        if not table:
            return {}
        return {"max_exit_layer": table[0], "min_exit_layer": table[-1], "horizon": len(table)}

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """One budget a token of the horizon, each from min to max, the first one max."""
        table = self.table
        low, high = schedule.min_exit_layer, schedule.max_exit_layer
        if not isinstance(table, tuple) or not all(type(entry) is int for entry in table):
            return [
                f"table is {shown(table)}; decay table needs a tuple of integers, e.g. (8, 8, 5)"
            ]
        problems = []
        if len(table) != schedule.horizon:
            problems.append(
                f"table has {len(table)} budgets; allowed: one a token of the horizon, "
                f"{schedule.horizon}"
            )
        wrong = [place for place, entry in enumerate(table) if not low <= entry <= high]
        bad = [
            f"table[{place}] is {shown(table[place])}; "
            f"allowed: min_exit_layer {low} to max_exit_layer {high}"
            for place in wrong[:MOST_PROBLEMS]
        ]
        problems += few(bad, len(wrong))
        if table and table[0] < high and not problems:
            problems.append(f"table[0] is {table[0]}; max_exit_layer is {high}, allowed: the same")
        return problems

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """The entry at ``index``."""
        return self.table[index]

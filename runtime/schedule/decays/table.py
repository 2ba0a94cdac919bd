"""The decay table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..fields import ScheduleFields
from .decay import Decay


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
            return [f"table is {table!r}; decay table needs a tuple of integers, e.g. (8, 8, 5)"]
        problems = []
        if len(table) != schedule.horizon:
            problems.append(
                f"table has {len(table)} budgets; allowed: one a token of the horizon, "
                f"{schedule.horizon}"
            )
        problems += [
            f"table[{index}] is {entry}; allowed: min_exit_layer {low} to max_exit_layer {high}"
            for index, entry in enumerate(table)
            if not low <= entry <= high
        ]
        if table and table[0] < high and not problems:
            problems.append(f"table[0] is {table[0]}; max_exit_layer is {high}, allowed: the same")
        return problems

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """The entry at ``index``."""
        return self.table[index]

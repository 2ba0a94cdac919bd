"""Decays: the number of layers that each generated token runs.

A decay maps the index i of a generated token, 0 ≤ i < horizon, to a budget of layers. Values are
rounded half up in exact arithmetic, so any two machines agree on a plan.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard

from typing_extensions import override

from ...engines.errors import MOST_PROBLEMS, few, shown
from ...engines.manifest import MAX_LAYERS
from .rule import MAX_HORIZON, Rule, ScheduleFields, round_half_up, snap

_LARGEST_EXACT_POWER = 16


class Decay(Rule, ABC):
    """A rule for budgets."""

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Return the fields that a schedule's text may omit because ``values`` imply them.

        ``values`` are the fields that the text has, unchecked.
        """
        return {}

    def changes(self, schedule: ScheduleFields) -> Iterator[tuple[int, int]]:
        """Yield (index, budget) of token 0 and of each token that differs from the one before.

        It halves the horizon wherever the budgets of both ends differ, so that its cost depends on
        the number of layers, not on the horizon.
        """
        first, last = ((i, self.budget(schedule, i)) for i in (0, schedule.horizon - 1))
        yield first
        yield from self._changes_within(schedule, first, last)

    def _changes_within(
        self, schedule: ScheduleFields, low: tuple[int, int], high: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the changes after ``low`` up to ``high``, both (index, budget)."""
        if low[1] == high[1]:
            return
        if high[0] - low[0] == 1:
            yield high
            return
        index = (low[0] + high[0]) // 2
        middle = index, self.budget(schedule, index)
        yield from self._changes_within(schedule, low, middle)
        yield from self._changes_within(schedule, middle, high)

    @abstractmethod
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Return how many layers generated token ``index`` runs, 0 ≤ index < horizon.

        Only `Table` may have one that grows from a token to the next.
        """


class Curve(Decay, ABC):
    """A decay that falls from max to min along a curve: max − (max−min)·progress.

    Token 0 has max, token horizon−1 has min.
    """

    @abstractmethod
    def progress(self, time: Fraction) -> Fraction:
        """Return the completed share of the fall at ``time``; 0 → 0, 1 → 1, never decreasing."""

    @override
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        time = Fraction(index, max(1, schedule.horizon - 1))
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - fall * self.progress(time))


@dataclass(frozen=True)
class Linear(Curve):
    """Equal falls (SkipDecode). max=8, min=4, horizon=5: 8 7 6 5 4."""

    @override
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        # in integers: a server makes presets per request
        last = max(1, schedule.horizon - 1)
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return (2 * (schedule.max_exit_layer * last - fall * index) + last) // (2 * last)

    @override
    def progress(self, time: Fraction) -> Fraction:
        return time


@dataclass(frozen=True)
class Cosine(Curve):
    """(1 − cos(π·time)) / 2: flat at both ends.

    max=8, min=4, horizon=5: the curve is 8, 7.41, 6, 4.59, 4, so 8 7 6 5 4.
    """

    @override
    def progress(self, time: Fraction) -> Fraction:
        return snap((1 - math.cos(math.pi * time)) / 2)


@dataclass(frozen=True)
class Power(Curve):
    """``time ** power``: values above 1 stay deep for longer.

    max=8, min=4, horizon=5, power=2: the curve is 8, 7.75, 7, 5.75, 4, so 8 8 7 6 4.
    """

    power: float

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        return _positive_number_problems("power", self.power)

    @override
    def progress(self, time: Fraction) -> Fraction:
        if self.power in range(1, _LARGEST_EXACT_POWER + 1):
            return time ** int(self.power)
        return snap(float(time) ** self.power)


@dataclass(frozen=True)
class Exponential(Curve):
    """(1 − e^(−rate·time)) / (1 − e^(−rate)): falls fast at first.

    max=8, min=4, horizon=5, rate=2: the curve is 8, 6.18, 5.08, 4.41, 4, so 8 6 5 4 4.
    """

    rate: float

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        return _positive_number_problems("rate", self.rate)

    @override
    def progress(self, time: Fraction) -> Fraction:
        return snap(math.expm1(-self.rate * float(time)) / math.expm1(-self.rate))


@dataclass(frozen=True)
class Constant(Decay):
    """The same budget for every token: max = min."""

    @override
    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        if "max_exit_layer" not in values:
            return {}
        return {"min_exit_layer": values["max_exit_layer"], "horizon": 1}

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        if schedule.max_exit_layer != schedule.min_exit_layer:
            return [
                f"max_exit_layer is {schedule.max_exit_layer} and min_exit_layer is "
                f"{schedule.min_exit_layer}; decay constant needs them equal"
            ]
        return []

    @override
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        return schedule.max_exit_layer


@dataclass(frozen=True)
class Step(Decay):
    """``steps`` flat levels of equal length, from max to min.

    max=8, min=4, horizon=6, steps=3: 8 8 6 6 4 4.
    """

    steps: int

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        if type(self.steps) is not int:
            return [f"steps is {shown(self.steps)}; decay step needs an integer, e.g. 4"]
        if not 2 <= self.steps <= schedule.horizon:
            return [f"steps is {shown(self.steps)}; allowed: 2 to the horizon, {schedule.horizon}"]
        return []

    @override
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        level = index * self.steps // schedule.horizon
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - Fraction(fall * level, self.steps - 1))


@dataclass(frozen=True)
class Table(Decay):
    """Budgets listed one by one; min after the last. table=(8, 8, 5), min=4: 8 8 5 4 4 …"""

    table: tuple[int, ...]

    @override
    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        table = values.get("table")
        if not table:
            return {}
        return {"max_exit_layer": table[0], "min_exit_layer": table[-1], "horizon": len(table)}

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        table = self.table
        low, high = schedule.min_exit_layer, schedule.max_exit_layer
        if not isinstance(table, tuple) or not all(type(entry) is int for entry in table):
            return [
                f"table is {shown(table)}; decay table needs a tuple of integers, e.g. (8, 8, 5)"
            ]
        problems = []
        if len(table) != schedule.horizon:
            problems.append(
                f"table has {len(table)} budgets; allowed: one per token of the horizon, "
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

    @override
    def changes(self, schedule: ScheduleFields) -> Iterator[tuple[int, int]]:
        before = None
        for index, budget in enumerate(self.table):
            if budget != before:
                yield index, budget
            before = budget

    @override
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        return self.table[index]


@dataclass(frozen=True)
class D3(Decay):
    """⌊max·αⁱ⌋, with a floor of min (D3, arXiv 2503.08524; its abstract: ⌊L·αⁱ⌋ for token i).

    The paper's rule has max = L; its core layers belong to the placement d3, which takes any decay.
    Ours adds a max below L, the floor min (the core, where nothing else runs) and a horizon, from
    which tokens run min. A text without a horizon gets the first token at which the rule is at min.

    L=12, max=12, min=5, α=0.9: the curve is 12, 10.8, 9.72, 8.75, 7.87, 7.09, 6.38, 5.74, so
    12 10 9 8 7 7 6 5, a horizon of 8.
    """

    alpha: float

    @override
    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        alpha = values.get("alpha")
        smallest, largest = values.get("min_exit_layer", 0), values.get("max_exit_layer", 0)
        if not _is_base(alpha) or not 0 < smallest <= largest <= MAX_LAYERS:
            return {"horizon": 1}  # ExitSchedule finds the problem
        return {"horizon": min(d3_horizon(largest, smallest, alpha), MAX_HORIZON)}

    @override
    def problems(self, schedule: ScheduleFields) -> list[str]:
        if _is_base(self.alpha):
            return []
        return [
            f"alpha is {shown(self.alpha)}; decay d3 needs a number above 0 and below 1, e.g. 0.98"
        ]

    @override
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        return max(schedule.min_exit_layer, _floor(schedule.max_exit_layer, self.alpha, index))


def d3_horizon(largest: int, smallest: int, alpha: float) -> int:
    """Return how many tokens ⌊largest·αⁱ⌋ takes to reach ``smallest`` or less, that one included.

    >>> d3_horizon(12, 5, 0.9)
    8
    """
    steps = math.log(smallest + 1) - math.log(largest) if largest > smallest else 0.0
    index = max(0, math.floor(steps / math.log(alpha)) - 1)  # near, and never beyond
    while _floor(largest, alpha, index) > smallest:
        index += 1
    return index + 1


def _is_base(alpha: object) -> TypeGuard[float]:
    return isinstance(alpha, float) and 0 < alpha < 1


def _floor(largest: int, alpha: float, index: int) -> int:
    """Return ⌊largest·αⁱ⌋, snapped before the floor: 10·0.7 is 7, not 6.99…."""
    return math.floor(snap(largest * alpha**index))


def _positive_number_problems(name: str, value: object) -> list[str]:
    """Return what is wrong with a parameter that must be a finite number above 0, if anything."""
    is_bool = isinstance(value, bool)
    if isinstance(value, int | float) and not is_bool and 0 < value <= sys.float_info.max:
        return []
    return [f"{name} is {shown(value)}; this decay needs a finite number above 0, e.g. {name}=2"]


DECAYS: Mapping[str, type[Decay]] = {
    "linear": Linear,
    "cosine": Cosine,
    "power": Power,
    "exponential": Exponential,
    "step": Step,
    "constant": Constant,
    "table": Table,
    "d3": D3,
}

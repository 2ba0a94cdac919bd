"""How many layers a generated token runs: the decays of an exit schedule.

A decay maps the index i of a generated token, 0 ≤ i < horizon, to a budget of layers. Values are
rounded half up in exact arithmetic, so two machines always agree on a plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from ...engines.registry import Registry

if TYPE_CHECKING:
    from .schedule import ExitSchedule

DECAYS = Registry(
    "decay",
    {
        "linear": "runtime.schedule.decay:Linear",
        "power": "runtime.schedule.decay:Power",
        "exponential": "runtime.schedule.decay:Exponential",
        "cosine": "runtime.schedule.decay:Cosine",
        "step": "runtime.schedule.decay:Step",
        "constant": "runtime.schedule.decay:Constant",
        "table": "runtime.schedule.decay:Table",
        "d3": "runtime.schedule.decay:D3",
    },
)

# Irrational curves are snapped to this grid: the last bits of a machine's libm can't move a tie.
_GRID = 2**40
_LARGEST_EXACT_POWER = 16


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, ties upward: 12.5 → 13, 12.4 → 12.

    >>> round_half_up(Fraction(25, 2)), round_half_up(Fraction(62, 5))
    (13, 12)
    """
    return math.floor(value + Fraction(1, 2))


class Decay(ABC):
    """One rule for budgets. ``parameter`` names the schedule's field that only this decay has."""

    parameter: ClassVar[str | None] = None

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """Return what is wrong with this decay's own parameter; all other fields are sound."""
        return []

    @classmethod
    @abstractmethod
    def budget(cls, schedule: ExitSchedule, index: int) -> int:
        """Return the layers that generated token ``index`` runs, 0 ≤ index < horizon."""


class Curve(Decay):
    """A decay that falls from max to min along a curve: max − (max−min)·progress."""

    @classmethod
    @abstractmethod
    def progress(cls, schedule: ExitSchedule, time: Fraction) -> Fraction:
        """Return how much of the fall is done at ``time``; 0 → 0, 1 → 1, never decreasing."""

    @classmethod
    def budget(cls, schedule: ExitSchedule, index: int) -> int:
        """Round the curve's value half up; token 0 has max, token horizon−1 has min."""
        time = Fraction(index, max(1, schedule.horizon - 1))
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - fall * cls.progress(schedule, time))


class Linear(Curve):
    """Equal falls (SkipDecode). max=8, min=4, horizon=5: 8 7 6 5 4."""

    @classmethod
    def progress(cls, schedule: ExitSchedule, time: Fraction) -> Fraction:
        """``time`` itself."""
        return time


class Power(Curve):
    """``time ** power``: above 1 stays deep for longer.

    max=8, min=4, horizon=5, power=2: the curve is 8, 7.75, 7, 5.75, 4, so 8 8 7 6 4.
    """

    parameter = "power"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """``power`` is a finite number above 0."""
        return _positive_number("power", schedule.power)

    @classmethod
    def progress(cls, schedule: ExitSchedule, time: Fraction) -> Fraction:
        """Exact for small whole powers."""
        assert schedule.power is not None
        if schedule.power in range(1, _LARGEST_EXACT_POWER + 1):
            return time ** int(schedule.power)
        return _snap(float(time) ** schedule.power)


class Exponential(Curve):
    """(1 − e^(−rate·time)) / (1 − e^(−rate)): falls fast at first.

    max=8, min=4, horizon=5, rate=2: the curve is 8, 6.18, 5.08, 4.41, 4, so 8 6 5 4 4.
    """

    parameter = "rate"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """``rate`` is a finite number above 0."""
        return _positive_number("rate", schedule.rate)

    @classmethod
    def progress(cls, schedule: ExitSchedule, time: Fraction) -> Fraction:
        """expm1 keeps small rates accurate."""
        assert schedule.rate is not None
        return _snap(math.expm1(-schedule.rate * float(time)) / math.expm1(-schedule.rate))


class Cosine(Curve):
    """(1 − cos(π·time)) / 2: flat at both ends.

    max=8, min=4, horizon=5: the curve is 8, 7.41, 6, 4.59, 4, so 8 7 6 5 4.
    """

    @classmethod
    def progress(cls, schedule: ExitSchedule, time: Fraction) -> Fraction:
        """Half a period of the cosine."""
        return _snap((1 - math.cos(math.pi * time)) / 2)


class Step(Decay):
    """``steps`` flat levels of equal length, from max to min.

    max=8, min=4, horizon=6, steps=3: 8 8 6 6 4 4.
    """

    parameter = "steps"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """``steps`` is an integer, 2 to the horizon."""
        steps = schedule.steps
        if not isinstance(steps, int) or isinstance(steps, bool):
            return [f"steps is {steps!r}; decay step needs an integer, e.g. 4"]
        if not 2 <= steps <= schedule.horizon:
            return [f"steps is {steps}; allowed: 2 to the horizon, {schedule.horizon}"]
        return []

    @classmethod
    def budget(cls, schedule: ExitSchedule, index: int) -> int:
        """The level that ``index`` falls into, rounded half up."""
        assert schedule.steps is not None
        level = index * schedule.steps // schedule.horizon
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - Fraction(fall * level, schedule.steps - 1))


class Constant(Decay):
    """The same budget for every token: max = min."""

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """One budget only."""
        if schedule.max_exit_layer != schedule.min_exit_layer:
            return [
                f"max_exit_layer is {schedule.max_exit_layer} and min_exit_layer is "
                f"{schedule.min_exit_layer}; decay constant needs them equal"
            ]
        return []

    @classmethod
    def budget(cls, schedule: ExitSchedule, index: int) -> int:
        """The one budget."""
        return schedule.max_exit_layer


class Table(Decay):
    """Budgets listed one by one; min after the last. table=(8, 8, 5), min=4: 8 8 5 4 4 …"""

    parameter = "table"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """One budget a token of the horizon, each from min to max, the first one max."""
        table = schedule.table
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

    @classmethod
    def budget(cls, schedule: ExitSchedule, index: int) -> int:
        """The entry at ``index``."""
        assert schedule.table is not None
        return schedule.table[index]


class D3(Decay):
    """⌊max·αⁱ⌋, never below min (D3, arXiv 2503.08524; its abstract: ⌊L·αⁱ⌋ layers for token i).

    The paper's with max = L; its core layers belong to the placement d3, which takes any decay.
    Ours: max below L, the bound min (it is the core where nothing else runs), and a horizon: from
    there on, min. Texts that name none have the first token at which the floor is at min.

    L=12, max=12, min=5, α=0.9: the curve is 12, 10.8, 9.72, 8.75, 7.87, 7.09, 6.38, 5.74, so
    12 10 9 8 7 7 6 5, a horizon of 8.
    """

    parameter = "alpha"

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """``alpha`` is a number between 0 and 1."""
        return alpha_problems(schedule.alpha)

    @classmethod
    def budget(cls, schedule: ExitSchedule, index: int) -> int:
        """The floor, at least min."""
        assert schedule.alpha is not None
        return max(
            schedule.min_exit_layer, _d3_floor(schedule.max_exit_layer, schedule.alpha, index)
        )


def alpha_problems(alpha: object) -> list[str]:
    """Say what is wrong with the base of the decay d3, if anything."""
    if isinstance(alpha, float) and 0 < alpha < 1:
        return []
    return [f"alpha is {alpha!r}; decay d3 needs a number above 0 and below 1, e.g. 0.98"]


def d3_horizon(largest: int, smallest: int, alpha: float) -> int:
    """Return how many tokens ⌊largest·αⁱ⌋ takes to be at ``smallest`` or below, that one included.

    >>> d3_horizon(12, 5, 0.9)
    8
    """
    steps = math.log(smallest + 1) - math.log(largest) if largest > smallest else 0.0
    index = max(0, math.floor(steps / math.log(alpha)) - 1)  # near, and never beyond
    while _d3_floor(largest, alpha, index) > smallest:
        index += 1
    return index + 1


def _d3_floor(largest: int, alpha: float, index: int) -> int:
    """Snapped before the floor: 10·0.7 is 7, not 6.99…."""
    return math.floor(_snap(largest * alpha**index))


def _snap(value: float) -> Fraction:
    return Fraction(round(value * _GRID), _GRID)


def _positive_number(name: str, value: object) -> list[str]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < float(value) < math.inf:  # type: ignore[arg-type]
        return []
    return [f"{name} is {value!r}; this decay needs a finite number above 0, e.g. {name}=2"]

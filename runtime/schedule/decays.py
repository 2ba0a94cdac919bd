"""Decays: the number of layers that each generated token runs.

A decay maps the index i of a generated token, 0 ≤ i < horizon, to a budget of layers. Values are
rounded half up in exact arithmetic, so any two machines agree on a plan.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard

from ...engines.errors import MOST_PROBLEMS, few, shown
from ...engines.manifest import MAX_LAYERS
from .fields import ScheduleFields
from .rounding import round_half_up, snap

_LARGEST_EXACT_POWER = 16


@dataclass(frozen=True)
class Decay:
    """A rule for budgets.

    ``budget`` maps a schedule, 0 ≤ index < horizon and the parameter's value to the number of
    layers; only with ``table`` may it grow from one token to the next. ``parameter`` names the
    field of ExitSchedule, and the option of a text, that the rule needs in addition to the bounds.
    ``problems`` says what is wrong with its value, and why the schedule does not fit the rule; it
    is called if the schedule's other fields are valid by themselves.
    """

    budget: Callable[[ScheduleFields, int, Any], int]
    parameter: str | None = None
    problems: Callable[[ScheduleFields, Any], list[str]] = lambda schedule, value: []


def budget_of(schedule: ScheduleFields, index: int) -> int:
    """Return how many layers generated token ``index`` runs, 0 ≤ index < horizon."""
    decay = DECAYS[schedule.decay]
    return decay.budget(schedule, index, schedule.value_of(decay.parameter))


def budget_changes(schedule: ScheduleFields) -> Iterator[tuple[int, int]]:
    """Yield (index, budget) of token 0 and of each token whose budget differs from the one before.

    It halves the horizon wherever the budgets of both ends differ, so that its cost depends on the
    number of layers, not on the horizon. Only a table, which may grow, is read from end to end.
    """
    last = schedule.horizon - 1
    stride = 1 if schedule.decay == "table" else max(1, last)
    before = 0, budget_of(schedule, 0)
    yield before
    for index in range(stride, last + 1, stride):
        after = index, budget_of(schedule, index)
        yield from _changes_between(schedule, before, after)
        before = after


def _changes_between(
    schedule: ScheduleFields, low: tuple[int, int], high: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield the changes after ``low`` up to ``high``, both (index, budget)."""
    if low[1] == high[1]:
        return
    if high[0] - low[0] == 1:
        yield high
        return
    index = (low[0] + high[0]) // 2
    middle = index, budget_of(schedule, index)
    yield from _changes_between(schedule, low, middle)
    yield from _changes_between(schedule, middle, high)


def _linear(schedule: ScheduleFields, index: int, _: None) -> int:
    """Fall in equal steps (SkipDecode). max=8, min=4, horizon=5: 8 7 6 5 4."""
    # In integers, because a server makes presets for each request.
    last = max(1, schedule.horizon - 1)
    fall = schedule.max_exit_layer - schedule.min_exit_layer
    return (2 * (schedule.max_exit_layer * last - fall * index) + last) // (2 * last)


def _curve(
    progress: Callable[[Fraction, Any], Fraction],
) -> Callable[[ScheduleFields, int, Any], int]:
    """Return the budgets that fall from max to min along a curve: max − (max−min)·progress.

    ``progress`` is the completed share of the fall at a time from 0 to 1, the share of the horizon
    that has passed: 0 → 0, 1 → 1, never decreasing.
    """

    def budget(schedule: ScheduleFields, index: int, value: Any) -> int:  # noqa: ANN401
        time = Fraction(index, max(1, schedule.horizon - 1))
        fall = schedule.max_exit_layer - schedule.min_exit_layer
        return round_half_up(schedule.max_exit_layer - fall * progress(time, value))

    return budget


def _cosine(time: Fraction, _: None) -> Fraction:
    """Return (1 − cos(π·time)) / 2: flat at both ends.

    max=8, min=4, horizon=5: the curve is 8, 7.41, 6, 4.59, 4, so 8 7 6 5 4.
    """
    return snap((1 - math.cos(math.pi * time)) / 2)


def _power(time: Fraction, power: float) -> Fraction:
    """Return ``time ** power``: values above 1 stay deep for longer.

    max=8, min=4, horizon=5, power=2: the curve is 8, 7.75, 7, 5.75, 4, so 8 8 7 6 4.
    """
    if power in range(1, _LARGEST_EXACT_POWER + 1):
        return time ** int(power)
    return snap(float(time) ** power)


def _exponential(time: Fraction, rate: float) -> Fraction:
    """Return (1 − e^(−rate·time)) / (1 − e^(−rate)): falls fast at first.

    max=8, min=4, horizon=5, rate=2: the curve is 8, 6.18, 5.08, 4.41, 4, so 8 6 5 4 4.
    """
    return snap(math.expm1(-rate * float(time)) / math.expm1(-rate))


def _step(schedule: ScheduleFields, index: int, steps: int) -> int:
    """Fall in ``steps`` flat levels of equal length: max=8, min=4, horizon=6, 3: 8 8 6 6 4 4."""
    level = index * steps // schedule.horizon
    fall = schedule.max_exit_layer - schedule.min_exit_layer
    return round_half_up(schedule.max_exit_layer - Fraction(fall * level, steps - 1))


def _constant(schedule: ScheduleFields, index: int, _: None) -> int:
    """Return the same budget for every token: max = min."""
    return schedule.max_exit_layer


def _table(schedule: ScheduleFields, index: int, table: tuple[int, ...]) -> int:
    """Take budgets from a list; min after the last. table=(8, 8, 5), min=4: 8 8 5 4 4 …"""
    return table[index]


def _d3(schedule: ScheduleFields, index: int, alpha: float) -> int:
    """Return ⌊max·αⁱ⌋, or min (D3, arXiv 2503.08524; its abstract: ⌊L·αⁱ⌋ for token i).

    The paper's rule has max = L; its core layers belong to the placement d3, which takes any decay.
    Ours adds a max below L, the floor min (the size of the core) and a horizon, after which tokens
    run min. A text without a horizon gets the number of tokens until the rule reaches min.

    L=12, max=12, min=5, α=0.9: the curve is 12, 10.8, 9.72, 8.75, 7.87, 7.09, 6.38, 5.74, so
    12 10 9 8 7 7 6 5, a horizon of 8.
    """
    return max(schedule.min_exit_layer, _floor(schedule.max_exit_layer, alpha, index))


def d3_horizon(largest: object, smallest: object, alpha: object) -> int:
    """Return how many tokens ⌊largest·αⁱ⌋ takes to reach ``smallest`` or less, including that one.

    Values that the decay refuses give 1.

    >>> d3_horizon(12, 5, 0.9)
    8
    """
    if not (isinstance(largest, int) and isinstance(smallest, int) and _is_base(alpha)):
        return 1
    if not 0 < smallest <= largest <= MAX_LAYERS:
        return 1
    steps = math.log(smallest + 1) - math.log(largest) if largest > smallest else 0.0
    index = max(0, math.floor(steps / math.log(alpha)) - 1)  # near, and never beyond
    while _floor(largest, alpha, index) > smallest:
        index += 1
    return index + 1


def _floor(largest: int, alpha: float, index: int) -> int:
    """Return ⌊largest·αⁱ⌋, snapped before the floor: 10·0.7 is 7, not 6.99…."""
    return math.floor(snap(largest * alpha**index))


def _is_base(alpha: object) -> TypeGuard[float]:
    return isinstance(alpha, float) and 0 < alpha < 1


def _no_base(schedule: ScheduleFields, alpha: object) -> list[str]:
    wanted = "decay d3 needs a number above 0 and below 1, e.g. 0.98"
    return [] if _is_base(alpha) else [f"alpha is {shown(alpha)}; {wanted}"]


def _not_positive(schedule: ScheduleFields, value: object) -> list[str]:
    is_bool = isinstance(value, bool)
    if isinstance(value, int | float) and not is_bool and 0 < value <= sys.float_info.max:
        return []
    name = DECAYS[schedule.decay].parameter
    return [f"{name} is {shown(value)}; this decay needs a finite number above 0, e.g. {name}=2"]


def _no_steps(schedule: ScheduleFields, steps: object) -> list[str]:
    if type(steps) is not int:
        return [f"steps is {shown(steps)}; decay step needs an integer, e.g. 4"]
    if not 2 <= steps <= schedule.horizon:
        return [f"steps is {shown(steps)}; allowed: 2 to the horizon, {schedule.horizon}"]
    return []


def _falls(schedule: ScheduleFields, _: None) -> list[str]:
    largest, smallest = schedule.max_exit_layer, schedule.min_exit_layer
    if largest == smallest:
        return []
    return [
        f"max_exit_layer is {largest} and min_exit_layer is {smallest}; decay constant needs "
        "them equal"
    ]


def _no_table(schedule: ScheduleFields, table: object) -> list[str]:
    low, high = schedule.min_exit_layer, schedule.max_exit_layer
    if not isinstance(table, tuple) or not all(type(entry) is int for entry in table):
        return [f"table is {shown(table)}; decay table needs a tuple of integers, e.g. (8, 8, 5)"]
    problems = []
    if len(table) != schedule.horizon:
        problems.append(
            f"table has {len(table)} budgets; allowed: one per token of the horizon, "
            f"{schedule.horizon}"
        )
    wrong = [index for index, entry in enumerate(table) if not low <= entry <= high]
    bad = [
        f"table[{index}] is {shown(table[index])}; "
        f"allowed: min_exit_layer {low} to max_exit_layer {high}"
        for index in wrong[:MOST_PROBLEMS]
    ]
    problems += few(bad, len(wrong))
    if table and table[0] < high and not problems:
        problems.append(
            f"table[0] is {table[0]}, below max_exit_layer, {high}; allowed: the same, because "
            "budgets never grow"
        )
    return problems


DECAYS: Mapping[str, Decay] = {
    "linear": Decay(_linear),
    "cosine": Decay(_curve(_cosine)),
    "power": Decay(_curve(_power), "power", _not_positive),
    "exponential": Decay(_curve(_exponential), "rate", _not_positive),
    "step": Decay(_step, "steps", _no_steps),
    "constant": Decay(_constant, None, _falls),
    "table": Decay(_table, "table", _no_table),
    "d3": Decay(_d3, "alpha", _no_base),
}

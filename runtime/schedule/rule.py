"""Rules: the common base of decays and placements, and the schedule fields that they see."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from typing import Any, cast, get_type_hints

from ...engines.constants import integer
from ...engines.errors import shown
from ...engines.manifest import MAX_LAYERS

MAX_HORIZON = integer("max_horizon")
PROMPT_DEPTHS = ("full", "decay")

_INTEGERS = ("num_layers", "max_exit_layer", "min_exit_layer", "horizon", "warmup_layers")
_GRID = 2**40


@dataclass(frozen=True, kw_only=True)
class ScheduleFields:
    """The part of a schedule that rules see: its bounds and the names of its rules, unchecked."""

    num_layers: int
    max_exit_layer: int
    min_exit_layer: int
    warmup_layers: int = 1
    horizon: int
    decay: str = "linear"
    placement: str = "top"
    prompt: str = "full"


def field_problems(schedule: ScheduleFields) -> list[str]:
    """Return what is wrong with the fields by themselves; bounds are checked for integers only."""
    problems = []
    if schedule.prompt not in PROMPT_DEPTHS:
        problems.append(f"prompt is {shown(schedule.prompt)}; allowed: {', '.join(PROMPT_DEPTHS)}")
    wrong_types = [
        f"{name} is {shown(getattr(schedule, name))}; allowed: an integer"
        for name in _INTEGERS
        if type(getattr(schedule, name)) is not int
    ]
    return [*problems, *(wrong_types or _bound_problems(schedule))]


def _bound_problems(schedule: ScheduleFields) -> list[str]:
    num_layers, largest = schedule.num_layers, schedule.max_exit_layer
    bounds = (
        ("num_layers", 1, MAX_LAYERS, f"1 to {MAX_LAYERS}"),
        ("max_exit_layer", 1, num_layers, f"1 to num_layers, {shown(num_layers)}"),
        ("min_exit_layer", 1, largest, f"1 to max_exit_layer, {shown(largest)}"),
        ("warmup_layers", 0, num_layers, f"0 to num_layers, {shown(num_layers)}"),
        ("horizon", 1, MAX_HORIZON, f"1 to {MAX_HORIZON}"),
    )
    return [
        f"{name} is {shown(value)}; allowed: {allowed}"
        for name, low, high, allowed in bounds
        if not low <= (value := getattr(schedule, name)) <= high
    ]


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, ties upward.

    >>> round_half_up(Fraction(25, 2)), round_half_up(Fraction(62, 5))
    (13, 12)
    """
    return math.floor(value + Fraction(1, 2))


def snap(value: float) -> Fraction:
    """Put an irrational value on a grid, so that the last bits of a libm can't move a tie."""
    return Fraction(round(value * _GRID), _GRID)


@dataclass(frozen=True)
class Notation:
    """Notation of a value in a schedule's text; ``read`` raises ValueError for any other text."""

    wanted: str
    read: Callable[[str], object]


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


INTEGER = Notation("an integer", int)
NAME = Notation("a name", str)
_NOTATIONS: Mapping[object, Notation] = {
    int: INTEGER,
    float: Notation("a number", _number),
    tuple[int, ...]: Notation(
        "integers, e.g. 16/16/12/8", lambda text: tuple(map(int, text.split("/")))
    ),
}


class Rule:
    """A decay or a placement: a frozen dataclass whose fields are the rule's parameters.

    A parameter's name is its key in a schedule's text and JSON, and its keyword at ExitSchedule.
    Its type is ``int``, ``float`` or ``tuple[int, ...]``, which is ``16/16/12/8`` in text and a
    list in JSON; rules that share a name share its type. Values come unchecked: ``problems`` is
    called before anything else.
    """

    @classmethod
    def parameters(cls) -> Mapping[str, Notation]:
        """Return the rule's parameters, in the order of their declaration."""
        return _parameters(cast(Hashable, cls))

    def values(self) -> dict[str, Any]:
        """Return the value of each parameter."""
        return {name: getattr(self, name) for name in self.parameters()}

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """Return what is wrong with the parameters, and why ``schedule`` does not fit this rule.

        The fields of ``schedule`` are sound by themselves.
        """
        return []


def parameters_of(*tables: Mapping[str, type[Rule]]) -> dict[str, Notation]:
    """Return the parameters of all rules in ``tables``."""
    rules = [rule for table in tables for rule in table.values()]
    return {name: notation for rule in rules for name, notation in rule.parameters().items()}


@cache
def _parameters(rule: Any) -> Mapping[str, Notation]:  # noqa: ANN401  (any rule's class)
    types = get_type_hints(rule)
    return {field.name: _NOTATIONS[types[field.name]] for field in fields(rule)}

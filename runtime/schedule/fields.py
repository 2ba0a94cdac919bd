"""The fields that every exit schedule has, what may be wrong with them, and how values round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

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


def field_problems(fields: ScheduleFields) -> list[str]:
    """Return what is wrong with the fields by themselves; bounds are for integers only."""
    problems = []
    if fields.prompt not in PROMPT_DEPTHS:
        problems.append(f"prompt is {shown(fields.prompt)}; allowed: {', '.join(PROMPT_DEPTHS)}")
    wrong_types = [
        f"{name} is {shown(getattr(fields, name))}; allowed: an integer"
        for name in _INTEGERS
        if type(getattr(fields, name)) is not int
    ]
    return [*problems, *(wrong_types or _bound_problems(fields))]


def _bound_problems(fields: ScheduleFields) -> list[str]:
    num_layers, largest = fields.num_layers, fields.max_exit_layer
    at_most = shown(num_layers), shown(largest)
    bounds = (
        ("num_layers", 1, MAX_LAYERS, f"1 to {MAX_LAYERS}"),
        ("max_exit_layer", 1, num_layers, f"1 to num_layers, {at_most[0]}"),
        ("min_exit_layer", 1, largest, f"1 to max_exit_layer, {at_most[1]}"),
        ("warmup_layers", 0, num_layers, f"0 to num_layers, {at_most[0]}"),
        ("horizon", 1, MAX_HORIZON, f"1 to {MAX_HORIZON}"),
    )
    problems = []
    for name, low, high, allowed in bounds:
        value = getattr(fields, name)
        if not low <= value <= high:
            problems.append(f"{name} is {shown(value)}; allowed: {allowed}")
    return problems


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, ties upward: 12.5 → 13, 12.4 → 12.

    >>> round_half_up(Fraction(25, 2)), round_half_up(Fraction(62, 5))
    (13, 12)
    """
    return math.floor(value + Fraction(1, 2))


def snap(value: float) -> Fraction:
    """Put an irrational value on a grid: the last bits of a machine's libm can't move a tie."""
    return Fraction(round(value * _GRID), _GRID)

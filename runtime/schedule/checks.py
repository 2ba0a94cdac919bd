"""Checks of a schedule's fields, which report all problems at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields

from ...engines.constants import integer
from ...engines.errors import MOST_PROBLEMS, did_you_mean, few, shown
from ...engines.manifest import MAX_LAYERS
from .decays import DECAYS
from .fields import ScheduleFields
from .placements import PLACEMENTS

MAX_HORIZON = integer("max_horizon")
PROMPT_DEPTHS = ("full", "decay")

_INTEGERS = ("num_layers", "max_exit_layer", "min_exit_layer", "horizon", "warmup_layers")


def unknown_keys(keys: Collection[object]) -> list[str]:
    """Return a problem for each key that is not a field of a schedule."""
    known = [field.name for field in fields(ScheduleFields)]
    unknown = [key for key in keys if key not in known]
    problems = [
        f"key {shown(key)} is unknown; {did_you_mean(key, known, among=len(keys))}"
        f"allowed: {', '.join(known)}"
        for key in unknown[:MOST_PROBLEMS]
    ]
    return few(problems, len(unknown))


def schedule_problems(schedule: ScheduleFields) -> list[str]:
    """Return all problems with the fields of ``schedule``.

    Bounds are checked only if they are integers. A rule checks its parameter and the bounds only if
    everything else is valid.
    """
    problems = [*_rule_problems(schedule), *_field_problems(schedule)]
    if problems:
        return problems
    rules = DECAYS[schedule.decay], PLACEMENTS[schedule.placement]
    return [
        problem
        for rule in rules
        for problem in rule.problems(schedule, schedule.value_of(rule.parameter))
    ]


def _rule_problems(schedule: ScheduleFields) -> Iterator[str]:
    """Yield the problems with the rules' names, and with parameters that are missing or unknown."""
    for kind, table in (("decay", DECAYS), ("placement", PLACEMENTS)):
        name = getattr(schedule, kind)
        if not isinstance(name, str) or name not in table:
            meant = did_you_mean(name, table)
            yield f"{kind} is {shown(name)}; {meant}allowed: {', '.join(table)}"
            continue
        own = table[name].parameter
        for parameter in filter(None, (rule.parameter for rule in table.values())):
            value = schedule.value_of(parameter)
            if parameter != own and value is not None:
                yield f"{parameter} is {shown(value)}; {kind} {name} has none"
            elif parameter == own and value is None:
                yield f"{parameter} is missing; {kind} {name} needs it"


def _field_problems(schedule: ScheduleFields) -> Iterator[str]:
    """Yield the problems of each other field by itself."""
    if schedule.prompt not in PROMPT_DEPTHS:
        yield f"prompt is {shown(schedule.prompt)}; allowed: {', '.join(PROMPT_DEPTHS)}"
    wrong_types = [
        f"{name} is {shown(getattr(schedule, name))}; allowed: an integer"
        for name in _INTEGERS
        if type(getattr(schedule, name)) is not int
    ]
    yield from wrong_types or _bound_problems(schedule)


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

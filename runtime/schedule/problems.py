"""What is wrong with an exit schedule's fields, all of it at once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from .decay import DECAYS
from .placement import PLACEMENTS

if TYPE_CHECKING:
    from .schedule import ExitSchedule

MAX_HORIZON = 2**20
PROMPT_DEPTHS = ("full", "decay")

_INTEGERS = ("num_layers", "max_exit_layer", "min_exit_layer", "horizon", "warmup_layers")
_PARAMETERS = {
    "decay": ("power", "rate", "steps", "table", "alpha"),
    "placement": ("tail",),
}


def schedule_problems(schedule: ExitSchedule) -> list[str]:
    """Return every problem; later checks need the earlier ones to have found none."""
    if problems := [*_name_problems(schedule), *_bound_problems(schedule)]:
        return problems
    decay, placement = DECAYS.load(schedule.decay), PLACEMENTS.load(schedule.placement)
    if problems := [*decay.problems(schedule), *placement.problems(schedule)]:
        return problems
    advice = f"; {placement.hole_advice}" if placement.hole_advice else ""
    return [
        f"{hole}: a hole in that layer's KV cache; allowed: sets of layers that only shrink{advice}"
        for hole in (*_prompt_holes(schedule), *_holes(schedule))
    ]


def _name_problems(schedule: ExitSchedule) -> list[str]:
    problems = []
    for name, allowed in (
        ("decay", DECAYS),
        ("placement", PLACEMENTS),
        ("prompt", PROMPT_DEPTHS),
    ):
        value = getattr(schedule, name)
        if not isinstance(value, str) or value not in allowed:
            problems.append(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
    if problems:
        return problems
    for kind, registry in (("decay", DECAYS), ("placement", PLACEMENTS)):
        rule = registry.load(getattr(schedule, kind))
        chosen = f"{kind} {getattr(schedule, kind)}"
        for name in _PARAMETERS[kind]:
            value, wanted = getattr(schedule, name), rule.parameter == name
            if not wanted and value is not None:
                problems.append(f"{name} is {value!r}; {chosen} has none")
            if wanted and value is None:
                problems.append(f"{name} is missing; {chosen} needs it")
    return problems


def _bound_problems(schedule: ExitSchedule) -> list[str]:
    problems = [
        f"{name} is {getattr(schedule, name)!r}; allowed: an integer"
        for name in _INTEGERS
        if type(getattr(schedule, name)) is not int
    ]
    if problems:
        return problems
    num_layers, largest = schedule.num_layers, schedule.max_exit_layer
    bounds = (
        ("num_layers", 1, None, "1 or more"),
        ("max_exit_layer", 1, num_layers, f"1 to num_layers, {num_layers}"),
        ("min_exit_layer", 1, largest, f"1 to max_exit_layer, {largest}"),
        ("warmup_layers", 0, num_layers, f"0 to num_layers, {num_layers}"),
        ("horizon", 1, MAX_HORIZON, f"1 to {MAX_HORIZON}"),
    )
    for name, low, high, allowed in bounds:
        value = getattr(schedule, name)
        if value < low or (high is not None and value > high):
            problems.append(f"{name} is {value}; allowed: {allowed}")
    return problems


def _holes(schedule: ExitSchedule) -> list[str]:
    """Each place where a token runs a layer that the token before it did not run."""
    holes = []
    for before, after in pairwise(schedule.segments):
        missing = sorted(set(after.plan.layers) - set(before.plan.layers))
        if missing:
            holes.append(
                f"generated token {after.start} runs layer {missing[0]}, which token "
                f"{after.start - 1} did not"
            )
    return holes


def _prompt_holes(schedule: ExitSchedule) -> list[str]:
    """The same among prompt tokens, whose positions depend on the prompt's length."""
    holes = []
    for before, after in pairwise(schedule.prompt_plans):
        missing = sorted(set(after.layers) - set(before.layers))
        if missing:
            holes.append(
                f"a prompt token of budget {len(after)} runs layer {missing[0]}, which one of "
                f"budget {len(before)} before it did not"
            )
    return holes
